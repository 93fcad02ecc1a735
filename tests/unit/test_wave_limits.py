"""How large a wave is, and which tables begin: pure rules (rule 144, rule 145, rule 146)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from icekeeper.operation_facts import STEP_FACTS
from icekeeper.pipeline.wave import MOST_WORKERS, in_order, longest_s, may_begin, tables_at_once, workers_for

GB = 1024**3


@dataclass(frozen=True)
class Table:
    name: str
    size_bytes: int


def test_workers_grow_with_the_bytes_up_to_ten() -> None:
    """A driver and at least one worker that works."""
    assert [workers_for(size) for size in (0, 1, 50 * GB, 50 * GB + 1, 10**15)] == [2, 2, 2, 3, MOST_WORKERS]
    told = [workers_for(size * GB) for size in range(0, 2000, 7)]
    assert told == sorted(told)
    assert max(told) == 10


def test_the_largest_begins_first_and_equal_ones_in_the_order_of_need() -> None:
    tables = [Table("a", 1), Table("b", 9), Table("c", 1), Table("d", 4)]
    assert [table.name for table in in_order(tables)] == ["b", "d", "a", "c"]


@pytest.mark.parametrize(
    ("tables", "workers", "at_once"), [(1, 2, 1), (100, 2, 8), (100, 3, 16), (100, 10, 16), (5, 10, 5)]
)
def test_tables_keep_the_workers_busy_and_the_driver_bounded(tables: int, workers: int, at_once: int) -> None:
    assert tables_at_once(tables, workers) == at_once


def test_no_table_begins_that_would_not_end_in_time() -> None:
    """Of an hour; a large one needs more time than a small one, and more workers need less."""
    hour = 3600.0
    assert may_begin(1, 2, elapsed_s=3400, limit_s=hour)
    assert not may_begin(1, 2, elapsed_s=3500, limit_s=hour)
    assert not may_begin(100 * GB, 2, elapsed_s=2700, limit_s=hour)
    assert may_begin(100 * GB, 10, elapsed_s=2700, limit_s=hour)


def test_a_table_may_take_long_but_not_the_time_in_which_the_others_are_told_of() -> None:
    """Rule 272: a quarter of an hour, or four times what surely suffices; three minutes stay at the end."""
    hour = 3600.0
    assert longest_s(0, 2, elapsed_s=0, limit_s=hour) == 900
    assert longest_s(60 * GB, 2, elapsed_s=0, limit_s=hour) == pytest.approx(3211, abs=1)
    assert longest_s(10**15, 2, elapsed_s=0, limit_s=hour) == 3420
    assert longest_s(0, 2, elapsed_s=3000, limit_s=hour) == 420
    assert longest_s(0, 2, elapsed_s=3590, limit_s=hour) == 60


def test_what_no_run_is_long_enough_for_begins_early_or_never() -> None:
    assert may_begin(10**15, 2, elapsed_s=900, limit_s=3600)
    assert not may_begin(10**15, 2, elapsed_s=901, limit_s=3600)


def test_the_steps_of_a_wave_follow_each_other_in_a_pass() -> None:
    """A pass waits for a wave once: between its steps there is none that the wave does not do (rule 58)."""
    numbers = [number for number, step in enumerate(STEP_FACTS) if step.in_waves]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    jobs = {step.job.script for step in STEP_FACTS if step.in_waves and step.job is not None}
    assert jobs == {"compact_data_files"}
