"""The sweeps of a fleet: kept apart from the first hour on, none late, none in every hourly pass (rule 128)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.machine.clock import HOUR_MS
from icekeeper.policy import Policy
from icekeeper.policy.due import SweepMemory, first_sweep_ms, sweep_due_ms, sweep_interval_ms
from support.examples import examples

DAY_MS = 24 * HOUR_MS
T0 = 1_767_225_600_000
OLD_MS = 1000 * HOUR_MS


def swept_hours(key: str, hours: int, tables: int, interval_hours: int = 24, late_ms: int = 0) -> list[int]:
    """In which of so many hourly passes a table is swept that was never swept before."""
    policy = Policy.model_validate({"orphan_sweep_interval_hours": interval_hours})
    interval_ms = sweep_interval_ms(policy)
    memory = SweepMemory(first_ms=first_sweep_ms(key, T0, policy, tables=tables, age_ms=OLD_MS))
    found = []
    for hour in range(hours):
        now_ms = T0 + hour * HOUR_MS + (late_ms if hour % 2 else 0)
        if sweep_due_ms(memory, interval_ms, key, now_ms) <= now_ms:
            found.append(hour)
            memory = SweepMemory(swept_ms=now_ms)
    return found


@settings(max_examples=examples(60), deadline=None)
@given(key=st.uuids().map(str), tables=st.integers(1, 3000), late_min=st.integers(0, 20))
def test_a_busy_table_is_listed_once_a_day(key: str, tables: int, late_min: int) -> None:
    found = swept_hours(key, 7 * 24, tables, late_ms=late_min * 60_000)
    assert found[0] <= 24
    assert found[0] == 0 or tables > 24
    # Hourly passes meet a due time within the hour; the interval is up to a tenth shorter.
    assert {after - before for before, after in pairwise(found)} <= {22, 23, 24}


@settings(max_examples=examples(30), deadline=None)
@given(key=st.uuids().map(str), interval=st.integers(1, 400))
def test_no_table_waits_longer_than_an_interval_and_the_hour_of_the_pass(key: str, interval: int) -> None:
    found = swept_hours(key, 5 * interval + 2, 10**6, interval)
    gaps = [after - before for before, after in pairwise([0, *found])]
    assert max(gaps) <= interval
    assert min(gaps[1:]) >= interval * 0.9 - 1


@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_first_sweeps_of_a_fleet_that_starts_at_once_are_spread_over_the_day(seed: int) -> None:
    policy = Policy()
    keys = (f"{seed}-{number}" for number in range(1200))
    due = [first_sweep_ms(key, T0, policy, tables=1200, age_ms=OLD_MS) for key in keys]
    hours = Counter((at_ms - T0) // HOUR_MS for at_ms in due)
    assert hours.keys() == set(range(24))
    # 50 an hour, give or take five standard deviations.
    assert 15 <= min(hours.values()) <= max(hours.values()) <= 85
