"""Format v3 lets a partition field have several columns: what it says of rows is nobody's guess, so no file moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.maintained_table import MaintainedTable, maintained_table, outcome_of

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))

PROPERTIES = {"format-version": "2", "write.metadata.metrics.default": "counts"}
"""Columns that the table is sorted by have bounds all the same."""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MaintainedTable]:
    with maintained_table(tmp_path) as table:
        yield table


def created(made: MaintainedTable, transform: str, sources: list[int]) -> None:
    """Three files by the second column; then the field is said to be made of these ones, and the table to be sorted."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    made.create(SCHEMA, partition_spec=spec, properties=PROPERTIES)
    made.fill(3)

    def rename(document: dict[str, Any]) -> None:
        for one in document["partition-specs"]:
            for field in one["fields"]:
                del field["source-id"]
                field.update({"source-ids": sources, "transform": transform})
        ordered = {"transform": "identity", "source-ids": [2], "direction": "asc", "null-order": "nulls-first"}
        document.update({"sort-orders": [{"order-id": 1, "fields": [ordered]}], "default-sort-order-id": 1})

    made.rewrite_document(rename)


def test_a_table_partitioned_by_several_columns_at_once_is_left_alone(made: MaintainedTable) -> None:
    created(made, "truncate[3]", [1, 2])
    before = made.live_files()
    outcome = made.maintain(rewrite_all="true")
    for operation in (Operation.COMPACT, Operation.REWRITE_MANIFESTS):
        part = outcome_of(outcome, operation)
        assert part.status is Status.REFUSED, part
        assert "partition transform multi-argument truncate[3] is unknown" in part.summary
    assert outcome_of(outcome, Operation.EXPIRE_SNAPSHOTS).status is Status.SUCCEEDED
    assert made.live_files() == before


def test_a_list_of_one_column_is_that_column(made: MaintainedTable) -> None:
    created(made, "identity", [2])
    outcome = made.run(Operation.COMPACT, strategy="binpack")
    assert outcome.status is Status.SUCCEEDED, outcome
    (file,) = made.data_files()
    assert file.lower_bounds
    assert set(file.lower_bounds) == {2}
