"""A wave: one driver compacts many tables, each with its own lease, plan, commit and outcome."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeeper.engines.engine import current_pool, in_pool
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.errors import LeaseLost, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.operation_facts import operations_of_job
from icekeeper.pipeline import glue_job as wave_module
from icekeeper.pipeline import plan_table as routes_module
from icekeeper.pipeline.events import PlanEvent, parse_event
from icekeeper.pipeline.glue_job import NO_TIME, End, run_job, run_wave
from icekeeper.pipeline.plan_table import plan_table
from icekeeper.pipeline.run_leases import acquire_table_lease
from icekeeper.pipeline.run_step import run_step
from icekeeper.pipeline.wave import WaveEvent, gather_wave
from icekeeper.state.claims import CutWork
from support.pipeline_deployment import RUN, Pipeline, Wave, files_of, ids_of
from support.pool_work import pool_of

# A wave: one driver compacts many tables, each with its own lease, plan, commit and outcome
# (rule: wave-tables-are-independent).

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


def test_every_table_of_a_wave_is_compacted_by_itself(wave: Wave) -> None:
    """Its own snapshot, its own outcome; the lease is free again."""
    assert wave.run(LocalEngine(1)) == dict.fromkeys(ALL, End.DONE)
    for name in ALL:
        assert wave.outcome(name)["summary"] == f"compacted {FILES[name]} files into 1 (across 1 bins)"
        assert (files_of(wave.pipeline, name), ids_of(wave.pipeline, name)) == (1, ROWS[name])
        acquire_table_lease(wave.deployment, "another run", wave.items[name], in_wave=True)


def test_tables_of_a_wave_are_at_work_at_the_same_time(wave: Wave) -> None:
    """A small table does not wait for the end of a large one."""
    together = threading.Barrier(len(ALL))
    assert wave.run(Meddled(lambda name: together.wait(20))) == dict.fromkeys(ALL, End.DONE)


@pytest.mark.parametrize("error", [StorageError("the disk is full"), ValueError("a bug")], ids=["storage", "bug"])
def test_one_table_that_fails_stops_no_other(wave: Wave, error: Exception) -> None:
    def fail(name: str) -> None:
        if name == "ns.u":
            raise error

    assert wave.run(Meddled(fail)) == dict.fromkeys(ALL, End.DONE)
    assert wave.outcome("ns.u")["status"] == "failed"
    assert str(error) in wave.outcome("ns.u")["summary"]
    assert [files_of(wave.pipeline, name) for name in ALL] == [1, 2, 1]
    assert ids_of(wave.pipeline, "ns.u") == ROWS["ns.u"]


def test_one_of_ten_tables_that_never_ends_is_cut_off_and_nine_are_maintained(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a single driver maintains one after the other (rule: cut-off-endless-tables); what wakes up late
    commits nothing."""
    names = tuple(f"t{number}" for number in range(9))
    wave = Wave(pipeline, names)
    monkeypatch.setattr(wave_module, "tables_at_once", lambda *_: 1)
    monkeypatch.setattr(wave_module, "longest_s", lambda *_, **__: 5.0)
    wakes, has_woken = threading.Event(), threading.Event()

    class Poisoned(LocalEngine):
        def map(self, *args: Any) -> Any:
            if '"ns.t"' in (current_pool() or ""):
                assert wakes.wait(60)
                has_woken.set()
            return super().map(*args)

    nine = [f"ns.{name}" for name in names]
    assert wave.run(Poisoned(1)) == {"ns.t": End.CUT_OFF, **dict.fromkeys(nine, End.DONE)}
    assert [files_of(pipeline, name) for name in nine] == [1] * 9
    told, item = wave.outcome("ns.t"), wave.items["ns.t"]
    assert told["status"] == "failed"
    assert told["summary"].startswith("StorageError: cut off: its part of a wave did not end within 5 s of job_timeout")
    (cut,) = wave.deployment.state.cut_offs.of_catalog(item.catalog, item.warehouse)
    assert (cut.entry[2], cut.work, cut.times) == ("ns.t", CutWork.PASS, 1)
    acquire_table_lease(wave.deployment, "another run", item, in_wave=True)
    before = pipeline.table.pyiceberg.load_table("ns.t").metadata_location
    wakes.set()
    assert has_woken.wait(10)
    for thread in [one for one in threading.enumerate() if one.name == "icekeeper-wave-table"]:
        thread.join(20)
    assert pipeline.table.pyiceberg.load_table("ns.t").metadata_location == before
    assert ids_of(pipeline, "ns.t") == ROWS["ns.t"]
    assert wave.deployment.state.leases.current(item.identity.lease_key, now_ms=pipeline.clock()) is not None


def test_what_may_pass_is_tried_again_behind_the_others(wave: Wave) -> None:
    seen: list[str] = []

    def fail_once(name: str) -> None:
        seen.append(name)
        if name == "ns.u" and seen.count(name) == 1:
            raise StorageError("busy")

    wave.run(Meddled(fail_once))
    assert sorted(seen) == ["ns.t", "ns.u", "ns.u", "ns.v"]
    assert [wave.outcome(name)["status"] for name in ALL] == ["succeeded"] * 3


def test_a_table_that_loses_its_lease_commits_nothing_and_stops_no_other(wave: Wave) -> None:
    def steal(name: str) -> None:
        if name == "ns.u":
            item = wave.items[name]
            leases = wave.deployment.state.leases
            held = leases.current(item.identity.lease_key, now_ms=wave.pipeline.clock())
            assert held is not None
            leases.release(held)
            acquire_table_lease(wave.deployment, "another run", item, in_wave=True)

    assert wave.run(Meddled(steal)) == dict.fromkeys(ALL, End.DONE)
    told = wave.outcome("ns.u")
    assert (told["status"], told["lost_lease"]) == ("refused", True)
    assert [files_of(wave.pipeline, name) for name in ALL] == [1, 2, 1]


def test_a_table_that_another_run_maintains_is_left_to_it(wave: Wave) -> None:
    acquire_table_lease(wave.deployment, "another run", wave.items["ns.u"], in_wave=True)
    assert wave.run(LocalEngine(1)) == {"ns.t": End.DONE, "ns.u": End.LEFT_OUT, "ns.v": End.DONE}
    plan = after(wave, "ns.u", lease=False)
    assert plan["outcomes"]["compact"]["status"] == "skipped"
    assert "another run" in plan["outcomes"]["compact"]["reason"]


def test_a_replaced_table_is_left_to_the_next_run(wave: Wave) -> None:
    catalog = wave.pipeline.table.pyiceberg
    catalog.drop_table("ns.u")
    made = catalog.create_table("ns.u", schema=wave.pipeline.table.new_rows().schema)
    assert wave.run(LocalEngine(1)) == {"ns.t": End.DONE, "ns.u": End.LEFT_OUT, "ns.v": End.DONE}
    assert made.refresh().current_snapshot() is None


class Slow:
    """A clock by which the first look at it is the beginning, and each further one ``step_s`` later."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = -step_s, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_tables_that_have_no_time_left_are_due_again_and_not_failed(wave: Wave) -> None:
    """Of an hour the first table begins after 15 minutes, the others too late."""
    late = Slow(3500)
    assert wave.run(LocalEngine(1), monotonic=late) == dict.fromkeys(ALL, End.LEFT_OUT)
    item = wave.items["ns.u"]
    plan = after(wave, "ns.u")
    assert plan["routes"]["compact"] == "none"
    assert plan["routes"]["expire_snapshots"] == "function"  # the rest of the pass follows all the same
    assert (plan["outcomes"]["compact"]["status"], plan["outcomes"]["compact"]["reason"]) == ("skipped", NO_TIME)
    assert [one.table for one in wave.rest] == list(ALL)
    report = wave.pipeline.report(wave.rest[1], reference(wave, "ns.u"))
    assert report.outcome is not None
    assert next(iter(report.outcome.operations)).status.value == "skipped"
    seen = wave.deployment.state.last_seen(item.identity)
    assert seen is not None
    assert seen.fingerprint == ""  # by which detection proposes it again


def test_a_second_attempt_does_only_what_has_no_outcome(wave: Wave, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one was killed: after the commit of one table, in the midst of the next, before the third."""
    done: list[str] = []

    class Killed(BaseException):
        pass

    def killed(deployment: Any, event: Any, engine: Any, **options: Any) -> Any:
        done.append(event.item.table)
        if len(done) == 2:
            raise Killed
        return run_step(deployment, event, engine, **options)

    with monkeypatch.context() as patched:
        patched.setattr(wave_module, "run_step", killed)
        patched.setattr(wave_module, "tables_at_once", lambda tables, workers: 1)
        with pytest.raises(Killed):
            wave.run(LocalEngine(1))
    first, second = done
    assert files_of(wave.pipeline, first) == 1
    plan = after(wave, second)
    assert plan["outcomes"]["compact"]["status"] == "skipped"
    work: list[str] = []
    assert wave.run(Meddled(work.append)) == dict.fromkeys(ALL, End.DONE)
    assert sorted(work) == sorted(set(ALL) - {first})
    assert {name: (files_of(wave.pipeline, name), ids_of(wave.pipeline, name)) for name in ALL} == {
        name: (1, ROWS[name]) for name in ALL
    }


def test_a_step_that_the_wave_broke_off_is_told_as_failed(wave: Wave) -> None:
    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        raise Killed

    with pytest.raises(Killed):
        wave.run(Meddled(kill))
    told = {name: after(wave, name)["outcomes"]["compact"]["status"] for name in ALL}
    assert set(told.values()) == {"failed"}
    assert {name: ids_of(wave.pipeline, name) for name in ALL} == ROWS


def test_an_end_that_cannot_be_written_is_not_taken_for_done(wave: Wave, monkeypatch: pytest.MonkeyPatch) -> None:
    write = type(wave.deployment.control).write
    folder = str(Path(wave.plans["ns.u"].key).parent)

    def broken(self: Any, key: str, document: Any) -> str:
        if key == f"{folder}/compact.json":
            raise StorageError("the bucket is gone")
        return write(self, key, document)

    monkeypatch.setattr(type(wave.deployment.control), "write", broken)
    assert wave.run(LocalEngine(1)) == {"ns.t": End.DONE, "ns.u": End.UNTOLD, "ns.v": End.DONE}
    monkeypatch.undo()
    assert wave.run(LocalEngine(1)) == dict.fromkeys(ALL, End.DONE)
    assert "committed by an earlier attempt" in wave.outcome("ns.u")["summary"]


def test_only_what_nobody_asked_for_waits_for_a_wave(pipeline: Pipeline) -> None:
    """Nor does a pass of a state machine of an earlier version, which knows no wave."""
    pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_COMPACTION_MB="0")
    (item,) = pipeline.detect()[1]
    acquire_table_lease(pipeline.deployment, RUN, item)

    def route(**changed: Any) -> str:
        waves = changed.pop("waves", True)
        event = PlanEvent(run_id=RUN, item=item.model_copy(update=changed), waves=waves)
        return plan_table(pipeline.deployment, event).routes["compact"]

    assert (route(), route(waves=False)) == ("wave", "glue")
    assert (route(detected_ms=None), route(detected_ms=None, forced=True)) == ("glue", "glue")


def after(wave: Wave, name: str, *, lease: bool = True) -> Any:
    """The plan of the rest of a table's pass."""
    if lease:
        acquire_table_lease(wave.deployment, RUN, wave.items[name])
        return wave.deployment.control.find(reference(wave, name).key)
    leases, item = wave.deployment.state.leases, wave.items[name]
    held = leases.current(item.identity.lease_key, now_ms=wave.pipeline.clock())
    assert held is not None
    leases.release(held)
    return after(wave, name)


def reference(wave: Wave, name: str) -> Any:
    item = next(item for item in wave.rest if item.table == name)
    return plan_table(wave.deployment, PlanEvent(run_id=RUN, item=item, waves=True))


# A table that stands twice in a wave is maintained as once: its rows stay, and nobody else is kept out
# (rule: wave-tables-are-independent).

NAMES = ("ns.t", "ns.u", "ns.v")


class Together(LocalEngine):
    """Both of a table's works are planned before either rewrites."""

    def __init__(self) -> None:
        super().__init__(1)
        self.planned = threading.Barrier(6)

    def map(self, *args: Any) -> Any:
        self.planned.wait(20)
        return super().map(*args)


def test_a_table_that_waits_twice_is_gathered_once(pipeline: Pipeline) -> None:
    wave = Wave(pipeline)
    waiting = [{"key": plan.key, "digest": plan.digest} for plan in (*wave.plans.values(), *wave.plans.values())]
    event = parse_event(WaveEvent, {"run_id": RUN, "wave": waiting})
    assert gather_wave(wave.deployment, event) == wave.answer


def test_one_that_is_at_work_twice_loses_no_row(pipeline: Pipeline) -> None:
    wave = Wave(pipeline)
    rows = {name: ids_of(pipeline, name) for name in NAMES}
    tables = wave.document.tables
    twice = wave.document.model_copy(update={"tables": (*tables, *tables), "workers": 4})
    ends = run_wave(wave.deployment, twice, Together())
    assert set(ends.values()) <= {End.DONE, End.LEFT_OUT}
    for name in NAMES:
        assert (files_of(pipeline, name), ids_of(pipeline, name)) == (1, rows[name])
        acquire_table_lease(wave.deployment, "another run", wave.items[name], in_wave=True)


# In a table bucket a wave does what follows a table's compaction as soon as that is committed.

MERGE = "rewrite_position_deletes"
BEHIND = ["expire_snapshots", "remove_orphans", "rewrite_manifests"]


@pytest.fixture
def wave_of_buckets(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Wave:
    """As for table buckets; the folder of these tests is none."""
    monkeypatch.setattr(routes_module, "is_table_bucket", lambda _: True)
    return Wave(pipeline, ("u",))


def plan_of_rest(wave_of_buckets: Wave, name: str) -> Any:
    """The plan of what is left of a pass after the wave."""
    (item,) = (one for one in wave_of_buckets.rest if one.table == name)
    acquire_table_lease(wave_of_buckets.deployment, RUN, item)
    plan = plan_table(wave_of_buckets.deployment, PlanEvent(run_id=RUN, item=item, waves=True))
    return plan, wave_of_buckets.deployment.control.read(plan.key, plan.digest)


def test_one_table_is_done_whatever_the_others_still_do(wave_of_buckets: Wave, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of a table in order, before the next table has begun."""
    order: list[tuple[str, str]] = []

    def told(deployment: Any, event: Any, engine: Any, **options: Any) -> Any:
        order.append((event.item.table, event.step))
        return run_step(deployment, event, engine, **options)

    monkeypatch.setattr(wave_module, "run_step", told)
    monkeypatch.setattr(wave_module, "tables_at_once", lambda tables, workers: 1)
    rows = {name: ids_of(wave_of_buckets.pipeline, name) for name in wave_of_buckets.items}
    assert wave_of_buckets.run(LocalEngine(1)) == dict.fromkeys(wave_of_buckets.items, End.DONE)
    for number, name in enumerate(table.item.table for table in wave_of_buckets.document.tables):
        steps = [step for table, step in order if table == name]
        assert [step for step in steps if step in ("compact", *BEHIND)] == ["compact", *BEHIND]
        assert order[number * len(steps) : (number + 1) * len(steps)] == [(name, step) for step in steps]
    for name in wave_of_buckets.items:
        assert (files_of(wave_of_buckets.pipeline, name), ids_of(wave_of_buckets.pipeline, name)) == (1, rows[name])
        assert wave_of_buckets.outcome(name, "expire_snapshots")["metrics"]["expire_snapshots.snapshots_expired"] > 0
        plan, document = plan_of_rest(wave_of_buckets, name)
        assert set(plan.routes.values()) == {"none"}
        assert set(document["outcomes"]) == {MERGE}  # which has nothing to do


def test_a_step_that_fails_stops_neither_the_next_nor_another_table(
    wave_of_buckets: Wave, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(deployment: Any, event: Any, engine: Any, **options: Any) -> Any:
        if (event.item.table, event.step) == ("ns.u", "expire_snapshots"):
            raise StorageError("no answer")
        return run_step(deployment, event, engine, **options)

    monkeypatch.setattr(wave_module, "run_step", failing)
    assert wave_of_buckets.run(LocalEngine(1)) == dict.fromkeys(wave_of_buckets.items, End.DONE)
    assert wave_of_buckets.outcome("ns.u", "expire_snapshots")["status"] == "failed"
    assert wave_of_buckets.outcome("ns.u", "rewrite_manifests")["status"] == "succeeded"
    assert wave_of_buckets.outcome("ns.t", "expire_snapshots")["status"] == "succeeded"


def test_what_the_wave_had_no_time_for_and_fits_a_function_follows_it(wave_of_buckets: Wave) -> None:
    times = iter([0.0])
    ends = wave_of_buckets.run(LocalEngine(1), monotonic=lambda: next(times, 1e9))
    assert ends == dict.fromkeys(wave_of_buckets.items, End.LEFT_OUT)
    plan, document = plan_of_rest(wave_of_buckets, "ns.u")
    assert document["outcomes"]["compact"]["reason"] == NO_TIME
    assert {step for step, route in plan.routes.items() if route == "function"} == set(BEHIND)


def test_large_manifests_join_the_wave_without_a_compaction(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_module, "is_table_bucket", lambda _: True)
    pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_MANIFESTS="0", ICEKEEPER_REWRITE_ENABLED="false")
    item = pipeline.detect()[1][0]
    acquire_table_lease(pipeline.deployment, RUN, item)
    plan = plan_table(pipeline.deployment, PlanEvent(run_id=RUN, item=item, waves=True))
    assert plan.routes["rewrite_manifests"] == "wave"
    assert plan.routes["expire_snapshots"] == "function"  # it comes before


def test_elsewhere_a_wave_does_no_more_than_compaction(pipeline: Pipeline) -> None:
    """Its job may not delete files."""
    wave = Wave(pipeline, ("u",))
    routes = wave.plans["ns.u"].routes
    assert {step for step, route in routes.items() if route == "wave"} == {"compact"}
    assert [routes[step] for step in BEHIND] == ["function"] * 3


# The Glue script carries a wave out in one Spark session, with jobs kept apart by table
# (rule: wave-tables-are-independent, platform: spark-fair-pools).


def test_works_that_share_a_session_have_pools_and_errors_of_their_own(spark_session: SparkSession) -> None:
    engine, together = SparkEngine(spark_session.sparkContext), threading.Barrier(3)

    def work(name: str) -> Sequence[tuple[str, str | None]] | str:
        together.wait(20)
        with in_pool(f"pool of {name}"):
            try:
                return engine.map(pool_of, [name, name], lambda done: None)
            except StorageError:
                return "failed"

    with WorkThreads(3) as threads:
        told = dict(zip("ab", threads.map(work, ["a", "b", "broken"]), strict=False))
    assert told == {name: [(name, f"pool of {name}")] * 2 for name in "ab"}
    assert engine.map(pool_of, ["alone"], lambda done: None) == [("alone", None)]


@pytest.mark.slow
@pytest.mark.usefixtures("spark_session")
def test_a_glue_job_carries_out_a_wave(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    wave = Wave(pipeline, by_real_clock=True)
    rows = {name: ids_of(pipeline, name) for name in ALL}
    arguments = ["--wave-key", wave.answer["key"], "--wave-digest", wave.answer["digest"], "--run-id", RUN]
    arguments += ["--control-bucket", str(pipeline.control), "--state", pipeline.environment["ICEKEEPER_STATE"]]
    allowed = operations_of_job("compact_data_files")
    with caplog.at_level(logging.INFO, "icekeeper.pipeline.glue_job"):
        assert run_job([*arguments, "--JOB_NAME", "compact"], allowed) == 0
    assert "wave of 3 table(s): 3 done" in caplog.messages
    assert [(files_of(pipeline, name), wave.outcome(name)["status"]) for name in ALL] == [(1, "succeeded")] * 3
    assert {name: ids_of(pipeline, name) for name in ALL} == rows
    digest = arguments.index("--wave-digest") + 1
    assert run_job([*arguments[:digest], "0" * 64, *arguments[digest + 1 :]], allowed) == 1
    with pytest.raises(ValueError, match="this job does not do compact"):
        run_job(arguments, frozenset())


# A table whose lease is gone before a step begins is left out and due again; the wave is not run anew for it.


def test_a_lease_that_is_lost_before_a_step_leaves_its_table_out(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end that cannot be told would have the whole wave tried again (rule: wave-tables-are-independent)."""
    wave = Wave(pipeline, ["u"])

    def step(deployment: Any, event: Any, engine: Any) -> Any:
        if event.item.table == "ns.u":
            raise LeaseLost("run-9 took it")
        return run_step(deployment, event, engine)

    monkeypatch.setattr(wave_module, "run_step", step)
    assert wave.run(LocalEngine(1)) == {"ns.t": End.DONE, "ns.u": End.LEFT_OUT}
    assert (files_of(pipeline, "ns.t"), files_of(pipeline, "ns.u")) == (1, 2)
    (rest,) = (item for item in wave.rest if item.table == "ns.u")
    acquire_table_lease(wave.deployment, RUN, rest)
    plan = plan_table(wave.deployment, PlanEvent(run_id=RUN, item=rest, waves=True))
    told = pipeline.deployment.control.read(plan.key, plan.digest)["outcomes"]["compact"]
    assert (told["status"], told["reason"]) == ("skipped", "run-9 took it")
