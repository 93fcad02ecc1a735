"""Which groups one worker rewrites together, and that a batch is rewritten as its groups would be."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.operations.compaction import run_groups as group_batches
from icekeeper.operations.compaction.rewrite_task import OutputNames, RewriteTask
from icekeeper.operations.compaction.run_groups import RewriteBatch, in_batches, rewrite_batch
from icekeeper.rows.read_task import OPEN_FILE_BYTES, InputFile

MIB = 1 << 20


def group(number: int, *sizes: int) -> RewriteTask:
    return RewriteTask(
        inputs=tuple(InputFile(f"s3://b/t/{number}-{i}.parquet", 1, size) for i, size in enumerate(sizes)),
        schema={"fields": []},
        io_properties={},
        group_id=number,
        partition=(),
        outputs=OutputNames("s3://b/t", f"compact-{number}"),
        table_properties={},
    )


def lengths(tasks: list[RewriteTask]) -> list[int]:
    return [len(batch.tasks) for batch in in_batches(tasks)]


def test_tiny_groups_share_batches() -> None:
    """Two tiny files count as half a megabyte, for opening them; a batch has 32."""
    assert lengths([group(number, 0, 0) for number in range(130)]) == [64, 64, 2]


def test_a_large_group_has_a_batch_of_its_own() -> None:
    tiny, large = group(0, 0), group(1, 4 * MIB)
    assert lengths([tiny, tiny, large, tiny, large, large, tiny]) == [2, 1, 1, 1, 1, 1]
    assert lengths([large]) == [1]
    assert lengths([]) == []


@given(st.lists(st.lists(st.integers(0, 6 * MIB), min_size=1, max_size=4), max_size=60))
def test_batches_hold_every_group_once_in_order_and_not_too_much(sizes: list[list[int]]) -> None:
    tasks = [group(number, *some) for number, some in enumerate(sizes)]
    batches = in_batches(tasks)
    assert [task for batch in batches for task in batch.tasks] == tasks
    for batch in batches:
        assert batch.tasks
        if len(batch.tasks) > 1:
            assert batch.input_bytes <= 32 * MIB
            assert all(task.input_bytes <= 4 * MIB for task in batch.tasks)


def test_an_attempt_at_a_batch_is_one_at_each_group() -> None:
    """No two attempts write the same file (rule 33)."""
    batch = RewriteBatch((group(0, 0), group(1, 0)))
    again = batch.in_attempt(3)
    assert [task.outputs.attempt for task in again.tasks] == [3, 3]
    assert [task.outputs.attempt for task in batch.tasks] == [0, 0]
    assert again.input_bytes == batch.input_bytes == 2 * OPEN_FILE_BYTES


def test_groups_on_a_store_wait_side_by_side_with_one_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone would wait for its own requests, with a client and connections of its own."""
    together, storages = threading.Barrier(4), set()

    def rewritten(task: RewriteTask, storage: Any) -> int:
        together.wait(20)
        storages.add(storage)
        return task.group_id

    monkeypatch.setattr(group_batches, "rewrite_group", rewritten)
    found: list[Any] = list(rewrite_batch(RewriteBatch(tuple(group(number, 0) for number in range(4)))))
    assert found == [0, 1, 2, 3]
    assert len(storages) == 1


def test_groups_on_this_machine_need_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_batches, "rewrite_group", lambda task, storage: threading.get_ident())
    local = [
        replace(
            group(number), inputs=(InputFile("/t/a.parquet", 1, 0),), outputs=OutputNames("/t", f"compact-{number}")
        )
        for number in range(3)
    ]
    found: list[Any] = list(rewrite_batch(RewriteBatch(tuple(local))))
    assert found == [threading.get_ident()] * 3


def test_an_input_that_is_missing_fails_its_own_group_alone(tmp_path: Any) -> None:
    tasks = [
        replace(group(number), inputs=(InputFile(str(tmp_path / f"{number}.parquet"), 1, 0),)) for number in range(2)
    ]
    first, second = rewrite_batch(RewriteBatch(tuple(tasks)))
    assert (first.group_id, second.group_id) == (0, 1)
    for number, result in enumerate((first, second)):
        assert result.written == ()
        assert result.error is not None
        assert f"{number}.parquet" in result.error


@pytest.mark.parametrize(("size", "at_once"), [(0, 8), (MIB, 8), (3 * MIB, 2), (9 * MIB, 1)])
def test_rows_of_few_groups_are_in_memory_at_once(size: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has its limit whatever the groups (rule 171): eight of 3 MB would be some hundred MB of rows."""
    threads = []

    def pool(count: int, **names: str) -> Any:
        threads.append(count)
        return ThreadPoolExecutor(count)

    monkeypatch.setattr(group_batches, "WorkThreads", pool)
    monkeypatch.setattr(group_batches, "rewrite_group", lambda task, storage: task.group_id)
    rewrite_batch(RewriteBatch((group(0, 0), group(1, size // 2, size // 2))))
    assert threads == [at_once]
