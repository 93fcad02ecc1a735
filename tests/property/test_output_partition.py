"""A file moves to a partition of the current spec only if every one of its rows belongs there."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.single_value import encode, truncated_lower, truncated_upper
from icekeeper.model import PartitionValue
from icekeeper.operations.compaction.output_partition import Destination, OutputPartitions
from support.plans import data_file
from support.tables import new_document

DAY_US = 86_400_000_000
# Iceberg type → its transforms, and values that often share one.
KINDS: dict[str, tuple[list[str], st.SearchStrategy[Any]]] = {
    "long": (["identity", "bucket[3]", "truncate[10]", "void"], st.integers(-25, 25)),
    "date": (["identity", "year", "month", "day", "bucket[3]"], st.integers(-40, 40)),
    "timestamp": (["year", "month", "day", "hour", "bucket[3]"], st.integers(-2 * DAY_US, 2 * DAY_US)),
    "timestamp_ns": (["day", "hour"], st.integers(-2000 * DAY_US, 2000 * DAY_US)),
    "string": (["identity", "truncate[2]", "bucket[3]"], st.text("ab", max_size=20)),
    "binary": (["truncate[1]", "bucket[3]"], st.binary(max_size=3)),
    "boolean": (["identity"], st.booleans()),
}


def table(kind: str, transform: str, old: str | None = None) -> TableMetadata:
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "c", "required": False, "type": kind}]}
    specs = [
        {"spec-id": 0, "fields": [_field(old)] if old else []},
        {"spec-id": 1, "fields": [_field(transform)]},
    ]
    more = {"schemas": [schema], "partition-specs": specs, "default-spec-id": 1}
    return TableMetadata(new_document("s3://b/t", 3, **more))


def _field(transform: str) -> dict[str, Any]:
    return {"source-id": 1, "field-id": 1000, "name": "p", "transform": transform}


def file_of(kind: str, rows: list[Any], partition: tuple[PartitionValue, ...] = ()) -> Any:
    """A data file with these rows, as a writer that truncates bounds to four characters describes it."""
    present = [row for row in rows if row is not None]
    bounds: dict[str, Any] = {}
    if present:
        low, high = encode(kind, min(present)), encode(kind, max(present))
        upper = truncated_upper(kind, high, 4)
        bounds["lower_bounds"] = {1: truncated_lower(kind, low, 4)}
        bounds["upper_bounds"] = {} if upper is None else {1: upper}
    return data_file("f", 10, partition, records=len(rows), null_value_counts={1: len(rows) - len(present)}, **bounds)


def oracle(kind: str, transform: str, rows: list[Any]) -> set[Any]:
    """The partition of every row."""
    schema = Schema.model_validate(
        {"type": "struct", "fields": [{"id": 1, "name": "c", "required": False, "type": kind}]}
    )
    function = parse_transform(transform).transform(schema.find_type(1))
    return {function(row) for row in rows}


@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_a_file_moves_only_with_all_its_rows(data: st.DataObject, kind: str) -> None:
    transforms, values = KINDS[kind]
    transform = data.draw(st.sampled_from(transforms))
    rows = data.draw(st.lists(st.one_of(values, st.none()) if data.draw(st.booleans()) else values, min_size=1))
    found = OutputPartitions(table(kind, transform), keep=False).destination(file_of(kind, rows), 0)
    partitions = oracle(kind, transform, rows)
    if found.spec_id == 1:
        assert {found.partition[0]} == partitions
    if len(partitions) == 1 and (len(set(rows)) == 1 and len(str(rows[0])) < 4):
        assert found.spec_id == 1


@pytest.mark.parametrize(
    ("kind", "old", "value", "transform", "expected"),
    [
        ("long", "identity", 17, "bucket[16]", 0),
        ("long", "identity", None, "bucket[16]", None),
        ("date", "identity", 365, "year", 1),
        ("date", "identity", -1, "month", -1),
        ("string", "identity", "iceberg", "truncate[3]", "ice"),
        ("decimal(9, 2)", "identity", b"\x04\xd2", "truncate[50]", b"\x04\xb0"),
        ("decimal(9, 2)", "identity", b"\xff\xff\xff\xff", "truncate[50]", b"\xce"),
        ("timestamp", "day", 3, "day", 3),
        ("double", "identity", math.nan, "void", None),
    ],
)
def test_an_old_partition_tells_the_new_one(
    kind: str, old: str, value: PartitionValue, transform: str, expected: PartitionValue
) -> None:
    """From an identity value, or from the same transform under another spec; metrics are not needed."""
    if transform == "bucket[16]" and value is not None:
        expected = next(iter(oracle(kind, transform, [value])))
    file = data_file("f", 10, (value,))
    found = OutputPartitions(table(kind, transform, old), keep=False).destination(file, 0)
    assert found == Destination(1, (expected,))


def test_what_is_not_certain_stays() -> None:
    """Without metrics, with NaN, with nulls beside values, by an unknown transform, or on request."""
    own = Destination(0, ())
    one_value = file_of("long", [5, 5])
    assert OutputPartitions(table("long", "identity"), keep=False).destination(one_value, 0) == Destination(1, (5,))
    assert OutputPartitions(table("long", "identity"), keep=True).destination(one_value, 0) == own
    assert OutputPartitions(table("long", "zorder[3]"), keep=False).destination(one_value, 0) == own
    for other in (data_file("f", 10), file_of("long", [5, None])):
        assert OutputPartitions(table("long", "identity"), keep=False).destination(other, 0) == own
    floats = data_file(
        "f",
        10,
        null_value_counts={1: 0},
        nan_value_counts={1: 1},
        lower_bounds={1: encode("double", 1.0)},
        upper_bounds={1: encode("double", 1.0)},
    )
    assert OutputPartitions(table("double", "identity"), keep=False).destination(floats, 0) == own


@pytest.mark.parametrize("transform", ["identity", "truncate[2]", "bucket[3]"])
def test_a_file_whose_bounds_are_no_text_stays_where_it_is(transform: str) -> None:
    """Nothing could be said of the partition that such text belongs to (rule 217)."""
    file = data_file("f", 10, records=2, null_value_counts={1: 0}, lower_bounds={1: b"\xff"}, upper_bounds={1: b"\xff"})
    assert OutputPartitions(table("string", transform), keep=False).destination(file, 0) == Destination(0, ())
