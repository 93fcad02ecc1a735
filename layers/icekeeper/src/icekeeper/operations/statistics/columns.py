"""Which columns get statistics (pure): the primitive ones at the top level, or those that the policy names.

Iceberg-Java's ``compute_table_stats`` chooses alike: by default the primitive columns of the top level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icekeeper.errors import PolicyError
from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.statistics.column_sketch import can_sketch

__all__ = ["StatisticsColumns", "statistics_columns"]


@dataclass(frozen=True, slots=True)
class StatisticsColumns:
    """Field id → Iceberg type, and how many columns have a type without statistics."""

    types: Mapping[int, str]
    unsupported: int


def statistics_columns(metadata: TableMetadata, named: Sequence[str]) -> StatisticsColumns:
    """The columns of the current schema; ``named`` is policy key ``statistics_columns``, dots lead into structs.

    Raises:
        PolicyError: there is no such column, or no statistics are kept of its type.
    """
    fields = metadata.current_schema["fields"]
    if not named:
        chosen = {int(field["id"]): str(field["type"]) for field in fields if can_sketch(field["type"])}
        return StatisticsColumns(chosen, len(fields) - len(chosen))
    known = dict(_by_name(fields, ""))
    types: dict[int, str] = {}
    for name in named:
        if name not in known:
            raise PolicyError(
                f"policy key statistics_columns names '{name}', which is no column of this table; columns are: "
                f"{', '.join(known)}"
            )
        field = known[name]
        kind = field["type"]
        if not can_sketch(kind):
            raise PolicyError(
                f"policy key statistics_columns names '{name}', which is of type "
                f"{kind if isinstance(kind, str) else kind['type']}: no statistics are kept of that"
            )
        types[int(field["id"])] = kind
    return StatisticsColumns(types, 0)


def _by_name(fields: Sequence[Mapping[str, Any]], above: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for field in fields:
        name = f"{above}{field['name']}"
        yield name, field
        kind = field["type"]
        if isinstance(kind, Mapping) and kind["type"] == "struct":
            yield from _by_name(kind["fields"], f"{name}.")
