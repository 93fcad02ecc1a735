"""When a partition ends, by the partition spec of its files.

Specification, "Partition Transforms": ``year``, ``month``, ``day`` and ``hour`` count from 1970 in UTC.  An identity
partition of a date or timestamp is that date or moment.  Text and numbers are parsed with a pattern (Paimon,
``partition.timestamp-pattern``).  ``bucket``, ``truncate`` and ``void`` have no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icekeeper.errors import PolicyError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.transforms import CALENDAR, days_of, partition_type
from icekeeper.metadata.types import TIMESTAMPS, UNITS_PER_DAY
from icekeeper.model import Nothing, PartitionValue
from icekeeper.policy import Policy
from icekeeper.policy.time_patterns import DAY_MS, TimePattern, end_by_pattern, parse_partition_time

NO_TIME_FIELD = "no partition field of this table has a time; set partition_time"
_READ_BY_PATTERN = ("string", "int", "long")


def unit_end_ms(unit: str, value: PartitionValue) -> int | None:
    """The first moment after a partition, in epoch milliseconds; ``unit`` is a transform, ``date`` or a timestamp
    type."""
    if value is None or not isinstance(value, int):
        return None
    if unit == "year":
        return days_of(1971 + value, 1) * DAY_MS
    if unit == "month":
        return days_of(1970, value + 2) * DAY_MS
    if unit == "hour":
        return (value + 1) * HOUR_MS
    if unit in TIMESTAMPS:
        return value * DAY_MS // UNITS_PER_DAY[unit] + 1  # a moment: the millisecond after it
    return (value + 1) * DAY_MS


@dataclass(frozen=True, slots=True)
class PartitionTimes:
    """How to read the end of a partition, per partition spec."""

    fields: Mapping[int, Sequence[tuple[int, str]]]
    """Spec id → position and unit of the fields that have a date or time without a pattern."""
    pattern: TimePattern | None = None
    positions: Mapping[int, Sequence[int]] | None = None
    """Spec id → positions of the partition fields for the pattern, in its order."""

    def end_ms(self, spec_id: int, partition: Sequence[PartitionValue]) -> int | None:
        """The first moment after the partition, as epoch milliseconds in UTC; ``None``: it is unknown, because of a
        null, a spec without such a field, or text that does not match the pattern."""
        if self.pattern is None or self.positions is None:
            ends = [unit_end_ms(unit, partition[position]) for position, unit in self.fields.get(spec_id, ())]
            # All rows of the partition are within the span of each of its fields.
            return min((end for end in ends if end is not None), default=None)
        values = self._read(spec_id, partition)
        return None if values is None else end_by_pattern(self.pattern, values)

    def is_unparsed(self, spec_id: int, partition: Sequence[PartitionValue]) -> bool:
        """Whether the pattern applies to the partition but does not match."""
        values = self._read(spec_id, partition)
        return self.pattern is not None and values is not None and end_by_pattern(self.pattern, values) is None

    def _read(self, spec_id: int, partition: Sequence[PartitionValue]) -> list[str] | None:
        values = [partition[position] for position in (self.positions or {}).get(spec_id, ())]
        return None if not values or None in values else [str(value) for value in values]


def partition_times(metadata: TableMetadata, policy: Policy) -> PartitionTimes | Nothing:
    """How the policy reads the time of this table's partitions; ``Nothing`` if they have no time.

    Raises:
        PolicyError: the table is not partitioned by the column or field that the policy names, or not by its time.
    """
    text = policy.partition_time
    if text is not None:
        names, pattern = parse_partition_time(text)
        if pattern:
            return _by_pattern(metadata, names, pattern)
        source: int | None = _source(metadata, names[0])
    else:
        current = metadata.specs[metadata.default_spec_id]["fields"]
        source = next((int(field["source-id"]) for field in current if _unit(metadata, field) is not None), None)
    if source is None:
        return Nothing(NO_TIME_FIELD)
    fields: dict[int, list[tuple[int, str]]] = {}
    for spec_id, spec in metadata.specs.items():
        units = [_unit(metadata, field) if int(field["source-id"]) == source else None for field in spec["fields"]]
        fields[spec_id] = [(position, unit) for position, unit in enumerate(units) if unit is not None]
    if not any(fields.values()):
        raise PolicyError(
            f"policy key partition_time names '{text}', whose partitions have no time by themselves; add the format of "
            f"text and numbers, for example partition_time={text}=%Y-%m-%d"
        )
    return PartitionTimes(fields)


def _by_pattern(metadata: TableMetadata, names: Sequence[str], pattern: TimePattern) -> PartitionTimes:
    sources = [_source(metadata, name) for name in names]
    positions: dict[int, list[int]] = {}
    for spec_id, spec in metadata.specs.items():
        by_source = {
            int(field["source-id"]): position
            for position, field in enumerate(spec["fields"])
            if field["transform"] == "identity"
            and partition_type(metadata.schemas_current_first, field) in _READ_BY_PATTERN
        }
        if all(source in by_source for source in sources):
            positions[spec_id] = [by_source[source] for source in sources]
    if not positions:
        raise PolicyError(
            f"policy key partition_time reads {', '.join(names)}, but no partition spec of the table has this "
            "untransformed, as text or whole numbers"
        )
    return PartitionTimes({}, pattern, positions)


def _source(metadata: TableMetadata, name: str) -> int:
    """The partitioned column of that name, or the source column of a partition field of that name in any spec."""
    specs = [metadata.specs[metadata.default_spec_id], *metadata.specs.values()]
    fields = [field for spec in specs for field in spec["fields"]]
    partitioned = {int(field["source-id"]) for field in fields}
    column = _column(metadata.current_schema, name.split("."))
    if column in partitioned and column is not None:
        return column
    found = next((int(field["source-id"]) for field in fields if field["name"] == name), None)
    if found is None:
        known = ", ".join(sorted({str(field["name"]) for field in fields})) or "none: the table has no partitions"
        raise PolicyError(f"the table is not partitioned by '{name}'; its partition fields are: {known}")
    return found


def _column(struct: Mapping[str, Any], path: Sequence[str]) -> int | None:
    for field in struct["fields"]:
        if field["name"] == path[0]:
            kind = field["type"]
            if len(path) == 1:
                return int(field["id"])
            return _column(kind, path[1:]) if isinstance(kind, dict) and kind.get("type") == "struct" else None
    return None


def _unit(metadata: TableMetadata, field: Mapping[str, Any]) -> str | None:
    transform = str(field["transform"])
    if transform in CALENDAR:
        return transform
    if transform != "identity":
        return None
    kind = partition_type(metadata.schemas_current_first, field)
    return kind if kind in UNITS_PER_DAY else None
