"""Files that a filter leaves in scope: judged by partition where bounds do not tell, and never wrongly left out."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import PartitionValue
from icekeeper.operations.compaction.where import row_filter
from support.plans import data_file
from support.tables import new_document

COLUMNS = {1: "long", 2: "string", 3: "decimal(9, 2)", 4: "uuid", 5: "timestamp"}
ONE = uuid.UUID(int=1)


def table(*fields: tuple[int, str]) -> TableMetadata:
    """Partitioned by these sources and transforms; the last column is in the spec alone."""
    columns = [{"id": i, "name": f"c{i}", "required": False, "type": kind} for i, kind in COLUMNS.items()]
    spec = [
        {"source-id": source, "field-id": 1000 + n, "name": f"p{n}", "transform": transform}
        for n, (source, transform) in enumerate(fields)
    ]
    schema = {"type": "struct", "schema-id": 0, "fields": columns}
    return TableMetadata(
        new_document("s3://b/t", 2, schemas=[schema], **{"partition-specs": [{"spec-id": 0, "fields": spec}]})
    )


@pytest.mark.parametrize(
    ("source", "transform", "value", "where", "may_match"),
    [
        (2, "identity", "us", "c2 = 'us'", True),
        (2, "identity", "us", "c2 = 'eu'", False),
        (2, "identity", None, "c2 is null", True),
        (2, "identity", None, "c2 = 'us'", False),
        (1, "truncate[10]", 20, "c1 = 25", True),
        (1, "truncate[10]", 20, "c1 = 35", False),
        (3, "identity", b"\x04\xd2", "c3 = 12.34", True),
        (3, "identity", b"\x04\xd2", "c3 > 12.34", False),
        (4, "identity", ONE.bytes, f"c4 = '{ONE}'", True),
        (4, "identity", uuid.UUID(int=2).bytes, f"c4 = '{ONE}'", False),
        (5, "day", 1, "c5 < '1970-01-02T00:00:00'", False),
        (5, "day", 1, "c5 >= '1970-01-02T12:00:00'", True),
    ],
)
def test_a_partition_decides_without_any_bounds(
    source: int, transform: str, value: PartitionValue, where: str, may_match: bool
) -> None:
    judge = row_filter(where, table((source, transform)), 0)
    assert judge(data_file("f", 1, (value,)), 0) is may_match


def test_bounds_from_before_a_promotion_are_judged_by_value() -> None:
    """Four bytes of a column that is a long by now are a number still; of a timestamp they may be days."""
    counts: dict[str, Any] = {"value_counts": {1: 10, 5: 10}, "null_value_counts": {1: 0, 5: 0}}
    for where, bound, may_match in (
        ("c1 > 100", {1: struct.pack("<i", 5)}, False),
        ("c1 > 100", {1: struct.pack("<i", 500)}, True),
        ("c1 > 100", {1: struct.pack("<q", 5)}, False),
        ("c5 < '1970-01-01'", {5: struct.pack("<i", 5)}, True),
        ("c5 < '1970-01-01'", {5: struct.pack("<q", 5)}, False),
        ("c5 < '1970-01-01'", {5: b"odd"}, True),
    ):
        file = data_file("f", 1, lower_bounds=bound, upper_bounds=bound, **counts)
        assert row_filter(where, table(), 0)(file, 0) is may_match


def test_uuids_between_two_bounds_are_never_left_out() -> None:
    """Writers order them by signed or by unsigned bytes (platform 20)."""
    low, high = uuid.UUID(int=0xF << 124).bytes, uuid.UUID(int=5).bytes  # as Java orders them
    file = data_file("f", 1, lower_bounds={4: low}, upper_bounds={4: high}, value_counts={4: 2})
    assert row_filter(f"c4 = '{ONE}'", table(), 0)(file, 0)


@pytest.mark.parametrize(
    ("where", "counts", "may_match"),
    [
        ("c1 is null", {"value_counts": {1: 10}, "null_value_counts": {1: 0}}, False),
        ("c1 is null", {"value_counts": {1: 10}, "null_value_counts": {1: 1}}, True),
        ("c1 is null", {}, True),
        ("c1 is not null", {"value_counts": {1: 10}, "null_value_counts": {1: 10}}, False),
        ("c1 != 5", {"value_counts": {1: 10}, "null_value_counts": {1: 10}}, False),
        ("c1 = 5 and c2 = 'a'", {"value_counts": {1: 10}, "null_value_counts": {1: 10}}, False),
        ("c1 = 5 or c2 = 'a'", {"value_counts": {1: 10}, "null_value_counts": {1: 10}}, True),
        ("not (c1 = 5)", {"value_counts": {1: 10}, "null_value_counts": {1: 10}}, False),
    ],
)
def test_counts_of_nulls_decide_as_sql_does(where: str, counts: dict[str, Any], may_match: bool) -> None:
    assert row_filter(where, table(), 0)(data_file("f", 1, **counts), 0) is may_match


def test_bounds_of_uuids_are_understood() -> None:
    judge = row_filter(f"c4 = '{ONE}'", table(), 0)
    counts: dict[str, Any] = {"value_counts": {4: 10}, "null_value_counts": {4: 0}}
    for number, may_match in ((1, True), (2, False)):
        bound = {4: uuid.UUID(int=number).bytes}
        assert judge(data_file("f", 1, lower_bounds=bound, upper_bounds=bound, **counts), 0) is may_match


def test_a_spec_by_a_column_that_is_gone_tells_nothing() -> None:
    judge = row_filter("c2 = 'us'", table((9, "void"), (2, "identity")), 0)
    assert judge(data_file("f", 1, (None, "eu")), 0)


@pytest.mark.parametrize("where", ["c2 = 'us'", "c2 > 'z'", "c2 in ('a', 'b')", "c2 like 'x%'"])
def test_bounds_that_are_no_text_leave_a_file_in_scope(where: str) -> None:
    """Some writers cut them off within a character, or write text that is no UTF-8 (rule 217)."""
    file = data_file("f", 1, lower_bounds={2: b"\xff\xfe"}, upper_bounds={2: b"\xff\xff"})
    assert row_filter(where, table(), 0)(file, 0)
