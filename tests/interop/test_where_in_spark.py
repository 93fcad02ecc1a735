"""Filters that Spark's users paste: Icekeeper's truth values of each, row by row, beside those of Spark."""

from __future__ import annotations

import datetime as dt
import random
import re
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeeper.operations.compaction.plan.predicates import FALSE, NULL, TRUE, Binding
from icekeeper.operations.compaction.plan.value_ranges import Column, Values
from icekeeper.policy.filters import parse_filter
from support.examples import examples

KINDS = {
    "i": "int",
    "n": "long",
    "m": "decimal(9, 2)",
    "f": "float",
    "x": "double",
    "s": "string",
    "b": "boolean",
    "d": "date",
    "ts": "timestamptz",
    "w": "binary",
}
PASTED = r"""
i = 1e3
i > 1.5D
n <= 9007199254740991D
m = 1.5BD
n = 100L
i = 1S
n in (1L, 2L)
s = "n1"
w = X'00ff'
w > X'00'
x = 'nan'
x != 'nan'
f in (1.5, 2)
n in ('1', '2')
i <=> null
i <=> 3
not (i <=> 3)
isnull(i)
isnotnull(s)
isnan(x)
startswith(s, 'n')
s like 'n%'
s not like 'n1%'
s like 'n1'
s = 'it\'s'
b
not b
!b
b is true
b is not false
ts < cast('2026-01-31' as timestamp)
ts >= to_timestamp('2026-01-31 06:30:00')
ts > timestamp '2026-01-31 06:30:00'
d < to_date('2026-01-31')
d = date '2026-01-31'
d between date '2026-01-01' and date '2026-01-31'
d > '2026-01-31'
date(ts) = '2026-01-31'
date(ts) > date '2026-01-30'
cast(ts as date) <= to_date('2026-01-31')
to_date(ts) = current_date()
d < date_sub(current_date(), 1)
d >= date_add(current_date(), -2)
d = current_date() - 1
d > add_months(current_date(), -1)
ts < now() - interval '1 hour'
ts > current_timestamp() - interval 1 day 2 hours
ts >= current_date() - interval '7' day
ts >= date_trunc('day', now())
date_trunc('month', ts) = '2026-01-01'
trunc(d, 'MM') = date '2026-01-01'
year(ts) = 2026
year(d) < 2026
i = 1 + 2 * 1
n = -(1 - 2L)
m = 0.5 + 1
i = null
i in (1, null)
i not in (1, null)
i != 3
i <> 3
i == 3
3 < i
i between 1 and 3
not i between 1 and 3
`i` = 3 -- a comment
i = 3 /* another */
true
i = 3 and true
i = cast('3' as decimal(2, 0))
m > cast(1 as bigint)
i is distinct from 3
i is not distinct from null
n > 2147483648
"""
DAY = dt.date(2026, 1, 31)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TODAY = dt.datetime.now(dt.UTC).replace(minute=30, second=0, microsecond=0)
VALUES: dict[str, list[Any]] = {
    "i": [0, 1, 2, 3, 1000, -(2**31), 2**31 - 1],
    "n": [0, 1, 2, 100, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)],
    "m": [Decimal("1.50"), Decimal("0.00"), Decimal("1.00"), Decimal("-9999999.99")],
    "f": [0.0, 1.5, float("nan"), float("inf"), -1.5],
    "x": [0.0, 1.5, float("nan"), float("-inf"), 1e3],
    "s": ["", "n", "n1", "n11", "it's", "m", "\U0010ffff"],
    "b": [True, False],
    "d": [DAY, DAY - dt.timedelta(1), dt.date(2025, 12, 31), *(TODAY.date() - dt.timedelta(n) for n in range(4))],
    "ts": [
        *(dt.datetime(2026, 1, 31, hour, 30, tzinfo=dt.UTC) for hour in (0, 6, 23)),
        dt.datetime(2025, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
        *(TODAY - dt.timedelta(hours=hours) for hours in (0, 3, 20, 40, 100, 200)),
    ],
    "w": [b"", b"\x00", b"\x00\xff", b"\xff"],
}
LITERALS = {
    "i": ["1", "3L", "1.5", "1e3", "'3'", "2147483648", "1 + 2", "1.50BD"],
    "n": ["100", "9007199254740992", "1.5BD", "'100'", "-1L", "4503599627370496D"],
    "m": ["1.5", "1", "1.505", "1.5BD", "'1.5'", "0.5D"],
    "f": ["1.5", "1.5F", "0", "1.5D"],
    "x": ["1.5", "1e3", "1000", "1.5D"],
    "s": ["'n1'", '"n"', "''", "r'n'"],
    "d": ["'2026-01-31'", "date '2025-12-31'", "current_date()", "current_date - 2", "to_date('2026-01-30')"],
    "ts": [
        "'2026-01-31 06:30:00'",
        "date '2026-01-31'",
        "now()",
        "current_date",
        "timestamp '2025-12-31 23:59:59.999999'",
    ],
    "w": ["X'00'", "X'FF'"],
}


def raw(kind: str, value: Any) -> Any:
    """A value as :class:`Values` has it."""
    if isinstance(value, Decimal):
        return int(value.scaleb(2))
    if isinstance(value, dt.datetime):
        return (value - EPOCH) // dt.timedelta(microseconds=1)
    return (value - EPOCH.date()).days if isinstance(value, dt.date) else value


def values_of(kind: str, value: Any) -> Values:
    if value is None:
        return Values(has_values=False)
    if value != value:
        return Values(has_values=False, has_nulls=False, has_nans=True)
    return Values(raw(kind, value), raw(kind, value), has_nulls=False)


def random_filter(rng: random.Random, depth: int = 2) -> str:
    what = rng.choice(["compare", "compare", "in", "same"] + (["and", "or", "not"] if depth else []))
    column = rng.choice(sorted(LITERALS))
    literal = rng.choice(LITERALS[column])
    if what == "compare" or (what == "in" and (column, literal[0]) == ("m", "'")):  # in a list, Spark compares texts
        return f"{column} {rng.choice(['=', '<', '<=', '>', '>=', '!='])} {literal}"
    if what == "in":
        return f"{column} {rng.choice(['in', 'not in'])} ({literal}, {literal})"
    if what == "same":
        return f"{column} <=> {rng.choice([literal, 'null'])}"
    if what == "not":
        return f"not ({random_filter(rng, depth - 1)})"
    return f"({random_filter(rng, depth - 1)}) {what} ({random_filter(rng, depth - 1)})"


def test_truth_values_are_those_of_spark(spark_session: SparkSession) -> None:
    """Every filter is accepted.  Spark's answer for a row is the only one of Icekeeper, except for floats: engines
    compare their zeros and NaN differently, so it is one of several."""
    rng = random.Random(56)
    pasted = PASTED.strip().splitlines()
    filters = pasted + [random_filter(rng) for _ in range(examples(40))]
    rows: list[dict[str, Any]] = [dict.fromkeys(KINDS)]
    rows += [{column: rng.choice([*VALUES[column], *VALUES[column], None]) for column in KINDS} for _ in range(60)]
    rows += [{**rng.choice(rows[1:]), column: value} for column in KINDS for value in VALUES[column]]
    types = {"long": "bigint", "timestamptz": "timestamp"}
    schema = ", ".join(f"{column} {types.get(kind, kind)}" for column, kind in KINDS.items())
    frame = spark_session.createDataFrame([tuple(row.values()) for row in rows], schema)
    answers = [
        answer
        for first in range(0, len(filters), 40)
        for answer in zip(*frame.selectExpr(*filters[first : first + 40]).collect(), strict=True)
    ]
    columns = {name: Column(number, name, kind, False) for number, (name, kind) in enumerate(KINDS.items())}
    binding = Binding(columns, int(dt.datetime.now(dt.UTC).timestamp() * 1000))
    wrong = []
    for text, answer in zip(filters, answers, strict=True):
        truth = binding.truth(parse_filter(text))
        for row, expected in zip(rows, answer, strict=True):
            found = truth(lambda column, row=row: values_of(column.kind, row[column.name]))  # type: ignore[misc]
            wanted = NULL if expected is None else TRUE if expected else FALSE
            is_float = any(f"{name} " in text or f"({name})" in text for name in "fx")
            if not found & wanted or (found != wanted and not is_float):
                wrong.append((text, row, found, expected))
    assert wrong == []


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("n = 9007199254740993D", "Could not convert"),
        ("m = 0.1234567890123456D", "Could not convert"),
        ("f in ('nan', '1.5')", "in a list, Spark compares the text 'nan' as text; write a number"),
        ("m in ('1.5')", "in a list, Spark compares the text '1.5' as text; write a number"),
        ("lower(s) = 'a'", "lower(s) cannot be decided from partitions and column bounds"),
        ("s like '%a'", "cannot be decided from column bounds; LIKE 'prefix%' can"),
        ("s = 'it''s'", "has a quote inside text; write \\'"),
        ("i = n", "i = n compares two columns"),
        ("\"i\" = '1'", 'names no column; as in Spark, "a" is text and `a` a column'),
        ("i = 1 / 2", "1 / 2 cannot be decided"),
        ("date(ts) < '2026-01-31 06:00'", "CAST(ts AS DATE) is the start of a day; compare it with the start of a day"),
        ("i = 1; drop table t", "'drop table t' is not expected there"),
        ("i = (select 1)", "cannot be decided"),
        ("to_date('2026', 'yyyy') = d", "cannot be decided"),
    ],
)
def test_what_bounds_cannot_decide_is_refused_by_name(where: str, reason: str) -> None:
    columns = {name: Column(number, name, kind, False) for number, (name, kind) in enumerate(KINDS.items())}
    with pytest.raises(ValueError, match=re.escape(reason)):
        Binding(columns, 0).truth(parse_filter(where))


def test_a_filter_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="it is nested too deeply"):
        parse_filter(f"{'(' * 3000}i = 1{')' * 3000}")
