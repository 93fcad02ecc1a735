"""A task may hold what its engine says, and nothing where the engine does not know (rule 157)."""

from __future__ import annotations

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.machine.resources import spare_bytes, with_spare_bytes


def spare_of(task: int) -> int:
    return task + spare_bytes()


def test_a_task_may_hold_what_its_engine_says() -> None:
    assert LocalEngine(1, spare_bytes=100).map(spare_of, [1, 2], lambda done: None) == [101, 102]
    assert LocalEngine(1).map(spare_of, [1], lambda done: None) == [1]
    assert spare_bytes() == 0


def test_nothing_is_spare_where_several_processes_share_the_memory() -> None:
    engine = LocalEngine(2, spare_bytes=100)
    with engine._workers(2, spare_of) as workers:
        assert workers.spare_bytes == 0


def test_an_inner_block_ends_with_itself() -> None:
    with with_spare_bytes(5):
        with with_spare_bytes(-1):
            assert spare_bytes() == 0
        assert spare_bytes() == 5
