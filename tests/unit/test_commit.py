"""Commits: retries, refusals, unknown outcomes, and what the head proves about an attempt."""

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

# What a table state proves about a commit attempt.

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
        # The catalog keeps no log, and format version 1 has no sequence numbers: a state that lacks the base's newest
        # snapshot, adds nothing and is not younger comes from a replica that lags.
        (state("v1", [1]), Verdict.OPEN),
        # A rollback and an expiry followed: the state is later by the table's clock.
        (state("v3", [1], updated_ms=CREATED_MS + 50), Verdict.LOST),
    ],
)
def test_a_later_state_decides_whether_an_attempt_landed(now: LoadedTable, expected: Verdict) -> None:
    assert verdict(now, state("v2", [1, 2]), attempt(on=2)) is expected


def test_an_expiry_by_a_server_with_a_slow_clock_is_not_an_older_state() -> None:
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
def test_the_updates_of_an_attempt_show_whether_it_names_files(action: str, expected: bool) -> None:
    prepared = PreparedCommit(requirements=[], updates=[{"action": action}], landed=lambda metadata: False)
    assert prepared.names_files is expected


# Whether the snapshots of a table show a commit whose answer was lost.

BASE = {1, 2}


def after(**parents: int | None) -> TableMetadata:
    """A table with snapshot 2, a child of the expired snapshot 1, and these snapshots; ``s3=2``: 3 is a child of 2."""
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
def test_snapshot_nine_landed_if_it_or_a_child_is_present_and_may_have_if_a_newer_parent_is_missing(
    parents: dict[str, int | None], landed: bool, whole: bool
) -> None:
    metadata = after(**parents)
    assert (shows_snapshot(9, metadata), shows_every_commit_since(BASE, metadata)) == (landed, whole)


# When a commit is sent again, what the head or the store proves about it, and which staged files are discarded.

BUSY, REFUSED = CatalogBusy("HTTP 429: later"), CommitRefused("HTTP 403: not you")
CONFLICT, NO_ANSWER, DOWN = CommitConflict("ref main moved"), CommitStateUnknown("none"), StorageError("down")
UNKNOWN, NOT_YOU = CommitStateUnknown, "^HTTP 403: not you$"
WITH_DOCUMENT = CommitRefused("no", left=("document",))


def answer(steps: str, error: BaseException | None = None, down: Sequence[Exception] = ()) -> Script:
    """A swap with these steps; later loads first raise ``down``, then return the states that ``see`` recorded."""

    def script(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
        seen = []
        for step in steps.split():
            sequence = catalog.metadata.last_sequence_number + 1
            if step == "see":
                seen.append(catalog.load(NAME))
            elif step == "land":
                land()
            elif step == "overtake":
                catalog.change(*append(7, sequence))
            elif step == "build-upon":
                catalog.change(*append(7, sequence, parent=101))
            elif step == "describe":
                catalog.change({"action": "set-properties", "updates": {"a": "b"}})
        claimed = seen.pop() if error is None and seen else catalog.load(NAME)
        catalog.lagging, catalog.load_errors = seen, list(down)
        if error is not None:
            raise error
        return claimed

    return script


LANDED: dict[str, tuple[list[Script], int, int, list[str]]] = {
    "a lost swap is prepared anew": ([lost_to_another], 2, 102, ["staged-1"]),
    # Glue reports a conflict when another client changed a table's description.
    "conflicts that nothing explains": ([answer("", CONFLICT)] * 2, 3, 101, []),
    "in doubt, then overtaken": ([answer("", CONFLICT), lost_to_another], 3, 102, ["staged-1"]),
    "busy and overtaken": ([answer("overtake", BUSY)], 2, 102, ["staged-1"]),
    "busy twice": ([answer("", BUSY)] * 2, 3, 101, []),
    # A server may commit and still answer 404, 403 or 429; a client that repeats a request by itself gets a conflict
    # with its own commit (iceberg 5752).
    **{f"landed: {error}": ([answer("land", error)], 1, 101, []) for error in (REFUSED, BUSY, CONFLICT)},
    "a 429 for a commit that landed, then a conflict with it": ([answer("see land", BUSY)], 2, 101, []),
    "a 429, and a replica that shows an unrelated change": ([answer("see describe see land", BUSY)], 2, 101, []),
    "a wrong refusal that left a document": ([answer("see see land", WITH_DOCUMENT)], 1, 101, []),
    "no answer": ([unknown_but_landed], 1, 101, []),
    "no answer, landed and built upon": ([answer("land build-upon", NO_ANSWER)], 1, 101, []),
    "an endpoint that comes back": ([answer("land", NO_ANSWER, [DOWN] * 3)], 1, 101, []),
    "an answer that is no metadata": ([answer("land", MetadataUnreadable("not JSON"))], 1, 101, []),
    "a success that is not shown at once": ([answer("see land", None, [DOWN])], 1, 101, []),
}


@pytest.mark.parametrize(("scripts", "sent", "snapshot_id", "discarded"), LANDED.values(), ids=LANDED)
def test_commits_that_land_are_found(scripts: list[Script], sent: int, snapshot_id: int, discarded: list[str]) -> None:
    run = Run(MemoryCatalog(scripts=list(scripts)))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert (run.catalog.commits, committed.prepared.snapshot_id, run.discarded) == (sent, snapshot_id, discarded)
    assert (run.attempts, snapshot_id in run.catalog.metadata.snapshots) == (snapshot_id - 100, True)


def test_a_busy_catalog_is_retried_after_a_wait_and_a_visible_commit_without() -> None:
    """A busy catalog gets the same attempt again after a wait; a landed commit that the head shows needs no wait."""
    run = Run(MemoryCatalog(scripts=[answer("", BUSY)] * 2))
    committed = run.go()
    assert isinstance(committed, Committed)
    assert committed.attempts == 3
    assert 0.4 <= run.waits[0] <= 0.8 <= run.waits[1] <= 1.6
    for error in (REFUSED, BUSY, CONFLICT):
        run = Run(MemoryCatalog(scripts=[answer("land", error)]))
        run.go()
        assert run.waits == []


def answer_with_another_table(catalog: MemoryCatalog, land: Callable[[], LoadedTable]) -> LoadedTable:
    before, after = catalog.metadata, land()
    catalog.metadata = before
    elsewhere = {**after.metadata.document, "table-uuid": "00000000-0000-0000-0000-000000000009"}
    return replace(after, metadata=TableMetadata(elsewhere))


FOUR_STAGED = [f"staged-{number}" for number in range(1, 5)]
NEVER_SHOWN = "answered that the commit landed, but the table's metadata do not show"
UNCONFIRMED = "cannot be read to confirm this: down"

Ending = tuple[list[Script], type[BaseException], str | None, int | None, list[str], tuple[float, float] | None]
NOT_LANDED: dict[str, Ending] = {
    "lost to others": ([lost_to_another] * 9, CommitConflict, None, 4, FOUR_STAGED, None),
    "unknown and lost to others": ([unknown_and_lost] * 9, CommitConflict, None, 4, FOUR_STAGED, None),
    "busy": ([answer("", BUSY)] * 9, StorageError, "^HTTP 429: later$", 4, ["staged-1"], None),
    **{
        f"never sent: {error}": ([answer("", error)], type(error), str(error), 1, ["staged-1"], None)
        for error in (StorageError("refused"), PolicyError("no such table"), LeaseLost("too slow"))
    },
    # An interrupt may come after the commit has landed.
    "interrupted": ([answer("land", KeyboardInterrupt())], KeyboardInterrupt, None, 1, [], None),
    **{
        f"in doubt, then {then}": ([answer("", CONFLICT), *[answer("", then)] * 3], UNKNOWN, None, None, [], None)
        for then in (CONFLICT, StorageError("never sent"), LeaseLost("too slow"))
    },
    **{
        f"unconfirmed: {error}": ([answer("", error, [DOWN])], UNKNOWN, UNCONFIRMED, 1, [], (0, 0))
        for error in (REFUSED, BUSY, CONFLICT)
    },
    # The error class that the state machine retries, with the catalog's message, after three loads.
    "refused": ([refuse], StorageError, NOT_YOU, 1, ["staged-1"], (2.8, 5.6)),
    "refused and disproved": ([answer("overtake", REFUSED)], StorageError, NOT_YOU, 1, ["staged-1"], (0, 0)),
    "refused with a document": ([answer("", WITH_DOCUMENT)], StorageError, "no", 1, ["staged-1", "document"], None),
    "no answer": ([unknown], UNKNOWN, None, 1, [], (3, 7)),
    # A new version token proves nothing: after an unrelated change, the requirements of the attempt still hold.
    "no answer, unrelated change": ([answer("describe", NO_ANSWER)], UNKNOWN, None, 1, [], (3, 7)),
    **{
        f"no answer, then {gone}": ([answer("", NO_ANSWER, [gone] * 20)], UNKNOWN, None, 1, [], None)
        for gone in (PolicyError("no such table"), DOWN, MetadataUnreadable("torn"))
    },
    # Even another commit on the same base is no evidence against the catalog's own answer.
    "a success that is never shown": ([answer("")], UNKNOWN, NEVER_SHOWN, 1, [], (3, 7)),
    "a success that is never shown, overtaken": ([answer("overtake")], UNKNOWN, NEVER_SHOWN, 1, [], (3, 7)),
    "a success of another table": ([answer_with_another_table], UNKNOWN, None, 1, [], None),
}


@pytest.mark.parametrize(
    ("scripts", "raised", "match", "sent", "discarded", "waits_s"), NOT_LANDED.values(), ids=NOT_LANDED
)
def test_a_commit_that_does_not_land_or_may_have_raises_and_discards_only_lost_files(
    scripts: list[Script],
    raised: type[BaseException],
    match: str | None,
    sent: int | None,
    discarded: list[str],
    waits_s: tuple[float, float] | None,
) -> None:
    run = Run(MemoryCatalog(scripts=list(scripts)))
    with pytest.raises(raised, match=match) as found:
        run.go(max_retries=3)
    assert type(found.value) is raised
    assert run.discarded == discarded
    assert run.catalog.commits == (sent or run.catalog.commits)
    # Only a swap that certainly failed is prepared again.
    assert run.attempts == (4 if raised is CommitConflict else 1)
    if waits_s is not None:
        assert waits_s[0] <= sum(run.waits) <= waits_s[1]


def test_a_refusal_is_checked_by_three_loads_with_doubling_waits() -> None:
    run = Run(MemoryCatalog(scripts=[refuse]))
    with pytest.raises(StorageError):
        run.go()
    assert [0.4 * 2**n <= wait <= 0.8 * 2**n for n, wait in enumerate(run.waits)] == [True] * 3


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize(
    ("error", "lag"), [*((error, lag) for error in (REFUSED, BUSY) for lag in (1, 2, 3)), (CONFLICT, 2), (NO_ANSWER, 2)]
)
def test_a_replica_that_lags_proves_nothing(error: MaintenanceError, lag: int, back: int) -> None:
    """After the attempt has landed, the replica shows the attempt's base or an earlier state."""
    run = Run(MemoryCatalog())
    states = []
    for number in (1, 2, 3):
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


@pytest.mark.parametrize("script", [refuse, busy])
def test_a_metadata_file_in_the_store_outweighs_a_refusal(script: Script) -> None:
    """A replica may lag forever; an unreadable store keeps the files, too."""
    run = Run(MemoryCatalog(scripts=[script] * 9))
    head = run.catalog.metadata
    run.traces = [head, apply_updates(head, append(101, 1), metadata_location="v1", now_ms=1)]
    with pytest.raises(CommitStateUnknown, match="a metadata file in the store shows the commit"):
        run.go()
    assert run.discarded == []

    def fail(base: LoadedTable) -> list[TableMetadata]:
        raise StorageError("slow down")

    run = Run(MemoryCatalog(scripts=[refuse]))
    run.find_traces = fail  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown, match="slow down"):
        run.go()
    assert run.discarded == []


def test_a_refusal_of_a_commit_that_may_have_landed_and_expired_keeps_the_files() -> None:
    run = Run(MemoryCatalog(scripts=[refuse]))
    run.cannot_have_landed = False
    with pytest.raises(CommitStateUnknown, match="already expired"):
        run.go()
    assert run.discarded == []


def test_a_refusal_of_a_commit_without_files_is_accepted_without_a_wait() -> None:
    """In every pass, an expiry is retried without an update that the catalog does not support."""
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


def test_a_stale_plan_ends_the_retries() -> None:
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


def test_patience_outlasts_the_number_of_retries_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Forty swaps lost to a busy writer do not discard hours of work; each is logged (rule: commit-on-newest-head)."""
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
    """Another writer commits at ``next_s`` and every 0.2 s after it; the time is the sum of ``waits``."""

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
    """An attempt is shorter than the time between two such commits, so it wins; at random moments, one in four wins."""
    catalog = SteadyWriter(next_s=phase / 100)
    run = SlowRun(catalog, waits=catalog.waits)
    committed = run.go(max_retries=99)
    assert isinstance(committed, Committed)
    assert committed.attempts <= 3
    assert committed.prepared.snapshot_id in catalog.metadata.snapshots


def test_waits_are_short_without_a_busy_writer() -> None:
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
def test_patience_is_proportional_to_the_work_at_stake(work_s: float, left_s: float | None, patience_s: float) -> None:
    """It is 30 s to 15 minutes, and ends at least 30 s before the process does."""
    assert patience_of(work_s, left_s) == patience_s


def test_waits_double_up_to_five_seconds_with_jitter() -> None:
    for attempt in range(12):
        step = min(5.0, 0.05 * 2**attempt)
        assert step / 2 <= backoff_seconds(attempt) <= step


def test_the_right_to_commit_is_renewed_just_before_every_swap() -> None:
    """Between two swaps, another pass may take the staged files for those of a dead job."""
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


# The state that a commit replaced, found by the metadata log of a later state.

SNAPSHOT = snapshot(1, format_version=2)


class History:
    """States 0, 1, …, each in a metadata file that names up to ``log_entries`` files before it."""

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


def test_the_base_of_the_commit_is_not_read_again(tmp_path: Path) -> None:
    history = made(tmp_path, before=2, after=1)
    history.file(1).unlink()
    base, now = history.states[1:]
    found = find_swap(now, lambda then: 1 in then.snapshots, Storage({}), base)
    assert found == Swap(base.metadata_location, base.metadata, now.metadata)


@pytest.mark.parametrize("log_entries", [100, 1], ids=["long log", "log of one"])
def test_the_replaced_state_is_the_last_state_with_the_snapshots_also_after_later_commits(
    tmp_path: Path, log_entries: int
) -> None:
    """The metadata log names the state that an expiry replaced."""
    history = made(tmp_path, before=3, after=5, log_entries=log_entries)
    swap = history.swap(known=1)
    assert swap is not None
    location, after = swap
    assert location == "2.metadata.json", "not the state that we knew"
    assert after.document == history.states[3].metadata.document


def test_a_log_that_is_empty_or_names_missing_files_gives_no_state(tmp_path: Path) -> None:
    assert made(tmp_path, before=0, after=1).swap() is None
    history = made(tmp_path, before=2, after=2)
    history.file(2).unlink()
    assert history.swap(known=1) is None


def test_an_unreadable_state_is_an_error(tmp_path: Path) -> None:
    history = made(tmp_path, before=2, after=2)
    history.file(2).write_text("{")
    with pytest.raises(MetadataUnreadable, match=r"2\.metadata\.json"):
        history.swap(known=1)
