"""What is remembered of sweeps stands beside the turns of schedules, in every store."""

from __future__ import annotations

from icekeeper.policy.due import FIRST_SWEEP, SWEPT, TRIED, SweepMemory
from icekeeper.state.store import ScheduleRun
from support.state_stores import COPY, IDENTITY, OpenStore


def turn(name: str, at_ms: int, *, idle: bool = False) -> ScheduleRun:
    return ScheduleRun(schedule=name, counted_ms=at_ms, finished_ms=at_ms, snapshot_id=None, fingerprint="", idle=idle)


def test_sweeps_are_remembered_beside_schedules(open_store: OpenStore) -> None:
    turns = (turn("nightly", 1), turn(SWEPT, 2), turn(FIRST_SWEEP, 3), turn(TRIED, 4, idle=True), turn(SWEPT, 5))
    for one in turns:
        open_store().schedules.record(IDENTITY, one)
    found = open_store().glance(IDENTITY, now_ms=0).schedules
    assert found == open_store().schedules.of_table(IDENTITY) == {one.schedule: one for one in turns}
    assert SweepMemory.of(found) == SweepMemory(swept_ms=5, first_ms=3, tried_ms=4, is_impossible=True)
    # A copy of the table has files of its own.
    assert SweepMemory.of(open_store().schedules.of_table(COPY)).is_empty
