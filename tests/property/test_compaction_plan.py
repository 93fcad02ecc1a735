"""The rules of grouping: plans converge for every table, and no file is rewritten without need."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable

import hypothesis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import LiveEntry, ManifestContent, ManifestFile, Nothing
from icekeeper.operations.compaction.plan.bins import FileGroup
from icekeeper.operations.compaction.plan.candidates import TableState
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan, plan_compaction
from icekeeper.policy import Policy
from support.examples import examples
from support.plans import (
    HEAD,
    HEAD_MS,
    HEAD_SEQUENCE,
    MB,
    data_file,
    groups_of,
    live_file,
    manifest,
    policy,
    table,
    table_state,
)

# The rules of grouping: above all convergence, so that a table is not rewritten again every night.

TABLE = table()
# After the planning snapshot; small sizes, so that examples shrink to readable numbers.
SOON, LATER = HEAD_MS + HOUR_MS, HEAD_MS + 24 * HOUR_MS
KB = 1000
NEARLY_FULL = policy(target_file_size_mb=1, min_input_files=2, min_file_size_ratio="0.75")

partitions = st.one_of(
    st.none(),
    st.sampled_from([0.0, -0.0, math.nan, math.inf, 1.5]),
    st.sampled_from(["us", "eu", ""]),
    st.sampled_from([b"\x00\x05", b"\x05"]),
)
policies = st.builds(
    policy,
    target_file_size_mb=st.sampled_from([1, 2, 10]),
    min_file_size_ratio=st.sampled_from(["0.1", "0.5", "0.75", "0.99", 1]),
    min_input_files=st.integers(2, 6),
    max_file_group_size_mb=st.sampled_from([10, 100]),
    expected_scans=st.sampled_from([None, 1, 200]),
)


@st.composite
def live_files(draw: st.DrawFn) -> list[LiveEntry]:
    values = st.sampled_from(draw(st.lists(partitions, min_size=1, max_size=3)))
    sizes = st.one_of(st.integers(0, MB // 2), st.integers(0, MB), st.integers(0, 12 * MB))
    kinds = st.sampled_from(["PARQUET"] * 4 + ["ORC"])
    drawn = draw(
        st.lists(st.tuples(sizes, values, st.sampled_from([0, 0, 0, 1]), st.integers(0, 9), kinds), max_size=40)
    )
    return [
        live_file(data_file(f"f{i:03}", size, [value], file_format=kind), spec_id=spec_id, age=age)
        for i, (size, value, spec_id, age, kind) in enumerate(drawn)
    ]


def files_of_sizes(*sizes: int, first_age: int = 0) -> list[LiveEntry]:
    return [
        live_file(data_file(f"f{first_age + i:05}", size, ["p"]), age=first_age + i) for i, size in enumerate(sizes)
    ]


def plan(files: Iterable[LiveEntry], settings: Policy, *, now_ms: int = SOON) -> CompactionPlan | Nothing:
    return plan_compaction(table_state(files), settings, now_ms=now_ms)


def apply(
    files: list[LiveEntry], planned: CompactionPlan, size_of: Callable[[int], int] = lambda size: size, *, age: int = 60
) -> list[LiveEntry]:
    """The table after the plan: each group becomes its number of files of equal size, newer than all others."""
    gone = set(planned.input_files)
    kept = [f for f in files if f.entry.file.file_path not in gone]
    return kept + [
        live_file(
            data_file(f"out{age}-{g.group_id}-{number}", size_of(g.total_bytes // g.output_count), g.partition),
            spec_id=g.spec_id,
            age=age,
        )
        for g in planned.groups
        for number in range(g.output_count)
    ]


@given(live_files(), policies, st.sampled_from([SOON, LATER]))
# The balanced bin takes the five small files; the two remaining files then fill a file.
@example(files_of_sizes(*[KB] * 5, 130 * KB, 188 * KB), NEARLY_FULL, SOON)
def test_a_plan_applied_leaves_nothing_to_plan(files: list[LiveEntry], settings: Policy, now_ms: int) -> None:
    """Also if files nearly fill a file, are at rest, or are not worth a rewrite (rule: plans-converge)."""
    planned = plan(files, settings, now_ms=now_ms)
    if isinstance(planned, CompactionPlan):
        assert isinstance(plan(apply(files, planned), settings, now_ms=now_ms), Nothing)


@given(live_files(), policies, st.floats(0.8, 1.2))
def test_outputs_of_another_size_than_their_inputs_still_converge(
    files: list[LiveEntry], settings: Policy, ratio: float
) -> None:
    """Each round leaves fewer files; if sizes differ from their estimate by a fifth, a few rounds suffice."""
    rounds = 0
    while isinstance(planned := plan(files, settings), CompactionPlan):
        rounds += 1
        assert rounds <= 3
        after = apply(files, planned, lambda size: int(size * ratio), age=60 + rounds)
        assert len(after) < len(files)
        files = after


@given(live_files(), policies)
def test_every_group_follows_the_rules(files: list[LiveEntry], settings: Policy) -> None:
    spec_of = {f.entry.file.file_path: f.manifest.partition_spec_id for f in files}
    planned = plan(files, settings)
    groups = groups_of(planned)
    paths = [c.file_path for g in groups for c in g.files]
    assert len(paths) == len(set(paths))
    for group in groups:
        in_partition = [f for f in files if is_candidate(f, settings) and is_of(group, f)]
        assert len(in_partition) >= settings.min_input_files
        assert is_full(group, settings) or len(group.files) >= settings.min_input_files
        assert {spec_of[c.file_path] for c in group.files} == {group.spec_id}
        assert len({bits(c.partition[0]) for c in group.files}) == 1
        assert all(c.file_size_in_bytes < settings.min_file_size_bytes for c in group.files)
        assert all(c.file_format in ("PARQUET", "ORC") for c in group.files)
        assert group.output_count < len(group.files)
        if group.output_count > 1:
            assert settings.min_file_size_bytes <= group.total_bytes // group.output_count
        assert group.total_bytes < settings.max_file_group_size_bytes + settings.min_file_size_bytes
    if isinstance(planned, CompactionPlan):
        assert [g.group_id for g in groups] == list(range(len(groups)))
        assert planned.sequence_number == HEAD_SEQUENCE
        assert planned.files_considered == len(files)


def is_candidate(file: LiveEntry, settings: Policy) -> bool:
    return file.entry.file.file_size_in_bytes < settings.min_file_size_bytes


def is_of(group: FileGroup, file: LiveEntry) -> bool:
    same_spec = file.manifest.partition_spec_id == group.spec_id
    return same_spec and bits(file.entry.file.partition[0]) == bits(group.partition[0])


def is_full(group: FileGroup, settings: Policy) -> bool:
    size, target = group.total_bytes, settings.target_file_size_bytes
    full = (settings.min_file_size_bytes + target) // 2
    is_whole = full * group.output_count <= size <= 1.25 * target * group.output_count
    return is_whole or size >= settings.max_file_group_size_bytes


def bits(value: object) -> object:
    """A partition by its bits: 0.0 and -0.0 differ, all NaN are equal."""
    return struct.pack("<d", value) if isinstance(value, float) else value


@hypothesis.settings(max_examples=examples(40))
@given(live_files(), policies, st.randoms(use_true_random=False))
def test_plans_do_not_depend_on_the_order_of_manifests(
    files: list[LiveEntry], settings: Policy, random: object
) -> None:
    shuffled = files.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    def contents(planned: CompactionPlan | Nothing) -> set[frozenset[str]]:
        return {frozenset(c.file_path for c in g.files) for g in groups_of(planned)}

    assert contents(plan(files, settings)) == contents(plan(shuffled, settings))


@hypothesis.settings(max_examples=examples(40))
@given(live_files(), st.integers(2, 6), st.integers(6, 30), st.integers(1, 30 * MB))
def test_plans_keep_to_their_budgets(files: list[LiveEntry], least: int, most_files: int, most_bytes: int) -> None:
    settings = policy(
        target_file_size_mb=10, min_input_files=least, max_files_to_rewrite=most_files, max_bytes_to_rewrite=most_bytes
    )
    groups = groups_of(plan(files, settings))
    assert sum(len(g.files) for g in groups) <= most_files
    assert sum(g.total_bytes for g in groups) <= most_bytes
    unbounded = groups_of(plan(files, policy(target_file_size_mb=10, min_input_files=least)))
    assert {g.files for g in groups} <= {g.files for g in unbounded}


def sized(*megabytes: int, partition: str = "p") -> list[LiveEntry]:
    return [
        live_file(data_file(f"{partition}-{i:03}", size * MB, [partition]), age=i) for i, size in enumerate(megabytes)
    ]


def sizes(planned: CompactionPlan | Nothing) -> list[tuple[int, int]]:
    """The number of files and of megabytes of each group."""
    return [(len(g.files), g.total_bytes // MB) for g in groups_of(planned)]


def test_groups_equal_those_of_seaweedfs() -> None:
    """The groups of SeaweedFS's worker: of an unpartitioned table, of a partitioned table, and of an oversized bin that
    is split (rule: bounded-merge-rewrites)."""
    assert sizes(plan(sized(10, 5, 8, 12, 3, 15), policy())) == [(6, 53)]
    planned = plan(sized(20, 15, 10, 25, 18, partition="us") + sized(5, 8, partition="eu"), policy())
    assert sizes(planned) == [(5, 88)]
    assert groups_of(planned)[0].partition == ("us",)
    assert sizes(plan(sized(*[30] * 20), policy())) == [(8, 240), (8, 240)]
    # Files are grouped in the order of their age.
    first, second = groups_of(plan(reversed(sized(*[30] * 16)), policy()))
    assert [c.file_path for c in (*first.files, *second.files)] == [f"p-{i:03}" for i in range(16)]
    assert len(first.files) == 8
    # A file of three quarters of the target is no candidate.
    for size, is_candidate in ((192 * MB - 1, True), (192 * MB, False)):
        files = [live_file(data_file(f"f{i}", size if i == 0 else 60 * MB, [None])) for i in range(5)]
        assert isinstance(plan(files, policy()), CompactionPlan) is is_candidate
    for enabled in (True, False):
        everything = policy(rewrite_all=True, rewrite_enabled=enabled)
        assert sizes(plan(sized(300, 1), everything)) == [(1, 300), (1, 1)]


def test_files_with_and_without_row_ids_are_not_mixed() -> None:
    """Rows with ids keep them, other rows get ids from the commit (rule: rows-keep-their-lineage)."""
    files = [live_file(data_file(f"f{i}", MB, first_row_id=None if i % 2 else i * 100), age=i) for i in range(10)]
    groups = groups_of(plan(files, policy()))
    assert [[c.file_path for c in group.files] for group in groups] == [
        ["f0", "f2", "f4", "f6", "f8"],
        ["f1", "f3", "f5", "f7", "f9"],
    ]
    assert [group.has_lineage for group in groups] == [True, False]


def reason(
    files: list[LiveEntry] | None = None, settings: Policy | None = None, manifests: list[ManifestFile] | None = None
) -> str:
    snapshot = None if files is None else TABLE.snapshots[HEAD]
    state = TableState(TABLE, snapshot, manifests or [manifest()], files or [])
    planned = plan_compaction(state, settings or policy(), now_ms=SOON)
    assert isinstance(planned, Nothing)
    return planned.reason


def test_every_reason_for_an_empty_plan_is_the_sentence_of_seaweedfs() -> None:
    """The skip conditions of SeaweedFS's worker; the sentences on budgets and switches are our own."""
    deletes = [manifest(), manifest("d", content=ManifestContent.DELETES)]
    spent = [manifest(), manifest("d", content=ManifestContent.DELETES, live=0, dead=3)]
    unknown = [manifest(), manifest("d", content=ManifestContent.DELETES, live=None, dead=None)]
    keeping_deletes = policy(apply_deletes=False)
    refused = "compaction skipped: delete manifests present and apply_deletes is disabled"
    assert reason() == "no current snapshot"
    assert reason([]) == "no files eligible for compaction"
    assert reason(sized(300, 300, 300, 300, 300)) == "no files eligible for compaction"
    assert reason(sized(1, 1, 1, 1)) == "no files eligible for compaction"
    assert reason(sized(1, 1, 1, 1, 1), keeping_deletes, deletes) == refused
    assert reason(sized(1, 1, 1, 1, 1), keeping_deletes, unknown) == refused
    assert reason(sized(1), keeping_deletes, spent) == "no files eligible for compaction"
    assert reason(sized(1), policy(rewrite_enabled=False)) == "no files eligible for compaction"
    assert reason(sized(9, 9, 9, 9, 9), policy(max_bytes_to_rewrite=MB)) == (
        "no file group fits max_files_to_rewrite and max_bytes_to_rewrite"
    )
    left_alone = [
        live_file(data_file("a", 1, file_format="lance")),
        live_file(data_file("e", 1, key_metadata=b"secret")),
    ]
    assert reason(left_alone) == (
        "no files eligible for compaction (2 file(s) stay unchanged: a is LANCE, which is not read)"
    )


# Nearly full files are merged too, a growing partition is not rewritten again and again, and plans converge.

TARGET = 256 * MB


def groups(files: list[LiveEntry], settings: Policy, now_ms: int = SOON) -> tuple[FileGroup, ...]:
    return groups_of(plan(files, settings, now_ms=now_ms))


def applied(files: list[LiveEntry], settings: Policy, now_ms: int = SOON, age: int = 100) -> list[LiveEntry]:
    planned = plan(files, settings, now_ms=now_ms)
    return files if isinstance(planned, Nothing) else apply(files, planned, age=age)


def shape(planned: tuple[FileGroup, ...]) -> list[tuple[int, int]]:
    """The input and output files of each group."""
    return [(len(group.files), group.output_count) for group in planned]


@pytest.mark.parametrize("hundredths", range(20, 80, 6))
def test_uniform_files_of_any_size_become_large_files(hundredths: int) -> None:
    settings = policy()
    files = files_of_sizes(*[TARGET * hundredths // 100] * 60)
    after = applied(files, settings)
    small = [f for f in after if f.entry.file.file_size_in_bytes < settings.min_file_size_bytes]
    assert len(small) <= (4 if hundredths < 75 else 0)
    assert groups(after, settings) == ()


def test_a_large_file_waits_until_the_small_files_are_worth_its_rewrite() -> None:
    """Rewriting 160 MB with every five files of 8 MB would amount to 192 MB for 32 MB of new data."""
    assert shape(groups(files_of_sizes(160 * MB, *[8 * MB] * 4), policy())) == []
    assert [len(g.files) for g in groups(files_of_sizes(150 * MB, *[8 * MB] * 5), policy())] == [5]
    assert [g.total_bytes // MB for g in groups(files_of_sizes(160 * MB, *[8 * MB] * 8), policy())] == [224]


@pytest.mark.parametrize(("rate_mb", "most", "most_small"), [(8, 2.6, 6), (1, 4.3, 10), (60, 1.0, 4)])
def test_a_growing_partition_is_rewritten_a_few_times(rate_mb: float, most: float, most_small: int) -> None:
    """A partition gets ``rate_mb`` MB and a pass each hour; rewritten bytes and small files are limited."""
    settings, files = policy(), list[LiveEntry]()
    written = rewritten = worst = 0
    for hour in range(300):
        files += files_of_sizes(int(rate_mb * MB), first_age=hour * 2)
        written += int(rate_mb * MB)
        rewritten += sum(group.total_bytes for group in groups(files, settings))
        after = applied(files, settings, age=hour * 2 + 1)
        files = [f for f in after if f.entry.file.file_size_in_bytes < settings.min_file_size_bytes]
        worst = max(worst, len(files))
    assert rewritten / written <= most
    assert worst <= most_small


def test_a_partition_at_rest_is_merged_once() -> None:
    files = files_of_sizes(100 * MB, 20 * MB, 4 * MB, MB, MB)
    assert groups(files, policy(), SOON) == ()
    assert shape(groups(files, policy(), LATER)) == [(5, 1)]
    assert groups(applied(files, policy(), LATER), policy(), LATER) == ()
    assert groups(files, policy(partition_rest_hours=25), LATER) == ()
    assert groups(files_of_sizes(*[MB] * 4), policy(), LATER) == ()


def test_a_plan_reports_the_files_it_leaves_alone_and_why() -> None:
    files = [
        *files_of_sizes(150 * MB, *[8 * MB] * 5),
        live_file(data_file("q", 3 * MB, ["q"])),
        live_file(data_file("l", MB, ["p"], file_format="lance")),
    ]
    planned = plan_compaction(table_state(files), policy(), now_ms=SOON)
    assert isinstance(planned, CompactionPlan)
    assert [(reason, left.files, left.bytes // MB) for reason, left in planned.left.items()] == [
        ("in partitions with fewer than min_input_files 5 candidates", 1, 3),
        ("they wait for more files of about their size, or for enough bytes to fill a file", 1, 150),
        ("they cannot be read or moved: l is LANCE, which is not read", 1, 1),
    ]
