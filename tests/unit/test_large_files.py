"""Files much larger than the target are cut between row groups, where somebody set the target (rule 235)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.metadata.delete_scope import DeleteIndexBuilder
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestEntry, Nothing
from icekeeper.operations.compaction.bins import Reason
from icekeeper.operations.compaction.candidates import TableState, pieces
from icekeeper.operations.compaction.plan_groups import CompactionPlan, FileGroup, NothingToCompact, plan_compaction
from support.examples import examples
from support.plans import HEAD, HEAD_MS, MB, data_file, live_file, manifest, policy, table


def file_of(sizes: Sequence[int], path: str = "f", **more: Any) -> DataFile:
    """A file with row groups of these sizes, and nothing else."""
    return data_file(path, sum(sizes), split_offsets=tuple(accumulate(sizes, initial=0))[:-1], **more)


def planned(
    *files: DataFile, cuts: bool = True, deletes_of: Sequence[str] = (), **more: object
) -> CompactionPlan | Nothing:
    """The plan at a target of 2 MB; three position deletes are of one row of each file in ``deletes_of``."""
    metadata, builder = table(), DeleteIndexBuilder()
    for path in deletes_of:
        for number in range(3):
            delete = replace(data_file(f"{path}-{number}", 1000, records=1), content=FileContent.POSITION_DELETES)
            entry = ManifestEntry(EntryStatus.EXISTING, HEAD, 9, 9, replace(delete, referenced_data_file=path))
            builder.add(0, entry, is_unpartitioned=True)
    live = [live_file(file) for file in files]
    state = TableState(metadata, metadata.snapshots[HEAD], [manifest()], live, builder.build())
    return plan_compaction(state, policy(target_file_size_mb=2, **more), now_ms=HEAD_MS, cuts=cuts)


@given(st.lists(st.integers(1, 8 * MB), min_size=2, max_size=60), st.sampled_from(["0.1", "0.75", 1]))
def test_pieces_are_not_small_and_not_cut_again(sizes: list[int], ratio: object) -> None:
    chosen = policy(target_file_size_mb=2, min_file_size_ratio=ratio)
    counts = pieces(file_of(sizes), chosen)
    assert sum(counts) == (len(sizes) if counts else 0)
    for start, end in pairwise(accumulate(counts, initial=0)):
        part = sizes[start:end]
        assert sum(part) >= chosen.min_file_size_bytes
        assert pieces(file_of(part), chosen) == ()


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([MB] * 12, (2, 2, 2, 2, 2, 2)),
        ([MB // 4] * 48, (10, 10, 10, 10, 8)),
        ([4 * MB, 4 * MB], (1, 1)),
        ([MB] * 3, ()),  # 1.5 times the target
        ([12 * MB], ()),
        ([11 * MB, MB], ()),  # one piece would be small
        ([MB, 11 * MB, MB], ()),
        ([2 * MB, 8 * MB, 2 * MB], (1, 1, 1)),
    ],
)
def test_files_are_cut_where_it_comes_nearest_to_even_shares(sizes: list[int], expected: tuple[int, ...]) -> None:
    assert pieces(file_of(sizes), policy(target_file_size_mb=2)) == expected


@settings(max_examples=examples(60))
@given(st.lists(st.lists(st.integers(1, 3 * MB), min_size=1, max_size=30), max_size=12), st.integers(2, 6))
def test_a_plan_applied_leaves_nothing_to_plan(drawn: list[list[int]], least: int) -> None:
    """Large files, which are cut, beside small ones, which are merged (rule 49)."""
    files = [file_of(sizes, f"f{number}") for number, sizes in enumerate(drawn)]
    plan = planned(*files, min_input_files=least)
    if isinstance(plan, Nothing):
        return
    kept = [file for file in files if file.file_path not in plan.input_files]
    after = [file for group in plan.groups for file in outputs_of(group)]
    assert isinstance(planned(*kept, *after, min_input_files=least), Nothing)


def outputs_of(group: FileGroup) -> list[DataFile]:
    (first, *_), count = group.files, group.output_count
    names = [f"out-{group.group_id}-{number}" for number in range(count)]
    if group.reason is not Reason.LARGE:
        return [data_file(name, group.total_bytes // count) for name in names]
    offsets = [*(first.file.split_offsets or ()), first.file.file_size_in_bytes]
    sizes = [end - start for start, end in pairwise(offsets)]
    bounds = pairwise(accumulate(pieces(first.file, policy(target_file_size_mb=2)), initial=0))
    return [file_of(sizes[start:end], name) for name, (start, end) in zip(names, bounds, strict=True)]


def test_what_lies_behind_the_row_groups_is_none_of_their_bytes() -> None:
    """Bloom filters of all of them, for example: as part of the last one they would make a small piece look large."""
    sizes, settings_of = [2 * MB, 2 * MB, MB, 3 * MB], policy(target_file_size_mb=2)
    assert pieces(file_of(sizes), settings_of) == (1, 1, 2)
    assert pieces(file_of(sizes, column_sizes={1: 3 * MB, 2: 5 * MB // 2}), settings_of) == (1, 3)
    sizes = [2 * MB, 2 * MB, 2 * MB, 2 * MB]
    assert pieces(file_of(sizes), settings_of) == (1, 1, 1, 1)
    assert pieces(file_of(sizes, column_sizes={1: 3 * MB, 2: 7 * MB // 2}), settings_of) == (1, 1, 2)
    assert pieces(file_of(sizes, column_sizes={1: MB}), settings_of) == (1, 1, 1, 1)  # of some columns only


def test_what_no_entry_allows_to_cut_is_left_alone() -> None:
    sizes = [MB] * 12
    for more in ({"file_format": "ORC"}, {"key_metadata": b"k"}):
        assert pieces(file_of(sizes, **more), policy(target_file_size_mb=2)) == ()
    assert pieces(data_file("f", 12 * MB), policy(target_file_size_mb=2)) == ()
    assert pieces(data_file("f", 12 * MB, split_offsets=(4 * MB, 4)), policy(target_file_size_mb=2)) == ()


def test_a_plan_cuts_each_large_file_alone() -> None:
    large = [file_of([MB] * 12, f"f{number}") for number in range(3)]
    small = data_file("small", MB)
    plan = planned(*large, small)
    assert isinstance(plan, CompactionPlan)
    assert [(group.reason, len(group.files), group.output_count) for group in plan.groups] == [(Reason.LARGE, 1, 6)] * 3
    assert all(group.worth is not None and group.worth.opens_saved == 0 for group in plan.groups)
    for nothing in (
        planned(*large, small, cuts=False),
        planned(*large, rewrite_enabled=False),
        planned(*large, min_row_group_copy_bytes=None),
        planned(*large, price_per_gb_copied=2),  # above 200 scans of it
        planned(file_of([12 * MB])),
    ):
        assert isinstance(nothing, Nothing)
    assert isinstance(planned(*large, price_per_gb_copied=2, expected_scans=None), CompactionPlan)


def test_that_a_large_file_cannot_be_cut_is_said() -> None:
    nothing = planned(file_of([12 * MB], "f"), file_of([12 * MB], "g"))
    assert isinstance(nothing, NothingToCompact)
    assert nothing.reason == (
        "no files eligible for compaction (2 file(s) far above the target cannot be cut between row groups)"
    )
    reason = "they are far above the target, and their row groups leave no place to cut them"
    assert [(part.reason, part.files, part.bytes) for part in nothing.left] == [(reason, 2, 24 * MB)]


def test_a_large_file_under_deletes_is_rewritten_into_several_once_they_are_due() -> None:
    """Until then it stays: cut, its row groups would be copied with the deleted rows in them."""
    large = file_of([MB] * 12, records=100)
    waiting = planned(large, deletes_of=["f"], delete_compaction_min_deletes=4)
    assert isinstance(waiting, Nothing)
    plan = planned(large, deletes_of=["f"], delete_compaction_min_deletes=3)
    assert isinstance(plan, CompactionPlan)
    assert [(group.reason, group.output_count) for group in plan.groups] == [(Reason.DELETES, 6)]
    whole = planned(data_file("f", 12 * MB, records=100), deletes_of=["f"], delete_compaction_min_deletes=3)
    assert isinstance(whole, CompactionPlan)
    assert [group.output_count for group in whole.groups] == [1]  # nothing says where it could be cut
    whole = planned(large, deletes_of=["f"], delete_compaction_min_deletes=3, cuts=False)
    assert isinstance(whole, CompactionPlan)
    assert [group.output_count for group in whole.groups] == [1]


def test_a_file_as_large_is_looked_at_as_soon_as_it_comes() -> None:
    """The slack of a table whose target is set says so; without, the bytes of one file are no reason."""
    with_cuts, without = planned(data_file("f", 2 * MB)), planned(data_file("f", 2 * MB), cuts=False)
    assert isinstance(with_cuts, NothingToCompact)
    assert isinstance(without, NothingToCompact)
    assert with_cuts.slack is not None
    assert without.slack is not None
    assert with_cuts.slack.data_files[0] == (1, 2 * MB * 9 // 5 + 1)
    assert without.slack.data_files[0][0] > 1
