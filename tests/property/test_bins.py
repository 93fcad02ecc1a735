"""Files that nearly fill one are merged too, a partition that grows is not rewritten over and over, and it all ends."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import LiveEntry, Nothing
from icekeeper.operations.compaction.candidates import TableState
from icekeeper.operations.compaction.plan_groups import CompactionPlan, FileGroup, plan_compaction
from icekeeper.policy import Policy
from support.plans import HEAD, HEAD_MS, MB, data_file, live_file, manifest, policy, table

TABLE = table()
SOON, LATER = HEAD_MS + HOUR_MS, HEAD_MS + 24 * HOUR_MS
TARGET = 256 * MB


def groups(files: list[LiveEntry], settings: Policy, now_ms: int = SOON) -> tuple[FileGroup, ...]:
    state = TableState(TABLE, TABLE.snapshots[HEAD], [manifest()], files)
    planned = plan_compaction(state, settings, now_ms=now_ms)
    return () if isinstance(planned, Nothing) else planned.groups


def applied(files: list[LiveEntry], planned: tuple[FileGroup, ...], age: int) -> list[LiveEntry]:
    gone = {c.file.file_path for group in planned for c in group.files}
    outputs = [
        live_file(data_file(f"out{age}-{g.group_id}-{n}", g.total_bytes // g.output_count, g.partition), age=age)
        for g in planned
        for n in range(g.output_count)
    ]
    return [f for f in files if f.entry.file.file_path not in gone] + outputs


def sized(*sizes: int, first_age: int = 0) -> list[LiveEntry]:
    return [
        live_file(data_file(f"f{first_age + i:05}", size, ["p"]), age=first_age + i) for i, size in enumerate(sizes)
    ]


def shape(planned: tuple[FileGroup, ...]) -> list[tuple[int, int]]:
    """Per group: files in, files out."""
    return [(len(group.files), group.output_count) for group in planned]


def test_thirty_files_of_three_tenths_of_the_target_are_packed() -> None:
    """Three of them fill a file, which is fewer than min_input_files; the partition has enough (rule 50)."""
    assert shape(groups(sized(*[TARGET * 3 // 10] * 30), policy())) == [(3, 1)] * 10


@pytest.mark.parametrize("hundredths", range(20, 80, 3))
def test_uniform_files_of_any_size_end_as_large_ones(hundredths: int) -> None:
    settings = policy()
    files = sized(*[TARGET * hundredths // 100] * 60)
    after = applied(files, groups(files, settings), 100)
    small = [f for f in after if f.entry.file.file_size_in_bytes < settings.min_file_size_bytes]
    assert len(small) <= (4 if hundredths < 75 else 0)
    assert groups(after, settings) == ()


@given(
    st.lists(st.one_of(st.integers(1, 100), st.integers(1, 1100)), max_size=30),
    st.integers(2, 8),
    st.sampled_from(["0.5", "0.75", "0.9", 1]),
    st.sampled_from([SOON, LATER]),
    st.sampled_from([None, 1, 200]),
)
# The balanced bin takes the five small ones, and the two that it leaves then fill a file.
@example([1, 1, 1, 1, 1, 130, 188], 2, "0.75", SOON, None)
def test_a_plan_applied_leaves_nothing_to_plan(
    parts: list[int], least: int, ratio: object, now_ms: int, scans: int | None
) -> None:
    """Sizes in thousandths of the target; what does not pay, too, stays what it is (rule 49, rule 125)."""
    settings = policy(min_input_files=least, min_file_size_ratio=ratio, expected_scans=scans or "none")
    files = sized(*(TARGET * part // 1000 for part in parts))
    after = applied(files, groups(files, settings, now_ms), 100)
    assert groups(after, settings, now_ms) == ()


def test_a_large_file_waits_until_the_small_ones_are_worth_it() -> None:
    """With 160 MB taken along for every five files of 8 MB, 192 MB would be rewritten for 32 new ones."""
    assert shape(groups(sized(160 * MB, *[8 * MB] * 4), policy())) == []
    assert [len(g.files) for g in groups(sized(150 * MB, *[8 * MB] * 5), policy())] == [5]
    assert [g.total_bytes // MB for g in groups(sized(160 * MB, *[8 * MB] * 8), policy())] == [224]


@pytest.mark.parametrize(("rate_mb", "most", "most_small"), [(8, 2.6, 6), (1, 4.3, 10), (60, 1.0, 4)])
def test_a_partition_that_grows_is_rewritten_a_few_times(rate_mb: float, most: float, most_small: int) -> None:
    """So many MB an hour into one partition, a pass each hour: bytes rewritten per byte written, and small files."""
    settings, files = policy(), list[LiveEntry]()
    written = rewritten = worst = 0
    for hour in range(600):
        files += sized(int(rate_mb * MB), first_age=hour * 2)
        written += int(rate_mb * MB)
        planned = groups(files, settings)
        rewritten += sum(group.total_bytes for group in planned)
        files = [
            f
            for f in applied(files, planned, hour * 2 + 1)
            if f.entry.file.file_size_in_bytes < settings.min_file_size_bytes
        ]
        worst = max(worst, len(files))
    assert rewritten / written <= most
    assert worst <= most_small


def test_a_partition_at_rest_is_merged_once_whatever_its_sizes() -> None:
    files = sized(100 * MB, 20 * MB, 4 * MB, MB, MB)
    assert groups(files, policy(), SOON) == ()
    at_rest = groups(files, policy(), LATER)
    assert shape(at_rest) == [(5, 1)]
    assert groups(applied(files, at_rest, 100), policy(), LATER) == ()
    assert groups(files, policy(partition_rest_hours=25), LATER) == ()


def test_few_files_of_a_partition_at_rest_are_left_alone() -> None:
    assert groups(sized(*[MB] * 4), policy(), LATER) == ()


def test_a_plan_says_what_it_leaves_alone_and_why() -> None:
    files = [
        *sized(150 * MB, *[8 * MB] * 5),
        live_file(data_file("q", 3 * MB, ["q"])),
        live_file(data_file("l", MB, ["p"], file_format="lance")),
    ]
    state = TableState(TABLE, TABLE.snapshots[HEAD], [manifest()], files)
    planned = plan_compaction(state, policy(), now_ms=SOON)
    assert isinstance(planned, CompactionPlan)
    assert [(left.reason, left.files, left.bytes // MB) for left in planned.left] == [
        ("their partition has fewer than min_input_files 5 candidates", 1, 3),
        ("they wait for more files of about their size, or for enough bytes to fill a file", 1, 150),
        ("they cannot be read: l is LANCE, which is not read", 1, 1),
    ]
