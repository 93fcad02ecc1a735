"""Copies of row groups hold the rows of their inputs in order, and every offset is right."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.errors import FileUnreadable, StorageError
from icekeeper.metadata.types import encode
from icekeeper.model import DataFile
from icekeeper.operations.compaction.terms.rewrite_task import Copying
from icekeeper.operations.compaction.work.copied_outputs import CopyableInput, assign, plan_outputs
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from icekeeper.row_group_copy.copyable import CopyableFile
from icekeeper.rows.apply_deletes import position_rows
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read_task import InputFile, ReadableFile
from support.copied import MIXED, STORAGE, copied, entry_of, flipped, mixed_rows, pages, parquet_file, target_of
from support.rewrites import input_file, rewritten, rows, struct, task, written

# Copies of row groups hold the rows of their inputs in order, and every offset in them is right.


def copy_of(inputs: list[Path], folder: Path, **more: Any) -> DataFile:
    made = copied(inputs, folder / "copy.parquet", target_of(**more))
    assert isinstance(made, DataFile), str(made)
    return made


def test_row_groups_without_rows_are_left_out(tmp_path: Path) -> None:
    empty, partly = tmp_path / "empty.parquet", tmp_path / "partly.parquet"
    parquet_file(empty, mixed_rows(0, 0))
    with pq.ParquetWriter(partly, mixed_rows(0, 0).schema, compression="zstd", store_decimal_as_integer=True) as writer:
        for count in (0, 5, 0):
            writer.write_table(mixed_rows(7, count))
    entry = copy_of([empty, partly, empty], tmp_path)

    assert pq.read_table(entry.file_path).equals(pq.read_table(partly))
    assert pq.read_metadata(entry.file_path).num_row_groups == 1
    assert copied([empty, empty], tmp_path / "nothing.parquet") is None
    assert not (tmp_path / "nothing.parquet").exists()


def test_duckdb_reads_and_filters_files_of_duckdb_and_arrow(tmp_path: Path) -> None:
    schema = struct((1, "id", "long"), (2, "text", "string"), (3, "ratio", "double"), (4, "seen", "timestamp"))
    values: dict[str, list[Any]] = {
        "id": list(range(3000)),
        "text": [f"t{n % 50}" for n in range(3000)],
        "ratio": [n / 7 for n in range(3000)],
        "seen": [n * 10**6 for n in range(3000)],
    }
    ours = parquet_file(tmp_path / "ours.parquet", rows(schema, values), row_group_size=1000)
    theirs = tmp_path / "theirs.parquet"
    connection = duckdb.connect()
    connection.execute(
        f"COPY (SELECT id + 3000 AS id, text, ratio, seen FROM '{ours}') TO '{theirs}' (FORMAT parquet, CODEC 'zstd', "
        "FIELD_IDS {id: 1, text: 2, ratio: 3, seen: 4}, ROW_GROUP_SIZE 2048)"
    )
    entry = copy_of([theirs, ours, theirs], tmp_path, schema=schema)

    before = f"read_parquet(['{theirs}', '{ours}', '{theirs}'])"
    for sql in (
        "SELECT * FROM {}",
        "SELECT * FROM {} WHERE id = 4711",
        "SELECT id FROM {} WHERE text = 't7' AND id < 90",
    ):
        copy, inputs = (connection.sql(sql.format(scan)).fetchall() for scan in (f"'{entry.file_path}'", before))
        assert copy == inputs
        assert copy
    footer = pq.read_metadata(entry.file_path)
    filtered = [footer.row_group(n).column(1).bloom_filter_offset is not None for n in range(footer.num_row_groups)]
    assert set(filtered) == {True, False}  # Arrow wrote no statistics here
    probe = f"SELECT bloom_filter_excludes FROM parquet_bloom_probe('{entry.file_path}', 'text', '{{}}') ORDER BY ALL"
    assert connection.sql(probe.format("t7")).fetchall() == [(False,)] * len(filtered)
    assert connection.sql(probe.format("t7000")).fetchall() == sorted((is_excluded,) for is_excluded in filtered)
    assert "several writers" in footer.created_by


def test_the_entry_has_the_metrics_of_a_rewrite(tmp_path: Path) -> None:
    """They equal those of decoded rows: counts, bounds, nothing for uuids and lists."""
    tables = [mixed_rows(0), mixed_rows(300), mixed_rows(200)]
    entries = []
    for n, table in enumerate(tables):
        (tmp_path / str(n)).mkdir()
        entries.append(written(rewritten(MIXED, [table], tmp_path / str(n))))
    rewrite = written(rewritten(MIXED, tables, tmp_path))
    made = copied(entries, tmp_path / "copy.parquet", target_of(mode="truncate(16)"))

    assert isinstance(made, DataFile), str(made)
    for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        assert getattr(made, name) == getattr(rewrite, name), name
    sizes = [entry.column_sizes or {} for entry in entries]
    assert made.column_sizes == {i: sum(size[i] for size in sizes) for i in rewrite.column_sizes or {}}
    assert made.record_count == rewrite.record_count


def test_bounds_are_merged_as_each_column_is_measured(tmp_path: Path) -> None:
    schema = struct((1, "n", "int"), (2, "t", "string"), (3, "x", "double"), (4, "gone", "int"))
    path = parquet_file(tmp_path / "in.parquet", rows(schema, {"n": [1], "t": ["a"], "x": [0.5], "gone": [None]}))
    known = {
        "null_value_counts": {1: 0, 2: 0, 3: 0, 4: 1},
        "nan_value_counts": {3: 0},
        "value_counts": dict.fromkeys((1, 2, 3, 4), 1),
    }

    def entry(n: int, t: str, x: float, **more: Any) -> DataFile:
        bounds = {1: encode("int", n), 2: t.encode(), 3: encode("double", x)}
        return entry_of(path, **(known | {"lower_bounds": bounds, "upper_bounds": bounds} | more))

    made = copied(
        [entry(-5, "élan vital, long enough to be cut", -0.0), entry(7, "b", 0.0), entry(0, "zz", -1.5)],
        tmp_path / "copy.parquet",
        target_of(schema, mode="truncate(4)"),
    )
    assert isinstance(made, DataFile), str(made)
    assert made.lower_bounds == {1: encode("int", -5), 2: b"b", 3: encode("double", -1.5)}
    assert made.upper_bounds == {1: encode("int", 7), 2: "élao".encode(), 3: encode("double", 0.0)}
    assert made.null_value_counts == {1: 0, 2: 0, 3: 0, 4: 3}


@pytest.mark.parametrize("mode", ["counts", "truncate(4)", "full"])
def test_metrics_that_entries_lack_come_from_footers(mode: str, tmp_path: Path) -> None:
    """PyIceberg's entries have no bounds for columns in structs, and no counts in some metrics modes
    (rule: metrics-contain-every-value)."""
    point = struct((3, "x", "int"), (4, "y", "double"))
    schema = struct((1, "t", "string"), (2, "point", point), (5, "gone", "long"))
    values: dict[str, list[Any]] = {
        "t": ["some text", "more", None] * 10,
        "point": [None if n == 7 else {"x": n, "y": n / 4} for n in range(30)],
        "gone": [None] * 30,
    }
    table = rows(schema, values)
    rewrite = written(rewritten(schema, [table], tmp_path, table_properties={"write.metadata.metrics.default": mode}))
    path = parquet_file(tmp_path / "theirs.parquet", table)
    made = copied([entry_of(path)], tmp_path / "copy.parquet", target_of(schema, mode=mode))

    assert isinstance(made, DataFile), str(made)
    for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        assert getattr(made, name) == getattr(rewrite, name), name
    blind = parquet_file(tmp_path / "blind.parquet", table, write_statistics=False)
    refused = copied([entry_of(blind)], tmp_path / "no.parquet", target_of(schema, mode=mode))
    assert str(refused) == f"{blind} has a manifest entry that does not count the nulls of column t"


def test_footers_state_no_bounds_that_readers_misread(tmp_path: Path) -> None:
    """Uuids, equal floats and floats beside NaN have no bounds,
    although the inputs state some."""
    schema = struct((1, "x", "double"), (2, "y", "double"), (3, "key", "uuid"))
    values: dict[str, list[Any]] = {"x": [0.0, -0.0, 0.0], "y": [1.0, 2.0, None], "key": [bytes(16)] * 3}
    path = parquet_file(tmp_path / "in.parquet", rows(schema, values))
    before = pq.read_metadata(path).row_group(0)
    entry = copy_of([path], tmp_path, schema=schema)
    after = pq.read_metadata(entry.file_path).row_group(0)

    assert [before.column(i).statistics.has_min_max for i in range(3)] == [True, True, True]
    assert [after.column(i).statistics.has_min_max for i in range(3)] == [False, True, False]
    assert [after.column(i).statistics.null_count for i in range(3)] == [0, 1, 0]


# Which inputs are copied into which output, and which inputs are decoded.

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
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    usual: dict[str, Any] = {"min_row_group_bytes": 8, "smallest_output_bytes": 1, "largest_output_bytes": 1000}
    usual["full_row_group_memory"] = 40
    return plan_outputs(
        sizes, outputs, copyable, Copying(entries={}, sizes=tuple(sizes), **usual | bounds), OURS, row_group_bytes=100
    )


SAME_NULLABILITY = {0: file(50, nullability=OTHERS), 1: file(60, nullability=OTHERS)}


@pytest.mark.parametrize(
    ("sizes", "copyable", "more", "expected"),
    [
        ([50, 5, 60, 5], {0: file(50), 2: file(60)}, {}, [((1, 3), (0, 2))]),
        ([50, 5], {}, {}, []),
        # The decoded ten bytes add a row group: 72 bytes in nine row groups are enough, in ten they are not.
        ([62, 10], {0: file(62, 8)}, {}, [((1,), (0,))]),
        ([62, 10], {0: file(62, 9)}, {}, []),
        # Four row groups whose rows take 160 bytes in memory are full; with 80 bytes they are not.
        ([16, 8], {0: file(16, 4, memory=160)}, {}, [((1,), (0,))]),
        ([16, 8], {0: file(16, 4, memory=80)}, {}, []),
        # Files with other required columns than the table share an output only with files of the same kind.
        ([50, 60], SAME_NULLABILITY, {}, [((), (0, 1))]),
        ([50, 60, 5], SAME_NULLABILITY, {}, []),
        ([50, 60], {0: SAME_NULLABILITY[0], 1: file(60)}, {}, [((0,), (1,))]),
        # Forty bytes of row groups without deleted rows, and sixty bytes that become a single row group.
        ([100], {0: file(40, 5, is_whole=False)}, {"min_row_group_bytes": 16}, [((), (0,))]),
        ([100], {0: file(40, 6, is_whole=False)}, {"min_row_group_bytes": 16}, []),
        ([100], {0: file(40, 1, OTHERS, is_whole=False)}, {}, []),
        ([50, 50, 50, 50], {0: file(50), 1: file(50)}, {"outputs": 2}, [((), (0, 1)), ((2, 3), ())]),
    ],
)
def test_which_inputs_are_copied_and_which_decoded(
    sizes: list[int], copyable: dict[int, CopyableInput], more: dict[str, int], expected: list[Any]
) -> None:
    assert planned(sizes, copyable, **more) == expected


def test_inputs_with_and_without_page_indexes_get_different_outputs() -> None:
    """The number of files must not exceed the plan; otherwise they share a file without a page index."""
    bare = file(50, is_indexed=False)
    some = {0: file(50), 1: bare, 2: bare, 3: file(50)}
    sizes = [50, 50, 50, 50, 10]  # the last input is decoded, and then has a page index
    assert planned(sizes, some, 2) == [((4,), (0, 3)), ((), (1, 2))]
    assert planned(sizes, some, 1) == [((4,), (0, 1, 2, 3))]
    # The input without an index alone would be too small a file.
    lone = {0: file(50), 1: file(50), 2: bare, 3: file(50)}
    in_order = [((), (0, 1)), ((), (2, 3))]
    assert planned([50] * 4, lone, 2, smallest_output_bytes=51) == in_order
    assert planned([50] * 4, lone, 2, largest_output_bytes=149) == in_order
    assert planned([50] * 4, lone, 2) == [((), (0, 1, 3)), ((), (2,))]


def test_inputs_that_agree_keep_their_order() -> None:
    bare = file(50, is_indexed=False)
    assert planned([50] * 4, {0: bare, 1: bare, 2: file(50), 3: file(50)}, 2) == [((), (0, 1)), ((), (2, 3))]
    # More than half of the bytes get two of three outputs.
    thirds = {i: file(50, is_indexed=i % 3 != 0) for i in range(6)}
    assert planned([50] * 6, thirds, 3) == [((), pair) for pair in ((1, 2), (4, 5), (0, 3))]


def test_files_that_cannot_be_divided_into_outputs_of_the_right_size_are_decoded() -> None:
    """Decoded rows are divided evenly, 75 bytes each."""
    assert assign([100, 25, 25], 2, smallest=60, largest=100) is None
    assert assign([100, 25, 25], 2, smallest=50, largest=100) == [range(1), range(1, 3)]
    assert assign([100, 25, 25], 2, smallest=50, largest=99) is None


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 5))
def test_every_input_is_in_a_single_output_in_order(sizes: list[int], outputs: int) -> None:
    parts = assign(sizes, outputs, smallest=0, largest=10**6)
    assert parts is not None
    assert [i for part in parts for i in part] == list(range(len(sizes)))
    assert len(parts) == outputs
    share = sum(sizes) / outputs
    assert all(abs(sum(sizes[i] for i in part) - share) <= max(sizes, default=0) for part in parts)


# Checksums of Parquet pages: readers verify them, writers write them, copies keep them
# (rule: verify-page-checksums).

TRIALS = 40
EXPECTED = mixed_rows(0).combine_chunks()


def decoded(path: Path, **more: Any) -> pa.Table:
    return pa.Table.from_batches(projected_rows(ReadableFile(str(path), **more), MIXED, STORAGE)).combine_chunks()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_every_flipped_bit_of_a_page_is_detected(tmp_path: Path, version: str) -> None:
    """This covers data pages of both versions and dictionaries; unverified, most bits change values silently."""
    sound = parquet_file(tmp_path / "in.parquet", EXPECTED, write_page_checksum=True, data_page_version=version)
    bits = [bit for _, start, end in pages(sound) for bit in range(start * 8, end * 8)]
    for number, bit in enumerate(random.Random(29).sample(bits, TRIALS)):
        damaged = flipped(sound, tmp_path / f"{number}.parquet", bit)
        with pytest.raises(FileUnreadable, match=f"^file {damaged} cannot be read: .*(?i:checksum)") as found:
            decoded(damaged)
        assert found.value.path == str(damaged)
        to = tmp_path / f"{number}-copy.parquet"
        with pytest.raises(FileUnreadable, match=f"^file {damaged} cannot be read: a page of column ") as found:
            copied([sound, damaged], to)
        assert found.value.path == str(damaged)
        assert not to.exists()


def test_a_group_names_the_file_with_a_wrong_checksum(tmp_path: Path) -> None:
    plain = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    table = EXPECTED.select(["id"])
    sound = parquet_file(tmp_path / "in.parquet", table, **plain)
    _, start, _ = next(pages(sound))
    other = flipped(sound, tmp_path / "other.parquet", (start + 30) * 8)
    schema = {**MIXED, "fields": MIXED["fields"][:1]}
    inputs = [input_file(tmp_path / "beside.parquet", table)]
    inputs.append(InputFile(str(other), table.num_rows, other.stat().st_size))
    assert list(rewrite_group(task(schema, inputs, tmp_path)).unreadable) == [str(other)]


def test_delete_files_are_verified(tmp_path: Path) -> None:
    table = pa.table({"file_path": ["s3://b/t/data/a.parquet"] * 50, "pos": list(range(50))})
    sound = parquet_file(tmp_path / "in.parquet", table, write_page_checksum=True)
    _, start, _ = list(pages(sound))[-1]
    damaged = flipped(sound, tmp_path / "damaged.parquet", start * 8)
    assert sum(rows for rows, _ in position_rows(str(sound), "PARQUET", STORAGE)) == 50
    with pytest.raises(StorageError, match=str(damaged)):
        list(position_rows(str(damaged), "PARQUET", STORAGE))


def test_written_files_have_checksums_and_copies_keep_them(tmp_path: Path) -> None:
    entry = written(rewritten(MIXED, [EXPECTED, mixed_rows(100)], tmp_path))
    first = Path(entry.file_path)
    made = copied([first, first], tmp_path / "copy.parquet")
    assert isinstance(made, DataFile)
    for path, times in ((first, 1), (Path(made.file_path), 2)):
        data = path.read_bytes()
        found = list(pages(path))
        assert len(found) == times * len(list(pages(first))) > 0
        for header, start, end in found:
            assert header.crc is not None
            assert header.crc & 0xFFFFFFFF == zlib.crc32(data[start:end])
    assert pq.ParquetFile(made.file_path, page_checksum_verification=True).read().num_rows == 4 * 60
    without = parquet_file(tmp_path / "in.parquet", EXPECTED)
    assert all(header.crc is None for header, *_ in pages(without))
    assert decoded(without).equals(EXPECTED)
