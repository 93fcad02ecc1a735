"""Decisions of a filter about a partition, compared with every row that the partition may hold."""

from __future__ import annotations

import datetime as dt
import operator
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, StringType, TimestampType

from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.compaction.plan.where import row_filter, whole_partitions
from support.examples import examples
from support.plans import data_file
from support.tables import new_document

# A filter relative to now selects a file exactly if the file's partition has a moment that matches.

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICRO = timedelta(microseconds=1)
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
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
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "c", "required": False, "type": kind}]}
    fields = [{"source-id": 1, "field-id": 1000, "name": "p", "transform": transform.strip()}]
    specs = {"partition-specs": [{"spec-id": 0, "fields": fields}]}
    return TableMetadata(new_document("s3://b/t", 2, schemas=[schema], **specs))


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
    operator_text=st.sampled_from(("<", "<=", ">", ">=", "=")),
    amount=st.integers(-50, 50),
    unit=st.sampled_from(sorted(UNITS)),
    taken_by=st.sampled_from((None, "hour", "day", "month", "year")),
    offset=st.integers(-3, 3),
)
def test_a_filter_selects_the_files_that_brute_force_selects(
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
    # The partition at the limit, or a neighbour.
    span = "day" if transform == "identity" else transform
    start = floor(limit, span)
    for _ in range(abs(offset)):
        start = following(start, span) if offset > 0 else floor(start - MICRO, span)
    end = following(start, span)

    taken_by = "day" if taken_by == "hour" and kind == "date" else taken_by
    column = "c" if taken_by is None else f"{taken_by}(c)"
    sign = "-" if amount < 0 else "+"
    where = f"{column} {operator_text} {'current_date' if is_date else 'now()'} {sign} interval '{abs(amount)}' {unit}"

    # Every moment at which the result may change, and its neighbours; a date column has midnights only.
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
    expected = any(COMPARISONS[operator_text](left, right) for left, right in taken)

    judge = row_filter(where, table(kind, transform), (now - EPOCH) // timedelta(milliseconds=1))
    assert judge(data_file("f", 1, (partition_value(start, transform),)), 0) is expected


# Decisions of a filter about a partition, compared with rows that the partition may hold, at the ends of every type.

DAY = 86_400_000_000
INT, LONG = 2**31, 2**63
FLOAT_MAX = 3.4028234663852886e38
EPOCH_DAY = dt.datetime(1970, 1, 1)


def ends(limit: int) -> list[int]:
    return [*range(-limit, -limit + 12), -11, -10, -1, 0, 1, 9, 10, 25, *range(limit - 12, limit)]


def timestamp_text(micros: int) -> str:
    return str(EPOCH_DAY + dt.timedelta(microseconds=micros))


def as_float(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


@dataclass(frozen=True)
class Kind:
    """A column type: raw values of rows, and literals as text with their values."""

    values: Sequence[Any]
    literals: dict[str, Any]
    transforms: dict[str, Callable[[Any], Any]]
    readings: Callable[[Any], list[Any]] = lambda value: [value]
    """The value as each engine reads it."""


def truncate(width: int, limit: int) -> Callable[[int], int]:
    """Truncate as Java does: below the least value, it wraps around to the greatest."""
    return lambda value: (value - value % width + limit) % (2 * limit) - limit


def number(limit: int, bucketed: Any) -> Kind:
    literals: dict[str, Any] = {str(value): value for value in [*ends(limit), -limit - 1, limit, limit + 5]}
    literals |= {"1.5": Decimal("1.5"), "-10.5": Decimal("-10.5"), "'9'": 9}
    widths = {f"truncate[{width}]": truncate(width, limit) for width in (1, 7, 10, 4096)}
    bucket = BucketTransform(4).transform(bucketed)
    return Kind(ends(limit), literals, {"identity": lambda value: value, "bucket[4]": bucket, **widths})


def months(days: int) -> int:
    date = EPOCH_DAY.date() + dt.timedelta(days=days)
    return (date.year - 1970) * 12 + date.month - 1


DAYS = [-719162, -719161, -366, -365, -32, -31, -30, -2, -1, 0, 1, 30, 31, 364, 365, 20780, 2932895, 2932896]
MICROS = [day * DAY + more for day in DAYS for more in (0, 1, 3_600_000_000, DAY - 1)]
LAST = "\U0010ffff"
TEXTS = ["", "a", "ab", "abc", "abz", "ac", "a\uffff", "a\U00010000", f"a{LAST}", "\ud7ff", "\ue000", LAST, LAST + LAST]
NUMBERS = [0.0, -0.0, 1.5, as_float(0.1), as_float(-0.1), FLOAT_MAX, -FLOAT_MAX, float("inf"), float("-inf")]


def zeros(value: float) -> list[Any]:
    """In SQL both zeros are equal, in Java they differ."""
    return [value, (value, struct.pack("<d", value)[-1] < 0x80)]


KINDS = {
    "int": number(INT, IntegerType()),
    "long": number(LONG, LongType()),
    "decimal(9, 2)": Kind(
        [-999_999_999, -999_999_998, -51, -50, -1, 0, 1, 49, 50, 999_999_999],
        {str(Decimal(value).scaleb(-2)): value for value in (-999_999_999, -50, 0, 1, 49, 50, 999_999_999)}
        | {"0.495": Decimal("49.5"), "7": 700},
        {
            "identity": lambda value: value,
            "truncate[50]": lambda value: value - value % 50,
            "bucket[4]": lambda value: BucketTransform(4).transform(DecimalType(9, 2))(Decimal(value).scaleb(-2)),
        },
    ),
    "string": Kind(
        TEXTS,
        {f"'{text}'": text for text in TEXTS},
        {
            "identity": lambda value: value,
            "truncate[1]": lambda value: value[:1],
            "truncate[2]": lambda value: value[:2],
            "bucket[4]": BucketTransform(4).transform(StringType()),
        },
    ),
    "date": Kind(
        DAYS,
        {f"'{EPOCH_DAY.date() + dt.timedelta(days=day)}'": day for day in DAYS}
        | {f"date '{EPOCH_DAY.date() + dt.timedelta(days=day)}'": day for day in DAYS},
        {
            "identity": lambda value: value,
            "day": lambda value: value,
            "month": months,
            "year": lambda value: months(value) // 12,
            "bucket[4]": BucketTransform(4).transform(DateType()),
        },
    ),
    "timestamp": Kind(
        MICROS,
        {f"'{timestamp_text(value)}'": value for value in MICROS}
        | {f"timestamp '{timestamp_text(value)}'": value for value in MICROS}
        | {f"'{EPOCH_DAY.date() + dt.timedelta(days=day)}'": day * DAY for day in DAYS},
        {
            "identity": lambda value: value,
            "hour": lambda value: value // 3_600_000_000,
            "day": lambda value: value // DAY,
            "month": lambda value: months(value // DAY),
            "year": lambda value: months(value // DAY) // 12,
            # Before Iceberg 0.13, Java rounded moments before 1970 up.
            "day ": lambda value: value // DAY if value >= 0 or value % DAY == 0 else value // DAY + 1,
            "bucket[4]": BucketTransform(4).transform(TimestampType()),
        },
    ),
    "float": Kind(
        NUMBERS,
        {"0.0": 0.0, "-0.0": -0.0, "1.5": 1.5, "0": 0.0, "0.1": 0.1, "'inf'": float("inf")},
        {"identity": lambda value: value},
        lambda value: [*zeros(value), *zeros(as_float(value))],
    ),
    "double": Kind(
        NUMBERS,
        {"0.0": 0.0, "-0.0": -0.0, "1.5": 1.5, "0": 0.0, "'-inf'": float("-inf")},
        {"identity": lambda value: value},
        zeros,
    ),
}
CASES = [(kind, transform) for kind, known in KINDS.items() for transform in known.transforms]
FLOATING = ("float", "double")
Filter = tuple[str, Callable[[Any, int], bool | None]]


@st.composite
def filters(draw: st.DrawFn, kind: str, depth: int = 2) -> Filter:
    """A filter, and its result for a value as one of the engines reads both; ``None`` is SQL's null."""
    known = KINDS[kind]
    what = draw(st.sampled_from(["compare", "compare", "in", "null"] + (["not", "and", "or"] if depth else [])))
    if what == "null":
        is_null = draw(st.booleans())
        return f"c is {'' if is_null else 'not '}null", lambda value, reading: (value is None) is is_null
    if what == "compare":
        name, text = draw(st.sampled_from(sorted(COMPARISONS))), draw(st.sampled_from(sorted(known.literals)))
        literal = known.literals[text]

        def compared(value: Any, reading: int) -> bool | None:
            if value is None:
                return None
            return COMPARISONS[name](known.readings(value)[reading], known.readings(literal)[reading])

        return f"c {name} {text}", compared
    if what == "in":
        # Spark compares text in a list with the text of a number.
        first = draw(st.sampled_from(sorted(text for text in known.literals if kind not in FLOATING or text[0] != "'")))
        alike = [
            text for text in sorted(known.literals) if (text[0] == "'", "." in text) == (first[0] == "'", "." in first)
        ]
        texts = [first, *draw(st.lists(st.sampled_from(alike), max_size=2))]
        is_in = draw(st.booleans())

        def is_among(value: Any, reading: int) -> bool | None:
            if value is None:
                return None
            wanted = [known.readings(known.literals[text])[reading] for text in texts]
            return (known.readings(value)[reading] in wanted) is is_in

        return f"c {'' if is_in else 'not '}in ({', '.join(texts)})", is_among
    left_text, left = draw(filters(kind, depth - 1))
    if what == "not":

        def opposite(value: Any, reading: int) -> bool | None:
            found = left(value, reading)
            return None if found is None else not found

        return f"not ({left_text})", opposite
    right_text, right = draw(filters(kind, depth - 1))
    decisive = what == "or"

    def both(value: Any, reading: int) -> bool | None:
        found = left(value, reading), right(value, reading)
        if decisive in found:
            return decisive
        return None if None in found else not decisive

    return f"({left_text}) {what} ({right_text})", both


@pytest.mark.parametrize(("kind", "transform"), CASES)
@settings(max_examples=examples(10), deadline=None)
@given(data=st.data())
def test_a_partition_and_its_rows_are_judged_alike(kind: str, transform: str, data: st.DataObject) -> None:
    """It is dropped only if every row matches in every engine, and left out of a rewrite only if no row matches
    (rule: drop-only-fully-matched-partitions)."""
    text, truth = data.draw(filters(kind))
    known, metadata = KINDS[kind], table(kind, transform)
    whole, may_match = whole_partitions(text, metadata, 0), row_filter(text, metadata, 0)
    rows: dict[str, tuple[Any, list[Any]]] = {"null": (None, [None])}
    for value in known.values:
        partition = known.transforms[transform](value)
        rows.setdefault(repr(partition), (partition, []))[1].append(value)
    for partition, values in rows.values():
        readings = range(len(known.readings(values[0]))) if values[0] is not None else (0,)
        matches = [truth(value, reading) is True for value in values for reading in readings]
        assert not whole(0, (partition,)) or all(matches), (text, partition, values)
        assert may_match(data_file("f", 1, (partition,)), 0) or not any(matches), (text, partition, values)
        if transform == "identity":
            # In a list with both zeros, each is judged alone, and engines disagree whether the zeros are equal.
            has_both = {"-0.0", "0.0"}.issubset(re.findall(r"-?\b[\d.]+", text))
            simple = " and " not in text and " or " not in text and not has_both
            assert not simple or whole(0, (partition,)) is all(matches), (text, partition, values)


@pytest.mark.parametrize(("kind", "limit"), [("int", INT), ("long", LONG)])
def test_a_truncated_partition_that_underflowed_keeps_its_rows(kind: str, limit: int) -> None:
    """Java writes the least value of an integer type to a partition near the greatest value
    (rule: drop-only-fully-matched-partitions)."""
    partition = truncate(10, limit)(-limit)
    assert partition > 0
    for stored in (partition, -limit - -limit % 10):
        whole = whole_partitions(f"c != {-limit}", table(kind, "truncate[10]"), 0)
        assert not whole(0, (stored,))
        assert whole_partitions(f"c < {-limit + 100}", table(kind, "truncate[10]"), 0)(0, (stored,))
        assert row_filter(f"c = {-limit}", table(kind, "truncate[10]"), 0)(data_file("f", 1, (stored,)), 0)


def test_both_zeros_are_dropped_only_by_a_filter_that_matches_them_in_every_engine() -> None:
    """``f IN (0.0)`` finds -0.0 in Spark and not in Java (platform: java-signed-zero-and-nan)."""
    for kind in ("float", "double"):
        metadata = table(kind, "identity")
        assert not whole_partitions("c in (0.0)", metadata, 0)(0, (-0.0,))
        assert not whole_partitions("c not in (0.0)", metadata, 0)(0, (-0.0,))
        assert not whole_partitions("c < 0.0", metadata, 0)(0, (-0.0,))
        assert whole_partitions("c in (0.0)", metadata, 0)(0, (0.0,))
        assert whole_partitions("c >= -0.0 and c <= 0.0", metadata, 0)(0, (-0.0,))
        for where in ("c in (0.0)", "c not in (0.0)", "c < 0.0", "c = 0"):
            assert row_filter(where, metadata, 0)(data_file("f", 1, (-0.0,)), 0)
