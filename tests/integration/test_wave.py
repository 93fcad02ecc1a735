"""A wave: one driver compacts many tables, each with its own lease, plan, commit and outcome (rule 144, rule 145)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icekeeper.engines.engine import current_pool
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.pipeline import glue_job as wave_module
from icekeeper.pipeline.events import PlanEvent
from icekeeper.pipeline.glue_job import NO_TIME, End
from icekeeper.pipeline.plan_table import plan_table
from icekeeper.pipeline.run_leases import acquire_table_lease
from icekeeper.pipeline.run_step import run_step
from icekeeper.state.claims import CutWork
from support.pipeline_deployment import RUN, Pipeline, Wave, files_of, ids_of

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
    """Rule 272: also where a single driver maintains one after the other; what wakes up late commits nothing."""
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
