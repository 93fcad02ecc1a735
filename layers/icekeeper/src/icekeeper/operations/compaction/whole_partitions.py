"""Finds the partitions all of whose rows match a filter, by their partition values alone (rule 126) (pure).

A partition surely matches where the inclusive projection of the filter's opposite (specification, "Scan Planning") says
that it holds no other row.  A comparison with null or NaN is neither true nor false, so the opposite tells nothing of
such rows: a partition with one of them in a column that the filter names does not match.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pyiceberg.expressions import Not
from pyiceberg.expressions.visitors import bind, expression_evaluator, extract_field_ids, inclusive_projection
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import PartitionValue
from icekeeper.operations.compaction.where import bound_filter, python_value

__all__ = ["PartitionChoice", "whole_partitions"]

PartitionChoice = Callable[[int, tuple[PartitionValue, ...]], bool]
"""Whether all rows of a partition of a spec id match."""


def whole_partitions(text: str, metadata: TableMetadata, now_ms: int) -> PartitionChoice:
    """A function that tells whether surely every row of a partition matches the filter.

    ``now_ms`` (epoch milliseconds) is what ``now()`` and ``current_date`` in the filter mean.

    Raises:
        PolicyError: the filter cannot be parsed, or does not fit the table's current schema.
    """
    schema, expression = bound_filter(text, metadata, now_ms)
    named = extract_field_ids(bind(schema, expression, case_sensitive=True))
    known: dict[int, Callable[[tuple[PartitionValue, ...]], bool]] = {}

    def of_spec(spec_id: int) -> Callable[[tuple[PartitionValue, ...]], bool]:
        spec = PartitionSpec.model_validate(metadata.specs[spec_id])
        if any(field.source_id not in schema.field_ids for field in spec.fields):
            return lambda partition: False
        types = [field.field_type for field in spec.partition_type(schema).fields]
        fields = Schema(*spec.partition_type(schema).fields)
        project = inclusive_projection(schema, spec, case_sensitive=True)
        may_match = expression_evaluator(fields, project(expression), case_sensitive=True)
        may_differ = expression_evaluator(fields, project(Not(expression)), case_sensitive=True)
        decisive = [position for position, field in enumerate(spec.fields) if field.source_id in named]

        def matches(partition: tuple[PartitionValue, ...]) -> bool:
            if any(_is_unordered(partition[position]) for position in decisive):
                return False
            record = Record(*map(python_value, partition, types))
            return may_match(record) and not may_differ(record)

        return matches

    def choice(spec_id: int, partition: tuple[PartitionValue, ...]) -> bool:
        if spec_id not in known:
            known[spec_id] = of_spec(spec_id)
        return known[spec_id](partition)

    return choice


def _is_unordered(value: PartitionValue) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
