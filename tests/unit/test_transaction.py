"""The commit loop against a catalog in memory that loses answers, swaps and tables on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.transaction import Committed, PreparedCommit, backoff_seconds, commit_with_retries
from icekeeper.errors import (
    CommitConflict,
    CommitStateUnknown,
    MaintenanceError,
    MetadataUnreadable,
    PlanStale,
    PolicyError,
    StorageError,
)
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.updates import apply_updates, check_requirements
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
    commits: int = 0

    built_in_maintenance = None

    def list_tables(self) -> Iterator[TableName]:
        yield NAME

    def load(self, table: TableName) -> LoadedTable:
        if self.load_errors:
            raise self.load_errors.pop(0)
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
        )

    def go(self, *, max_retries: int = 2) -> Committed | Nothing:
        return commit_with_retries(
            self.catalog,
            self.catalog.load(NAME),
            self.prepare,
            max_retries=max_retries,
            discard=self.discarded.extend,
            pinned_metadata=tuple,
            sleep=self.waits.append,
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


@pytest.mark.parametrize("error", [StorageError("refused"), PolicyError("no such table")])
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
