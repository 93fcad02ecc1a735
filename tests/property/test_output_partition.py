"""Rows and files are written to the partition of their values."""

from __future__ import annotations

import datetime
import decimal
import math
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.types import decimal_unscaled, encode, truncated_lower, truncated_upper
from icekeeper.model import PartitionValue
from icekeeper.operations.compaction.terms.output_partition import OutputPartitions
from icekeeper.operations.compaction.terms.rewrite_task import Routing
from icekeeper.operations.compaction.work.rewrite import PartitionRouter
from icekeeper.rows.arrow_schema import arrow_schema
from support.plans import data_file
from support.tables import new_document

# A file moves to a partition of the current spec only if all of its rows belong there.

DAY_US = 86_400_000_000
# Iceberg type → its transforms, and values that often share a partition.
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
    specs = [{"spec-id": 0, "fields": [_field(old)] if old else []}, {"spec-id": 1, "fields": [_field(transform)]}]
    more = {"schemas": [schema], "partition-specs": specs, "default-spec-id": 1}
    return TableMetadata(new_document("s3://b/t", 3, **more))


def _field(transform: str) -> dict[str, Any]:
    return {"source-id": 1, "field-id": 1000, "name": "p", "transform": transform}


def file_of(kind: str, rows: list[Any], partition: tuple[PartitionValue, ...] = ()) -> Any:
    """A data file with these rows and the entry of a writer that truncates bounds to four characters."""
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
    spec_id, partition = OutputPartitions(table(kind, transform), keep=False).destination(file_of(kind, rows), 0)
    partitions = oracle(kind, transform, rows)
    if spec_id == 1:
        assert {partition[0]} == partitions
    if len(partitions) == 1 and (len(set(rows)) == 1 and len(str(rows[0])) < 4):
        assert spec_id == 1


@pytest.mark.parametrize(
    ("kind", "old", "value", "transform", "expected"),
    [
        ("long", "identity", 17, "bucket[16]", 0),
        ("long", "identity", None, "bucket[16]", None),
        ("date", "identity", 365, "year", 1),
        ("date", "identity", -1, "month", -1),
        ("date", "identity", -1, "year", -1),
        ("string", "identity", "iceberg", "truncate[3]", "ice"),
        ("decimal(9, 2)", "identity", b"\x04\xd2", "truncate[50]", b"\x04\xb0"),
        ("decimal(9, 2)", "identity", b"\xff\xff\xff\xff", "truncate[50]", b"\xce"),
        ("timestamp", "day", 3, "day", 3),
        ("double", "identity", math.nan, "void", None),
    ],
)
def test_an_old_partition_determines_the_new_partition(
    kind: str, old: str, value: PartitionValue, transform: str, expected: PartitionValue
) -> None:
    """It follows from an identity value, or from the same transform in another spec, without metrics."""
    if transform == "bucket[16]" and value is not None:
        expected = next(iter(oracle(kind, transform, [value])))
    file = data_file("f", 10, (value,))
    found = OutputPartitions(table(kind, transform, old), keep=False).destination(file, 0)
    assert found == (1, (expected,))


@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_a_file_leaves_an_identity_partition_unless_its_entry_shows_another_value(
    data: st.DataObject, kind: str
) -> None:
    """(rule: leave-identity-only-with-equal-values)"""
    values = st.one_of(KINDS[kind][1], st.none())
    rows, value = data.draw(st.lists(values, min_size=1, max_size=3)), data.draw(values)
    destinations = OutputPartitions(table(kind, "void", "identity"), keep=False)
    file = file_of(kind, rows, (value,))
    moves = destinations.destination(file, 0) == (1, (None,))
    assert (destinations.why_kept(file, 0) == "") is moves
    if set(rows) == {value}:
        assert moves
    elif value is None or None in rows or (len(set(rows)) == 1 and len(str(rows[0])) < 4):
        assert not moves
    bare = data_file("f", 10, (value,), records=len(rows))
    assert destinations.destination(bare, 0) == (1, (None,))
    keeping = OutputPartitions(table(kind, "void", "identity"), keep=True)
    assert (keeping.destination(file, 0), keeping.why_kept(file, 0)) == ((0, (value,)), "")


def test_no_file_moves_to_a_partition_of_fixed_bytes() -> None:
    destinations = OutputPartitions(table("fixed[3]", "identity"), keep=False)
    file = data_file("f", 10, records=2, null_value_counts={1: 2})
    assert destinations.destination(file, 0) == (0, ())
    assert destinations.why_kept(file, 0) == "because Iceberg-Java cannot read partitions by the fixed bytes of p"
    assert not destinations.may_deal_out(0)
    assert OutputPartitions(table("binary", "identity"), keep=False).destination(file, 0) == (1, (None,))


def test_a_file_of_an_uncertain_partition_keeps_its_partition() -> None:
    """Without metrics, with NaN, with nulls beside values, with an unknown or unfit transform, or on request."""
    own = (0, ())
    one_value = file_of("long", [5, 5])
    assert OutputPartitions(table("long", "identity"), keep=False).destination(one_value, 0) == (1, (5,))
    assert OutputPartitions(table("long", "identity"), keep=True).destination(one_value, 0) == own
    for transform in ("zorder[3]", "day"):
        destinations = OutputPartitions(table("long", transform), keep=False)
        assert (destinations.destination(one_value, 0), destinations.may_deal_out(0)) == (own, False)
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
def test_a_file_whose_bounds_are_invalid_text_keeps_its_partition(transform: str) -> None:
    """The partition of such text is unknown."""
    file = data_file("f", 10, records=2, null_value_counts={1: 0}, lower_bounds={1: b"\xff"}, upper_bounds={1: b"\xff"})
    assert OutputPartitions(table("string", transform), keep=False).destination(file, 0) == (0, ())


# Every row is written to the partition of its values, for all types and transforms.

EPOCH = datetime.datetime(1970, 1, 1)
moments = st.integers(-(10**12), 10**12).map(lambda us: EPOCH + datetime.timedelta(microseconds=us * 1000))
# Iceberg type → its transforms, and Python values.
COLUMN_KINDS: dict[str, tuple[list[str], st.SearchStrategy[Any]]] = {
    "int": (["identity", "bucket[4]", "truncate[10]", "void"], st.integers(-50, 50)),
    "long": (["identity", "bucket[4]", "truncate[7]"], st.integers(-(2**62), 2**62)),
    "string": (["identity", "bucket[4]", "truncate[2]"], st.text("aä€", max_size=4)),
    "binary": (["identity", "bucket[4]", "truncate[1]"], st.binary(max_size=3)),
    "date": (["identity", "year", "month", "day", "bucket[4]"], moments.map(datetime.datetime.date)),
    "timestamp": (["identity", "year", "month", "day", "hour", "bucket[4]"], moments),
    "decimal(9, 2)": (
        ["identity", "truncate[50]", "bucket[4]"],
        st.integers(-(10**7), 10**7).map(lambda i: decimal.Decimal(i).scaleb(-2)),
    ),
    "boolean": (["identity"], st.booleans()),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], list[list[Any]]]:
    """A schema, a spec over its columns, and rows."""
    chosen = draw(st.lists(st.sampled_from(sorted(COLUMN_KINDS)), min_size=1, max_size=3))
    fields = [{"id": i, "name": f"c{i}", "required": False, "type": kind} for i, kind in enumerate(chosen, start=1)]
    spec = [
        {
            "source-id": i,
            "field-id": 999 + i,
            "name": f"p{i}",
            "transform": draw(st.sampled_from(COLUMN_KINDS[kind][0])),
        }
        for i, kind in enumerate(chosen, start=1)
    ]
    row = st.tuples(*(st.one_of(st.none(), COLUMN_KINDS[kind][1]) for kind in chosen)).map(list)
    rows = draw(st.lists(row, min_size=1, max_size=20))
    return {"type": "struct", "schema-id": 0, "fields": fields}, {"spec-id": 1, "fields": spec}, rows


def plain(value: Any) -> Any:
    """A partition value of ours or of PyIceberg, as a number or text."""
    if isinstance(value, decimal.Decimal):
        return int(value.scaleb(2))
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(microseconds=1)
    return (value - EPOCH.date()).days if isinstance(value, datetime.date) else value


@given(tables())
def test_rows_match_their_partition(table: tuple[dict[str, Any], dict[str, Any], list[list[Any]]]) -> None:
    """All rows of a file belong to the partition that its entry names (rule: rows-match-their-partition)."""
    schema, spec, rows = table
    target = arrow_schema(schema)
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(target)]
    batch = pa.RecordBatch.from_arrays(columns, schema=target)
    router = PartitionRouter(Routing(1, spec, [schema]), schema)
    parsed = Schema.model_validate(schema)
    expected: Counter[str] = Counter()
    for row in rows:
        partition = [
            plain(parse_transform(f["transform"]).transform(parsed.find_type(f["source-id"]))(value))
            for f, value in zip(spec["fields"], row, strict=True)
        ]
        expected[repr((partition, row))] += 1
    found: Counter[str] = Counter()
    seen = set()
    for raw, part in router.split(batch):
        assert raw not in seen
        seen.add(raw)
        stated = [
            decimal_unscaled(value) if f["type"].startswith("decimal") and isinstance(value, bytes) else plain(value)
            for f, value in zip(schema["fields"], raw, strict=True)
        ]
        for values in zip(*(column.to_pylist() for column in part.columns), strict=True):
            found[repr((stated, list(values)))] += 1
    assert found == expected
