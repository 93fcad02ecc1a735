"""Copies of row groups hold the rows of their inputs in order, and every offset in them is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.metadata.single_value import encode
from icekeeper.model import DataFile
from icekeeper.row_group_copy.copyable import CODECS, judge_file
from icekeeper.row_group_copy.footer import column_index, offset_index, read_footer
from icekeeper.row_group_copy.footer_structs import NotCopyable, OffsetIndex, read_exactly
from support.copied import MIXED, STORAGE, copied, entry_of, mixed_rows, parquet_file, target_of
from support.rewrites import rewritten, rows, struct, written

VARIANTS: dict[str, dict[str, Any]] = {
    "one row group, no page index": {"row_group_size": 1000, "write_page_index": False},
    "pages of version 2": {"data_page_version": "2.0"},
    "Bloom filters": {"bloom_filter_options": {"text": {"ndv": 50, "fpp": 0.01}, "id": {"ndv": 50, "fpp": 0.01}}},
    "no dictionaries": {"use_dictionary": False},
    "no statistics": {"write_statistics": False},
    "Arrow's schema, sorted": {"store_schema": True, "sorting_columns": [pq.SortingColumn(0)]},
    "checksums of pages": {"write_page_checksum": True},
}


def copy_of(inputs: list[Path], folder: Path, **more: Any) -> DataFile:
    made = copied(inputs, folder / "copy.parquet", target_of(**more))
    assert isinstance(made, DataFile), str(made)
    return made


def read_together(paths: list[Path]) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in paths])


@pytest.mark.parametrize("variant", VARIANTS)
def test_arrow_reads_the_rows_of_the_inputs_in_order(variant: str, tmp_path: Path) -> None:
    plain = parquet_file(tmp_path / "plain.parquet", mixed_rows(0))
    other = parquet_file(tmp_path / "other.parquet", mixed_rows(60), **VARIANTS[variant])
    entry = copy_of([other, plain, other], tmp_path)

    assert pq.read_table(entry.file_path).equals(read_together([other, plain, other]))
    assert entry.record_count == 180
    assert entry.file_size_in_bytes == Path(entry.file_path).stat().st_size


@pytest.mark.parametrize("codec", sorted(set(CODECS) - {"lz4_raw"}))
def test_every_codec(codec: str, tmp_path: Path) -> None:
    arrow_name = "none" if codec == "uncompressed" else codec
    paths = [
        parquet_file(tmp_path / f"{n}.parquet", mixed_rows(n * 60), compression=arrow_name, data_page_version=version)
        for n, version in enumerate(("1.0", "2.0"))
    ]
    entry = copy_of(paths, tmp_path, codec=codec)

    assert pq.read_table(entry.file_path).equals(read_together(paths))
    wrong = copied(paths, tmp_path / "wrong.parquet", target_of(codec="zstd" if codec != "zstd" else "gzip"))
    assert str(wrong) == f"{paths[0]} has column id compressed otherwise than the table asks for"


def test_the_new_footer_is_that_of_the_inputs_with_other_offsets(tmp_path: Path) -> None:
    blooms = {"bloom_filter_options": {"text": {"ndv": 50, "fpp": 0.01}}}
    paths = [parquet_file(tmp_path / f"{n}.parquet", mixed_rows(n * 60), **blooms) for n in range(2)]
    entry = copy_of(paths, tmp_path)

    before = [pq.read_metadata(path).row_group(n).to_dict() for path in paths for n in range(3)]
    footer = pq.read_metadata(entry.file_path)
    after = [footer.row_group(n).to_dict() for n in range(footer.num_row_groups)]
    places = ("data_page_offset", "dictionary_page_offset", "bloom_filter_offset")
    shifts = []
    for old, new in zip(before, after, strict=True):
        for one, other in zip(old["columns"], new["columns"], strict=True):
            shifts.append({other[key] - one[key] for key in places if one.get(key)})
            for key in places:
                one.pop(key, None), other.pop(key, None)
            if one["path_in_schema"] == "key":  # of uuids no bounds are carried over
                one["statistics"] = other["statistics"] = None
        assert new == old
    assert all(len(shift) == 1 for shift in shifts)
    assert [max(shift) for shift in shifts[:33]] == [0] * 33
    assert footer.created_by == pq.read_metadata(paths[0]).created_by
    assert list(entry.split_offsets or ()) == [
        min(c["dictionary_page_offset"] or c["data_page_offset"] for c in footer.row_group(n).to_dict()["columns"])
        for n in range(6)
    ]


def test_page_indexes_lie_together_and_name_the_pages_of_the_copy(tmp_path: Path) -> None:
    paths = [parquet_file(tmp_path / f"{n}.parquet", mixed_rows(n * 60)) for n in range(2)]
    entry = copy_of(paths, tmp_path)
    data = Path(entry.file_path).read_bytes()
    footer = read_footer(entry.file_path, STORAGE)
    assert not isinstance(footer, NotCopyable)
    groups = footer.metadata().row_groups
    chunks = [chunk for group in groups for chunk in group.columns]
    bounds = [piece for chunk in chunks if (piece := column_index(chunk))]
    places = [piece for chunk in chunks if (piece := offset_index(chunk))]

    assert [piece.start for piece in bounds[1:] + places] == [piece.end for piece in [*bounds, *places[:-1]]]
    assert places[-1].end == footer.start
    assert len(bounds) == len(chunks) - len(groups)  # those of uuids are left out (rule 26)
    assert len(places) == len(chunks)
    old = [(path, chunk) for path in paths for chunk in _chunks(path)]
    for chunk, (path, before), piece in zip(chunks, old, places, strict=True):
        index = read_exactly(OffsetIndex, data[piece.start : piece.end])
        shift = chunk.meta_data.data_page_offset - before.meta_data.data_page_offset
        original = read_exactly(OffsetIndex, path.read_bytes()[slice(*offset_index(before) or ())])
        assert [p.offset for p in index.page_locations] == [p.offset + shift for p in original.page_locations]
    judged = judge_file(footer, target_of())
    assert not isinstance(judged, NotCopyable), str(judged)


def _chunks(path: Path) -> list[Any]:
    footer = read_footer(str(path), STORAGE)
    assert not isinstance(footer, NotCopyable)
    return [chunk for group in footer.metadata().row_groups for chunk in group.columns]


def test_a_copy_can_be_copied_again_with_the_same_bytes(tmp_path: Path) -> None:
    paths = [parquet_file(tmp_path / f"{n}.parquet", mixed_rows(n * 60)) for n in range(3)]
    once = copy_of(paths, tmp_path)
    twice = copied([Path(once.file_path)], tmp_path / "twice.parquet")
    assert isinstance(twice, DataFile)
    assert Path(twice.file_path).read_bytes() == Path(once.file_path).read_bytes()


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


def test_duckdb_reads_and_filters_what_duckdb_and_arrow_wrote(tmp_path: Path) -> None:
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
    assert set(filtered) == {True, False}  # Arrow wrote none here
    probe = f"SELECT bloom_filter_excludes FROM parquet_bloom_probe('{entry.file_path}', 'text', '{{}}') ORDER BY ALL"
    assert connection.sql(probe.format("t7")).fetchall() == [(False,)] * len(filtered)
    assert connection.sql(probe.format("t7000")).fetchall() == sorted((one,) for one in filtered)
    assert "several writers" in footer.created_by


def test_the_entry_has_the_metrics_of_a_rewrite(tmp_path: Path) -> None:
    """As if all rows had been decoded and written anew: counts, bounds, nothing of uuids and of what lies in lists."""
    tables = [mixed_rows(0), mixed_rows(300), mixed_rows(200)]
    entries = []
    for n, table in enumerate(tables):
        (tmp_path / str(n)).mkdir()
        entries.append(written(rewritten(MIXED, [table], tmp_path / str(n))))
    anew = written(rewritten(MIXED, tables, tmp_path))
    made = copied(entries, tmp_path / "copy.parquet", target_of(mode="truncate(16)"))

    assert isinstance(made, DataFile), str(made)
    for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        assert getattr(made, name) == getattr(anew, name), name
    sizes = [entry.column_sizes or {} for entry in entries]
    assert made.column_sizes == {i: sum(size[i] for size in sizes) for i in anew.column_sizes or {}}
    assert made.record_count == anew.record_count


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
def test_what_entries_do_not_tell_is_told_by_footers(mode: str, tmp_path: Path) -> None:
    """PyIceberg's entries have no bounds of columns in structs, and with few metrics no counts either (rule 25)."""
    point = struct((3, "x", "int"), (4, "y", "double"))
    schema = struct((1, "t", "string"), (2, "point", point), (5, "gone", "long"))
    values: dict[str, list[Any]] = {
        "t": ["some text", "more", None] * 10,
        "point": [None if n == 7 else {"x": n, "y": n / 4} for n in range(30)],
        "gone": [None] * 30,
    }
    table = rows(schema, values)
    anew = written(rewritten(schema, [table], tmp_path, table_properties={"write.metadata.metrics.default": mode}))
    path = parquet_file(tmp_path / "theirs.parquet", table)
    made = copied([entry_of(path)], tmp_path / "copy.parquet", target_of(schema, mode=mode))

    assert isinstance(made, DataFile), str(made)
    for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        assert getattr(made, name) == getattr(anew, name), name
    blind = parquet_file(tmp_path / "blind.parquet", table, write_statistics=False)
    refused = copied([entry_of(blind)], tmp_path / "no.parquet", target_of(schema, mode=mode))
    assert str(refused) == f"{blind} has a manifest entry that does not count the nulls of column t"


def test_footers_tell_no_bounds_that_readers_misread(tmp_path: Path) -> None:
    """Of uuids (rule 26) and of floats that are all the same or beside NaN (rule 122), though the inputs did."""
    schema = struct((1, "x", "double"), (2, "y", "double"), (3, "key", "uuid"))
    values: dict[str, list[Any]] = {"x": [0.0, -0.0, 0.0], "y": [1.0, 2.0, None], "key": [bytes(16)] * 3}
    path = parquet_file(tmp_path / "in.parquet", rows(schema, values))
    before = pq.read_metadata(path).row_group(0)
    entry = copy_of([path], tmp_path, schema=schema)
    after = pq.read_metadata(entry.file_path).row_group(0)

    assert [before.column(i).statistics.has_min_max for i in range(3)] == [True, True, True]
    assert [after.column(i).statistics.has_min_max for i in range(3)] == [False, True, False]
    assert [after.column(i).statistics.null_count for i in range(3)] == [0, 1, 0]
