"""Jobs that run, were killed or lost their lease: which files other passes keep, and which they clean."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import identity_of
from icekeeper.deletion.shared_references import HeldFiles, recorded_files
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import CommitStateUnknown, PlanStale, StorageError
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.model import TableName
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status
from icekeeper.state.staging import LoadOrigin, LoadState, StagedLoad, StagingStore
from icekeeper.state.store import Pin, PinKind
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.listing import Listed
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.deletes import commit_deletes, create_by_region, position_delete
from support.maintained_table import EAGER, NAME, MaintainedTable, maintained_table, new_table, without_leases
from support.moments import Moment, at
from support.scripted_catalog import ScriptedCatalog

Task = TypeVar("Task")
Result = TypeVar("Result")
LEASE_MS = 2 * HOUR_MS
LATER_MS = LEASE_MS + 24 * HOUR_MS


class Killed(BaseException):
    """Stands for a kill of the process."""


class Interrupting(LocalEngine):
    """Runs in this process; ``before`` and ``after`` are called around the work of the first map."""

    def __init__(self, before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None) -> None:
        super().__init__(1)
        self._before, self._after = before, after

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        self._before()
        results = super().map(function, tasks, on_done)
        self._after()
        return results


def pins(table: MaintainedTable) -> tuple[Pin, ...]:
    return tuple(table.handle.memory(table.loaded).pins())


def loads(table: MaintainedTable) -> tuple[StagedLoad, ...]:
    return table.handle.memory(table.loaded).staged_loads()


def recorded(table: MaintainedTable) -> list[str]:
    """Files that the table's loads may have written, by all attempts at their tasks."""
    memory = table.handle.memory(table.loaded)
    return [normalise(path) for load in memory.staged_loads() for path in recorded_files(memory, load)]


def later(
    table: MaintainedTable, operations: str = "rewrite_position_deletes", *, by_ms: int = LATER_MS
) -> PassOutcome:
    """Run a pass with a grace period of a day, ``by_ms`` later."""
    settings = {**EAGER, "orphan_older_than_hours": "24", "operations": operations}
    runtime = table.runtime_with(clock=lambda: system_clock() + by_ms)
    return runtime.maintain(NAME, settings, LocalEngine(1))


def deleted(outcome: PassOutcome) -> list[str]:
    assert outcome.staged is not None
    return [normalise(path) for path in outcome.staged.files_deleted]


def kill() -> None:
    raise Killed


# While a rewrite runs, other passes keep its inputs and outputs; its outcome settles its record.


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    return new_table(local_catalog, tmp_path, appends=4)


def test_a_rewrite_pins_its_snapshot_and_records_its_outputs_while_it_runs(table: MaintainedTable) -> None:
    """It pins before it reads, and records before it writes (rule: rewrites-pin-and-record)."""
    seen: list[tuple[tuple[Pin, ...], tuple[StagedLoad, ...], list[str]]] = []
    planned = table.loaded
    assert planned.metadata.current_snapshot is not None

    def look() -> None:
        seen.append((pins(table), loads(table), recorded(table)))

    with mock.patch.object(StagingStore, "stage") as stage, mock.patch.object(type(table.state), "add_pin") as add_pin:
        table.maintain(dry_run=True)
    assert (stage.mock_calls, add_pin.mock_calls) == ([], [])
    before_ms = system_clock()
    outcome = table.run(Operation.COMPACT, engine=Interrupting(look), run_id="run-1")
    (((pin,), (load,), paths),) = seen
    assert re.fullmatch(r"run-1:[0-9a-f]{8}:compact", pin.name)
    assert pin.kind == PinKind.JOB
    assert (pin.snapshot_id, pin.metadata_location) == (
        planned.metadata.current_snapshot.snapshot_id,
        planned.metadata_location,
    )
    assert LEASE_MS <= pin.expires_ms - before_ms <= LEASE_MS + system_clock() - before_ms
    assert (load.name, load.origin, load.state) == (pin.name, LoadOrigin.JOB, LoadState.PENDING)
    (written,) = (normalise(file.file_path) for file in table.data_files())
    stem = written.removesuffix("-a0.parquet")
    assert paths == [f"{stem}-a{attempt}.parquet" for attempt in range(4)]
    assert outcome.status is Status.SUCCEEDED
    assert (pins(table), loads(table)) == ((), ())

    # A step that seemed dead is repeated under its run's name; the first attempt to end removes nothing of the other.
    table.fill(4, start=10)
    counted: list[tuple[int, int]] = []

    def repeat() -> None:
        assert table.run(Operation.COMPACT, run_id="run-1").status is Status.SUCCEEDED
        counted.append((len(pins(table)), len(loads(table))))

    table.run(Operation.COMPACT, engine=Interrupting(repeat), run_id="run-1")
    assert counted == [(1, 1)]
    assert (pins(table), loads(table)) == ((), ())


def test_other_passes_keep_inputs_and_outputs_of_a_running_rewrite(table: MaintainedTable) -> None:
    """Others overwrite the table and expire before the rewrite reads, and remove orphans after it has written."""
    ids = table.ids()
    swept: list[OperationOutcome] = []
    engine = Interrupting(after=lambda: swept.append(table.run(Operation.REMOVE_ORPHANS, run_id="other")))
    assert table.run(Operation.COMPACT, engine=engine).status is Status.SUCCEEDED
    assert swept[0].metrics["remove_orphans.files_protected"] == 1
    assert swept[0].files_deleted == ()
    assert table.readers_agree() == ids
    table.fill(1, start=4)
    table.fill(1, start=5)
    ids = table.ids()
    snapshots = len(table.metadata.snapshots)
    read = {normalise(file.file_path) for file in table.data_files()}
    others: list[OperationOutcome] = []

    def overwrite_and_expire() -> None:
        table.table.overwrite(table.table.scan().to_arrow())
        others.append(table.run(Operation.EXPIRE_SNAPSHOTS, run_id="other"))
        assert read <= table.files()

    table.run(Operation.COMPACT, engine=Interrupting(overwrite_and_expire))
    assert others[0].metrics["expire_snapshots.snapshots_expired"] == snapshots - 1
    assert table.ids() == ids
    # The pin ended with the rewrite.
    assert table.run(Operation.EXPIRE_SNAPSHOTS).status is Status.SUCCEEDED
    assert read.isdisjoint(table.files())
    assert table.verify().ok


def test_position_delete_outputs_are_recorded(tmp_path: Path) -> None:
    with maintained_table(tmp_path) as made:
        create_by_region(made, 2)
        (task, *_) = made.table.scan().plan_files()
        path = task.file.file_path
        region = "us" if "region=us" in path else "eu"
        for position in range(3):
            commit_deletes(made, [position_delete(path, position, region)])
        seen: list[list[str]] = []

        def look() -> None:
            memory = TableHandle(made.catalog, NAME, made.runtime.state, system_clock).memory(made.loaded)
            seen.append([path for load in memory.staged_loads() for path in recorded_files(memory, load)])

        made.engine.during = look
        outcome = made.maintain(operations="rewrite_position_deletes").operations[0]
        assert outcome.status is Status.SUCCEEDED
        assert len(seen) == 1
        first, *others = map(normalise, seen[0])
        assert first in made.reachable()
        assert made.reachable().isdisjoint(others)


def test_a_failed_commit_records_only_files_that_it_could_not_remove(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtake() -> None:
        table.table.overwrite(table.table.scan().to_arrow())

    outcome = table.run(Operation.COMPACT, engine=Interrupting(after=overtake))
    assert outcome.status is Status.FAILED
    assert (loads(table), pins(table), table.unreferenced()) == ((), (), set())
    table.append(5)
    monkeypatch.setattr("icekeeper.storage.storage.Storage._unlink", lambda storage, path, *there, links: "busy")
    table.run(Operation.COMPACT, engine=Interrupting(after=overtake))
    left = table.unreferenced()
    assert len(left) == 1
    assert [load.state for load in loads(table)] == [LoadState.FAILED]
    monkeypatch.undo()
    assert set(deleted(later(table))) == left


def test_a_failed_attempt_leaves_a_record(table: MaintainedTable) -> None:
    """Its output may be kept for inspection; a later pass removes it after the grace period.  The group was merged
    without the damaged file."""
    Path(normalise(table.data_files()[0].file_path)).write_bytes(b"damaged")
    outcome = table.run(Operation.COMPACT, orphan_older_than_hours="24")
    assert outcome.status is Status.SUCCEEDED
    assert [load.state for load in loads(table)] == [LoadState.FAILED]
    assert pins(table) == ()
    assert deleted(later(table)) == []
    assert loads(table) == ()


def test_an_unknown_outcome_keeps_files_and_record(table: MaintainedTable) -> None:
    """The commit may still land: its files are kept and do not count as a failed job's until the lease expires."""
    catalog = _Lost(table.catalog)
    ids = table.ids()
    outcome = table.run(Operation.COMPACT, catalog=catalog)
    assert outcome.status is Status.FAILED
    assert outcome.reason is not None
    assert outcome.reason.startswith("CommitStateUnknown: ")
    (load,) = loads(table)
    assert load.state is LoadState.PENDING
    left = table.unreferenced()
    assert len(left) == 4  # the output, two manifests, a manifest list
    sweep = table.run(Operation.REMOVE_ORPHANS)
    written = left & set(recorded(table))
    assert len(written) == 1
    assert written.isdisjoint(map(normalise, sweep.files_deleted))
    assert set(deleted(later(table))) == written
    assert table.readers_agree() == ids


def test_an_unknown_outcome_after_commits_that_landed_keeps_the_record(table: MaintainedTable) -> None:
    """The operation reports the commits that landed; the record must not mark the rest as failed."""
    table.append(50, part="q")
    table.append(51, part="q")
    table.table.update_spec().add_identity("part").commit()
    table.fill(2, part="r", start=6)
    outcome = table.run(Operation.COMPACT, catalog=_Lost(table.catalog, after=1), partial_progress="1")
    assert outcome.status is Status.FAILED
    assert len(outcome.snapshot_ids) == 1
    assert [load.state for load in loads(table)] == [LoadState.PENDING]
    assert table.verify().ok
    later(table)
    assert (loads(table), table.verify().ok) == ((), True)


class _Lost(ScriptedCatalog):
    """The outcome of every commit but the first ``after`` commits is unknown."""

    def __init__(self, inner: Any, *, after: int = 0) -> None:
        super().__init__(inner)
        self._after = after

    def commit(self, base: Any, requirements: Any, updates: Any) -> Any:
        if self.commits < self._after:
            return super().commit(base, requirements, updates)
        self.commits += 1
        raise CommitStateUnknown("no answer")

    def load(self, table: TableName) -> Any:
        if self.commits > self._after:
            raise StorageError("no answer")
        return super().load(table)


def test_state_that_cannot_be_written_fails_the_operation_before_any_work(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StorageError("the disk is full")

    before = table.files()
    monkeypatch.setattr(StagingStore, "stage", fails)
    outcome = table.run(Operation.COMPACT, engine=Interrupting(before=lambda: pytest.fail("work was begun")))
    assert (outcome.status, outcome.reason) == (Status.FAILED, "StorageError: the disk is full")
    assert table.files() == before
    monkeypatch.undo()
    monkeypatch.setattr(type(table.state), "add_pin", fails)
    outcome = table.run(Operation.COMPACT, engine=Interrupting(before=lambda: pytest.fail("work was begun")))
    assert (outcome.status, outcome.reason) == (Status.FAILED, "StorageError: the disk is full")
    assert table.files() == before


def test_a_record_that_cannot_be_settled_does_not_undo_a_success(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(StagingStore, "forget", fails)
    monkeypatch.setattr(type(table.state), "remove_pin", fails)
    assert table.run(Operation.COMPACT).status is Status.SUCCEEDED
    monkeypatch.undo()
    assert deleted(later(table)) == []
    assert (loads(table), table.verify().ok) == ((), True)


def test_a_pass_expires_snapshots_that_its_own_rewrite_had_pinned(table: MaintainedTable) -> None:
    """The pin ends with the operation, so that the same pass deletes the files that compaction replaced."""
    outcome = table.maintain("compact,expire_snapshots")
    assert outcome.metrics["expire_snapshots.snapshots_expired"] == 4
    assert len(table.data_files()) == len([path for path in table.files() if path.endswith(".parquet")]) == 1


# The lease of a job: progress renews it; files of a job that slept beyond it may have been cleaned.


def test_a_job_that_slept_until_its_files_were_cleaned_cannot_continue(table: MaintainedTable) -> None:
    """It would record its next files anew and commit files that no longer exist."""
    first, second = str(table.folder / "data/first.parquet"), str(table.folder / "data/second.parquet")
    now_ms = [system_clock()]
    memory = TableMemory(table.state, identity_of(table.catalog, table.loaded), lambda: now_ms[0])
    context = table.runtime.context(table.loaded, table.runtime.policy(table.loaded, {}), LocalEngine(1))
    with replace(context, memory=memory).job(Operation.COMPACT, table.loaded, 1) as job:
        job.will_write([first])
        table.plant("data/first.parquet")
        now_ms[0] += LATER_MS
        assert deleted(later(table)) == [first]
        job.progress("a step", 1, 2)
        with pytest.raises(PlanStale, match="made no progress"):
            job.will_write([second])


def test_progress_renews_pin_and_record(table: MaintainedTable) -> None:
    """Each step takes an hour; three steps are longer than the lease."""
    now = [system_clock()]
    table.append(50, part="q")
    table.append(51, part="q")
    table.append(60, part="r")
    table.append(61, part="r")
    seen: list[tuple[int, int]] = []

    class Slow(LocalEngine):
        def map(self, function: Any, tasks: Any, on_done: Any) -> Any:
            results = [function(task) for task in tasks]
            for done in range(1, 5):
                now[0] += HOUR_MS
                on_done(done)
                (pin,), (load,) = table.state.pins(_identity(table), now_ms=now[0]), loads(table)
                assert load.expires_ms is not None
                seen.append((pin.expires_ms - now[0], load.expires_ms - now[0]))
            return results

    outcome = table.runtime_with(clock=lambda: now[0]).maintain(
        NAME, {**EAGER, "operations": "compact"}, Slow(1), unsafe=True
    )
    assert outcome.status.value == "succeeded"
    assert seen == [(LEASE_MS, LEASE_MS)] * 4
    assert loads(table) == ()


def _identity(table: MaintainedTable) -> Any:
    return table.handle.memory(table.loaded).identity


def test_a_job_that_slept_while_its_files_were_cleaned_does_not_commit_them(table: MaintainedTable) -> None:
    """A job that wakes up after days, when its files have been cleaned, must plan again."""
    now = [system_clock()]
    ids = table.ids()

    def maintain(engine: LocalEngine, catalog: ScriptedCatalog | None = None) -> OperationOutcome:
        now[0] = system_clock()
        runtime = table.runtime_with(catalog=catalog, clock=lambda: now[0])
        (outcome,) = runtime.maintain(NAME, {**EAGER, "operations": "compact"}, engine, unsafe=True).operations
        return outcome

    def sleep_for_days() -> None:
        now[0] += LATER_MS
        assert len(deleted(later(table))) == 1

    outcome = maintain(Interrupting(after=sleep_for_days))
    assert outcome.status is Status.FAILED
    assert (outcome.reason or "").startswith("PlanStale: job ")
    assert table.readers_agree() == ids
    assert table.verify().ok

    # Another writer wins the first swap; a job that was stopped then checks its record before the second swap.
    class Stopped(ScriptedCatalog):
        def commit(self, base: Any, requirements: Any, updates: Any) -> Any:
            if not self.commits:
                table.append(77, part="elsewhere")
            return super().commit(base, requirements, updates)

        def load(self, name: TableName) -> Any:
            if self.commits == 1:
                self.commits += 1
                now[0] += LATER_MS
                assert len(deleted(later(table))) >= 1
            return super().load(name)

    outcome = maintain(LocalEngine(1), Stopped(table.catalog))
    assert outcome.status is Status.FAILED
    assert (outcome.reason or "").startswith("PlanStale: job ")
    assert sorted(table.readers_agree()) == sorted([*ids, 77])
    assert table.verify().ok

    # A job that slept beyond its lease commits if its files were not cleaned.
    def sleep_a_little() -> None:
        now[0] += LEASE_MS + 1

    assert maintain(Interrupting(after=sleep_a_little)).status is Status.SUCCEEDED
    assert (loads(table), table.verify().ok) == ((), True)

    # Orphan removal leaves its files alone: only marking the record as failed stops the job from committing them.  A
    # sweep of a table that shares the folder does not take this table's lease.
    def sleep_while_orphans_are_removed() -> None:
        now[0] += LATER_MS - HOUR_MS
        later(table, "remove_orphans", by_ms=LATER_MS - HOUR_MS)

    table.append(78)
    table.append(79)
    with without_leases():
        assert maintain(Interrupting(after=sleep_while_orphans_are_removed)).status is Status.SUCCEEDED
    assert sorted(table.readers_agree()) == sorted([*ids, 77, 78, 79])
    assert loads(table) == ()


# Later passes clean the files of jobs that were killed or could not settle their record.


def test_files_of_a_killed_rewrite_are_cleaned_from_its_record(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after it has written every file: the lease protects them; after the grace period they are cleaned, also
    the files of a group that is too large for one worker."""

    class Dying(LocalEngine):
        def exchange(self, *args: Any) -> Any:
            super().exchange(*args)
            raise Killed

    ids = table.ids()
    for strategy, engine in (
        ("binpack", Interrupting(after=kill)),
        ("sort", Interrupting(after=kill)),
        ("sort", Dying(1)),
    ):
        if isinstance(engine, Dying):
            monkeypatch.setattr("icekeeper.operations.compaction.run_groups.fits_one_worker", lambda *_: False)
        with pytest.raises(Killed):
            table.run(Operation.COMPACT, engine=engine, strategy=strategy, sort_order="id", run_id="dead")
        left = table.unreferenced()
        assert len(left) == 1
        assert left < set(recorded(table))
        assert table.run(Operation.REMOVE_ORPHANS).files_deleted == ()
        # The metadata of another table would make a listing refuse; the record needs no listing.
        assert later(table, by_ms=LATER_MS - HOUR_MS).staged is None
        assert set(deleted(later(table))) == left
        assert loads(table) == ()
        assert table.unreferenced() == set()
        assert table.readers_agree() == ids


def test_a_rewrite_killed_after_its_commit_loses_nothing(table: MaintainedTable) -> None:
    """Its record is still pending and names files that the table references."""
    ids = table.ids()
    with pytest.raises(Killed), at(Moment.AFTER_COMMIT, kill):
        table.run(Operation.COMPACT)
    assert [load.state for load in loads(table)] == [LoadState.PENDING]
    outcome = later(table, "compact")
    assert deleted(outcome) == []
    assert outcome.metrics["staged.files_referenced"] == 1
    assert loads(table) == ()
    assert table.readers_agree() == ids
    assert table.verify().ok


def test_a_pass_removes_the_pin_of_a_killed_job_a_week_after_it_expired(table: MaintainedTable) -> None:
    """A clock that is ahead by less than a week removes no valid pin."""
    memory = table.handle.memory(table.loaded)
    now_ms, day_ms = system_clock(), 24 * HOUR_MS
    for name, expires_ms in (("dead", now_ms), ("reader", now_ms + 9 * day_ms)):
        table.state.add_pin(
            Pin(
                identity=memory.identity,
                name=name,
                snapshot_id=1,
                metadata_location=table.metadata_location,
                expires_ms=expires_ms,
                kind=PinKind.JOB,
            )
        )
    for days, left in ((6, ["dead", "reader"]), (8, ["reader"])):
        later(table, by_ms=days * day_ms)
        assert [pin.name for pin in table.state.pins(memory.identity, now_ms=0)] == left


def test_files_of_every_attempt_are_protected_and_later_cleaned_from_the_record(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark began the task several times before the driver died: the record covers all attempts by their stem."""
    ids = table.ids()
    with pytest.raises(Killed):
        table.run(Operation.COMPACT, engine=Interrupting(after=kill))
    (first,) = table.unreferenced()
    data, stem = Path(first).read_bytes(), Path(first).name.removesuffix("-a0.parquet")
    others = {table.plant(f"data/{stem}-a{attempt}.parquet", data) for attempt in (1, 2, 3)}
    beyond = table.plant(f"data/{stem}-a4.parquet", data)
    strangers = {table.plant(f"data/{stem}{name}.parquet", data) for name in ("", "-1-a0", "-a")}
    held = HeldFiles(table.handle.memory(table.loaded), table.storage.read)
    held.look(table.metadata)
    assert [path for path in (first, *others, beyond) if not held.hold(path)] == []
    assert set(map(normalise, table.run(Operation.REMOVE_ORPHANS).files_deleted)) == strangers
    listed: list[str] = []
    inner = Storage.list_unread

    def watched(self: Storage, folder: str) -> Iterator[Listed]:
        listed.append(folder)
        return inner(self, folder)

    monkeypatch.setattr(Storage, "list_unread", watched)
    assert set(deleted(later(table))) == {first, *others}
    assert listed == [table.metadata.metadata_directory], "for newer heads of the table"
    assert table.unreferenced() == {beyond}
    assert (loads(table), table.readers_agree()) == ((), ids)


def test_a_process_that_is_killed_leaves_a_record_that_is_cleaned(table: MaintainedTable, tmp_path: Path) -> None:
    """SIGKILL ends the process during its rewrite."""
    script = textwrap.dedent(
        """
        import os, signal, sys
        from pathlib import Path
        from icekeeper.catalogs.load import open_catalog
        from icekeeper.engines.local_engine import LocalEngine
        from icekeeper.model import TableName
        from icekeeper.runtime import Runtime
        from icekeeper.state.sqlite.store import SqliteStateStore

        class Dying(LocalEngine):
            def map(self, function, tasks, on_done):
                super().map(function, tasks, on_done)
                os.kill(os.getpid(), signal.SIGKILL)

        folder = Path(sys.argv[1])
        properties = {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": sys.argv[2]}
        runtime = Runtime(open_catalog("local", properties), SqliteStateStore(folder / "state.db"), environment={})
        runtime.maintain(TableName(("ns",), "t"), {"min_input_files": "2", "operations": "compact"}, Dying(1))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), table.catalog.id.warehouse], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    left = table.unreferenced()
    assert len(left) == 1
    assert [(pin.kind, pin.name.endswith(":compact")) for pin in pins(table)] == [(PinKind.JOB, True)]
    assert set(deleted(later(table))) == left
    assert (loads(table), table.unreferenced()) == ((), set())


def test_files_of_other_killed_rewrites_are_cleaned_from_their_records(table: MaintainedTable) -> None:
    """The record names rewritten manifests; files of a single commit attempt are left to the removal of orphans."""
    ids = table.ids()
    for operation in (Operation.REWRITE_MANIFESTS, Operation.COMPUTE_STATISTICS):
        with pytest.raises(Killed), at(Moment.BEFORE_COMMIT, kill):
            table.run(operation, run_id="run-1")
        (load,) = loads(table)
        assert re.fullmatch(f"run-1:[0-9a-f]{{8}}:{operation.value}", load.name)
        left = table.unreferenced() & set(recorded(table))
        assert left
        assert set(deleted(later(table))) == left
        table.run(Operation.REMOVE_ORPHANS)
        assert table.unreferenced() == set()
        assert table.run(operation).status is Status.SUCCEEDED
        assert (pins(table), loads(table), table.readers_agree()) == ((), (), ids)


def test_a_dead_job_is_marked_failed_before_its_files_are_deleted(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it wakes up at that moment, it must see this before it commits."""
    with pytest.raises(Killed):
        table.run(Operation.COMPACT, engine=Interrupting(after=kill))
    seen: list[LoadState] = []

    def unlink(storage: Storage, path: str, name: str, folder: int | None, *, links: bool) -> str:
        seen.extend(load.state for load in loads(table))
        return "busy"

    monkeypatch.setattr("icekeeper.storage.storage.Storage._unlink", unlink)
    later(table)
    assert set(seen) == {LoadState.FAILED}
