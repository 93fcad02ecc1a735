"""Some row groups of a file are copied without the others, and described by what is sure of them (rule 25)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from icekeeper.metadata.single_value import encode
from icekeeper.model import DataFile
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.row_group_copy.copyable_file import CopyableFile
from icekeeper.row_group_copy.footer_structs import FileMetaData
from icekeeper.row_group_copy.merge import copyable_file, copyable_part, merge_files
from icekeeper.row_group_copy.refusal import NotCopyable
from support.copied import STORAGE, entry_of, mixed_rows, parquet_file, target_of, with_metadata
from support.lineage_copies import Input, lineage_file, lineage_target, merged, plain_file, resolved
from support.rewrites import input_file, rewritten, rows, struct, task, written

FLOATS = struct(
    (1, "id", "long"),
    (2, "x", "double"),
    (3, "t", "string"),
    (4, "tags", {"type": "list", "element-id": 5, "element": "int", "element-required": False}),
)


def judged(entry: DataFile, target: Any = None) -> CopyableFile:
    file = copyable_file(entry, target or target_of(), STORAGE, 1)
    assert not isinstance(file, NotCopyable), str(file)
    return file


def test_every_row_group_says_which_rows_and_bytes_it_has(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    with pq.ParquetWriter(path, mixed_rows(0, 0).schema, compression="zstd", store_decimal_as_integer=True) as writer:
        for count in (7, 0, 5, 9):
            writer.write_table(mixed_rows(0, count))
    file = judged(entry_of(path))
    assert [(group.number, group.positions) for group in file.groups] == [
        (0, range(7)),
        (2, range(7, 12)),
        (3, range(12, 21)),
    ]
    footer = pq.read_metadata(path)
    for group in file.groups:
        chunks = footer.row_group(group.number).to_dict()["columns"]
        assert group.copied_bytes == sum(chunk["total_compressed_size"] for chunk in chunks)
        assert file.only([group.number]).copied_bytes == group.copied_bytes
    part = file.only([3, 0])
    assert (part.row_count, part.row_groups, [group.number for group in part.groups]) == (16, 2, [0, 3])
    assert file.only([0, 2, 3]) == file
    with pytest.raises(ValueError, match="has no row group 1 to copy"):
        file.only([0, 1])


@pytest.mark.parametrize("options", [{}, {"bloom_filter_options": {"text": {"ndv": 50, "fpp": 0.01}}}])
def test_only_the_rows_of_the_wanted_row_groups_are_copied(options: dict[str, Any], tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "in.parquet", mixed_rows(0, 100), **options)
    other = parquet_file(tmp_path / "other.parquet", mixed_rows(200))
    entry, whole = entry_of(path), entry_of(other)
    file = judged(entry)
    parts = [(entry, file.only([1, 3])), (whole, judged(whole)), (entry, file.only([0])), (entry, file.only([]))]
    made = merge_files(parts, str(tmp_path / "copy.parquet"), target_of(), STORAGE)

    assert isinstance(made, DataFile), str(made)
    ids = [*range(25, 50), *range(75, 100), *range(200, 260), *range(25)]
    found = pq.read_table(made.file_path)
    assert found["id"].to_pylist() == ids
    assert found.slice(0, 25).equals(pq.read_table(path).slice(25, 25))
    assert made.record_count == len(ids)
    assert merge_files([(entry, file.only([]))], str(tmp_path / "nothing.parquet"), target_of(), STORAGE) is None


def test_rows_of_a_part_keep_their_row_ids(tmp_path: Path) -> None:
    """They go on from the position in the file, not in the part."""
    values = [None if n % 9 == 4 else 300 + n for n in range(60)]
    inputs = [
        plain_file(tmp_path / "a.parquet", 0, 5000, 7)._replace(only=[1, 2]),
        lineage_file(tmp_path / "b.parquet", 60, (values, values), (8000, 9))._replace(only=[1]),
        plain_file(tmp_path / "a.parquet", 0, 5000, 7)._replace(only=[0]),
    ]
    made = merged(inputs, tmp_path / "copy.parquet")
    assert isinstance(made, DataFile), str(made)
    found = pq.read_table(made.file_path).to_pylist()
    assert found == [row for one in inputs for row in resolved(one)]
    assert [found[0]["_row_id"], found[-1]["_row_id"]] == [5025, 5024]


def floats(count: int, nan: int = -1) -> dict[str, list[Any]]:
    """Ten rows a row group; the second one has neither texts nor numbers, one value may be NaN."""
    numbers = range(count)
    return {
        "id": list(numbers),
        "x": [None if 10 <= n < 20 else math.nan if n == nan else n / 4 - 3 for n in numbers],
        "t": [None if 10 <= n < 20 else f"text number {n:04} and more than is told" for n in numbers],
        "tags": [[n] for n in numbers],
    }


def whole(folder: Path, values: dict[str, list[Any]], change: Any = None, **options: Any) -> DataFile:
    """A file of several row groups with the entry that a rewrite of its rows has."""
    folder.mkdir()
    table = rows(FLOATS, values)
    path = parquet_file(folder / "whole.parquet", table, row_group_size=10, **options)
    if change is not None:
        with_metadata(path, change)
    entry = written(rewritten(FLOATS, [table], folder))
    named = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    return entry_of(path, **{name: getattr(entry, name) for name in named})


@pytest.mark.parametrize("mode", ["none", "counts", "truncate(16)", "full"])
@pytest.mark.parametrize("numbers", [[0], [1], [2, 0], [1, 2]])
def test_the_entry_of_a_part_tells_what_a_rewrite_of_its_rows_tells(
    numbers: list[int], mode: str, tmp_path: Path
) -> None:
    """Bounds too, for engines take them for values (platform 46); not those of row groups that stay behind."""
    values = floats(30)
    entry = whole(tmp_path / "in", values)
    target = target_of(FLOATS, mode=mode)
    part = copyable_part(entry, judged(entry, target), numbers, target)
    assert not isinstance(part, NotCopyable), str(part)
    made = merge_files([(entry, part)], str(tmp_path / "copy.parquet"), target, STORAGE)

    kept = [n for number in sorted(numbers) for n in range(number * 10, number * 10 + 10)]
    table = rows(FLOATS, {name: [column[n] for n in kept] for name, column in values.items()})
    source = input_file(tmp_path / "kept.parquet", table)
    properties = {"write.metadata.metrics.default": mode}
    anew = written(rewrite_group(task(FLOATS, [source], tmp_path, table_properties=properties)))
    assert isinstance(made, DataFile), str(made)
    for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        assert getattr(made, name) == getattr(anew, name), name
    assert (made.column_sizes or {}).keys() == (anew.column_sizes or {}).keys()


def without_nulls(metadata: FileMetaData) -> None:
    for group in metadata.row_groups:
        for chunk in group.columns[1:3]:
            assert chunk.meta_data.statistics is not None
            chunk.meta_data.statistics.null_count = None


def cut_texts(metadata: FileMetaData) -> None:
    for group in metadata.row_groups:
        told = group.columns[2].meta_data.statistics
        assert told is not None
        told.is_max_value_exact = False


def without_bounds(metadata: FileMetaData) -> None:
    told = metadata.row_groups[0].columns[0].meta_data.statistics
    assert told is not None
    told.min_value = told.max_value = None


UNKNOWN: dict[str, tuple[dict[str, Any], list[int], str, str]] = {
    "NaN of a part": ({"nan": 25}, [2], "counts", "does not count the NaN of column x"),
    "NaN elsewhere": ({"nan": 25}, [0], "truncate(16)", "does not count the NaN of column x"),
    "nulls of a part": ({"change": without_nulls}, [0, 1], "counts", "does not count the nulls of column x"),
    "bounds that are cut": ({"change": cut_texts}, [0], "full", "without bounds of column t"),
    "bounds that one row group lacks": (
        {"change": without_bounds},
        [0, 2],
        "truncate(16)",
        "without bounds of column id",
    ),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_cannot_be_told_of_a_part_is_refused(what: str, tmp_path: Path) -> None:
    """The whole file can be copied; so can the part, if the manifest need not tell it."""
    how, numbers, mode, sentence = UNKNOWN[what]
    entry = whole(tmp_path / "in", floats(30, how.get("nan", -1)), how.get("change"))
    target = target_of(FLOATS, mode=mode)
    file = judged(entry, target)
    to = tmp_path / "copy.parquet"
    expected = f"{entry.file_path} has a manifest entry that {sentence} in some of its row groups alone"
    if sentence.startswith("without"):
        expected = expected.replace("entry that without", "entry without")
    assert str(copyable_part(entry, file, numbers, target)) == expected
    assert str(merge_files([(entry, file.only(numbers))], str(to), target, STORAGE)) == expected
    assert not to.exists()
    assert isinstance(merge_files([(entry, file)], str(to), target, STORAGE), DataFile)
    freely = merge_files([(entry, file.only(numbers))], str(to), target_of(FLOATS), STORAGE)
    assert isinstance(freely, DataFile)


def test_cut_bounds_of_texts_are_enough_where_the_manifest_cuts_them_anyway(tmp_path: Path) -> None:
    entry = whole(tmp_path / "in", floats(30), cut_texts)
    target = target_of(FLOATS, mode="truncate(16)")
    made = merge_files([(entry, judged(entry, target).only([2]))], str(tmp_path / "copy.parquet"), target, STORAGE)
    assert isinstance(made, DataFile), str(made)
    assert (made.lower_bounds or {})[3] == b"text number 0020"
    assert (made.upper_bounds or {})[3] == b"text number 002:"


def test_a_part_with_lineage_has_the_bounds_of_its_own_rows(tmp_path: Path) -> None:
    one = plain_file(tmp_path / "a.parquet", 0, 100, 7)
    schema = struct((1, "id", "long"))
    table = rows(schema, {"id": list(range(60))})
    path = parquet_file(tmp_path / "ids.parquet", table)
    entry = written(rewritten(schema, [table], tmp_path))
    known = {name: getattr(entry, name) for name in ("null_value_counts", "value_counts", "lower_bounds")}
    one = Input(entry_of(path, first_row_id=100, upper_bounds=entry.upper_bounds, **known), 7, [1])
    made = merged([one], tmp_path / "copy.parquet", lineage_target(schema, mode="full"))
    assert isinstance(made, DataFile), str(made)
    assert made.lower_bounds == {1: b"\x19" + bytes(7), 2147483540: b"\x7d" + bytes(7), 2147483539: b"\7" + bytes(7)}
    assert (made.upper_bounds or {})[2147483540] == b"\x95" + bytes(7)


def test_counts_of_a_part_are_known_where_all_values_of_the_file_are_alike(tmp_path: Path) -> None:
    """All of them NaN, or null: the footer need not count them."""
    values = {**floats(30), "x": [math.nan] * 30, "t": [None] * 30}
    entry = whole(tmp_path / "in", values, without_nulls)
    target = target_of(FLOATS, mode="full")
    made = merge_files([(entry, judged(entry, target).only([1]))], str(tmp_path / "copy.parquet"), target, STORAGE)
    assert isinstance(made, DataFile), str(made)
    assert made.value_counts == {1: 10, 2: 10, 3: 10}
    assert made.null_value_counts == {1: 0, 2: 0, 3: 10}
    assert made.nan_value_counts == {2: 10}
    assert set(made.lower_bounds or {}) == set(made.upper_bounds or {}) == {1}


def test_a_zero_in_a_bound_of_a_part_has_the_sign_that_lies_outside(tmp_path: Path) -> None:
    """Some writers tell the zero that they saw, and both signs are there."""

    def swapped(metadata: FileMetaData) -> None:
        told = metadata.row_groups[1].columns[1].meta_data.statistics
        assert told is not None
        told.min_value, told.max_value = encode("double", 0.0), encode("double", -0.0)

    values = {**floats(30), "x": [0.0, -0.0] * 15}
    entry = whole(tmp_path / "in", values, swapped)
    target = target_of(FLOATS, mode="full")
    made = merge_files([(entry, judged(entry, target).only([1]))], str(tmp_path / "copy.parquet"), target, STORAGE)
    assert isinstance(made, DataFile), str(made)
    assert (made.lower_bounds or {})[2] == encode("double", -0.0)
    assert (made.upper_bounds or {})[2] == encode("double", 0.0)
