"""A file is selected by a filter relative to now exactly when its partition has a moment that the filter matches."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.compaction.where import row_filter
from support.examples import examples
from support.plans import data_file
from support.tables import new_document

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICRO = timedelta(microseconds=1)
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}
UNITS = {"second": timedelta(seconds=1), "minute": timedelta(minutes=1), "hour": timedelta(hours=1)}
UNITS |= {"day": timedelta(days=1), "week": timedelta(weeks=1)}
FLOORS = {
    "hour": {"minute": 0, "second": 0, "microsecond": 0},
    "day": {"hour": 0, "minute": 0, "second": 0, "microsecond": 0},
    "month": {"day": 1, "hour": 0, "minute": 0, "second": 0, "microsecond": 0},
    "year": {"month": 1, "day": 1, "hour": 0, "minute": 0, "second": 0, "microsecond": 0},
}


def floor(moment: datetime, unit: str) -> datetime:
    return moment.replace(**FLOORS[unit])  # type: ignore[arg-type]  # numbers all


def following(start: datetime, unit: str) -> datetime:
    return floor(
        start + timedelta(days={"hour": 0, "day": 1, "month": 31, "year": 366}[unit], hours=unit == "hour"), unit
    )


def partition_value(start: datetime, transform: str) -> int:
    if transform == "hour":
        return (start - EPOCH) // timedelta(hours=1)
    months = (start.year - 1970) * 12 + start.month - 1
    return {"day": (start - EPOCH).days, "identity": (start - EPOCH).days, "month": months, "year": start.year - 1970}[
        transform
    ]


def table(kind: str, transform: str) -> TableMetadata:
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "t", "required": False, "type": kind}]}
    fields = [{"source-id": 1, "field-id": 1000, "name": "p", "transform": transform}]
    return TableMetadata(
        new_document("s3://b/t", 2, schemas=[schema], **{"partition-specs": [{"spec-id": 0, "fields": fields}]})
    )


@pytest.mark.parametrize(
    ("kind", "transform"),
    [
        ("timestamp", "hour"),
        ("timestamptz", "day"),
        ("timestamp", "month"),
        ("timestamptz", "year"),
        ("date", "identity"),
        ("date", "month"),
    ],
)
@settings(max_examples=examples(60), deadline=None)
@given(
    now=st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)).map(lambda m: m.replace(tzinfo=UTC)),
    is_date=st.booleans(),
    operator_text=st.sampled_from(sorted(OPERATORS)),
    amount=st.integers(-50, 50),
    unit=st.sampled_from(sorted(UNITS)),
    taken_by=st.sampled_from((None, "hour", "day", "month", "year")),
    offset=st.integers(-3, 3),
)
def test_selected_is_what_brute_force_selects(
    kind: str,
    transform: str,
    now: datetime,
    is_date: bool,
    operator_text: str,
    amount: int,
    unit: str,
    taken_by: str | None,
    offset: int,
) -> None:
    now -= timedelta(microseconds=now.microsecond % 1000)
    limit = (floor(now, "day") if is_date else now) + amount * UNITS[unit]
    # The partition at the limit, or one of its neighbours.
    span = "day" if transform == "identity" else transform
    start = floor(limit, span)
    for _ in range(abs(offset)):
        start = following(start, span) if offset > 0 else floor(start - MICRO, span)
    end = following(start, span)

    taken_by = "day" if taken_by == "hour" and kind == "date" else taken_by
    column = "t" if taken_by is None else f"{taken_by}(t)"
    sign = "-" if amount < 0 else "+"
    where = f"{column} {operator_text} {'current_date' if is_date else 'now()'} {sign} interval '{abs(amount)}' {unit}"

    # Every moment at which the answer may change, and its neighbours; a date column has midnights only.
    marks = {
        start,
        end - MICRO,
        limit,
        floor(limit, taken_by or "day"),
        following(floor(limit, taken_by or "day"), taken_by or "day"),
    }
    moments = {mark + near * MICRO for mark in marks for near in (-1, 0, 1)}
    if kind == "date":
        moments = {floor(start, "day") + timedelta(days=n) for n in range((end - start).days)}
    within = [moment for moment in moments if start <= moment < end]
    taken = [
        (moment, limit) if taken_by is None else (floor(moment, taken_by), floor(limit, taken_by)) for moment in within
    ]
    expected = any(OPERATORS[operator_text](left, right) for left, right in taken)

    judge = row_filter(where, table(kind, transform), (now - EPOCH) // timedelta(milliseconds=1))
    assert judge(data_file("f", 1, (partition_value(start, transform),)), 0) is expected
