"""The commit loop against a catalog in memory that loses answers, swaps and tables on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.resolve_outcome import backoff_seconds
from icekeeper.commit.transaction import Committed, CommitTerms, commit_with_retries
from icekeeper.errors import (
    CatalogBusy,
    CommitConflict,
    CommitRefused,
    CommitStateUnknown,
    LeaseLost,
    MaintenanceError,
    MetadataUnreadable,
    PlanStale,
    PolicyError,
    StorageError,
)
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.requirements import check_requirements
from icekeeper.metadata.updates import apply_updates
from icekeeper.model import Nothing, TableName
from support.tables import new_document, snapshot

NAME = TableName(("ns",), "t")
Script = Callable[["MemoryCatalog", Callable[[], LoadedTable]], LoadedTable]


@dataclass
class MemoryCatalog:
    """A REST-like catalog: only requirements decide.  ``script`` gets each commit as something to do, or not."""

    name: str = "memory"
    warehouse: str = ""
    version: int = 1
    metadata: TableMetadata = field(default_factory=lambda: TableMetadata(new_document("s3://b/t", 2)))
    scripts: list[Script] = field(default_factory=list)
    load_errors: list[Exception] = field(default_factory=list)
    lagging: list[LoadedTable] = field(default_factory=list)
    commits: int = 0

    built_in_maintenance = None

    def list_tables(self) -> Iterator[TableName]:
        yield NAME

    def load(self, table: TableName) -> LoadedTable:
        if self.load_errors:
            raise self.load_errors.pop(0)
        if self.lagging:
            return self.lagging.pop(0)
        location = f"v{self.version}"
        return LoadedTable(table, self.metadata, location, location, {})

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        self.commits += 1

        def land() -> LoadedTable:
            check_requirements(self.metadata, requirements)
            self.change(*updates)
            return self.load(base.name)

        return self.scripts.pop(0)(self, land) if self.scripts else land()

    def change(self, *updates: Mapping[str, Any]) -> None:
        self.metadata = apply_updates(self.metadata, updates, metadata_location=f"v{self.version}", now_ms=1)
        self.version += 1


def append(snapshot_id: int, sequence: int, parent: int | None = None) -> list[dict[str, Any]]:
    raw = snapshot(snapshot_id, format_version=2, sequence_number=sequence, parent_id=parent)
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    return [{"action": "add-snapshot", "snapshot": raw}, ref]


@dataclass
class Run:
    """One commit through the loop; attempt n stages ``staged-n`` and adds snapshot 100 + n."""

    catalog: MemoryCatalog
    discarded: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    attempts: int = 0
    cannot_have_landed: bool = True
    traces: list[TableMetadata] = field(default_factory=list)
    renew: Callable[[], None] = lambda: None

    def prepare(self, head: LoadedTable) -> PreparedCommit | Nothing:
        self.attempts += 1
        wanted, current = 100 + self.attempts, head.metadata.current_snapshot
        parent = None if current is None else current.snapshot_id
        return PreparedCommit(
            requirements=[{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}],
            updates=append(wanted, head.metadata.last_sequence_number + 1, parent),
            landed=lambda metadata: wanted in metadata.snapshots,
            staged=[f"staged-{self.attempts}"],
            snapshot_id=wanted,
            cannot_have_landed=lambda metadata: self.cannot_have_landed,
        )

    def find_traces(self, base: LoadedTable) -> list[TableMetadata]:
        """What the store holds beside what the catalog shows."""
        return self.traces

    def go(self, *, max_retries: int = 2) -> Committed | Nothing:
        return commit_with_retries(
            self.catalog,
            self.catalog.load(NAME),
            self.prepare,
            CommitTerms(
                max_retries=max_retries,
                discard=self.discarded.extend,
                pinned_metadata=tuple,
                renew=self.renew,
                traces=self.find_traces,
                sleep=self.waits.append,
            ),
        )


def lost_to_another(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    catalog.change(*append(catalog.commits, catalog.metadata.last_sequence_number + 1))
    return land()


def unknown_and_lost(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    catalog.change(*append(catalog.commits, catalog.metadata.last_sequence_number + 1))
    raise CommitStateUnknown("no answer")


def unknown_but_landed(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    land()
    raise CommitStateUnknown("no answer")


def unknown(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    raise CommitStateUnknown("no answer")


def test_a_lost_swap_is_prepared_anew_on_the_new_head() -> None:
    run = Run(MemoryCatalog(scripts=[lost_to_another]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (committed.attempts, committed.prepared.snapshot_id) == (2, 102)
    assert run.discarded == ["staged-1"]
    assert set(run.catalog.metadata.snapshots) == {1, 102}


@pytest.mark.parametrize("script", [lost_to_another, unknown_and_lost])
def test_retries_end_in_a_conflict_with_nothing_left_staged(script: Script) -> None:
    run = Run(MemoryCatalog(scripts=[script] * 9))
    with pytest.raises(CommitConflict):
        run.go(max_retries=3)
    assert run.attempts == run.catalog.commits == 4
    assert run.discarded == [f"staged-{n}" for n in range(1, 5)]


def test_waits_double_up_to_five_seconds_with_jitter() -> None:
    for attempt in range(12):
        step = min(5.0, 0.05 * 2**attempt)
        assert step / 2 <= backoff_seconds(attempt) <= step


def test_an_unknown_commit_that_landed_is_found_by_its_snapshot() -> None:
    run = Run(MemoryCatalog(scripts=[unknown_but_landed]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert committed.attempts == run.catalog.commits == 1
    assert run.discarded == []


def test_a_commit_on_top_of_an_unknown_one_that_landed_changes_nothing_about_it() -> None:
    def landed_and_overtaken(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        catalog.change(*append(7, catalog.metadata.last_sequence_number + 1, parent=101))
        raise CommitStateUnknown("no answer")

    run = Run(MemoryCatalog(scripts=[landed_and_overtaken]))
    assert isinstance(run.go(), Committed)
    assert run.attempts == 1


def test_while_an_unknown_commit_may_still_land_its_files_stay() -> None:
    """A token that moved is no proof: an unrelated change leaves what the attempt requires as it was."""

    def unknown_and_unrelated(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        catalog.change({"action": "set-properties", "updates": {"a": "b"}})
        raise CommitStateUnknown("no answer")

    for script in (unknown, unknown_and_unrelated):
        run = Run(MemoryCatalog(scripts=[script]))
        with pytest.raises(CommitStateUnknown):
            run.go()
        assert run.attempts == 1
        assert run.discarded == []
        assert 3 < sum(run.waits) < 7


@pytest.mark.parametrize("gone", [PolicyError("no such table"), StorageError("down"), MetadataUnreadable("torn")])
def test_a_table_that_cannot_be_read_proves_nothing(gone: MaintenanceError) -> None:
    run = Run(MemoryCatalog(scripts=[lambda catalog, land: _break(catalog, gone)]))
    with pytest.raises(CommitStateUnknown):
        run.go()
    assert run.discarded == []


def _break(catalog: MemoryCatalog, error: MaintenanceError) -> LoadedTable:
    catalog.load_errors = [error] * 20
    raise CommitStateUnknown("no answer")


def test_an_endpoint_that_comes_back_settles_it() -> None:
    def landed_then_down(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        catalog.load_errors = [StorageError("down")] * 3
        raise CommitStateUnknown("no answer")

    assert isinstance(Run(MemoryCatalog(scripts=[landed_then_down])).go(), Committed)


def test_a_conflict_about_ones_own_success_is_success() -> None:
    """A client that repeats a request by itself hears of a conflict with what it just committed (iceberg 5752)."""

    def landed_then_conflict(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        raise CommitConflict("ref main is at snapshot 101")

    run = Run(MemoryCatalog(scripts=[landed_then_conflict]))
    assert isinstance(run.go(), Committed)
    assert run.discarded == []


def test_an_answer_that_is_no_table_metadata_is_an_unknown_outcome() -> None:
    def landed_and_garbled(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        raise MetadataUnreadable("not JSON")

    run = Run(MemoryCatalog(scripts=[landed_and_garbled]))
    assert isinstance(run.go(), Committed)
    assert run.discarded == []


@pytest.mark.parametrize("error", [CommitRefused("no"), CatalogBusy("no"), CommitConflict("no")])
def test_a_no_to_what_the_head_shows_is_success(error: MaintenanceError) -> None:
    """A server may act and answer 404, 403 or 429 nevertheless."""

    def landed_and_refused(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        raise error

    run = Run(MemoryCatalog(scripts=[landed_and_refused]))
    assert isinstance(run.go(), Committed)
    assert (run.catalog.commits, run.discarded, run.waits) == (1, [], [])


@pytest.mark.parametrize("error", [CommitRefused("no"), CatalogBusy("no"), CommitConflict("no")])
def test_a_no_that_the_head_cannot_confirm_keeps_the_files(error: MaintenanceError) -> None:
    def refuse_and_break(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        catalog.load_errors = [StorageError("down")]
        raise error

    run = Run(MemoryCatalog(scripts=[refuse_and_break]))
    with pytest.raises(CommitStateUnknown, match="cannot be read to make sure of it: down"):
        run.go()
    assert (run.catalog.commits, run.discarded, run.waits) == (1, [], [])


def test_a_no_to_what_could_have_landed_and_expired_keeps_the_files() -> None:
    def refuse(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise CommitRefused("no")

    run = Run(MemoryCatalog(scripts=[refuse]))
    run.cannot_have_landed = False
    with pytest.raises(CommitStateUnknown, match="expired already"):
        run.go()
    assert run.discarded == []


def test_a_confirmed_refusal_is_told_in_the_catalogs_words_after_a_few_looks() -> None:
    def refuse(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise CommitRefused("HTTP 403: not you")

    run = Run(MemoryCatalog(scripts=[refuse]))
    with pytest.raises(StorageError, match=r"^HTTP 403: not you$") as raised:
        run.go()
    assert type(raised.value) is StorageError  # the name that a state machine knows
    assert (run.catalog.commits, run.discarded) == (1, ["staged-1"])
    assert [0.4 * 2**n <= wait <= 0.8 * 2**n for n, wait in enumerate(run.waits)] == [True] * 3


def test_a_busy_catalog_is_asked_again_after_seconds_and_not_for_ever() -> None:
    def busy(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise CatalogBusy("HTTP 429: later")

    run = Run(MemoryCatalog(scripts=[busy] * 2))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (committed.attempts, run.attempts, run.discarded) == (3, 1, [])  # the same attempt, sent again
    assert 0.4 <= run.waits[0] <= 0.8 <= run.waits[1] <= 1.6
    run = Run(MemoryCatalog(scripts=[busy] * 9))
    with pytest.raises(StorageError, match=r"^HTTP 429: later$"):
        run.go(max_retries=3)
    assert (run.catalog.commits, run.discarded) == (4, ["staged-1"])


def test_a_success_that_is_not_shown_at_once_is_looked_for() -> None:
    def landed_but_shows_the_past(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        past = catalog.load(NAME)
        land()
        catalog.load_errors = [StorageError("down")]
        return past

    run = Run(MemoryCatalog(scripts=[landed_but_shows_the_past]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert set(committed.table.metadata.snapshots) == {101}
    assert run.discarded == []


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_success_that_is_never_shown_is_unknown(overtaken: bool) -> None:
    """Not even another commit on the same base disproves what the catalog itself says that it did."""

    def claim(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        if overtaken:
            catalog.change(*append(7, catalog.metadata.last_sequence_number + 1))
        return catalog.load(NAME)

    run = Run(MemoryCatalog(scripts=[claim]))
    with pytest.raises(
        CommitStateUnknown, match="answered that the commit landed, but the table's metadata do not show"
    ):
        run.go()
    assert (run.catalog.commits, run.discarded) == (1, [])
    assert 3 < sum(run.waits) < 7


def test_a_success_about_another_table_is_none() -> None:
    def answer_with_another(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        before = catalog.metadata
        after = land()
        catalog.metadata = before
        elsewhere = {**after.metadata.document, "table-uuid": "00000000-0000-0000-0000-000000000009"}
        return replace(after, metadata=TableMetadata(elsewhere))

    run = Run(MemoryCatalog(scripts=[answer_with_another]))
    with pytest.raises(CommitStateUnknown):
        run.go()
    assert run.discarded == []


@pytest.mark.parametrize("error", [StorageError("refused"), PolicyError("no such table"), LeaseLost("too slow")])
def test_a_swap_that_was_never_sent_leaves_nothing_staged(error: MaintenanceError) -> None:
    def never_sent(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise error

    run = Run(MemoryCatalog(scripts=[never_sent]))
    with pytest.raises(type(error)):
        run.go()
    assert run.discarded == ["staged-1"]


def test_a_crash_discards_nothing() -> None:
    """What interrupts us may have interrupted a commit that landed."""

    def interrupted(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        raise KeyboardInterrupt

    run = Run(MemoryCatalog(scripts=[interrupted]))
    with pytest.raises(KeyboardInterrupt):
        run.go()
    assert run.discarded == []


def test_a_plan_that_cannot_follow_ends_the_loop() -> None:
    run = Run(MemoryCatalog(scripts=[lost_to_another]))
    prepared = iter([run.prepare])

    def once(head: LoadedTable) -> PreparedCommit | Nothing:
        for prepare in prepared:
            return prepare(head)
        raise PlanStale("rolled back")

    run.prepare = once  # type: ignore[method-assign]
    with pytest.raises(PlanStale):
        run.go()
    assert run.discarded == ["staged-1"]


NOES_AND_SILENCE = [CommitConflict("ref main moved"), CommitStateUnknown("no answer")]


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("error", NOES_AND_SILENCE)
def test_a_replica_that_lags_proves_nothing(error: MaintenanceError, back: int) -> None:
    """It shows the state that the attempt was made on, or one before, after the attempt has landed."""
    run = Run(MemoryCatalog())
    states = []
    for number in (1, 2, 3):
        run.catalog.change(*append(number, number + 1))
        states.append(run.catalog.load(NAME))

    def landed_but_shows_the_past(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        catalog.lagging = [states[-1 - back]] * 2
        raise error

    run.catalog.scripts = [landed_but_shows_the_past]
    committed = run.go(max_retries=3)
    assert isinstance(committed, Committed)
    assert committed.prepared.snapshot_id == 101
    assert (run.attempts, run.discarded) == (1, [])


def test_a_conflict_that_nothing_explains_is_sent_again_and_may_land() -> None:
    """Glue says so when somebody changed a table's description."""

    def refuse(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise CommitConflict("changed meanwhile")

    run = Run(MemoryCatalog(scripts=[refuse, refuse]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (committed.attempts, run.attempts, run.discarded) == (3, 1, [])


@pytest.mark.parametrize("then", [CommitConflict("moved"), StorageError("never sent"), LeaseLost("too slow")])
def test_a_conflict_that_is_never_explained_keeps_the_files(then: MaintenanceError) -> None:
    errors = iter([CommitConflict("moved"), then, then])

    def refuse(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise next(errors)

    run = Run(MemoryCatalog(scripts=[refuse] * 3))
    with pytest.raises(CommitStateUnknown):
        run.go()
    assert (run.attempts, run.discarded) == (1, [])


def test_a_doubtful_attempt_that_another_commit_overtook_is_prepared_anew() -> None:
    def refuse(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise CommitConflict("changed meanwhile")

    run = Run(MemoryCatalog(scripts=[refuse, lost_to_another]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (committed.prepared.snapshot_id, run.discarded) == (102, ["staged-1"])


@pytest.mark.parametrize("error", [CommitRefused("no"), CatalogBusy("no")])
@pytest.mark.parametrize("lag", [1, 2, 3])
@pytest.mark.parametrize("back", [0, 1])
def test_a_no_to_what_a_replica_shows_late_is_success(error: MaintenanceError, lag: int, back: int) -> None:
    """The server acts, answers no, and for a while shows the table as it was: nothing may be discarded."""
    run = Run(MemoryCatalog())
    states = []
    for number in (1, 2):
        run.catalog.change(*append(number, number + 1))
        states.append(run.catalog.load(NAME))

    def landed_but_shows_the_past(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        catalog.lagging = [states[-1 - back]] * lag
        raise error

    run.catalog.scripts = [landed_but_shows_the_past]
    committed = run.go(max_retries=4)
    assert isinstance(committed, Committed)
    assert (committed.prepared.snapshot_id, run.attempts, run.discarded) == (101, 1, [])


def refuse(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    raise CommitRefused("HTTP 403: not you")


def busy(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    raise CatalogBusy("HTTP 429: later")


def test_a_conflict_after_too_many_requests_is_looked_up_by_the_attempt_that_was_sent_first() -> None:
    """The 429 was about a commit that landed; the same one, sent again, meets itself."""

    def landed_and_busy(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        past = catalog.load(NAME)
        land()
        catalog.lagging = [past]
        raise CatalogBusy("HTTP 429: later")

    run = Run(MemoryCatalog(scripts=[landed_and_busy]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (run.catalog.commits, run.attempts, run.discarded) == (2, 1, [])
    assert set(committed.table.metadata.snapshots) == {101}


def test_a_busy_catalog_whose_table_moved_meanwhile_gets_a_new_attempt() -> None:
    def overtaken_and_busy(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        catalog.change(*append(7, catalog.metadata.last_sequence_number + 1))
        raise CatalogBusy("HTTP 429: later")

    run = Run(MemoryCatalog(scripts=[overtaken_and_busy]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (committed.prepared.snapshot_id, run.discarded) == (102, ["staged-1"])


@pytest.mark.parametrize("script", [refuse, busy])
def test_what_the_store_shows_of_a_refused_commit_outweighs_a_catalog_that_never_shows_it(script: Script) -> None:
    """A replica may lag for ever; the metadata file of a commit that landed lies beside the table's others."""
    run = Run(MemoryCatalog(scripts=[script] * 9))
    head = run.catalog.metadata
    run.traces = [head, apply_updates(head, append(101, 1), metadata_location="v1", now_ms=1)]
    with pytest.raises(CommitStateUnknown, match="a metadata file in the store shows the commit"):
        run.go()
    assert run.discarded == []


def test_a_store_that_cannot_be_asked_for_traces_keeps_the_files() -> None:
    run = Run(MemoryCatalog(scripts=[refuse]))

    def fail(base: LoadedTable) -> list[TableMetadata]:
        raise StorageError("slow down")

    run.find_traces = fail  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown, match="slow down"):
        run.go()
    assert run.discarded == []


def test_a_refusal_with_a_head_that_disproves_the_commit_needs_no_second_look() -> None:
    def overtaken_and_refused(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        catalog.change(*append(7, catalog.metadata.last_sequence_number + 1))
        raise CommitRefused("HTTP 403: not you")

    run = Run(MemoryCatalog(scripts=[overtaken_and_refused]))
    with pytest.raises(StorageError, match=r"^HTTP 403: not you$"):
        run.go()
    assert (run.discarded, run.waits) == (["staged-1"], [])


def test_a_conflict_of_what_was_sent_twice_is_not_explained_by_an_unrelated_change() -> None:
    """429 about a commit that landed on an unrelated change; the replica shows only that change."""

    def landed_and_busy(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        past = catalog.load(NAME)
        catalog.change({"action": "set-properties", "updates": {"a": "b"}})
        changed = catalog.load(NAME)
        land()
        catalog.lagging = [past, changed]
        raise CatalogBusy("HTTP 429: later")

    run = Run(MemoryCatalog(scripts=[landed_and_busy]))
    assert isinstance(run.go(), Committed)
    assert (run.attempts, run.discarded) == (1, [])


def test_a_document_that_a_refused_swap_left_goes_only_when_the_refusal_is_believed() -> None:
    def refuse_and_leave(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        raise CommitRefused("no", left=("document",))

    run = Run(MemoryCatalog(scripts=[refuse_and_leave]))
    with pytest.raises(StorageError):
        run.go()
    assert run.discarded == ["staged-1", "document"]

    def land_and_leave(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        past = catalog.load(NAME)
        land()
        catalog.lagging = [past] * 2
        raise CommitRefused("no", left=("document",))

    run = Run(MemoryCatalog(scripts=[land_and_leave]))
    assert isinstance(run.go(), Committed)
    assert run.discarded == []


def test_the_right_to_commit_is_renewed_just_before_every_swap() -> None:
    """Between two swaps another pass may have taken the files for those of a dead job."""
    order: list[str] = []

    def overtaken(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        order.append("swap")
        return lost_to_another(catalog, land)

    run = Run(MemoryCatalog(scripts=[overtaken, overtaken]))

    def renew() -> None:
        order.append("renew")
        if order.count("renew") == 3:
            raise PlanStale("stood still for so long")

    run.renew = renew
    with pytest.raises(PlanStale, match="stood still"):
        run.go(max_retries=5)
    assert order == ["renew", "swap", "renew", "swap", "renew"]
    assert run.discarded == ["staged-1", "staged-2", "staged-3"]


def test_a_refusal_of_what_needs_no_files_is_believed_after_one_look() -> None:
    """An expiry whose catalog does not know an update tries again without it, in every pass."""
    run = Run(MemoryCatalog(scripts=[refuse]))
    adding = run.prepare

    def expire(head: LoadedTable) -> PreparedCommit | Nothing:
        prepared = adding(head)
        assert isinstance(prepared, PreparedCommit)
        return replace(prepared, updates=[{"action": "remove-snapshots", "snapshot-ids": [1]}], staged=())

    run.prepare = expire  # type: ignore[method-assign]
    with pytest.raises(StorageError, match=r"^HTTP 403: not you$"):
        run.go()
    assert (run.catalog.commits, run.waits) == (1, [])
