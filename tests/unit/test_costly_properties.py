"""Tests as an attacker: what Iceberg's own properties of a table may cost whoever maintains it (rule 261)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from icekeeper.commit.snapshot import manifest_target_bytes, portions
from icekeeper.errors import PolicyError, TableUnsupported
from icekeeper.model import EntryStatus, ManifestEntry
from icekeeper.operations.compaction import write_file as write
from icekeeper.operations.compaction.recipe import MAX_SORT_COLUMNS, choose_recipe
from icekeeper.operations.compaction.write_file import write_data_file
from icekeeper.operations.compaction.write_properties import metrics_modes, output_properties, writer_options
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.storage.storage import Storage
from support.plans import data_file, policy, table
from support.rewrites import rows, struct, task
from support.settings import refusal, resolved

SCHEMA = struct(*((number, f"c{number}", "long") for number in range(1, 41)))
LEAVES = leaf_columns(SCHEMA)
MB = 1024 * 1024
DIGITS = "9" * 5000  # more than Python turns into an int


def wanted(**properties: str) -> dict[str, str]:
    """What outputs are asked for by the properties ``write.parquet.…`` of a table."""
    named = {f"write.parquet.{key.replace('_', '-')}": value for key, value in properties.items()}
    return output_properties(table(properties=named, schemas=[{**SCHEMA, "schema-id": 0}]))


def options(**properties: str) -> dict[str, Any]:
    return writer_options(wanted(**properties), LEAVES, 100_000)


def test_a_page_holds_a_thousand_rows() -> None:
    """Pages of one row take 500 times the CPU, 80 times the bytes, and the memory of as many entries of the index."""
    assert options(page_row_limit="1")["max_rows_per_page"] == 1000
    assert options(page_row_limit="5000")["max_rows_per_page"] == 5000


@pytest.mark.parametrize(
    ("codec", "level", "used"), [("zstd", "22", 12), ("zstd", "5", 5), ("brotli", "11", 9), ("gzip", "9", 9)]
)
def test_a_level_that_takes_two_hundred_times_the_cpu_is_not_used(codec: str, level: str, used: int) -> None:
    assert options(compression_codec=codec, compression_level=level)["compression_level"] == used


def test_bloom_filters_of_a_row_group_fit_into_memory() -> None:
    """One with a probability of 1e-300 has 128 MB for a single value."""
    filters = {f"bloom-filter-enabled.column.c{number}": "true" for number in range(1, 41)}
    fpp = {f"bloom-filter-fpp.column.c{number}": "1e-300" for number in range(1, 41)}
    found = options(**filters, **fpp, bloom_filter_max_bytes=str(10**18))["bloom_filter_options"]
    assert len(found) == 40
    assert {one["fpp"] for one in found.values()} == {1e-6}
    assert max(one["ndv"] for one in found.values()) * 41 / 8 * 40 < 160 * MB  # 41 bits for each value
    usual = options(**filters)["bloom_filter_options"]
    assert {one["ndv"] for one in usual.values()} == {100_000}


@pytest.mark.parametrize("key", ["page-size-bytes", "page-row-limit", "dict-size-bytes"])
def test_numbers_beyond_what_arrow_takes_are_cut(key: str) -> None:
    name = {"page-size-bytes": "data_page_size", "page-row-limit": "max_rows_per_page"}
    assert options(**{key: str(2**62)})[name.get(key, "dictionary_pagesize_limit")] == 2**31 - 1


@pytest.mark.parametrize(
    "key", ["page-size-bytes", "page-row-limit", "dict-size-bytes", "compression-level", "bloom-filter-max-bytes"]
)
def test_a_number_of_thousands_of_digits_is_malformed(key: str) -> None:
    with pytest.raises(PolicyError, match=f"table property write.parquet.{key} is '9999"):
        options(**{key: DIGITS, "bloom-filter-enabled.column.c1": "true"})


def test_a_number_of_thousands_of_digits_is_no_mode_of_metrics() -> None:
    properties = {
        "write.metadata.metrics.default": f"truncate({DIGITS})",
        "write.metadata.metrics.max-inferred-column-defaults": DIGITS,
    }
    assert set(metrics_modes(SCHEMA, properties).values()) == {"truncate(16)"}


def test_a_file_has_no_row_group_for_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_MOST_ROW_GROUPS", 10)
    schema = struct((1, "id", "long"))
    (whole,) = rows(schema, {"id": list(range(1000))}).to_batches()
    path = tmp_path / "file.parquet"
    asked = task(schema, [], tmp_path, table_properties={"write.parquet.row-group-size-bytes": "1"})
    write_data_file(str(path), (whole.slice(row, 1) for row in range(1000)), asked, Storage({}))
    footer = pq.read_metadata(path)
    assert footer.num_rows == 1000
    assert footer.num_row_groups < 100


@pytest.mark.parametrize(("asked", "total", "used"), [
    ("1", 0, 1),
    ("1", 500 * MB, 52_429),  # 10,000 manifests
    ("40000", 300 * MB, 40_000),
    (str(2**62), MB, 128 * MB),
])  # fmt: skip
def test_manifests_are_neither_a_million_nor_larger_than_memory(asked: str, total: int, used: int) -> None:
    metadata = table(properties={"commit.manifest.target-size-bytes": asked})
    assert manifest_target_bytes(metadata, total) == used


def test_no_commit_writes_a_manifest_for_every_file() -> None:
    entries = [ManifestEntry(EntryStatus.ADDED, 1, None, None, data_file("f", 1, ()))] * 20_000
    more: dict[str, Any] = {"partition-specs": [{"spec-id": 0, "fields": []}]}
    metadata = table(properties={"commit.manifest.target-size-bytes": "1"}, **more)
    assert len(list(portions(metadata, 0, entries, 1000.0))) == 10_000


def test_an_integer_property_has_64_bits() -> None:
    for value in (DIGITS, str(2**63), str(-(2**63) - 1)):
        with pytest.raises(PolicyError, match="which is not an integer"):
            manifest_target_bytes(table(properties={"commit.manifest.target-size-bytes": value}), 0)


def test_a_setting_of_megabytes_is_not_parsed() -> None:
    """A hundred thousand parentheses took seconds, in every scan."""
    for key, value in (("where", "(" * 10**6), ("sort_order", "bucket(" * 10**6)):
        told = refusal({f"icekeeper.{key}": value})
        assert told.endswith(f"…' (from table property icekeeper.{key}): it has {len(value):,} characters; a table's "
                             "setting has 10,000 at most")  # fmt: skip
    ignored = resolved({"icekeeper.orphan_inventory": "x" * 10**6}).ignored
    assert [len(one.value) for one in ignored] == [10_000]


def test_an_order_by_hundreds_of_columns_is_not_applied() -> None:
    fields = [
        {"source-id": number % 40 + 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
        for number in range(MAX_SORT_COLUMNS + 1)
    ]
    orders = [{"order-id": 0, "fields": []}, {"order-id": 1, "fields": fields}]
    more: dict[str, Any] = {"default-sort-order-id": 1, "sort-orders": orders}
    metadata = table(schemas=[{**SCHEMA, "schema-id": 0}], **more)
    assert choose_recipe(metadata, policy(strategy="auto")) is None
    with pytest.raises(TableUnsupported, match="the table's sort order has 33 columns; at most 32 can be applied"):
        choose_recipe(metadata, policy(strategy="sort"))
    names = ",".join(f"c{number}" for number in range(1, MAX_SORT_COLUMNS + 2))
    with pytest.raises(PolicyError, match="sort_order names 33 columns; at most 32 can be"):
        choose_recipe(metadata, policy(strategy="sort", sort_order=names))
