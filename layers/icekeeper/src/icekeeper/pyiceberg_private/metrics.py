"""PyIceberg's judgement of a file by its counts and bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.schema import Schema

from icekeeper.model import DataFile

__all__ = ["metrics_evaluator"]


def metrics_evaluator(schema: Schema, expression: BooleanExpression) -> Callable[[DataFile], bool]:
    """Judges by a data file's counts and bounds whether it may hold rows that the expression matches."""
    evaluate = _InclusiveMetricsEvaluator(schema, expression, case_sensitive=True).eval
    return cast(Callable[[DataFile], bool], evaluate)  # it reads nothing but counts and bounds, which ours has too
