"""Output files have the codec, pages, row groups, sizes and statistics that the table asks for."""

from __future__ import annotations

import hashlib
import random
import re
import struct as binary
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.errors import PolicyError
from icekeeper.operations.compaction.plan import candidates, group_tasks
from icekeeper.operations.compaction.plan.output_sizes import SIZES_KEY
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, KeyColumn
from icekeeper.operations.compaction.terms.rewrite_task import RewriteResult, RewriteTask
from icekeeper.operations.compaction.terms.write_properties import misread_columns, writer_options
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from icekeeper.policy import Operation, Strategy
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.rows.arrow_schema import leaf_columns
from support.maintained_table import ID_AND_PART, MaintainedTable, new_table
from support.plans import data_file
from support.rewrites import input_file, rewritten, rows, struct, task, written

# Output files follow the table's properties: codec, pages, encoded size of row groups, and paths.

SCHEMA = struct((1, "id", "long"), (2, "text", "string"))
LEAVES = leaf_columns(SCHEMA)


@pytest.mark.parametrize(
    ("codec", "level", "found"),
    [
        (None, None, "ZSTD"),
        ("ZSTD", "null", "ZSTD"),
        ("gzip", "0", "GZIP"),
        ("brotli", "11", "BROTLI"),
        ("snappy", "7", "SNAPPY"),
        ("lz4", None, "LZ4"),
        ("lz4_raw", "3", "LZ4"),
        ("uncompressed", "3", "UNCOMPRESSED"),
    ],
)
def test_files_have_the_codec_of_the_table(codec: str | None, level: str | None, found: str, tmp_path: Path) -> None:
    """Only some codecs have levels; Java writes ``null`` if no level is set."""
    given = {"compression-codec": codec, "compression-level": level}
    properties = {f"write.parquet.{key}": value for key, value in given.items() if value is not None}
    table = rows(SCHEMA, {"id": list(range(100)), "text": ["x" * 20] * 100})
    file = written(rewritten(SCHEMA, [table], tmp_path, table_properties=properties))
    assert pq.read_metadata(file.file_path).row_group(0).column(1).compression == found
    assert pq.read_table(file.file_path)["id"].to_pylist() == list(range(100))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("compression-codec", "lzo", "compression-codec is 'lzo'; allowed: zstd, gzip"),
        ("compression-level", "23", "compression-level is '23'; zstd has levels 1 to 22"),
        ("compression-level", "high", "compression-level is 'high'; zstd has levels 1 to 22"),
        ("page-size-bytes", "0", "page-size-bytes is '0', which is not a positive integer"),
        ("bloom-filter-max-bytes", "-1", "bloom-filter-max-bytes is '-1', which is not a positive integer"),
        ("bloom-filter-fpp.column.id", "1", "bloom-filter-fpp.column.id is '1', which is not between 0 and 1"),
        ("bloom-filter-fpp.column.id", "few", "bloom-filter-fpp.column.id is 'few', which is not between 0 and 1"),
    ],
)
def test_a_malformed_property_is_named(key: str, value: str, message: str) -> None:
    properties = {"write.parquet.bloom-filter-enabled.column.id": "true", f"write.parquet.{key}": value}
    with pytest.raises(PolicyError, match=message):
        writer_options(properties, LEAVES, 10)


def test_pages_and_dictionaries_follow_the_table_properties(tmp_path: Path) -> None:
    """Files always have a page index, by which readers skip pages."""
    table = rows(SCHEMA, {"id": list(range(10_000)), "text": [f"{n % 10}" * 20 for n in range(10_000)]})
    sizes = {}
    for name, properties in {
        "plain": {},
        "paged": {"write.parquet.page-row-limit": "100"},
        "direct": {"write.parquet.dict-size-bytes": "1"},
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        path = written(rewritten(SCHEMA, [table], folder, table_properties=properties)).file_path
        column = pq.read_metadata(path).row_group(0).column(1)
        assert column.has_column_index
        assert column.has_offset_index
        sizes[name] = column.total_uncompressed_size
    assert sizes["paged"] > sizes["plain"]  # a header for each of the 100 pages
    assert sizes["direct"] > 20 * 10_000 > 10 * sizes["plain"]  # all texts; a dictionary has ten texts and indexes


def many_rows(folder: Path, files: int, *, repeated: bool) -> RewriteResult:
    """Files of 2 MB in Arrow, of texts that compress well or hardly; row groups of 512 KB."""
    inputs = []
    for number in range(files):
        ids = range(number * 15_000, (number + 1) * 15_000)
        text = ["x" * 128] * 15_000 if repeated else [hashlib.sha512(str(n).encode()).hexdigest() for n in ids]
        inputs.append(input_file(folder / f"in-{number}.parquet", rows(SCHEMA, {"id": list(ids), "text": text})))
    properties = {"write.parquet.row-group-size-bytes": str(512 * 1024)}
    return rewrite_group(task(SCHEMA, inputs, folder, table_properties=properties))


@pytest.mark.parametrize("repeated", [True, False], ids=["compressible", "not"])
def test_row_groups_have_the_configured_encoded_size(repeated: bool, tmp_path: Path) -> None:
    """The writer applies the ratio of the previous row groups: sizes in Arrow are two or five times larger here."""
    file = written(many_rows(tmp_path, 8, repeated=repeated))
    footer = pq.read_metadata(file.file_path)
    groups = [footer.row_group(n) for n in range(footer.num_row_groups)]
    encoded = [sum(g.column(c).total_compressed_size for c in range(2)) for g in groups]
    arrow = [g.num_rows * 136 for g in groups]
    assert sum(encoded) / sum(arrow) < 0.6
    # The first row group is the sample, and the last has the remaining rows.
    if repeated:
        assert len(groups) <= 3
        assert max(arrow) > 5 * 512 * 1024
    else:
        assert all(0.7 < size / (512 * 1024) < 3.5 for size in encoded[1:-1])
    assert footer.num_rows == 120_000


def test_files_have_the_paths_that_the_table_configures(tmp_path: Path, local_catalog: SqlCatalog) -> None:
    """Readers find the files; ``tests/interop`` compares every layout with Iceberg-Java's."""
    elsewhere = (tmp_path / "elsewhere").as_uri()
    table = new_table(local_catalog, tmp_path, allowed=tmp_path)
    table.table.update_spec().add_identity("part").commit()
    for number in range(3):
        table.append(number, part="a b")
    properties = {"write.object-storage.enabled": "true", "write.data.path": elsewhere}
    table.table.transaction().set_properties(properties).commit_transaction()
    outcome = table.run(Operation.COMPACT)
    assert outcome.status is Status.SUCCEEDED, outcome.summary
    (file,) = table.data_files()
    assert re.match(re.escape(elsewhere) + "/[01]{4}/[01]{4}/[01]{4}/[01]{8}/ns/t/part=a\\+b/", file.file_path)
    assert table.readers_agree() == [0, 1, 2]


def test_a_table_that_cannot_be_rewritten_is_left_alone(table_of_five: MaintainedTable) -> None:
    """The table has a Java class for file locations, or a column of a type that we do not write."""
    table, provider = table_of_five, "write.location-provider.impl"
    table.table.transaction().set_properties({provider: "com.example.Here"}).commit_transaction()
    assert_left_alone(table, "names the Java class com.example.Here")
    table.table.transaction().remove_properties(provider).commit_transaction()
    column = {"id": 3, "name": "v", "type": "interval", "required": False}
    table.rewrite_document(lambda document: document["schemas"][0]["fields"].append(column))
    assert_left_alone(table, "column v is of type interval")


def assert_left_alone(table: MaintainedTable, reason: str) -> None:
    """No pass fails, and detection proposes no pass."""
    before, only = table.loaded.metadata_location, {"operations": "compact"}
    (skip,) = table.runtime.detect(only).skipped
    assert reason in skip.reason
    outcome = table.run(Operation.COMPACT)
    assert (outcome.status, outcome.summary) == (Status.SKIPPED, outcome.reason)
    assert reason in (outcome.reason or "")
    assert table.loaded.metadata_location == before


# A merge copies the outputs of earlier merges, also if memory has limited their row groups.

FILES, ROWS = 12, 10_000
PART = "a text that is always the same, and so takes next to nothing in the file"


@pytest.fixture
def table_of_long_files(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A table with files of 10,000 rows, each of about 0.85 MB in memory and a fiftieth of that on disk."""
    table = new_table(local_catalog, tmp_path)
    for number in range(FILES):
        ids = list(range(number * ROWS, (number + 1) * ROWS))
        table.table.append(pa.table({"id": ids, "part": [PART] * ROWS}, schema=ID_AND_PART))
    return table


def compact(table_of_long_files: MaintainedTable, **settings: str) -> OperationOutcome:
    due = {"expected_scans": "none", "min_input_files": "2", "partition_rest_hours": "0"}
    outcome = table_of_long_files.run(Operation.COMPACT, **due, **settings)
    assert outcome.status is Status.SUCCEEDED, outcome
    return outcome


def in_memory_of(megabytes: float) -> ExitStack:
    """Limit the memory of workers for a row group."""
    memory = int(megabytes * 1024 * 1024)
    stack = ExitStack()
    stack.enter_context(patch.object(group_tasks, "RewriteTask", partial(RewriteTask, row_group_memory_bytes=memory)))
    stack.enter_context(patch.object(group_tasks, "FULL_ROW_GROUP_BYTES", memory // 4))
    stack.enter_context(patch.object(candidates, "FULL_ROW_GROUP_BYTES", memory // 4))
    return stack


def merged_into_two(table_of_long_files: MaintainedTable) -> int:
    """Merge the files into two files of several row groups; return the bytes of both."""
    size = sum(file.file_size_in_bytes for file in table_of_long_files.data_files())
    half = str(size / 2 / 1024**2)
    with in_memory_of(2):
        first = compact(table_of_long_files, target_file_size_mb=half, rewrite_all="true")
    assert first.metrics["compact.bytes_copied"] == 0
    files = table_of_long_files.data_files()
    assert len(files) == 2
    assert all(row_groups(file.file_path) > 1 for file in files)
    return sum(file.file_size_in_bytes for file in files)


def row_groups(path: str) -> int:
    return int(pq.read_metadata(path.removeprefix("file://")).num_row_groups)


def test_a_merge_copies_the_outputs_of_the_previous_merge(table_of_long_files: MaintainedTable) -> None:
    before = table_of_long_files.rows()
    size = merged_into_two(table_of_long_files)
    with in_memory_of(2):
        second = compact(table_of_long_files)
    assert 0.9 < second.metrics["compact.bytes_copied"] / size < 1
    assert len(table_of_long_files.data_files()) == 1
    assert table_of_long_files.rows() == before


# Readers that treat equal bounds in a footer as the only value find zeros, and NaN beside a value, in our files.

NAN = float("nan")
FLOATS = struct((1, "id", "int"), (2, "value", "double"), (3, "inner", struct((4, "value", "float"))))
BY_ID = ClusterRecipe(Strategy.SORT, (KeyColumn(1),), 512 * 1024 * 1024, 384 * 1024 * 1024)


def float_rows(values: list[float | None], first: int = 0) -> pa.Table:
    return rows(
        FLOATS, {"id": range(first, first + len(values)), "value": values, "inner": [{"value": v} for v in values]}
    )


def found(path: str, condition: Any) -> list[int]:
    return sorted(ds.dataset(path).to_table(filter=condition)["id"].to_pylist())


def statistics(path: str, row_group: int = 0) -> list[bool]:
    footer = pq.read_metadata(path).row_group(row_group)
    return [footer.column(i).is_stats_set for i in range(3)]


@pytest.mark.parametrize(("recipe", "proof"), [(None, "counts"), (BY_ID, "full")], ids=["merged", "sorted"])
@pytest.mark.parametrize(
    ("values", "silent"),
    [
        ([0.0, -0.0, 0.0], True),
        ([0.0, None, -0.0], True),
        ([1.5, NAN, 1.5], True),
        ([1.5, NAN, None], True),
        ([1.5, 1.5, None], False),
        ([0.0, 1.5, NAN], False),
        ([NAN, None, NAN], False),
    ],
    ids=str,
)
def test_rows_of_a_single_value_are_found(
    values: list[float | None], silent: bool, proof: str, recipe: ClusterRecipe | None, tmp_path: Path
) -> None:
    tables = [float_rows(values[:2]), float_rows(values[2:], 2)]
    file = written(rewritten(FLOATS, tables, tmp_path, proof=proof, recipe=recipe))
    whole = pa.concat_tables(tables)
    for column in (pc.field("value"), pc.field("inner", "value")):
        for condition in (
            column.isin([0.0, 7.0]),
            column.isin([-0.0, 7.0]),
            column.is_nan(),
            column != 1.5,
            column == 0.0,
            ~column.isin([1.5, 3.0]),
        ):
            assert found(file.file_path, condition) == whole.filter(condition)["id"].to_pylist(), str(condition)
    assert statistics(file.file_path) == [True, not silent, not silent]


def test_the_manifest_keeps_their_bounds_and_counts(tmp_path: Path) -> None:
    file = written(rewritten(FLOATS, [float_rows([0.0, None]), float_rows([NAN, 0.0])], tmp_path))
    assert file.lower_bounds is not None
    assert file.upper_bounds is not None
    assert (file.lower_bounds[2], file.upper_bounds[2]) == (binary.pack("<d", -0.0), binary.pack("<d", 0.0))
    assert (file.lower_bounds[4], file.upper_bounds[4]) == (binary.pack("<f", -0.0), binary.pack("<f", 0.0))
    assert (file.null_value_counts or {})[2] == 1
    assert (file.nan_value_counts or {})[2] == 1
    assert (file.value_counts or {})[4] == 4


def test_the_inputs_show_the_zeros_of_later_row_groups(tmp_path: Path) -> None:
    """The first row group does not show the zeros in later row groups; the file's manifest entry does."""
    tables = [float_rows([1.0, 2.0]), float_rows([0.0, -0.0], 2)]
    files = []
    for number, content in enumerate(tables):
        folder = tmp_path / str(number)
        folder.mkdir()
        files.append(written(rewritten(FLOATS, [content], folder)))
    known = misread_columns(files, leaf_columns(FLOATS))
    assert known == {2, 4}
    assert misread_columns(files[:1], leaf_columns(FLOATS)) == frozenset()
    properties = {"write.parquet.row-group-size-bytes": "1"}
    file = written(rewritten(FLOATS, tables, tmp_path, table_properties=properties, misread_columns=known))
    assert pq.read_metadata(file.file_path).num_row_groups == 2
    for column in (pc.field("value"), pc.field("inner", "value")):
        assert found(file.file_path, column.isin([0.0, 7.0])) == [2]


def test_bounds_of_a_narrower_type_are_read_by_their_width() -> None:
    """Manifests keep ``float`` bounds of a column that became a ``double``; invalid bounds are ignored."""
    leaves = leaf_columns(FLOATS)
    narrow = {2: binary.pack("<f", 0.0), 4: b"?"}
    file = data_file("a", 1, records=1, lower_bounds=narrow, upper_bounds=narrow)
    assert misread_columns([file], leaves) == {2}
    assert misread_columns([replace(file, lower_bounds=None)], leaves) == frozenset()


# Merged files shrink: a pass plans with the compression ratio of earlier merges of the table.

TARGET = 100_000
SETTINGS = {"target_file_size_mb": str(TARGET / 2**20), "min_input_files": "5"}
# Every file has all of these texts, so they take as many bytes of a merged file as of a single file.
TEXTS = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(300)]


def write(table: MaintainedTable, files: int, *, first: int = 0) -> None:
    """Append files of a fifth of the target size, half of which are the texts."""
    chance = random.Random(first)
    for _ in range(files):
        ids = [chance.getrandbits(62) for _ in range(1000)]
        table.table.append(pa.table({"id": ids, "part": [TEXTS[i % 300] for i in range(1000)]}, ID_AND_PART))


def sizes(table: MaintainedTable) -> list[int]:
    return sorted(file.file_size_in_bytes for file in table.data_files())


def head_summary(table: MaintainedTable) -> dict[str, str]:
    head = table.metadata.current_snapshot
    assert head is not None
    return dict(head.summary)


def test_a_second_pass_finds_nothing_and_later_passes_fill_files(table: MaintainedTable) -> None:
    """Without the recorded ratio, a second pass would merge the outputs again."""
    write(table, 25)
    before = table.rows()
    assert {0.2 * TARGET < size < 0.25 * TARGET for size in sizes(table)} == {True}

    first = table.run(Operation.COMPACT, **SETTINGS)

    assert first.summary == "compacted 25 files into 5 (across 5 bins)"  # no ratio is recorded yet
    assert {0.5 * TARGET < size < 0.6 * TARGET for size in sizes(table)} == {True}
    assert re.fullmatch(r"0\.4[0-9]{2} planned 1\.000 of 2[0-9]{4}", head_summary(table)[SIZES_KEY])
    assert table.run(Operation.COMPACT, **SETTINGS).status is Status.SKIPPED
    assert table.rows() == before

    write(table, 18, first=25)
    second = table.run(Operation.COMPACT, **SETTINGS)
    assert second.summary == "compacted 18 files into 2 (across 2 bins)"
    assert {0.8 * TARGET < size < TARGET for size in sizes(table)[-2:]} == {True}
    assert re.fullmatch(r"0\.4[0-9]{2} planned 0\.4[0-9]{2} of 2[0-9]{4}", head_summary(table)[SIZES_KEY])
    assert table.run(Operation.COMPACT, **SETTINGS).status is Status.SKIPPED
    table.assert_sound()


def test_copied_files_keep_their_size(table: MaintainedTable) -> None:
    """Five files fill a file, although decoded files have shrunk to half."""
    write(table, 5)
    table.run(Operation.COMPACT, **SETTINGS)
    known = head_summary(table)[SIZES_KEY]
    write(table, 10, first=5)
    outcome = table.run(Operation.COMPACT, **SETTINGS, min_row_group_copy_bytes="10000")
    assert outcome.summary == "compacted 10 files into 2 (across 2 bins)"
    assert outcome.metrics["compact.bytes_copied"] > 0
    assert {size > TARGET for size in sizes(table)[-2:]} == {True}
    ratio, _, file_bytes = known.split(" ", 1)[0], "", known.rpartition(" ")[2]
    assert head_summary(table)[SIZES_KEY] == f"{ratio} planned {ratio} of {file_bytes}"  # the record is kept
    assert table.run(Operation.COMPACT, **SETTINGS, min_row_group_copy_bytes="10000").status is Status.SKIPPED


# Row groups have the encoded size that the table asks for, up to a memory limit; the limit is reported.

BOUNDED_FILES, BOUNDED_ROWS = 6, 10_000
ALL = {"rewrite_all": "true", "strategy": "binpack"}


@pytest.fixture
def table_of_batches(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A table with six files of 10,000 rows, each of about 130 KB in memory and read as a single batch."""
    table = new_table(local_catalog, tmp_path)
    for number in range(BOUNDED_FILES):
        ids = [7919 * n for n in range(number * BOUNDED_ROWS, (number + 1) * BOUNDED_ROWS)]
        table.table.append(pa.table({"id": ids, "part": ["p"] * BOUNDED_ROWS}, schema=ID_AND_PART))
    with table.table.transaction() as change:
        change.set_properties({"write.parquet.row-group-size-bytes": str(200 * 1024)})
    return table


def test_the_memory_limit_cuts_row_groups_and_is_reported(table_of_batches: MaintainedTable) -> None:
    with in_memory_of(0.05):
        outcome = table_of_batches.run(Operation.COMPACT, **ALL)
    (file,) = table_of_batches.data_files()
    footer = pq.read_metadata(file.file_path.removeprefix("file://"))
    assert footer.num_row_groups == BOUNDED_FILES
    assert outcome.metrics["compact.row_groups_cut"] == BOUNDED_FILES - 2  # the first and the last do not count
    assert outcome.summary.endswith("because they may fill at most 176 MB of memory")
    assert len(table_of_batches.ids()) == BOUNDED_FILES * BOUNDED_ROWS
    # Within the limit nothing is reported.
    outcome = table_of_batches.run(Operation.COMPACT, **ALL)
    assert outcome.metrics["compact.row_groups_cut"] == 0
    assert outcome.summary == "compacted 1 files into 1 (across 1 bins)"
