"""Partition values at the ends of what a type holds."""

from __future__ import annotations

import pytest

from icekeeper.operations.compaction.output_partition import target_fields


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        # As Java's TruncateUtil: value - (((value % width) + width) % width), which overflows.
        ("int", -(2**31), 2**31 - 2),
        ("int", -(2**31) + 8, -(2**31) + 8),
        ("int", 2**31 - 1, 2**31 - 8),
        ("long", -(2**63), 2**63 - 2),
        ("long", -(2**63) + 8, -(2**63) + 8),
        ("long", -1, -10),
    ],
)
def test_the_lowest_numbers_truncate_as_in_java(kind: str, value: int, expected: int) -> None:
    """What does not fit the type's Avro number makes a manifest that Java cannot read."""
    spec = {"fields": [{"source-id": 1, "field-id": 1000, "transform": "truncate[10]", "name": "p"}]}
    fields = target_fields(spec, {1: kind})
    assert fields is not None
    assert [field.apply(value) for field in fields] == [expected]
