"""When a table is swept for orphans again: what is remembered of the last sweep decides, and what that is in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import ResolvedPolicy
from icekeeper.policy.due import (
    FIRST_SWEEP,
    SWEPT,
    TRIED,
    SweepMemory,
    first_sweep_ms,
    known_age_ms,
    next_proposal_ms,
    sweep_due_ms,
    why_no_sweep,
)
from icekeeper.state.store import ScheduleRun
from support.settings import NOW_MS, policy, table

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KEY = "5a3d83f2-2f5a-4b0e-8f5b-000000000000"


def turn(name: str, at_ms: int, *, idle: bool = False) -> ScheduleRun:
    return ScheduleRun(schedule=name, counted_ms=at_ms, finished_ms=at_ms, snapshot_id=None, fingerprint="", idle=idle)


def remembered(**hours_ago: float) -> SweepMemory:
    at_ms = {name: NOW_MS - int(hours * HOUR_MS) for name, hours in hours_ago.items()}
    return SweepMemory(at_ms.get("swept_ms"), at_ms.get("first_ms"), at_ms.get("tried_ms"))


def test_what_is_remembered_stands_among_the_turns_of_schedules() -> None:
    assert SweepMemory.of({}) == SweepMemory()
    assert SweepMemory.of({}).is_empty
    turns = {
        one.schedule: one
        for one in (turn("nightly", 9), replace(turn(SWEPT, 1), finished_ms=5), turn(FIRST_SWEEP, 2), turn(TRIED, 3))
    }
    assert SweepMemory.of(turns) == SweepMemory(swept_ms=1, first_ms=2, tried_ms=3)
    assert SweepMemory.of({TRIED: turn(TRIED, 4, idle=True)}) == SweepMemory(tried_ms=4, is_impossible=True)
    assert not SweepMemory.of({TRIED: turn(TRIED, 4)}).is_empty
    assert SweepMemory.of({"nightly": turn("nightly", 9)}).is_empty


@pytest.mark.parametrize(
    ("hours_ago", "is_due"),
    [
        ({}, True),
        ({"swept_ms": 21.5}, False),
        ({"swept_ms": 23.6}, True),  # a daily run may be some minutes early
        ({"swept_ms": 24}, True),
        ({"swept_ms": 999}, True),
        ({"swept_ms": 1, "first_ms": 30}, False),
        ({"first_ms": -1}, False),
        ({"first_ms": -23.9}, False),
        ({"first_ms": 0}, True),
        # What only a clock that was ahead can have left.
        ({"swept_ms": -1}, True),
        ({"first_ms": -24.1}, True),
    ],
)
def test_a_sweep_is_due_an_interval_after_the_last(hours_ago: dict[str, float], is_due: bool) -> None:
    memory = remembered(**hours_ago)
    for number in range(20):
        assert (sweep_due_ms(memory, DAY_MS, f"key {number}", NOW_MS) <= NOW_MS) is is_due


def test_after_one_in_vain_a_table_is_proposed_again_later_but_stays_due() -> None:
    memory = remembered(swept_ms=30, tried_ms=1)
    assert sweep_due_ms(memory, DAY_MS, KEY, NOW_MS) < NOW_MS
    assert next_proposal_ms(memory, DAY_MS, KEY, NOW_MS) == NOW_MS + 5 * HOUR_MS
    impossible = replace(memory, is_impossible=True)
    assert next_proposal_ms(impossible, DAY_MS, KEY, NOW_MS) == NOW_MS + 7 * DAY_MS - HOUR_MS
    never = remembered(tried_ms=1)
    assert next_proposal_ms(never, DAY_MS, KEY, NOW_MS) == NOW_MS + 5 * HOUR_MS
    # One before the last sweep, or by a clock that was ahead, says nothing.
    for tried in (31, -1):
        told = remembered(swept_ms=30, tried_ms=tried)
        assert next_proposal_ms(told, DAY_MS, KEY, NOW_MS) == sweep_due_ms(told, DAY_MS, KEY, NOW_MS)


@pytest.mark.parametrize(
    ("tables", "age_hours", "hours"),
    [
        (1, 72, (0, 0)),
        (24, 1000, (0, 0)),
        (25, 1000, (0, 1)),
        (48, 1000, (0, 1)),
        (49, 1000, (0, 2)),
        (100_000, 1000, (0, 24)),
        # Its oldest file is within the grace period.
        (1, 71, (12, 24)),
        (100_000, 0, (12, 24)),
    ],
)
def test_the_first_sweep_of_a_table_comes_within_an_interval(
    tables: int, age_hours: int, hours: tuple[int, int]
) -> None:
    settings = policy().policy
    found = [first_sweep_ms(f"key {n}", NOW_MS, settings, tables=tables, age_ms=age_hours * HOUR_MS) for n in range(50)]
    low, high = (NOW_MS + hour * HOUR_MS for hour in hours)
    assert all(low <= at_ms <= high for at_ms in found)
    assert len(set(found)) == (1 if hours == (0, 0) else 50)


def test_a_table_is_young_for_an_interval_at_least() -> None:
    settings = policy(orphan_older_than_hours="24", orphan_sweep_interval_hours="48").policy
    assert first_sweep_ms("k", NOW_MS, settings, tables=1, age_ms=2 * DAY_MS - 1) > NOW_MS
    assert first_sweep_ms("k", NOW_MS, settings, tables=1, age_ms=2 * DAY_MS) == NOW_MS


def why_not(turns: list[ScheduleRun], schedule: str | None = None, **settings: str) -> str | None:
    resolved: ResolvedPolicy = policy(**settings)
    return why_no_sweep(resolved, schedule, {one.schedule: one for one in turns}, KEY, NOW_MS)


def test_why_a_pass_leaves_the_sweep_out() -> None:
    swept = [turn(SWEPT, NOW_MS - 3 * HOUR_MS)]
    assert why_not([]) is None
    assert why_not(swept) == "the last sweep was 3 hours ago; orphan_sweep_interval_hours is 24"
    assert why_not(swept, orphan_sweep_interval_hours="3") is None
    assert why_not(swept, orphan_sweep_interval_hours="0") is None
    assert why_not([turn(SWEPT, NOW_MS - 90_000)], orphan_sweep_interval_hours="0.5") == (
        "the last sweep was 1 minute ago; orphan_sweep_interval_hours is 0.5"
    )
    # One that failed since leaves the table as due as it was.
    assert why_not([*swept, turn(TRIED, NOW_MS - HOUR_MS)]) == why_not(swept)
    assert why_not([turn(TRIED, NOW_MS - HOUR_MS)]) is None
    assert why_not([turn(FIRST_SWEEP, NOW_MS + 7 * HOUR_MS)]) == (
        "the first sweep is due in 7 hours; first sweeps are spread over orphan_sweep_interval_hours 24"
    )


@pytest.mark.parametrize(
    ("own", "waits"),
    [
        ({}, True),
        ({"operations": "remove_orphans"}, False),
        ({"operations": "remove_orphans", "orphan_sweep_interval_hours": "12"}, True),
        ({"orphan_sweep_interval_hours": "2"}, False),
    ],
)
def test_a_schedule_that_names_its_operations_sweeps_in_each_turn(own: dict[str, str], waits: bool) -> None:
    settings = {f"schedules.s.{key}": value for key, value in {"interval": "1h", **own}.items()}
    assert (why_not([turn(SWEPT, NOW_MS - 3 * HOUR_MS)], "s", **settings) is not None) is waits


def test_how_old_a_table_is_at_least() -> None:
    def aged(**more: Any) -> int:
        return known_age_ms(TableMetadata({**table(snapshots=0).document, **more}), NOW_MS) // HOUR_MS

    hours_ago = [{"timestamp-ms": NOW_MS - hours * HOUR_MS} for hours in range(9)]
    assert aged() == 0
    assert aged(**{"last-updated-ms": NOW_MS - 2 * HOUR_MS}) == 2
    assert aged(**{"last-updated-ms": NOW_MS, "metadata-log": hours_ago[:5]}) == 4
    assert aged(**{"last-updated-ms": NOW_MS, "snapshot-log": hours_ago[:7]}) == 6
    assert aged(**{"last-updated-ms": NOW_MS + HOUR_MS}) == 0
    # What a careless writer left out says nothing.
    assert aged(**{"snapshot-log": None, "metadata-log": [{"metadata-file": "m"}, {"timestamp-ms": None}]}) == 0
    assert known_age_ms(table(snapshots=3, age_hours=5), NOW_MS) == 7 * HOUR_MS
