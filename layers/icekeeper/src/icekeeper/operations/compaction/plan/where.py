"""The scope of a rewrite: files of finished partitions that may hold rows matching ``where``.

The filter ``where`` is evaluated on partition values and column bounds (specification, "Scan
Planning").  A file that cannot be excluded may match, as in Java's ``rewrite_data_files``.  A file
is judged by its partition under its own spec, not by the partition to which its rows may move.  Times relative to now
refer to a single moment, the start of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from icekeeper.errors import PolicyError, TableUnsupported
from icekeeper.metadata.document import TableMetadata, require_known_layout
from icekeeper.model import DataFile, Nothing, PartitionValue
from icekeeper.operations.compaction.plan.predicates import TRUE, Binding, Truth
from icekeeper.operations.compaction.plan.value_ranges import Column, Values, within_bounds, within_partition
from icekeeper.policy import Policy
from icekeeper.policy.conditions import Condition
from icekeeper.policy.filters import parse_filter
from icekeeper.policy.partition_time import partition_times
from icekeeper.rows.arrow_schema import stored_schema


def why_not_rewritten(metadata: TableMetadata) -> str | None:
    """Why this version cannot rewrite any data file of a table; ``None`` if it can.

    Either a column has a type that this version cannot write faithfully (rule: read-faithfully-or-not-at-all), or a
    Java class chooses the files' paths.
    """
    try:
        stored_schema(metadata.current_schema)
        require_known_layout(metadata.properties)
    except TableUnsupported as unsupported:
        return str(unsupported)
    return None


def file_scope(policy: Policy, metadata: TableMetadata, now_ms: int) -> Callable[[DataFile, int], bool]:
    """Return a predicate: may a data file of a spec id be rewritten at ``now_ms`` (epoch milliseconds)?

    ``min_partition_age_hours`` holds back partitions whose time is known.  It does not affect tables without a time
    partition, null values, and text that ``partition_time`` does not match.

    Raises:
        PolicyError: the filter, or the column with the partitions' time, does not fit the table.
    """
    matches = row_filter(policy.where, metadata, now_ms)
    age_ms = policy.min_partition_age_ms
    times = Nothing("") if age_ms is None else partition_times(metadata, policy)
    if age_ms is None or isinstance(times, Nothing):
        return matches
    latest_end_ms = now_ms - age_ms

    def in_scope(file: DataFile, spec_id: int) -> bool:
        end_ms = times.end_ms(spec_id, file.partition)
        return (end_ms is None or end_ms <= latest_end_ms) and matches(file, spec_id)

    return in_scope


def row_filter(text: str | None, metadata: TableMetadata, now_ms: int) -> Callable[[DataFile, int], bool]:
    """Return a predicate: may a data file of a spec id hold matching rows?  Without a filter every file may.

    ``now_ms`` (epoch milliseconds) is the time of ``now()`` and ``current_date`` in the filter.

    Raises:
        PolicyError: the filter cannot be parsed, or does not fit the table's current schema.
    """
    if text is None:
        return lambda file, spec_id: True
    truth = bound_filter(text, metadata, now_ms)
    truths_in = _truths_in_partitions(truth, metadata)

    def may_match(file: DataFile, spec_id: int) -> bool:
        if file.record_count == 0 or not truths_in(spec_id, file.partition) & TRUE:
            return False
        return bool(truth(lambda column: within_bounds(column, file)) & TRUE)

    return may_match


def whole_partitions(
    text: str, metadata: TableMetadata, now_ms: int
) -> Callable[[int, tuple[PartitionValue, ...]], bool]:
    """Return a predicate: does every row of a partition match the filter, judged by the partition's values alone
    (rule: drop-only-fully-matched-partitions)?

    ``now_ms`` and errors are as for :func:`row_filter`.
    """
    truths_in = _truths_in_partitions(bound_filter(text, metadata, now_ms), metadata)
    return lambda spec_id, partition: truths_in(spec_id, partition) == TRUE


def bound_filter(text: str, metadata: TableMetadata, now_ms: int) -> Truth:
    """The filter over the columns of the current schema; ``now_ms`` and errors are as for :func:`row_filter`."""
    return parsed_filter(text, metadata.current_schema, now_ms)[0]


def parsed_filter(
    text: str, schema: Mapping[str, Any], now_ms: int, setting: str = "policy key where"
) -> tuple[Truth, Condition]:
    """The filter over the columns of a schema, also as a condition.

    Raises:
        PolicyError: as :func:`row_filter`; ``setting`` names the filter in the message.
    """
    try:
        condition = parse_filter(text)
        return Binding({column.name: column for column in columns_of(schema)}, now_ms).truth(condition), condition
    except (ValueError, OverflowError) as error:  # a literal may also be beyond the range of Python's dates
        raise PolicyError(
            f"{setting} cannot be '{text}': {error}; write for example \"day >= '2026-01-01' and id < 5\""
        ) from None


def _truths_in_partitions(truth: Truth, metadata: TableMetadata) -> Callable[[int, tuple[PartitionValue, ...]], int]:
    """Return a function: the possible truth values of a filter in a partition of a spec id.

    Nothing is known about partitions by a dropped column, so all truth values are possible there.
    """
    known = {column.field_id for column in columns_of(metadata.current_schema)}
    specs: dict[int, list[tuple[int, str]] | None] = {}
    for spec_id, spec in metadata.specs.items():
        fields = [(int(field["source-id"]), str(field["transform"])) for field in spec["fields"]]
        specs[spec_id] = fields if all(source in known for source, _ in fields) else None

    found: dict[tuple[int, tuple[PartitionValue, ...]], int] = {}

    def truths(spec_id: int, partition: tuple[PartitionValue, ...]) -> int:
        key = spec_id, partition
        if key in found:
            return found[key]
        fields = specs[spec_id]

        def values_of(column: Column) -> Values:
            if fields is None:
                return within_partition(column, ())
            own = ((t, v) for (source, t), v in zip(fields, partition, strict=True) if source == column.field_id)
            return within_partition(column, own)

        possible = truth(values_of)
        if not any(isinstance(value, float) for value in partition):  # 0.0 and -0.0 would be the same key
            found[key] = possible
        return possible

    return truths


def columns_of(struct: Mapping[str, Any], prefix: str = "", required: bool = True) -> Iterator[Column]:
    """The columns that a filter may name, without elements of lists and maps."""
    for field in struct["fields"]:
        name, kind = f"{prefix}{field['name']}", field["type"]
        is_required = required and bool(field.get("required"))
        yield Column(int(field["id"]), name, kind if isinstance(kind, str) else str(kind["type"]), is_required)
        if isinstance(kind, Mapping) and kind["type"] == "struct":
            yield from columns_of(kind, f"{name}.", is_required)
