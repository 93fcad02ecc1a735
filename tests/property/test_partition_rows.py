"""Every row goes to the partition that its own values say, whatever the types and transforms."""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform

from icekeeper.metadata.single_value import decimal_unscaled
from icekeeper.operations.compaction.rewrite import PartitionRouter
from icekeeper.operations.compaction.rewrite_task import Routing
from icekeeper.rows.arrow_schema import arrow_schema

EPOCH = datetime.datetime(1970, 1, 1)
moments = st.integers(-(10**12), 10**12).map(lambda us: EPOCH + datetime.timedelta(microseconds=us * 1000))
# Iceberg type → its transforms, and Python values.
KINDS: dict[str, tuple[list[str], st.SearchStrategy[Any]]] = {
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
    chosen = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3))
    fields = [{"id": i, "name": f"c{i}", "required": False, "type": kind} for i, kind in enumerate(chosen, start=1)]
    spec = [
        {"source-id": i, "field-id": 999 + i, "name": f"p{i}", "transform": draw(st.sampled_from(KINDS[kind][0]))}
        for i, kind in enumerate(chosen, start=1)
    ]
    row = st.tuples(*(st.one_of(st.none(), KINDS[kind][1]) for kind in chosen)).map(list)
    rows = draw(st.lists(row, min_size=1, max_size=20))
    return {"type": "struct", "schema-id": 0, "fields": fields}, {"spec-id": 1, "fields": spec}, rows


def plain(value: Any) -> Any:
    """A partition value as numbers and text, as we store it or as PyIceberg gives it."""
    if isinstance(value, decimal.Decimal):
        return int(value.scaleb(2))
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(microseconds=1)
    return (value - EPOCH.date()).days if isinstance(value, datetime.date) else value


@given(tables())
def test_rows_go_where_their_values_say(table: tuple[dict[str, Any], dict[str, Any], list[list[Any]]]) -> None:
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
        told = [
            decimal_unscaled(value) if f["type"].startswith("decimal") and isinstance(value, bytes) else plain(value)
            for f, value in zip(schema["fields"], raw, strict=True)
        ]
        for values in zip(*(column.to_pylist() for column in part.columns), strict=True):
            found[repr((told, list(values)))] += 1
    assert found == expected
