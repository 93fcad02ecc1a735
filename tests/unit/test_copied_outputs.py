"""Which inputs are copied into which output, and which are decoded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.operations.compaction.copied_outputs import CopyableInput, PlannedOutput, assign, plan_outputs
from icekeeper.operations.compaction.rewrite_task import Copying
from icekeeper.row_group_copy.copyable import CopyableFile
from icekeeper.rows.read_task import InputFile

OURS, OTHERS = b"table", b"writer"


def file(
    size: int,
    row_groups: int = 1,
    nullability: bytes = OURS,
    *,
    memory: int = 0,
    is_whole: bool = True,
    is_indexed: bool = True,
) -> CopyableInput:
    found = SimpleNamespace(
        copied_bytes=size,
        memory_bytes=memory,
        row_groups=row_groups,
        nullability=nullability,
        has_page_index=is_indexed,
    )
    return CopyableInput(cast(CopyableFile, found), () if is_whole else (InputFile("part", 1, 1),))


def planned(
    sizes: list[int], copyable: dict[int, CopyableInput], outputs: int = 1, **bounds: int
) -> list[PlannedOutput] | None:
    told: dict[str, Any] = {"min_row_group_bytes": 8, "smallest_output_bytes": 1, "largest_output_bytes": 1000}
    told["full_row_group_memory"] = 40
    return plan_outputs(
        sizes, outputs, copyable, Copying(entries={}, sizes=tuple(sizes), **told | bounds), OURS, row_group_bytes=100
    )


def test_copyable_files_are_copied_and_the_others_decoded_beside_them() -> None:
    assert planned([50, 5, 60, 5], {0: file(50), 2: file(60)}) == [PlannedOutput((1, 3), (0, 2))]


def test_nothing_copyable_is_nothing_to_copy() -> None:
    assert planned([50, 5], {}) is None


@pytest.mark.parametrize(("row_groups", "is_copied"), [(8, True), (9, False)])
def test_an_output_has_no_smaller_row_groups_than_what_is_copied(row_groups: int, is_copied: bool) -> None:
    """The decoded ten bytes make one row group more: 72 bytes in nine are enough, in ten they are not."""
    found = planned([62, 10], {0: file(62, row_groups)})
    assert (found == [PlannedOutput((1,), (0,))]) is is_copied
    assert (found is None) is not is_copied


@pytest.mark.parametrize(("memory", "is_copied"), [(160, True), (80, False)])
def test_rows_that_fill_memory_count_as_large_row_groups(memory: int, is_copied: bool) -> None:
    """Four bytes in each of four row groups, whose rows take 160 bytes in memory, four times what is a full one."""
    found = planned([16, 8], {0: file(16, 4, memory=memory)})
    assert (found == [PlannedOutput((1,), (0,))]) is is_copied


def test_files_that_require_other_values_than_the_table_share_an_output_with_their_like_only() -> None:
    alike = {0: file(50, nullability=OTHERS), 1: file(60, nullability=OTHERS)}
    assert planned([50, 60], alike) == [PlannedOutput((), (0, 1))]
    assert planned([50, 60, 5], alike) is None  # what is decoded requires what the table does
    assert planned([50, 60], {0: alike[0], 1: file(60)}) == [PlannedOutput((0,), (1,))]


def test_what_is_decoded_of_a_file_counts_as_decoded() -> None:
    """Forty bytes of row groups without deleted rows, and sixty that become one row group."""
    assert planned([100], {0: file(40, 5, is_whole=False)}, min_row_group_bytes=16) == [PlannedOutput((), (0,))]
    assert planned([100], {0: file(40, 6, is_whole=False)}, min_row_group_bytes=16) is None
    assert planned([100], {0: file(40, 1, OTHERS, is_whole=False)}) is None


def test_an_output_without_anything_to_copy_is_decoded_beside_others() -> None:
    assert planned([50, 50, 50, 50], {0: file(50), 1: file(50)}, 2) == [
        PlannedOutput((), (0, 1)),
        PlannedOutput((2, 3), ()),
    ]


def test_inputs_that_disagree_about_page_indexes_go_to_different_outputs() -> None:
    """In no more files than were planned; else they share one, which has no page index (rule 200)."""
    bare = file(50, is_indexed=False)
    some = {0: file(50), 1: bare, 2: bare, 3: file(50)}
    sizes = [50, 50, 50, 50, 10]  # the last one is decoded, and has a page index then
    assert planned(sizes, some, 2) == [PlannedOutput((4,), (0, 3)), PlannedOutput((), (1, 2))]
    assert planned(sizes, some, 1) == [PlannedOutput((4,), (0, 1, 2, 3))]
    # The bare one alone would be too small a file.
    lone = {0: file(50), 1: file(50), 2: bare, 3: file(50)}
    in_order = [PlannedOutput((), (0, 1)), PlannedOutput((), (2, 3))]
    assert planned([50] * 4, lone, 2, smallest_output_bytes=51) == in_order
    assert planned([50] * 4, lone, 2, largest_output_bytes=149) == in_order
    assert planned([50] * 4, lone, 2) == [PlannedOutput((), (0, 1, 3)), PlannedOutput((), (2,))]


def test_inputs_that_agree_keep_their_order() -> None:
    bare = file(50, is_indexed=False)
    assert planned([50] * 4, {0: bare, 1: bare, 2: file(50), 3: file(50)}, 2) == [
        PlannedOutput((), (0, 1)),
        PlannedOutput((), (2, 3)),
    ]
    # Two of three outputs for what has more than half of the bytes.
    thirds = {i: file(50, is_indexed=i % 3 != 0) for i in range(6)}
    assert planned([50] * 6, thirds, 3) == [PlannedOutput((), pair) for pair in ((1, 2), (4, 5), (0, 3))]


def test_files_that_cannot_be_divided_into_outputs_of_the_right_size_are_decoded() -> None:
    """Rows would be divided evenly, 75 bytes each."""
    assert assign([100, 25, 25], 2, smallest=60, largest=100) is None
    assert assign([100, 25, 25], 2, smallest=50, largest=100) == [range(1), range(1, 3)]
    assert assign([100, 25, 25], 2, smallest=50, largest=99) is None


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 5))
def test_every_input_goes_to_one_output_in_order(sizes: list[int], outputs: int) -> None:
    parts = assign(sizes, outputs, smallest=0, largest=10**6)
    assert parts is not None
    assert [i for part in parts for i in part] == list(range(len(sizes)))
    assert len(parts) == outputs
    share = sum(sizes) / outputs
    assert all(abs(sum(sizes[i] for i in part) - share) <= max(sizes, default=0) for part in parts)
