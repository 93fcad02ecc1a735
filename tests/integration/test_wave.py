"""A wave: one driver compacts many tables, each with its own lease, plan, commit and outcome."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeeper.engines.engine import current_pool, in_pool, named_work
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.shared_tasks import SharedTasks
from icekeeper.engines.spark import SparkEngine
from icekeeper.errors import LeaseLost, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.operation_facts import Stage
from icekeeper.pipeline import glue_job as wave_module
from icekeeper.pipeline.control_bucket import ControlBucket, Work
from icekeeper.pipeline.gather import JOB_STAGES
from icekeeper.pipeline.glue_job import NO_TIME, End, run_job, run_work
from icekeeper.pipeline.run_leases import give_back, held_table
from icekeeper.pipeline.run_step import run_steps
from icekeeper.pipeline.wave import driver_need
from icekeeper.state.claims import CutWork
from support.pipeline_deployment import RUN, Pipeline, Wave, files_of, ids_of
from support.pool_work import pool_of
from support.state_stores import newest_look

ALL = ("ns.t", "ns.u", "ns.v")
FILES = {"ns.t": 5, "ns.u": 2, "ns.v": 2}
ROWS = {
    name: [number for start in range(count) for number in (start * 10, start * 10 + 1)] for name, count in FILES.items()
}


class Meddled(LocalEngine):
    """Calls a function with the table's name before the table's work."""

    def __init__(self, meddle: Callable[[str], object]) -> None:
        super().__init__(1)
        self.meddle = meddle

    def map(self, *args: Any) -> Any:
        pool = current_pool() or ""
        self.meddle(next(name for name in ALL if f'"{name}"' in pool))
        return super().map(*args)


@pytest.fixture
def wave(pipeline: Pipeline) -> Wave:
    return Wave(pipeline)


def leased_by_another(wave: Wave, name: str) -> Any:
    """Hold the table's lease for another run while the block runs."""
    return held_table(wave.deployment, "another run", wave.items[name], in_job=True)


def is_free(wave: Wave, name: str) -> bool:
    with leased_by_another(wave, name):
        return True


def run_the_other_steps(wave: Wave) -> None:
    """Run the steps after compaction in each pass, and report the run."""
    for item in wave.items.values():
        wave.pipeline.run(item, "expire_snapshots", "remove_orphans", "rewrite_manifests", "clean_staged")
    wave.pipeline.report()


def is_done(wave: Wave, name: str) -> bool:
    """Whether detection skips the table."""
    seen = newest_look(wave.deployment.state, wave.items[name].identity)
    assert seen is not None
    return seen.is_done


def test_fewer_large_tables_run_at_the_same_time_and_small_tables_overtake_them(
    wave: Wave, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver holds the manifests of each table in memory."""
    monkeypatch.setattr(wave_module, "SMALL_BYTES", wave.work().tables[1].size_bytes)
    monkeypatch.setattr(wave_module, "tables_at_once", lambda *_: (2, 1))
    work = wave.work()
    large = work.tables[0].model_copy(update={"size_bytes": 10**9})
    second = work.tables[1].model_copy(update={"size_bytes": 10**9})
    first, other, small = large.item.table, second.item.table, work.tables[2].item.table
    small_is_done, begun = threading.Event(), list[str]()

    def meddle(name: str) -> None:
        begun.append(name)
        if name == first:
            assert small_is_done.wait(20)
        if name == small:
            small_is_done.set()

    work = work.model_copy(update={"tables": (large, second, work.tables[2])})
    assert set(run_work(wave.deployment, work, Meddled(meddle)).values()) == {End.DONE}
    assert sorted(begun[:2]) == sorted([first, small])
    assert begun[2] == other


def test_a_table_begins_when_its_manifests_fit_into_the_drivers_memory(
    wave: Wave, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that needs more than there is runs alone; when it has ended, the others run together."""
    monkeypatch.setattr(wave_module, "memory_for_tables", lambda _: 3 * driver_need(10**6))
    work, together = wave.work(), threading.Barrier(2)
    huge, *others = [
        table.model_copy(update={"manifest_bytes": size})
        for table, size in zip(work.tables, (10**12, 10**6, 10**6), strict=True)
    ]
    in_work = list[str]()

    def meddle(name: str) -> None:
        in_work.append(name)
        if name == huge.item.table:
            time.sleep(0.2)
            assert in_work == [name]
        else:
            together.wait(20)

    ends = run_work(wave.deployment, work.model_copy(update={"tables": (huge, *others)}), Meddled(meddle))
    assert set(ends.values()) == {End.DONE}
    assert sorted(in_work[1:]) == sorted(table.item.table for table in others)


@pytest.mark.parametrize("error", [StorageError("the disk is full"), ValueError("a bug")], ids=["storage", "bug"])
def test_a_table_that_fails_does_not_stop_the_others(wave: Wave, error: Exception) -> None:
    def fail(name: str) -> None:
        if name == "ns.u":
            raise error

    assert wave.run(Meddled(fail)) == dict.fromkeys(ALL, End.DONE)
    assert wave.outcome("ns.u")["status"] == "failed"
    assert str(error) in wave.outcome("ns.u")["summary"]
    assert [files_of(wave.pipeline, name) for name in ALL] == [1, 2, 1]
    assert ids_of(wave.pipeline, "ns.u") == ROWS["ns.u"]


def test_a_table_that_never_ends_is_cut_off_and_the_others_are_maintained(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver maintains one table after the other; the table that wakes up late commits nothing."""
    names = ("t0", "t1", "t2")
    wave = Wave(pipeline, names)
    largest = max(table.size_bytes for table in wave.work().tables)  # ns.t, which has more files
    monkeypatch.setattr(wave_module, "tables_at_once", lambda *_: (1, 0))
    monkeypatch.setattr(wave_module, "longest_s", lambda size, *_, **__: 1.0 if size == largest else 60.0)
    wakes, has_woken = threading.Event(), threading.Event()

    class Poisoned(LocalEngine):
        def map(self, *args: Any) -> Any:
            if '"ns.t"' in (current_pool() or ""):
                assert wakes.wait(60)
                has_woken.set()
            return super().map(*args)

    others = [f"ns.{name}" for name in names]
    assert wave.run(Poisoned(1)) == {"ns.t": End.CUT_OFF, **dict.fromkeys(others, End.DONE)}
    assert [files_of(pipeline, name) for name in others] == [1] * 3
    reported, item = wave.outcome("ns.t"), wave.items["ns.t"]
    assert reported["status"] == "failed"
    assert reported["summary"].startswith(
        "StorageError: cut off: its part of the wave did not end within 1 s (job_timeout"
    )
    (cut,) = wave.deployment.state.cut_offs.of_catalog(item.identity.catalog)
    assert (cut.entry.table, cut.work, cut.times) == ("ns.t", CutWork.PASS, 1)
    other = leased_by_another(wave, "ns.t")
    other.__enter__()
    before = pipeline.table.pyiceberg.load_table("ns.t").metadata_location
    wakes.set()
    assert has_woken.wait(10)
    for thread in [each for each in threading.enumerate() if each.name == "icekeeper-wave-table"]:
        thread.join(20)
    assert pipeline.table.pyiceberg.load_table("ns.t").metadata_location == before
    assert ids_of(pipeline, "ns.t") == ROWS["ns.t"]
    held = wave.deployment.state.leases.current(item.identity.lease_key, now_ms=pipeline.clock())
    assert held is not None
    assert held.holder == "another run"
    other.__exit__(None, None, None)


def test_a_temporary_failure_is_retried_after_the_other_tables(wave: Wave) -> None:
    seen: list[str] = []

    def fail_once(name: str) -> None:
        seen.append(name)
        if name == "ns.u" and seen.count(name) == 1:
            raise StorageError("busy")

    wave.run(Meddled(fail_once))
    assert sorted(seen) == ["ns.t", "ns.u", "ns.u", "ns.v"]
    assert [wave.outcome(name)["status"] for name in ALL] == ["succeeded"] * 3


def test_a_table_that_loses_its_lease_commits_nothing_and_does_not_stop_the_others(wave: Wave) -> None:
    others = list[Any]()

    def steal(name: str) -> None:
        if name == "ns.u":
            give_back(wave.deployment, RUN, wave.items[name])
            others.append(leased_by_another(wave, name))
            others[0].__enter__()

    assert wave.run(Meddled(steal)) == dict.fromkeys(ALL, End.DONE)
    printed = wave.outcome("ns.u")
    assert (printed["status"], printed["lost_lease"]) == ("refused", True)
    assert [files_of(wave.pipeline, name) for name in ALL] == [1, 2, 1]
    others[0].__exit__(None, None, None)


def test_a_table_that_another_run_maintains_is_left_out_and_stays_due(wave: Wave) -> None:
    """The job ignores the run's ``wait``: otherwise all its workers could end up waiting."""
    work = wave.work()
    tables = [item.model_copy(update={"item": item.item.model_copy(update={"wait": True})}) for item in work.tables]
    with leased_by_another(wave, "ns.u"):
        ends = run_work(wave.deployment, work.model_copy(update={"tables": tuple(tables)}), LocalEngine(1))
    assert [ends[wave.items[name].identity.spelling] for name in ALL] == [End.DONE, End.LEFT_OUT, End.DONE]
    assert [files_of(wave.pipeline, name) for name in ALL] == [1, 2, 1]
    left = wave.pipeline.documents(wave.items["ns.u"]).left("compact") or ""
    assert left.startswith("another run maintained the table: ns.u is leased by another run")
    run_the_other_steps(wave)
    assert not is_done(wave, "ns.u")
    assert is_done(wave, "ns.t")


class Slow:
    """A clock that starts at 0 and advances by ``step_s`` at each further reading."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = -step_s, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_tables_without_time_left_stay_due_and_do_not_fail(wave: Wave) -> None:
    """The job has an hour; each reading of its clock takes 3,200 s."""
    assert wave.run(LocalEngine(1), monotonic=Slow(3200)) == dict.fromkeys(ALL, End.LEFT_OUT)
    assert {wave.pipeline.documents(item).left("compact") for item in wave.items.values()} == {NO_TIME}
    assert [files_of(wave.pipeline, name) for name in ALL] == [5, 2, 2]
    run_the_other_steps(wave)
    assert [is_done(wave, name) for name in ALL] == [False] * 3


def test_a_table_gets_its_share_of_the_time_and_a_single_table_nearly_all(wave: Wave) -> None:
    """The job has an hour; each share leaves time to finish and commit the last round."""
    found = dict[str, float]()

    def reported(work: Any, steps: Sequence[str]) -> Any:
        found[work.item.table] = work.time_left_s()
        return run_steps(work, steps)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wave_module, "run_steps", reported)
        wave.run(LocalEngine(1), monotonic=lambda: 100.0, began_s=100.0)
        assert found == dict.fromkeys(ALL, 0.95 * 810)
        alone = wave.work().model_copy(update={"tables": wave.work().tables[:1]})
        run_work(wave.deployment, alone, LocalEngine(1), monotonic=lambda: 140.0, began_s=100.0)
    assert found[alone.tables[0].item.table] == 0.95 * 3200


def test_a_second_attempt_maintains_only_tables_without_an_outcome(wave: Wave, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt was killed after the commit of one table, during the next, before the third."""
    done: list[str] = []

    class Killed(BaseException):
        pass

    def killed(work: Any, steps: Sequence[str]) -> Any:
        done.append(work.item.table)
        if len(done) == 2:
            raise Killed
        return run_steps(work, steps)

    with monkeypatch.context() as patched:
        patched.setattr(wave_module, "run_steps", killed)
        patched.setattr(wave_module, "tables_at_once", lambda *_: (1, 0))
        with pytest.raises(Killed):
            wave.run(LocalEngine(1))
    first, _ = done
    assert files_of(wave.pipeline, first) == 1
    work: list[str] = []
    assert wave.run(Meddled(work.append)) == dict.fromkeys(ALL, End.DONE)
    assert sorted(work) == sorted(set(ALL) - {first})
    assert {name: (files_of(wave.pipeline, name), ids_of(wave.pipeline, name)) for name in ALL} == {
        name: (1, ROWS[name]) for name in ALL
    }


def test_a_table_whose_outcome_cannot_be_stored_is_not_done(wave: Wave, monkeypatch: pytest.MonkeyPatch) -> None:
    write, folder = ControlBucket.write, wave.pipeline.documents(wave.items["ns.u"]).folder

    def broken(self: Any, key: str, document: Any) -> str:
        if key == f"{folder}/compact.json":
            raise StorageError("the bucket is gone")
        return write(self, key, document)

    monkeypatch.setattr(ControlBucket, "write", broken)
    assert wave.run(LocalEngine(1)) == {"ns.t": End.DONE, "ns.u": End.UNRECORDED, "ns.v": End.DONE}
    monkeypatch.undo()
    assert wave.run(LocalEngine(1)) == dict.fromkeys(ALL, End.DONE)
    assert "committed by an earlier attempt" in wave.outcome("ns.u")["summary"]


def test_a_table_whose_lease_is_lost_before_a_step_is_left_out(wave: Wave, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays due; the job is not retried for it."""

    def lost(work: Any, steps: Sequence[str]) -> Any:
        if work.item.table == "ns.u":
            raise LeaseLost("run-9 took it")
        return run_steps(work, steps)

    monkeypatch.setattr(wave_module, "run_steps", lost)
    assert wave.run(LocalEngine(1)) == {"ns.t": End.DONE, "ns.u": End.LEFT_OUT, "ns.v": End.DONE}
    assert wave.pipeline.documents(wave.items["ns.u"]).left("compact") == "run-9 took it"
    run_the_other_steps(wave)
    assert not is_done(wave, "ns.u")


# A table that a wave lists twice is maintained once, keeps its rows and frees its lease.


def test_a_table_that_a_wave_lists_twice_loses_no_row(wave: Wave) -> None:
    """All six items run at the same time: both items of a table are planned before either rewrites."""
    planned, work = threading.Barrier(6), wave.work()
    twice = work.model_copy(update={"tables": (*work.tables, *work.tables)})
    ends = run_work(wave.deployment, twice, Meddled(lambda _: planned.wait(20)))
    assert set(ends.values()) <= {End.DONE, End.LEFT_OUT}
    for name in ALL:
        assert (files_of(wave.pipeline, name), ids_of(wave.pipeline, name)) == (1, ROWS[name])
        assert is_free(wave, name)


def test_tables_that_keep_none_waiting_may_each_take_all_the_time(wave: Wave, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a compaction share the workers, and with too little memory for all tables some wait."""
    seen: list[bool] = []

    def noted(*_: object, is_alone: bool, **__: object) -> float:
        seen.append(is_alone)
        return 60.0

    monkeypatch.setattr(wave_module, "longest_s", noted)
    tables = tuple(table.model_copy(update={"steps": ()}) for table in wave.work().tables)

    def is_each_alone(stage: Stage) -> set[bool]:
        seen.clear()
        run_work(wave.deployment, wave.work().model_copy(update={"stage": stage, "tables": tables}), LocalEngine(1))
        assert len(seen) == len(tables) == 3
        return set(seen)

    assert (is_each_alone(Stage.COMPACTION), is_each_alone(Stage.EXPIRY)) == ({False}, {True})
    monkeypatch.setattr(wave_module, "memory_for_tables", lambda _: 0)
    assert is_each_alone(Stage.EXPIRY) == {False}


# Each large stage is a job over many tables, or over a single table on request.


def test_large_tables_get_a_job_for_each_stage(pipeline: Pipeline) -> None:
    pipeline.deployment = pipeline.open()
    orphan = pipeline.table.plant("data/orphan.parquet")
    item, _ = pipeline.begin(in_job=True)
    pipeline.gather()
    control = pipeline.deployment.control
    reported = pipeline.gather()
    assert {stage: each.get("count") for stage, each in reported.items() if each["count"]} == {
        "compaction": 1,
        "expiry": 1,
        "orphans": 1,
        "manifests": 1,
    }
    for stage in JOB_STAGES:
        each = reported[stage.value]
        work = Work.model_validate(control.read(each["key"], each["digest"]))
        assert (work.stage, each["execution_class"], each["workers"]) == (stage, "STANDARD", 2)
        assert list(run_work(pipeline.deployment, work, LocalEngine(1)).values()) == [End.DONE]
    statuses = {
        step: pipeline.document(item, f"{step}.json")["status"]
        for step in ("compact", "expire_snapshots", "remove_orphans", "rewrite_manifests")
    }
    assert statuses == dict.fromkeys(statuses, "succeeded")
    assert not Path(orphan).exists()


# The Glue script runs a wave in one Spark session, with separate jobs for each table.


def test_tables_that_share_a_session_have_separate_pools_names_and_errors(spark_session: SparkSession) -> None:
    engine, together = SparkEngine(spark_session.sparkContext), threading.Barrier(3)

    def work(name: str) -> Sequence[tuple[str, str | None, str | None]] | str:
        together.wait(20)
        with in_pool(f"pool of {name}"), named_work(name), named_work("compact"):
            try:
                return engine.map(pool_of, [name, name], lambda done: None)
            except StorageError:
                return "failed"

    with WorkThreads(3) as threads:
        reported = dict(zip("ab", threads.map(work, ["a", "b", "broken"]), strict=False))
    assert reported == {name: [(name, f"pool of {name}", f"{name}, compact")] * 2 for name in "ab"}
    assert engine.map(pool_of, ["alone"], lambda done: None) == [("alone", None, "icekeeper")]


@pytest.mark.slow
@pytest.mark.usefixtures("spark_session")
def test_a_glue_job_runs_a_wave(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    wave = Wave(pipeline, by_real_clock=True)
    rows, reported = {name: ids_of(pipeline, name) for name in ALL}, wave.answer["compaction"]
    assert (reported["workers"], reported["execution_class"]) == (2, "FLEX")
    arguments = ["--work-key", reported["key"], "--work-digest", reported["digest"], "--run-id", RUN]
    arguments += ["--control-bucket", str(pipeline.control), "--state", pipeline.environment["ICEKEEPER_STATE"]]
    with caplog.at_level(logging.INFO, "icekeeper.pipeline.glue_job"):
        assert run_job([*arguments, "--JOB_NAME", "compact"], "compact_data_files") == 0
    assert "3 table(s): 3 done" in caplog.messages
    assert [(files_of(pipeline, name), wave.outcome(name)["status"]) for name in ALL] == [(1, "succeeded")] * 3
    assert {name: ids_of(pipeline, name) for name in ALL} == rows


# Small groups of several tables share one task of the workers.


class OneSlot(LocalEngine):
    """Runs one task at a time in this process; records how many tables each task had."""

    def __init__(self, fails: Callable[[int], object] = lambda _: None) -> None:
        super().__init__(1)
        self.tables, self.begun, self.fails = list[int](), threading.Event(), fails

    @property
    def slots(self) -> int:
        return 1

    def map(self, function: Any, tasks: Any, on_done: Any) -> Any:
        count = len(tasks[0].works) if hasattr(tasks[0], "works") else 0
        self.tables.append(count)
        self.fails(len(self.tables))
        return super().map(function, tasks, on_done)


def test_while_workers_are_busy_small_tables_wait_to_share_a_task(wave: Wave) -> None:
    """Each table has its own outcome."""

    def first_waits(number: int) -> None:
        """Wait until all other tables wait; two tables that arrive at once share the first task."""
        ends_s = time.monotonic() + 60
        while number == 1 and engine.tables[0] + len(shared._waiting) < len(ALL):  # no public list of waiting tables
            assert time.monotonic() < ends_s
            time.sleep(0.01)

    engine = OneSlot(first_waits)
    shared = SharedTasks(engine)
    assert wave.run(engine, shared=shared) == dict.fromkeys(ALL, End.DONE)
    assert len(engine.tables) <= 2
    assert sum(engine.tables) == len(ALL)
    for name in ALL:
        assert wave.outcome(name)["summary"] == f"compacted {FILES[name]} files into 1 (across 1 bins)"
        assert (files_of(wave.pipeline, name), ids_of(wave.pipeline, name)) == (1, ROWS[name])


def test_tables_whose_shared_task_failed_are_retried_alone(wave: Wave) -> None:
    """A worker that dies of one table's file loses the work of the other tables once."""

    def fail(number: int) -> None:
        if number == 1:
            raise StorageError("a worker died")

    engine = OneSlot(fail)
    assert wave.run(engine, shared=SharedTasks(engine)) == dict.fromkeys(ALL, End.DONE)
    assert 0 in engine.tables
    assert [(files_of(wave.pipeline, name), wave.outcome(name)["status"]) for name in ALL] == [(1, "succeeded")] * 3
    assert {name: ids_of(wave.pipeline, name) for name in ALL} == ROWS
