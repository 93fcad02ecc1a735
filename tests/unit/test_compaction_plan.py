"""What the compaction planner selects, leaves alone and reports."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.cli.passes import plan_lines
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, EntryStatus, LiveEntry, ManifestEntry, Nothing
from icekeeper.operations.compaction.plan.bins import FileGroup, Reason
from icekeeper.operations.compaction.plan.candidate import Condition
from icekeeper.operations.compaction.plan.candidates import Tally
from icekeeper.operations.compaction.plan.large_files import pieces
from icekeeper.operations.compaction.plan.output_sizes import (
    SIZES_KEY,
    UNCHANGED_SIZES,
    OutputSizes,
    output_bytes,
    recorded_sizes,
)
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan, NothingToCompact, plan_compaction
from icekeeper.operations.compaction.plan.preview import assumptions, left_document, plan_document
from icekeeper.operations.compaction.run_groups import in_batches
from icekeeper.operations.compaction.terms.output_names import OutputNames
from icekeeper.operations.compaction.terms.output_partition import target_fields
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, KeyColumn, choose_recipe
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask
from icekeeper.operations.compaction.work import rewrite as group_rewrites
from icekeeper.operations.compaction.work.rewrite import RewriteBatch, rewrite_batch
from icekeeper.policy import Operation, Strategy
from icekeeper.report.outcome import skipped, succeeded
from icekeeper.rows.read_task import OPEN_FILE_BYTES, InputFile
from support.examples import examples
from support.plans import (
    HEAD,
    HEAD_MS,
    MB,
    candidate,
    data_file,
    live_file,
    manifest,
    policy,
    position_delete,
    table,
    table_state,
)
from support.tables import snapshot

# Sorted files are sorted together if a lookup opens too many of them, or if they are small.

TABLE = table()
BY_ID = {"strategy": "sort", "sort_order": "id", "target_file_size_mb": 10, "min_input_files": 5}


@pytest.mark.parametrize(("runs", "size", "reason"), [(5, 10.0, "depth"), (16, 0.1, "small")])
def test_sorted_files_are_sorted_again_for_depth_or_size(runs: int, size: float, reason: str) -> None:
    """Each file is a separate run over the same keys."""
    settings = policy(**BY_ID)
    recipe = choose_recipe(TABLE, settings)
    assert recipe is not None
    low, high = {1: struct.pack("<q", 0)}, {1: struct.pack("<q", 300)}
    files = [
        live_file(
            replace(data_file(f"f{n}", int(size * MB)), lower_bounds=low, upper_bounds=high), age=n, snapshot_id=n
        )
        for n in range(1, runs + 1)
    ]
    plan = plan_compaction(table_state(files), settings, now_ms=HEAD_MS, recipe=recipe, clustered_by=range(1, runs + 1))
    assert isinstance(plan, CompactionPlan)
    assert {tuple(group["reasons"]) for group in plan_document(plan, TABLE)["groups"]} == {(reason,)}


# Small groups are batched for a worker, and a batch has the same results as its groups.

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


def test_small_groups_share_a_batch_and_a_large_group_has_its_own_batch() -> None:
    """Opening two tiny files counts as half a megabyte; a batch has 32 MB."""
    assert lengths([group(number, 0, 0) for number in range(130)]) == [64, 64, 2]
    tiny, large = group(0, 0), group(1, 4 * MIB)
    assert lengths([tiny, tiny, large, tiny, large, large, tiny]) == [2, 1, 1, 1, 1, 1]
    assert lengths([large]) == [1]
    assert lengths([]) == []


@given(st.lists(st.lists(st.integers(0, 6 * MIB), min_size=1, max_size=4), max_size=60))
def test_batches_hold_every_group_once_in_order_within_the_limit(sizes: list[list[int]]) -> None:
    tasks = [group(number, *some) for number, some in enumerate(sizes)]
    batches = in_batches(tasks)
    assert [task for batch in batches for task in batch.tasks] == tasks
    for batch in batches:
        assert batch.tasks
        if len(batch.tasks) > 1:
            assert batch.input_bytes <= 32 * MIB
            assert all(task.input_bytes <= 4 * MIB for task in batch.tasks)


def test_groups_on_a_store_run_concurrently_and_share_a_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of several groups overlap and share a client and its connections.  Groups on the local disk need no
    threads."""
    together, storages = threading.Barrier(4), set()

    def rewritten(task: RewriteTask, storage: Any) -> int:
        together.wait(20)
        storages.add(storage)
        return task.group_id

    monkeypatch.setattr(group_rewrites, "rewrite_group", rewritten)
    found: list[Any] = list(rewrite_batch(RewriteBatch(tuple(group(number, 0) for number in range(4)))))
    assert found == [0, 1, 2, 3]
    assert len(storages) == 1
    monkeypatch.setattr(group_rewrites, "rewrite_group", lambda task, storage: threading.get_ident())
    inputs = (InputFile("/t/a.parquet", 1, 0),)
    local = [replace(group(n), inputs=inputs, outputs=OutputNames("/t", f"compact-{n}")) for n in range(3)]
    found = list(rewrite_batch(RewriteBatch(tuple(local))))
    assert found == [threading.get_ident()] * 3


def test_an_attempt_at_a_batch_is_an_attempt_at_each_of_its_groups(tmp_path: Any) -> None:
    """No two attempts write the same file (rule: attempts-never-share-a-file); a missing input fails only its group."""
    batch = RewriteBatch((group(0, 0), group(1, 0)))
    again = batch.in_attempt(3)
    assert [task.outputs.attempt for task in again.tasks] == [3, 3]
    assert [task.outputs.attempt for task in batch.tasks] == [0, 0]
    assert again.input_bytes == batch.input_bytes == 2 * OPEN_FILE_BYTES
    inputs = [(InputFile(str(tmp_path / f"{number}.parquet"), 1, 0),) for number in range(2)]
    tasks = tuple(replace(group(number), inputs=files) for number, files in enumerate(inputs))
    for number, result in enumerate(rewrite_batch(RewriteBatch(tasks))):
        assert (result.group_id, result.written) == (number, ())
        assert f"{number}.parquet" in str(result.error)


@pytest.mark.parametrize(("size", "at_once"), [(0, 8), (MIB, 8), (3 * MIB, 2), (9 * MIB, 1)])
def test_few_groups_are_in_memory_at_once(size: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight groups of 3 MB would decode to more than 100 MB of rows (rule: bounded-worker-memory)."""
    threads = []

    def pool(count: int, **names: str) -> Any:
        threads.append(count)
        return ThreadPoolExecutor(count)

    monkeypatch.setattr(group_rewrites, "WorkThreads", pool)
    monkeypatch.setattr(group_rewrites, "rewrite_group", lambda task, storage: task.group_id)
    rewrite_batch(RewriteBatch((group(0, 0), group(1, size // 2, size // 2))))
    assert threads == [at_once]


# Which files count as clustered once the state is lost and the snapshot with the recipe has expired.

ORDER: dict[str, Any] = {
    "order-id": 3,
    "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
}
ORDERED = TableMetadata({**table().document, "sort-orders": [ORDER], "default-sort-order-id": 3})
EXPIRED = 5


def taken(order_id: int | None, added_by: int, **settings: object) -> int:
    """How many of five large files a plan selects without a record of the clustered files."""
    chosen = policy(**settings)
    recipe = choose_recipe(ORDERED, chosen)
    assert recipe is not None
    files = [
        live_file(data_file(f"f{n}", 300 * MB, sort_order_id=order_id), age=n, snapshot_id=added_by) for n in range(5)
    ]
    planned = plan_compaction(table_state(files, metadata=ORDERED), chosen, now_ms=HEAD_MS, recipe=recipe)
    return 0 if isinstance(planned, Nothing) else len(planned.input_files)


def test_files_of_expired_snapshots_with_the_tables_sort_order_id_are_clustered() -> None:
    """Otherwise the whole table would be sorted again."""
    assert taken(3, EXPIRED) == 0
    assert taken(None, EXPIRED) == taken(2, EXPIRED) == 5
    assert taken(3, HEAD) == 5, "the snapshot is there, and writers that do not sort claim the table's order too"
    assert taken(3, EXPIRED, sort_order="id desc") == 5


# Files much larger than the target are cut between row groups, if the target is configured.


def file_of(sizes: Sequence[int], path: str = "f", **more: Any) -> DataFile:
    """A file with row groups of these sizes and no other bytes."""
    return data_file(path, sum(sizes), split_offsets=tuple(accumulate(sizes, initial=0))[:-1], **more)


def planned(
    *files: DataFile, cuts: bool = True, deletes_of: Sequence[str] = (), **more: object
) -> CompactionPlan | Nothing:
    """The plan at a target of 2 MB; each file in ``deletes_of`` has three position deletes of one row."""
    deletes = [position_delete(f"{path}-{number}", path, rows=1) for path in deletes_of for number in range(3)]
    state = table_state([live_file(file) for file in files], deletes)
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
        ([11 * MB, MB], ()),  # a piece would be small
        ([MB, 11 * MB, MB], ()),
        ([2 * MB, 8 * MB, 2 * MB], (1, 1, 1)),
    ],
)
def test_files_are_cut_into_nearly_equal_pieces(sizes: list[int], expected: tuple[int, ...]) -> None:
    assert pieces(file_of(sizes), policy(target_file_size_mb=2)) == expected


@settings(max_examples=examples(60))
@given(st.lists(st.lists(st.integers(1, 3 * MB), min_size=1, max_size=30), max_size=12), st.integers(2, 6))
def test_a_plan_applied_leaves_nothing_to_plan(drawn: list[list[int]], least: int) -> None:
    """Large files are cut and small files are merged (rule: plans-converge)."""
    files = [file_of(sizes, f"f{number}") for number, sizes in enumerate(drawn)]
    plan = planned(*files, min_input_files=least)
    if isinstance(plan, Nothing):
        return
    kept = [file for file in files if file.file_path not in plan.input_files]
    inputs = {file.file_path: file for file in files}
    after = [file for group in plan.groups for file in outputs_of(group, inputs)]
    assert isinstance(planned(*kept, *after, min_input_files=least), Nothing)


def outputs_of(group: FileGroup, inputs: Mapping[str, DataFile]) -> list[DataFile]:
    first, count = inputs[group.files[0].file_path], group.output_count
    names = [f"out-{group.group_id}-{number}" for number in range(count)]
    if group.reason is not Reason.LARGE:
        return [data_file(name, group.total_bytes // count) for name in names]
    offsets = [*(first.split_offsets or ()), first.file_size_in_bytes]
    sizes = [end - start for start, end in pairwise(offsets)]
    bounds = pairwise(accumulate(pieces(first, policy(target_file_size_mb=2)), initial=0))
    return [file_of(sizes[start:end], name) for name, (start, end) in zip(names, bounds, strict=True)]


def test_bytes_after_the_row_groups_do_not_count_as_row_group_bytes() -> None:
    """Bloom filters, for example: counted with the last row group, they would make a small piece look large."""
    sizes, settings_of = [2 * MB, 2 * MB, MB, 3 * MB], policy(target_file_size_mb=2)
    assert pieces(file_of(sizes), settings_of) == (1, 1, 2)
    assert pieces(file_of(sizes, column_sizes={1: 3 * MB, 2: 5 * MB // 2}), settings_of) == (1, 3)
    sizes = [2 * MB, 2 * MB, 2 * MB, 2 * MB]
    assert pieces(file_of(sizes), settings_of) == (1, 1, 1, 1)
    assert pieces(file_of(sizes, column_sizes={1: 3 * MB, 2: 7 * MB // 2}), settings_of) == (1, 1, 2)
    assert pieces(file_of(sizes, column_sizes={1: MB}), settings_of) == (1, 1, 1, 1)  # sizes of some columns only


def test_a_file_whose_entry_does_not_allow_a_cut_is_left_alone() -> None:
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
    assert all(group.worth.saving == 0 for group in plan.groups)
    for nothing in (
        planned(*large, small, cuts=False),
        planned(*large, rewrite_enabled=False),
        planned(*large, min_row_group_copy_bytes=None),
        planned(file_of([12 * MB])),
    ):
        assert isinstance(nothing, Nothing)
    assert isinstance(planned(*large, expected_scans=1), CompactionPlan)


def test_the_plan_reports_large_files_that_cannot_be_cut() -> None:
    nothing = planned(file_of([12 * MB], "f"), file_of([12 * MB], "g"))
    assert isinstance(nothing, NothingToCompact)
    assert nothing.reason == (
        "no files eligible for compaction (2 file(s) far above the target cannot be cut between row groups)"
    )
    reason = "they are far above the target size, but cannot be cut between their row groups"
    assert nothing.left == {reason: Tally(2, 24 * MB)}


def test_a_large_file_is_split_when_its_deletes_are_applied() -> None:
    """Until then it is not cut, because its row groups would be copied with the deleted rows."""
    large = file_of([MB] * 12, records=100)
    waiting = planned(large, deletes_of=["f"], delete_compaction_min_deletes=4)
    assert isinstance(waiting, Nothing)
    plan = planned(large, deletes_of=["f"], delete_compaction_min_deletes=3)
    assert isinstance(plan, CompactionPlan)
    assert [(group.reason, group.output_count) for group in plan.groups] == [(Reason.DELETES, 6)]
    whole = planned(data_file("f", 12 * MB, records=100), deletes_of=["f"], delete_compaction_min_deletes=3)
    assert isinstance(whole, CompactionPlan)
    assert [group.output_count for group in whole.groups] == [1]  # the entry has no split offsets
    whole = planned(large, deletes_of=["f"], delete_compaction_min_deletes=3, cuts=False)
    assert isinstance(whole, CompactionPlan)
    assert [group.output_count for group in whole.groups] == [1]


# Compaction leaves a file alone that a snapshot lists twice.


OLD = 7
"""An expired snapshot; its files are old."""


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"file": data_file("s3://b/t/data/0.parquet", 900 * MB)},
        {"file": data_file("s3://b/t/data/0.parquet", 10, file_format="LANCE")},
        {"file": data_file("s3://b/t/data/0.parquet", 10, records=1)},
    ],
    ids=["nothing", "size", "format", "scope"],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_file_listed_twice_is_left_alone_wherever_its_entries_differ(other: dict[str, Any], first: bool) -> None:
    """The specification forbids it, but some writers do it, and readers then read the file twice.  Replacing an entry
    would remove the other entry too, or duplicate its rows."""
    files = [live_file(data_file(f"s3://b/t/data/{n}.parquet", 10), snapshot_id=OLD) for n in range(4)]
    twin = LiveEntry(manifest("s3://b/t/metadata/other.avro"), replace(files[0].entry, **other))
    plan = plan_compaction(
        table_state([twin, *files] if first else [*files, twin]),
        policy(min_input_files=2),
        now_ms=HEAD_MS,
        in_scope=lambda file, spec_id: file.record_count != 1,
    )
    assert isinstance(plan, CompactionPlan)
    assert sorted(plan.input_files) == [f"s3://b/t/data/{n}.parquet" for n in range(1, 4)]


# Snapshots record how output sizes compared with input sizes, and later plans use these records.

KB = 1024


def known(*records: str | None, version: int = 2) -> OutputSizes:
    """The sizes known from a branch whose snapshots, oldest first, have these records."""
    metadata = table(version)
    raw = [
        snapshot(number, format_version=version, sequence_number=number, timestamp_ms=number)
        | {"parent-snapshot-id": number - 1, "summary": {} if text is None else {SIZES_KEY: text}}
        for number, text in enumerate(records, start=1)
    ]
    document = dict(metadata.document) | {"snapshots": raw}
    changed = type(metadata)(document)
    return OutputSizes.of(changed, changed.snapshots[len(records)])


def rewritten(size: int, snapshot_id: int) -> ManifestEntry:
    return ManifestEntry(EntryStatus.EXISTING, snapshot_id, 5, 9, data_file("f", size))


def test_the_newest_record_counts_and_each_snapshot_records_how_much_its_files_shrank() -> None:
    found = known("0.500 planned 1.000 of 1000", "0.450 planned 0.500 of 2000", None)
    assert (found.ratio, found.file_bytes) == (0.45, 2000)
    assert found.shrank == {1: 0.5, 2: pytest.approx(0.9)}
    assert known(None, None) == known("0.500 planned 1.000 of 1000", version=1) == UNCHANGED_SIZES
    wrong = ["", "0.5", "nan", "7.000 planned 1.000 of 9", "0.000 planned 0.000 of 0", "0.100 planned 1.000 of 9"]
    for text in wrong:
        assert known(text) == UNCHANGED_SIZES, text


def expected(size: int, sizes: OutputSizes, *, is_rewritten: bool = False, is_copied: bool = False) -> int:
    condition = Condition(is_likely_copied=is_copied)
    return output_bytes(candidate(data_file("f", size), file_age=9 if is_rewritten else 1, condition=condition), sizes)


def test_only_similar_files_decoded_for_the_first_time_are_expected_to_shrink() -> None:
    sizes = OutputSizes(0.5, 100 * KB)
    assert expected(80 * KB, sizes) == 40 * KB
    assert expected(80 * KB, sizes, is_rewritten=True) == 80 * KB
    assert expected(80 * KB, sizes, is_copied=True) == 80 * KB
    assert expected(401 * KB, sizes) == 401 * KB
    assert expected(7, UNCHANGED_SIZES) == 7


def test_an_output_smaller_than_planned_is_small_only_if_far_smaller() -> None:
    sizes = replace(UNCHANGED_SIZES, shrank={HEAD: 0.5, 7: 0.2})
    assert not sizes.is_small(rewritten(450 * KB, HEAD), 768 * KB)
    assert sizes.is_small(rewritten(350 * KB, HEAD), 768 * KB)  # its planned size was 700 KB
    assert sizes.is_small(rewritten(450 * KB, 8), 768 * KB)  # its snapshot has no record
    assert sizes.is_small(rewritten(300 * KB, 7), 768 * KB)  # two of them fill a file that is not small
    fresh = ManifestEntry(EntryStatus.EXISTING, HEAD, 9, 9, data_file("f", 450 * KB))
    assert sizes.is_small(fresh, 768 * KB)


def test_a_record_counts_bytes_and_is_kept_without_new_merges() -> None:
    assert recorded_sizes(UNCHANGED_SIZES, []) is None
    text = recorded_sizes(UNCHANGED_SIZES, [(4, 4 * MB, MB), (6, 6 * MB, 4 * MB)])
    assert text == f"0.500 planned 1.000 of {MB}"
    assert recorded_sizes(known(text), []) == f"0.500 planned 0.500 of {MB}"
    assert recorded_sizes(known(text), [(2, 2000, 2400)]) == "1.000 planned 0.500 of 1000"
    assert recorded_sizes(UNCHANGED_SIZES, [(2, 2000, 20)]) == "0.250 planned 1.000 of 1000"


# What ``icekeeper plan`` shows of a compaction: reasons, outputs, bytes, requests, cost, and the files left alone.


def previewed(files: list[LiveEntry], deleted: dict[str, int], recipe: ClusterRecipe | None = None) -> CompactionPlan:
    state = table_state(files, [position_delete(f"d-{path}", path, rows=rows) for path, rows in deleted.items()])
    plan = plan_compaction(state, policy(), now_ms=HEAD_MS, recipe=recipe)
    assert isinstance(plan, CompactionPlan)
    return plan


def files(*sizes: int, name: str = "f") -> list[LiveEntry]:
    return [live_file(data_file(f"{name}{i}", size * MB), age=i) for i, size in enumerate(sizes)]


def test_every_group_states_its_reasons_and_outputs() -> None:
    """Twelve files of 40 MB become two; a third of the rows of a large file are deleted."""
    document = plan_document(previewed([*files(*[40] * 12), *files(200, name="g")], {"g0": 4}), TABLE)
    shown = [{k: g[k] for k in ("reasons", "files", "outputs", "bytes_in", "bytes_out")} for g in document["groups"]]
    small = {"reasons": ["small"], "files": 6, "outputs": 1, "bytes_in": 240 * MB, "bytes_out": 240 * MB}
    large = {"reasons": ["deletes"], "files": 1, "outputs": 1, "bytes_in": 200 * MB, "bytes_out": 120 * MB}
    assert sorted(shown, key=lambda g: g["files"]) == [large, small, small]
    assert document["totals"]["files"] == 13
    assert document["totals"]["outputs"] == 3
    assert document["totals"]["bytes_in"] == 680 * MB
    assert document["totals"]["requests"] == sum(group["requests"] for group in document["groups"])
    assert document["left"] == []


def test_groups_with_deletes_and_sorted_groups_state_their_outputs() -> None:
    """A group whose rows are all deleted has no output."""
    document = plan_document(previewed(files(1, 1, 1, 1, 1), {"f0": 9}), TABLE)
    assert [(group["reasons"], group["delete_files"]) for group in document["groups"]] == [(["small", "deletes"], 1)]
    document = plan_document(previewed(files(200), {"f0": 10}), TABLE)
    assert [(group["files"], group["outputs"]) for group in document["groups"]] == [(1, 0)]
    recipe = ClusterRecipe(Strategy.SORT, (KeyColumn(1),), 256 * MB, 192 * MB)
    document = plan_document(previewed(files(*[100] * 10), {}, recipe), TABLE)
    assert [(group["reasons"], group["outputs"]) for group in document["groups"]] == [(["clustering"], 4)]


@pytest.mark.parametrize(("expected_scans", "scans"), [(200, 200), (7, 7), (None, 1)])
def test_the_text_shows_the_same_numbers(expected_scans: int | None, scans: int) -> None:
    document = plan_document(previewed(files(*[40] * 12), {}), TABLE)
    assert list(plan_lines(document))[:3] == [
        "small: 6 files into 1, 240 MB in, 240 MB out",
        "small: 6 files into 1, 240 MB in, 240 MB out",
        "in all: 12 files into 2, 480 MB in, 480 MB out in 2 groups",
    ]
    assert list(plan_lines({})) == []
    document |= assumptions(policy(expected_scans=expected_scans))
    (line,) = (line for line in plan_lines(document) if line.startswith("takes about"))
    expected = f"in {scans} scan{'' if scans == 1 else 's'} (expected_scans), both at AWS's list prices, on any store"
    assert line.partition("saves readers about ")[2].partition(" ")[1:] == (" ", expected)


def test_a_plan_adds_a_single_field_to_the_result_document() -> None:
    def no_listing(name: str, paths: object) -> str:
        raise AssertionError

    plain = succeeded(Operation.COMPACT, "done").to_json("r", no_listing)
    skipped_document = replace(skipped(Operation.COMPACT, "no"), plan=left_document({})).to_json("r", no_listing)
    assert "plan" not in plain
    assert skipped_document.keys() - plain.keys() == {"plan"}


# Partition values at the limits of their type.


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        # Like Java's TruncateUtil: value - (((value % width) + width) % width), which overflows.
        ("int", -(2**31), 2**31 - 2),
        ("int", -(2**31) + 8, -(2**31) + 8),
        ("int", 2**31 - 1, 2**31 - 8),
        ("long", -(2**63), 2**63 - 2),
        ("long", -(2**63) + 8, -(2**63) + 8),
        ("long", -1, -10),
    ],
)
def test_extreme_integers_truncate_as_in_java(kind: str, value: int, expected: int) -> None:
    """Java cannot read a manifest whose value exceeds the range of the Avro type."""
    spec = {"fields": [{"source-id": 1, "field-id": 1000, "transform": "truncate[10]", "name": "p"}]}
    fields = target_fields(spec, {1: kind})
    assert fields is not None
    assert [field.apply(value) for field in fields] == [expected]


# Without ``delete_compaction_enabled``, no file that deletes may apply to is rewritten.


def rewritten_under_deletes(**settings: object) -> set[str]:
    """The rewritten files of twelve small files, two of which have a delete file."""
    files = [live_file(data_file(f"f{i}", MB), age=i) for i in range(12)]
    state = table_state(files, [position_delete(f"d-{path}", path) for path in ("f0", "f7")])
    plan = plan_compaction(state, policy(**settings), now_ms=HEAD_MS)
    assert isinstance(plan, CompactionPlan)
    left = {reason: part.files for reason, part in plan.left.items()}
    expected = {"deletes apply to them, and delete_compaction_enabled is false": 2}
    assert left == ({} if len(plan.input_files) == 12 else expected)
    return set(plan.input_files)


def test_small_files_under_deletes_are_left_alone_without_delete_compaction() -> None:
    assert len(rewritten_under_deletes()) == 12
    assert {f"f{i}" for i in range(12)} - rewritten_under_deletes(delete_compaction_enabled=False) == {"f0", "f7"}
    assert len(rewritten_under_deletes(delete_compaction_enabled=False, rewrite_all=True)) == 12
