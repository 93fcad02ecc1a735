"""Output files as the table's properties ask: codec, pages, row groups of the encoded size, the place they go to."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.errors import PolicyError
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.operations.compaction.rewrite_task import RewriteResult
from icekeeper.operations.compaction.write_properties import writer_options
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.rows.arrow_schema import leaf_columns
from support.maintained_table import MaintainedTable, new_table
from support.rewrites import input_file, rewritten, rows, struct, task, written

SCHEMA = struct((1, "id", "long"), (2, "text", "string"))
LEAVES = leaf_columns(SCHEMA)


@pytest.mark.parametrize(
    ("codec", "level", "found"),
    [
        (None, None, "ZSTD"),
        ("zstd", "19", "ZSTD"),
        ("ZSTD", "null", "ZSTD"),
        ("gzip", "9", "GZIP"),
        ("gzip", "0", "GZIP"),
        ("brotli", "11", "BROTLI"),
        ("snappy", "7", "SNAPPY"),
        ("lz4", None, "LZ4"),
        ("lz4_raw", "3", "LZ4"),
        ("uncompressed", "3", "UNCOMPRESSED"),
    ],
)
def test_codecs_and_levels(codec: str | None, level: str | None, found: str, tmp_path: Path) -> None:
    """A level is only for codecs that have levels; Java writes ``null`` where none is set."""
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


def test_pages_and_dictionaries(tmp_path: Path) -> None:
    """A page index is always there: readers skip pages by it."""
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
    assert sizes["direct"] > 20 * 10_000 > 10 * sizes["plain"]  # all texts as they are; else ten, and places among them


def many_rows(folder: Path, files: int, *, repeated: bool) -> RewriteResult:
    """Files of 4 MB as Arrow holds them, of texts that compress well or hardly at all; row groups of 1 MB."""
    inputs = []
    for number in range(files):
        ids = range(number * 30_000, (number + 1) * 30_000)
        text = ["x" * 128] * 30_000 if repeated else [hashlib.sha512(str(n).encode()).hexdigest() for n in ids]
        inputs.append(input_file(folder / f"in-{number}.parquet", rows(SCHEMA, {"id": list(ids), "text": text})))
    properties = {"write.parquet.row-group-size-bytes": str(1024 * 1024)}
    return rewrite_group(task(SCHEMA, inputs, folder, table_properties=properties))


@pytest.mark.parametrize("repeated", [True, False], ids=["compressible", "not"])
def test_row_groups_have_the_encoded_size_that_was_asked_for(repeated: bool, tmp_path: Path) -> None:
    """By what the row groups before came to: Arrow's size is five times larger here, or two.  Never far above it."""
    file = written(many_rows(tmp_path, 8, repeated=repeated))
    footer = pq.read_metadata(file.file_path)
    groups = [footer.row_group(n) for n in range(footer.num_row_groups)]
    encoded = [sum(g.column(c).total_compressed_size for c in range(2)) for g in groups]
    arrow = [g.num_rows * 136 for g in groups]
    assert sum(encoded) / sum(arrow) < 0.6
    # The first is measured, the last takes what is left.
    if repeated:
        assert len(groups) <= 3
        assert max(arrow) > 5 * 1024 * 1024
    else:
        assert all(0.7 < size / (1024 * 1024) < 3.5 for size in encoded[1:-1])
    assert footer.num_rows == 240_000


@pytest.mark.parametrize(
    ("properties", "pattern"),
    [
        ({}, "{table}/data/part=a+b/compact-"),
        ({"write.data.path": "{elsewhere}"}, "{elsewhere}/part=a+b/compact-"),
        ({"write.object-storage.enabled": "true"}, "{table}/data/HASH/part=a+b/compact-"),
        (
            {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"},
            "{table}/data/HASH-compact-",
        ),
        ({"write.object-storage.enabled": "true", "write.data.path": "{elsewhere}"}, "{elsewhere}/HASH/ns/t/part=a+b/"),
    ],
    ids=["plain", "elsewhere", "hashed", "hashed-flat", "hashed-elsewhere"],
)
def test_files_go_where_the_table_says(
    properties: dict[str, str], pattern: str, tmp_path: Path, local_catalog: SqlCatalog
) -> None:
    """And readers find them there."""
    elsewhere = (tmp_path / "elsewhere").as_uri()
    table = new_table(local_catalog, tmp_path, allowed=tmp_path)
    table.table.update_spec().add_identity("part").commit()
    for number in range(3):
        table.append(number, part="a b")
    given = {key: value.format(elsewhere=elsewhere) for key, value in properties.items()}
    if given:
        table.table.transaction().set_properties(given).commit_transaction()
    outcome = table.run(Operation.COMPACT)
    assert outcome.status is Status.SUCCEEDED, outcome.summary
    (file,) = table.data_files()
    start = pattern.format(table=table.metadata.location, elsewhere=elsewhere)
    assert re.match(re.escape(start).replace("HASH", "[01]{4}/[01]{4}/[01]{4}/[01]{8}"), file.file_path)
    assert table.readers_agree() == [0, 1, 2]


def test_a_java_class_that_decides_where_files_go_leaves_the_table_alone(
    tmp_path: Path, local_catalog: SqlCatalog
) -> None:
    table = new_table(local_catalog, tmp_path)
    table.fill(6)
    table.table.transaction().set_properties({"write.location-provider.impl": "com.example.Here"}).commit_transaction()
    assert_left_alone(table, "names the Java class com.example.Here")


def test_a_column_that_cannot_be_rewritten_leaves_the_table_alone(tmp_path: Path, local_catalog: SqlCatalog) -> None:
    table = new_table(local_catalog, tmp_path)
    table.fill(6)
    column = {"id": 3, "name": "v", "type": "variant", "required": False}
    table.rewrite_document(lambda document: document["schemas"][0]["fields"].append(column))
    assert_left_alone(table, "column v is of type variant")


def assert_left_alone(table: MaintainedTable, reason: str) -> None:
    """No pass has failed, and detection proposes none."""
    before, only = table.loaded.metadata_location, {"operations": "compact"}
    (skip,) = table.runtime.detect(only).skipped
    assert reason in skip.reason
    outcome = table.run(Operation.COMPACT)
    assert (outcome.status, outcome.summary) == (Status.SKIPPED, outcome.reason)
    assert reason in (outcome.reason or "")
    assert table.loaded.metadata_location == before
