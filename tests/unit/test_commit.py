"""Commits: retries, refusals, unknown outcomes, and what the head proves of an attempt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import (
    PreparedCommit,
    Verdict,
    is_older,
    shows_every_commit_since,
    shows_snapshot,
    verdict,
)
from icekeeper.commit.retry import backoff_seconds, patience_of
from icekeeper.commit.transaction import Committed
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
from icekeeper.metadata.updates import apply_updates
from icekeeper.model import Nothing, TableName
from icekeeper.operations.expiry.leftovers import Swap, find_swap
from icekeeper.storage.storage import Storage
from support.memory_catalog import (
    NAME,
    MemoryCatalog,
    Run,
    Script,
    append,
    busy,
    lost_to_another,
    refuse,
    unknown,
    unknown_and_lost,
    unknown_but_landed,
)
from support.tables import CREATED_MS, new_document, snapshot

# What a state of the table proves about an attempt.

UUID = "00000000-0000-0000-0000-000000000001"


def state(at: str, snapshot_ids: list[int], *, version: int = 1, updated_ms: int | None = None) -> LoadedTable:
    """A table whose main branch is at the last of the snapshots."""
    raw = [
        snapshot(i, format_version=version, sequence_number=n + 1, timestamp_ms=CREATED_MS + i)
        for n, i in enumerate(snapshot_ids)
    ]
    document: dict[str, Any] = new_document("s3://b/t", version, **{"table-uuid": UUID})
    document |= {
        "snapshots": raw,
        "current-snapshot-id": snapshot_ids[-1],
        "last-updated-ms": updated_ms or CREATED_MS + max(snapshot_ids),
    }
    if version > 1:
        document |= {
            "last-sequence-number": max(snapshot_ids),
            "refs": {"main": {"type": "branch", "snapshot-id": snapshot_ids[-1]}},
        }
    return LoadedTable(TableName(("ns",), "t"), TableMetadata(document), at, at, {})


def attempt(on: int) -> PreparedCommit:
    return PreparedCommit(
        requirements=[{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": on}],
        updates=[],
        landed=lambda metadata: 9 in metadata.snapshots,
    )


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (state("v3", [1, 2, 9]), Verdict.LANDED),
        (state("v3", [1, 2, 3]), Verdict.LOST),
        (state("v3", [1, 2]), Verdict.OPEN),
        # A catalog that keeps no log, and format version 1 without sequence numbers: what lacks the base's newest
        # snapshot, has nothing new and is younger by no clock comes from a replica that lags.
        (state("v1", [1]), Verdict.OPEN),
        # Rolled back and expired since: later, by the table's own clock.
        (state("v3", [1], updated_ms=CREATED_MS + 50), Verdict.LOST),
    ],
)
def test_a_state_proves_what_it_can(now: LoadedTable, expected: Verdict) -> None:
    assert verdict(now, state("v2", [1, 2]), attempt(on=2)) is expected


def test_an_expiry_by_a_server_whose_clock_is_behind_is_no_older_state() -> None:
    base = state("v2", [1, 2], version=2)
    expired = state("v3", [2], version=2, updated_ms=CREATED_MS - 10)
    assert not is_older(expired, base)
    assert is_older(state("v1", [1], version=2), base)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("add-snapshot", True),
        ("set-statistics", True),
        ("set-partition-statistics", True),
        ("remove-snapshots", False),
        ("set-properties", False),
        ("set-snapshot-ref", False),
    ],
)
def test_what_an_attempt_adds_tells_whether_its_files_are_needed(action: str, expected: bool) -> None:
    prepared = PreparedCommit(requirements=[], updates=[{"action": action}], landed=lambda metadata: False)
    assert prepared.names_files is expected


# What snapshots tell of a commit whose answer was lost.

BASE = {1, 2}


def after(**parents: int | None) -> TableMetadata:
    """The state in which these snapshots, ``s3=2``, came after 2, a child of 1, which has expired."""
    made = {2: 1} | {int(name.removeprefix("s")): parent for name, parent in parents.items()}
    found = [snapshot(i, format_version=2, sequence_number=i, parent_id=parent) for i, parent in made.items()]
    return TableMetadata(new_document("s3://b/t", 2, snapshots=found))


@pytest.mark.parametrize(
    ("parents", "landed", "whole"),
    [
        ({}, False, True),
        ({"s3": 2}, False, True),
        ({"s3": 1}, False, True),
        ({"s3": 2, "s4": 3}, False, True),
        ({"s9": 2}, True, True),
        ({"s9": 2, "s10": 9}, True, True),
        ({"s10": 9}, True, False),
        ({"s11": 10}, False, False),
        ({"s3": None}, False, False),
    ],
)
def test_nine_landed_if_it_or_a_child_is_there_and_may_have_if_a_newer_parent_is_gone(
    parents: dict[str, int | None], landed: bool, whole: bool
) -> None:
    metadata = after(**parents)
    assert (shows_snapshot(9, metadata), shows_every_commit_since(BASE, metadata)) == (landed, whole)


# When a commit is tried again: a lost swap, a busy catalog, a conflict that nothing explains, and what ends it.


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


def test_patience_outlasts_the_number_of_retries_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Forty swaps lost to a busy writer do not throw the work of hours away; each is logged
    (rule: commit-on-newest-head)."""
    caplog.set_level("INFO", "icekeeper.activity")
    run = Run(MemoryCatalog(scripts=[lost_to_another] * 40))
    committed = run.go(max_retries=2, patience_s=600)
    assert isinstance(committed, Committed)
    assert committed.attempts == 41
    assert max(run.waits) <= 5.0
    lost = [record.__dict__ for record in caplog.records if record.__dict__["event"] == "swap_lost"]
    assert [(line["attempt"], line["seconds"]) for line in lost] == [
        (number, round(wait, 3)) for number, wait in enumerate(run.waits, 1)
    ]
    run = Run(MemoryCatalog(scripts=[lost_to_another] * 99))
    with pytest.raises(CommitConflict):
        run.go(max_retries=2, patience_s=20)
    assert 20 <= sum(run.waits) < 25


@dataclass
class SteadyWriter(MemoryCatalog):
    """Somebody else commits every 0.2 s of the time that ``waits`` add up to, for the first time at ``next_s``."""

    waits: list[float] = field(default_factory=list)
    next_s: float = 0.0

    def load(self, table: TableName) -> LoadedTable:
        while sum(self.waits) >= self.next_s:
            self.change(*append(self.version, self.metadata.last_sequence_number + 1))
            self.next_s += 0.2
        return super().load(table)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        self.load(base.name)
        return super().commit(base, requirements, updates)


class SlowRun(Run):
    """Each attempt takes 0.15 s."""

    def prepare(self, head: LoadedTable) -> PreparedCommit | Nothing:
        self.waits.append(0.15)
        return super().prepare(head)


@pytest.mark.parametrize("phase", range(20))
def test_the_third_attempt_begins_right_after_a_commit_of_the_busy_writer(phase: int) -> None:
    """It is shorter than the time between two of his commits, so it wins; at a random moment one in four does."""
    catalog = SteadyWriter(next_s=phase / 100)
    run = SlowRun(catalog, waits=catalog.waits)
    committed = run.go(max_retries=99)
    assert isinstance(committed, Committed)
    assert committed.attempts <= 3
    assert committed.prepared.snapshot_id in catalog.metadata.snapshots


def test_nobody_waits_long_for_a_writer_who_does_not_come() -> None:
    run = SlowRun(MemoryCatalog(scripts=[lost_to_another] * 2))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert committed.attempts == 3
    backoffs_s, attempts_s = 0.05 + 0.1, 3 * 0.15
    assert sum(run.waits) < backoffs_s + attempts_s + 2 * 0.15 + 0.05


@pytest.mark.parametrize(
    ("work_s", "left_s", "patience_s"),
    [(0, None, 30), (120, None, 120), (7200, None, 900), (7200, 100, 70), (7200, 20, 0), (60, 5000, 60)],
)
def test_patience_is_in_proportion_to_the_work_at_stake(work_s: float, left_s: float | None, patience_s: float) -> None:
    """Half a minute to a quarter of an hour, and half a minute less than the process lives on."""
    assert patience_of(work_s, left_s) == patience_s


def test_waits_double_up_to_five_seconds_with_jitter() -> None:
    for attempt in range(12):
        step = min(5.0, 0.05 * 2**attempt)
        assert step / 2 <= backoff_seconds(attempt) <= step


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


def test_a_busy_catalog_whose_table_moved_meanwhile_gets_a_new_attempt() -> None:
    def overtaken_and_busy(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        catalog.change(*append(7, catalog.metadata.last_sequence_number + 1))
        raise CatalogBusy("HTTP 429: later")

    run = Run(MemoryCatalog(scripts=[overtaken_and_busy]))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (committed.prepared.snapshot_id, run.discarded) == (102, ["staged-1"])


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


# A commit that the catalog refuses: believed only when the head, or what the store shows, agrees.


def test_a_conflict_about_ones_own_success_is_success() -> None:
    """A client that repeats a request by itself hears of a conflict with what it just committed (iceberg 5752)."""

    def landed_then_conflict(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        raise CommitConflict("ref main is at snapshot 101")

    run = Run(MemoryCatalog(scripts=[landed_then_conflict]))
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


# On which state a commit was really made, as the metadata log of a later state tells.

SNAPSHOT = snapshot(1, format_version=2)


class History:
    """States 0, 1, …, each in a file of its own; each names the files of those before it, or only some of them."""

    def __init__(self, folder: Path, *, log_entries: int = 100) -> None:
        self._folder, self._log_entries = folder, log_entries
        self.states: list[LoadedTable] = []

    def commit(self, *, has_snapshot: bool) -> LoadedTable:
        log = [{"timestamp-ms": 0, "metadata-file": state.metadata_location} for state in self.states]
        document = new_document(
            self._folder.as_uri(),
            2,
            snapshots=[SNAPSHOT] if has_snapshot else [],
            **{"metadata-log": log[len(log) - self._log_entries :] if len(log) > self._log_entries else log},
        )
        path = self._folder / f"{len(self.states)}.metadata.json"
        path.write_text(json.dumps(document))
        state = LoadedTable(TableName.parse("ns.t"), TableMetadata(document), path.as_uri(), "", {})
        self.states.append(state)
        return state

    def file(self, number: int) -> Path:
        return self._folder / f"{number}.metadata.json"

    def swap(self, known: int | None = None) -> tuple[str, TableMetadata] | None:
        found = find_swap(
            self.states[-1],
            lambda then: 1 in then.snapshots,
            Storage({}),
            None if known is None else self.states[known],
        )
        return None if found is None else (found.location.rpartition("/")[2], found.after)


def made(folder: Path, *, before: int, after: int, log_entries: int = 100) -> History:
    history = History(folder, log_entries=log_entries)
    for number in range(before + after):
        history.commit(has_snapshot=number < before)
    return history


def test_the_state_that_the_commit_was_prepared_on_is_not_read(tmp_path: Path) -> None:
    history = made(tmp_path, before=2, after=1)
    history.file(1).unlink()
    base, now = history.states[1:]
    found = find_swap(now, lambda then: 1 in then.snapshots, Storage({}), base)
    assert found == Swap(base.metadata_location, base.metadata, now.metadata)


@pytest.mark.parametrize("log_entries", [100, 1], ids=["long log", "log of one"])
def test_it_is_the_last_one_with_the_snapshots_however_much_has_landed_since(tmp_path: Path, log_entries: int) -> None:
    """The state that an expiry replaced is read from the metadata log."""
    history = made(tmp_path, before=3, after=5, log_entries=log_entries)
    swap = history.swap(known=1)
    assert swap is not None
    location, after = swap
    assert location == "2.metadata.json", "not the state that we knew"
    assert after.document == history.states[3].metadata.document


def test_a_log_that_is_empty_or_names_files_that_are_gone_tells_nothing(tmp_path: Path) -> None:
    assert made(tmp_path, before=0, after=1).swap() is None
    history = made(tmp_path, before=2, after=2)
    history.file(2).unlink()
    assert history.swap(known=1) is None


def test_a_state_that_cannot_be_parsed_is_no_answer(tmp_path: Path) -> None:
    history = made(tmp_path, before=2, after=2)
    history.file(2).write_text("{")
    with pytest.raises(MetadataUnreadable, match=r"2\.metadata\.json"):
        history.swap(known=1)


# A commit whose outcome is unknown: what the head shows settles it, and until then its files stay.


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


def test_an_answer_that_is_no_table_metadata_is_an_unknown_outcome() -> None:
    def landed_and_garbled(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        land()
        raise MetadataUnreadable("not JSON")

    run = Run(MemoryCatalog(scripts=[landed_and_garbled]))
    assert isinstance(run.go(), Committed)
    assert run.discarded == []


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
