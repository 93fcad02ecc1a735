"""A pass as a whole: failures and other commits during it, retries, and time limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import identity_of
from icekeeper.errors import StorageError
from icekeeper.maintenance import run_pass
from icekeeper.maintenance.run_pass import Turn
from icekeeper.model import Nothing
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassOutcome, PassStatus, Status
from icekeeper.state.identity import TableIdentity
from icekeeper.storage.storage import Storage
from support.command import Command
from support.maintained_table import MaintainedTable, new_table, without_leases
from support.moments import Moment, at
from support.plans import plan_expiry, policy
from support.scripted_catalog import ScriptedCatalog
from support.state_stores import newest_look

Task = TypeVar("Task")
Result = TypeVar("Result")


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    return new_table(local_catalog, tmp_path, appends=3)


def identity(table: MaintainedTable) -> TableIdentity:
    return identity_of(table.catalog, table.loaded)


def test_a_table_dropped_during_a_pass_keeps_its_report(table: MaintainedTable) -> None:
    """The committed compaction is reported and recorded in the journal."""
    who = identity(table)
    with at(Moment.AFTER_COMMIT, lambda: table.pyiceberg.drop_table("ns.t")):
        outcome = table.maintain()
    by_name = {o.operation: o for o in outcome.operations}
    assert outcome.status is PassStatus.PARTIAL
    assert by_name[Operation.COMPACT].status is Status.SUCCEEDED
    assert {o.status for name, o in by_name.items() if name is not Operation.COMPACT} == {Status.FAILED}
    assert by_name[Operation.EXPIRE_SNAPSHOTS].reason == "there is no table ns.t in catalog local"
    (record,) = table.state.history(who)
    assert record.status == "partial"


def test_log_lines_report_the_finished_share_of_the_pass(
    table: MaintainedTable, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "icekeeper.activity")
    table.maintain("compact,rewrite_manifests")
    lines = [vars(record) for record in caplog.records if vars(record)["event"] == "progress"]
    assert lines
    assert [line["percent"] for line in lines] == sorted(line["percent"] for line in lines)
    assert lines[-1]["percent"] >= 80, "compaction has most of it"


def test_an_operation_that_raises_does_not_stop_the_others(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(context: object) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("icekeeper.operations.compaction.compact.compact", broken)
    outcome = table.maintain()
    assert [o.status for o in outcome.operations][:3] == [Status.FAILED, Status.SKIPPED, Status.SUCCEEDED]
    assert outcome.operations[0].reason == "ZeroDivisionError: a bug"
    assert outcome.status is PassStatus.PARTIAL


def test_a_commit_during_an_idle_pass_counts_for_the_next_detection(table: MaintainedTable) -> None:
    settings: dict[str, Any] = {"min_manifests_to_rewrite": "9", "min_input_files": "9"}
    passes = [table.maintain(**settings) for _ in range(3)]
    assert [p.is_idle for p in passes] == [False, True, True]
    head = table.metadata.refs["main"].snapshot_id
    with at(Moment.OPERATIONS_DONE, lambda: table.append(99)):
        assert table.maintain(**settings).is_idle
    seen = newest_look(table.state, identity(table))
    assert seen is not None
    assert seen.snapshot_id == head
    assert seen.snapshot_id != table.metadata.refs["main"].snapshot_id


class DyingEngine:
    """Finishes half of the tasks, then a worker dies."""

    name, slots = "local", 1

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        for task in tasks[: (len(tasks) + 1) // 2]:
            function(task)
        raise StorageError("a worker process died")


def test_outputs_of_an_engine_that_died_are_removed(table: MaintainedTable) -> None:
    before = table.files()
    outcome = table.run(Operation.COMPACT, engine=DyingEngine())
    assert (outcome.status, outcome.reason) == (Status.FAILED, "StorageError: a worker process died")
    assert table.files() == before


@pytest.mark.parametrize(("operation", "part"), [
    (Operation.COMPACT, "-m1.avro"), (Operation.COMPACT, "/snap-"), (Operation.COMPACT, ".metadata.json"),
    (Operation.REWRITE_MANIFESTS, "/snap-"), (Operation.EXPIRE_SNAPSHOTS, ".metadata.json"),
])  # fmt: skip
def test_a_write_that_fails_leaves_nothing_behind(
    table: MaintainedTable, operation: Operation, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No catalog knows the files that were written before it."""
    before = table.files()
    write = Storage.write

    def failing(self: Storage, path: str, data: bytes) -> None:
        if part in path:
            raise StorageError(f"{path}: no space left")
        write(self, path, data)

    monkeypatch.setattr(Storage, "write", failing)
    outcome = table.run(operation)
    assert outcome.status is Status.FAILED
    assert "no space left" in (outcome.reason or "")
    assert table.files() == before
    assert table.verify().ok


def test_an_expiry_does_not_fail_if_another_pass_expires_first(table: MaintainedTable) -> None:
    with without_leases(), at(Moment.BEFORE_COMMIT, lambda: table.run(Operation.EXPIRE_SNAPSHOTS)):
        outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert outcome.status in (Status.SUCCEEDED, Status.SKIPPED)
    assert len(table.metadata.snapshots) == 1
    assert table.readers_agree() == [0, 1, 10, 11, 20, 21]
    assert table.verify().ok
    now = table.metadata.last_updated_ms
    assert isinstance(plan_expiry(table.metadata, policy(max_snapshots_to_keep=1), now_ms=now), Nothing)


def test_an_expiry_that_lost_its_swap_reads_only_new_manifests(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy table the whole table would change again before it is read."""
    table.fill(12, start=10)
    table.table.delete("id = 0")
    reads: list[str] = []
    read = Storage.read

    def counted(self: Storage, path: str) -> bytes:
        reads.append(path)
        return read(self, path)

    def append() -> None:
        table.append(99)
        reads.clear()

    monkeypatch.setattr(Storage, "read", counted)
    catalog = ScriptedCatalog(table.catalog)
    with at(Moment.BEFORE_COMMIT, append):
        outcome = table.run(Operation.EXPIRE_SNAPSHOTS, catalog=catalog)
    assert catalog.commits == 2
    # Snapshots that are due only since the append are left to the next pass.
    assert outcome.metrics["expire_snapshots.snapshots_expired"] == 15
    assert len(table.metadata.snapshots) == 2
    assert len([path for path in reads if path.endswith(".avro")]) == 2
    assert table.verify().ok
    assert table.unreferenced() == set()


def test_a_file_that_is_referenced_again_before_the_swap_is_kept(table: MaintainedTable) -> None:
    """The first attempt found it unreferenced; the commit that won the swap references it."""
    (entry,) = table.entries(next(iter(table.metadata.snapshots)))
    table.table.delete("id < 2")
    rows = table.ids()
    with at(Moment.BEFORE_COMMIT, lambda: table.table.add_files([entry.file.file_path])):
        outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert outcome.status is Status.SUCCEEDED
    assert table.readers_agree() == sorted([0, 1, *rows])
    assert table.verify().ok


def test_expiry_keeps_the_snapshot_of_a_rollback_before_the_swap(table: MaintainedTable) -> None:
    first, second, _ = table.metadata.snapshots

    def roll_back() -> None:
        table.table.manage_snapshots().rollback_to_snapshot(second).commit()

    with at(Moment.BEFORE_COMMIT, roll_back):
        outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert outcome.metrics["expire_snapshots.snapshots_expired"] == 1
    assert first not in table.metadata.snapshots
    assert table.readers_agree() == [0, 1, 10, 11]
    assert table.verify().ok


# ``job_timeout_s`` and ``job_retry_limit`` outside of the stack end and retry a pass.

LOCAL = ("maintain", "ns.t", "--engine", "local")


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_pass, "_RETRY_PAUSE_S", 0)


class Failing:
    """``run_pass``, whose first calls fail."""

    def __init__(self, times: int) -> None:
        self.left, self.calls, self._run_pass = times, 0, run_pass.run_pass

    def __call__(self, *args: Any, **more: Any) -> PassOutcome:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise StorageError("the store is busy")
        return self._run_pass(*args, **more)


@pytest.mark.parametrize(
    ("setting", "fails", "code", "calls"),
    [((), 1, 1, 1), (("--set", "job_retry_limit=2"), 2, 0, 3), (("--set", "job_retry_limit=1"), 2, 1, 2)],
)
def test_maintain_retries_a_failed_pass_up_to_its_limit(
    command: Command, monkeypatch: pytest.MonkeyPatch, setting: tuple[str, ...], fails: int, code: int, calls: int
) -> None:
    """By default it leaves retries to its caller, which gets the error."""
    command.table(appends=6)
    failing = Failing(fails)
    monkeypatch.setattr(run_pass, "run_pass", failing)
    answer = command(*LOCAL, "--operations", "compact", *setting)
    assert (answer.code, failing.calls) == (code, calls)
    assert answer.err.count("the pass failed; next attempt in 0 s: the store is busy") == calls - 1


def test_a_pass_begins_no_operation_after_its_timeout_and_reports_it(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running operation is finished; a later pass does the rest."""
    command.table(appends=6)
    monkeypatch.setenv("ICEKEEPER_JOB_TIMEOUT_S", "60")
    clock = iter((0.0, 0.0, *[61.0] * 100))  # it is read at the start, and before each operation
    monkeypatch.setattr(run_pass, "monotonic", lambda: next(clock))
    answer = command(*LOCAL, "--json")
    assert answer.code == 0
    found = {part["operation"]: part for part in answer.json["operations"]}
    assert found["compact"]["status"] == "succeeded"
    assert {part["reason"] for name, part in found.items() if name != "compact"} == {"job_timeout_s 60 is over"}


def test_without_the_setting_the_command_has_no_timeout(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table(appends=6)
    clock = iter(range(0, 10**9, 100_000))
    monkeypatch.setattr(run_pass, "monotonic", lambda: next(clock))
    document = command(*LOCAL, "--json").json
    assert not any("job_timeout_s" in (part["reason"] or "") for part in document["operations"])


def test_all_attempts_share_one_timeout(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 10.0, 61.0))
    monkeypatch.setattr(run_pass, "monotonic", lambda: next(clock))
    failing = Failing(9)
    monkeypatch.setattr(run_pass, "run_pass", failing)
    shown: list[str] = []
    turn = Turn(timeout_s=60, retries=9, notify=shown.append, wait=lambda seconds: None)
    with pytest.raises(StorageError):
        table.runtime.maintain(table.loaded.name, {}, table.engine, turn=turn)
    assert (failing.calls, len(shown)) == (2, 1)
