"""Partitioned tables by their columns and transforms, and the time that their partitions tell."""

from __future__ import annotations

import datetime
from typing import Any

from icekeeper.metadata.document import TableMetadata
from icekeeper.policy.partition_time import PartitionTimes, partition_times
from support.plans import policy, table

UTC = datetime.UTC
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": False, "type": "long"},
        {"id": 2, "name": "ts", "required": False, "type": "timestamptz"},
        {"id": 3, "name": "day", "required": False, "type": "date"},
        {"id": 4, "name": "dt", "required": False, "type": "string"},
        {"id": 5, "name": "year", "required": False, "type": "int"},
        {"id": 6, "name": "month", "required": False, "type": "int"},
        {"id": 7, "name": "at_ns", "required": False, "type": "timestamp_ns"},
        {"id": 8, "name": "price", "required": False, "type": "decimal(9, 2)"},
        {
            "id": 9,
            "name": "meta",
            "required": False,
            "type": {"type": "struct", "fields": [{"id": 10, "name": "at", "required": False, "type": "timestamp"}]},
        },
    ],
}
SOURCES = {"id": 1, "ts": 2, "day": 3, "dt": 4, "year": 5, "month": 6, "at_ns": 7, "price": 8, "meta.at": 10}


def spec(spec_id: int, *fields: tuple[str, str]) -> dict[str, Any]:
    """Fields as (column, transform), named after both."""
    return {
        "spec-id": spec_id,
        "fields": [
            {
                "field-id": 1000 + 10 * spec_id + i,
                "source-id": SOURCES[column],
                "name": column if transform == "identity" else f"{column}_{transform}",
                "transform": transform,
            }
            for i, (column, transform) in enumerate(fields)
        ],
    }


def partitioned(*specs: dict[str, Any]) -> TableMetadata:
    """The last spec is the current one."""
    return table(3, schemas=[SCHEMA], **{"partition-specs": list(specs), "default-spec-id": specs[-1]["spec-id"]})


def times(metadata: TableMetadata, **settings: str) -> PartitionTimes:
    found = partition_times(metadata, policy(**settings))
    assert isinstance(found, PartitionTimes)
    return found


def ms(*moment: int) -> int:
    return int(datetime.datetime(*moment, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc, arg-type]
