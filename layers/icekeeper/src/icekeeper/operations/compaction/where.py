"""Finds the files that may hold rows matching a filter: the scope of a rewrite (policy key ``where``).

The filter is parsed and judged by PyIceberg: against partition values (specification, "Scan Planning", inclusive
projection) and against column bounds.  What cannot be judged may match, as in Java's ``rewrite_data_files`` (rule 55).
Times relative to now are those of one moment, which the caller names: that at which the pass began.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind, expression_evaluator, inclusive_projection
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType, IcebergType
from pyparsing import ParseBaseException

from icekeeper.errors import PolicyError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.single_value import decimal_unscaled, is_utf8
from icekeeper.model import DataFile, PartitionValue
from icekeeper.operations.compaction.moments import with_moments
from icekeeper.policy.relative_time import RelativeFilter, parse_relative
from icekeeper.policy.values import did_you_mean
from icekeeper.pyiceberg_private.metrics import metrics_evaluator
from icekeeper.rows.arrow_schema import leaf_columns

__all__ = ["bound_filter", "python_value", "row_filter"]

# Bytes of a bound by type.  Bounds of a promoted column keep their old width, which PyIceberg cannot decode
# (rule 22, platform 15).
_WIDTHS: Mapping[str, int] = {
    "long": 8,
    "double": 8,
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns", "time"), 8),
}


# PyIceberg's words when a filter names what the schema does not have.
_UNKNOWN_COLUMN = re.compile(r"Could not find field with name (.+), case_sensitive=")


def row_filter(text: str | None, metadata: TableMetadata, now_ms: int) -> Callable[[DataFile, int], bool]:
    """A function that tells whether a data file of a spec id may hold matching rows; without a filter every file may.

    ``now_ms`` (epoch milliseconds) is what ``now()`` and ``current_date`` in the filter mean.

    Raises:
        PolicyError: the filter cannot be parsed, or does not fit the table's current schema.
    """
    if text is None:
        return lambda file, spec_id: True
    schema, expression = bound_filter(text, metadata, now_ms)
    judge = metrics_evaluator(schema, expression)
    narrow = {
        leaf.field_id: _WIDTHS[leaf.iceberg_type]
        for leaf in leaf_columns(metadata.current_schema)
        if leaf.iceberg_type in _WIDTHS
    }
    texts = {leaf.field_id for leaf in leaf_columns(metadata.current_schema) if leaf.iceberg_type == "string"}
    partitions: dict[int, _PartitionFilter] = {}

    def may_match(file: DataFile, spec_id: int) -> bool:
        if spec_id not in partitions:
            partitions[spec_id] = _PartitionFilter.of(metadata.specs[spec_id], schema, expression)
        return partitions[spec_id].may_match(file.partition) and judge(_with_usable_bounds(file, narrow, texts))

    return may_match


def bound_filter(text: str, metadata: TableMetadata, now_ms: int) -> tuple[Schema, BooleanExpression]:
    """A filter by absolute times, and the current schema, to which it fits; ``now_ms`` as for :func:`row_filter`.

    Raises:
        PolicyError: the filter cannot be parsed, or does not fit the table's current schema.
    """
    schema = _schema(metadata)
    relative = RelativeFilter(text)
    try:
        relative = parse_relative(text)
        expression = with_moments(parse(relative.text), schema, relative, now_ms)
        bind(schema, expression, case_sensitive=True)
    except Exception as error:  # pyparsing's, and whatever PyIceberg raises on a literal that fits no column
        reason = relative.as_written(_what_is_wrong(relative, text, error, schema))
        raise PolicyError(
            f"policy key where cannot be '{text}': {reason}; write for example \"day >= '2026-01-01' and id < 5\""
        ) from None
    return schema, expression


def _what_is_wrong(relative: RelativeFilter, text: str, error: Exception, schema: Schema) -> str:
    """One sentence with the place; a parser's own message is the whole grammar that it expected there."""
    if isinstance(error, ParseBaseException):
        rest = relative.as_written(error.pstr[error.loc :].strip())
        if not rest:
            return "it ends too early"
        if not text.rstrip().endswith(rest):
            return "it is no condition"
        return f"'{rest}' (from character {len(text.rstrip()) - len(rest) + 1} on) is no condition"
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    unknown = _UNKNOWN_COLUMN.match(reason)
    if unknown is None:
        return reason
    return f"the table has no column '{unknown[1]}'{did_you_mean(unknown[1], schema.column_names)}"


@dataclass(frozen=True, slots=True)
class _PartitionFilter:
    types: tuple[IcebergType, ...]
    evaluate: Callable[[Record], bool] | None

    @classmethod
    def of(cls, spec: Mapping[str, Any], schema: Schema, expression: Any) -> _PartitionFilter:
        """The filter for partitions of a spec; every one may match if the spec uses a column that the schema lacks."""
        parsed = PartitionSpec.model_validate(spec)
        if any(schema_id not in schema.field_ids for schema_id in (f.source_id for f in parsed.fields)):
            return cls((), None)
        kind = parsed.partition_type(schema)
        projected = inclusive_projection(schema, parsed, case_sensitive=True)(expression)
        evaluate = expression_evaluator(Schema(*kind.fields), projected, case_sensitive=True)
        return cls(tuple(field.field_type for field in kind.fields), evaluate)

    def may_match(self, partition: tuple[PartitionValue, ...]) -> bool:
        if self.evaluate is None:
            return True
        return self.evaluate(Record(*map(python_value, partition, self.types)))


def _schema(metadata: TableMetadata) -> Schema:
    try:
        return Schema.model_validate(metadata.current_schema)
    except ValueError as error:
        raise PolicyError(
            f"policy key where cannot be used on this table: its schema is not understood: {error}"
        ) from None


def python_value(value: PartitionValue, kind: IcebergType) -> Any:
    """A raw partition value as PyIceberg holds it: decimals as ``Decimal``."""
    if value is None:
        return None
    if isinstance(kind, DecimalType) and isinstance(value, int | bytes):
        return decimal.Decimal(decimal_unscaled(value)).scaleb(-kind.scale, decimal.Context(prec=76))
    return value  # uuids are bytes to PyIceberg, too


def _with_usable_bounds(file: DataFile, widths: Mapping[int, int], texts: Container[int]) -> DataFile:
    """The file without bounds of another width than its column's, and without those of text that are no UTF-8."""

    def usable(bounds: Mapping[int, bytes] | None) -> dict[int, bytes] | None:
        if bounds is None:
            return None
        fitting = {i: bound for i, bound in bounds.items() if i not in widths or len(bound) == widths[i]}
        return {i: bound for i, bound in fitting.items() if i not in texts or is_utf8(bound)}

    return replace(file, lower_bounds=usable(file.lower_bounds), upper_bounds=usable(file.upper_bounds))
