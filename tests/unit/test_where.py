"""Files that a filter selects, and times relative to now."""

from __future__ import annotations

import struct
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from icekeeper.errors import PolicyError
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import PartitionValue
from icekeeper.operations.compaction.plan.where import row_filter
from icekeeper.policy.conditions import Comparison, Moment
from icekeeper.policy.filters import depends_on_now, parse_filter
from support.plans import data_file, partitioned_by
from support.tables import new_document

# A filter selects files by partition where bounds are missing, and never leaves out a file with a match.

COLUMNS = {1: "long", 2: "string", 3: "decimal(9, 2)", 4: "uuid", 5: "timestamp", 6: "double"}
ONE = uuid.UUID(int=1)


def table(*fields: tuple[int, str]) -> TableMetadata:
    """A table partitioned by these source columns and transforms."""
    return partitioned_by(COLUMNS, *fields)


@pytest.mark.parametrize(
    ("source", "transform", "value", "where", "may_match"),
    [
        (2, "identity", "us", "c2 = 'us'", True),
        (2, "identity", "us", "c2 = 'eu'", False),
        (2, "identity", None, "c2 is null", True),
        (2, "identity", None, "c2 = 'us'", False),
        (1, "truncate[10]", 20, "c1 = 25", True),
        (1, "truncate[10]", 20, "c1 = 35", False),
        (3, "identity", b"\x04\xd2", "c3 = 12.34", True),
        (3, "identity", b"\x04\xd2", "c3 > 12.34", False),
        (4, "identity", ONE.bytes, f"c4 = '{ONE}'", True),
        (4, "identity", uuid.UUID(int=2).bytes, f"c4 = '{ONE}'", False),
        (5, "day", 1, "c5 < '1970-01-02T00:00:00'", False),
        (5, "day", 1, "c5 >= '1970-01-02T12:00:00'", True),
    ],
)
def test_a_partition_decides_without_any_bounds(
    source: int, transform: str, value: PartitionValue, where: str, may_match: bool
) -> None:
    judge = row_filter(where, table((source, transform)), 0)
    assert judge(data_file("f", 1, (value,)), 0) is may_match


def test_bounds_from_before_a_promotion_are_compared_by_value() -> None:
    """Four-byte bounds of a column that is now a long are integers; those of a timestamp column may be days."""
    counts: dict[str, Any] = {"value_counts": {1: 10, 5: 10}, "null_value_counts": {1: 0, 5: 0}}
    for where, bound, may_match in (
        ("c1 > 100", {1: struct.pack("<i", 5)}, False),
        ("c1 > 100", {1: struct.pack("<i", 500)}, True),
        ("c1 > 100", {1: struct.pack("<q", 5)}, False),
        ("c5 < '1970-01-01'", {5: struct.pack("<i", 5)}, True),
        ("c5 < '1970-01-01'", {5: struct.pack("<q", 5)}, False),
        ("c5 < '1970-01-01'", {5: b"odd"}, True),
    ):
        file = data_file("f", 1, lower_bounds=bound, upper_bounds=bound, **counts)
        assert row_filter(where, table(), 0)(file, 0) is may_match


def test_a_file_with_a_uuid_between_its_bounds_is_never_left_out() -> None:
    """Writers order them by signed or by unsigned bytes (platform: java-orders-uuids-signed)."""
    low, high = uuid.UUID(int=0xF << 124).bytes, uuid.UUID(int=5).bytes  # as Java orders them
    file = data_file("f", 1, lower_bounds={4: low}, upper_bounds={4: high}, value_counts={4: 2})
    assert row_filter(f"c4 = '{ONE}'", table(), 0)(file, 0)


@pytest.mark.parametrize(
    ("where", "counts", "may_match"),
    [
        ("c1 is null", {"value_counts": {1: 10}, "null_value_counts": {1: 0}}, False),
        ("c1 is null", {"value_counts": {1: 10}, "null_value_counts": {1: 1}}, True),
        ("c1 is null", {}, True),
        ("c1 is not null", {"value_counts": {1: 10}, "null_value_counts": {1: 10}}, False),
        ("c1 != 5", {"value_counts": {1: 10}, "null_value_counts": {1: 10}}, False),
        ("c1 = 5 and c2 = 'a'", {"value_counts": {1: 10}, "null_value_counts": {1: 10}}, False),
        ("c1 = 5 or c2 = 'a'", {"value_counts": {1: 10}, "null_value_counts": {1: 10}}, True),
        ("not (c1 = 5)", {"value_counts": {1: 10}, "null_value_counts": {1: 10}}, False),
        ("c6 in (5, 6)", {"value_counts": {6: 10}, "nan_value_counts": {6: 10}, "null_value_counts": {6: 0}}, False),
        ("c6 > 5", {"value_counts": {6: 10}, "nan_value_counts": {6: 10}, "null_value_counts": {6: 0}}, True),
    ],
)
def test_counts_of_nulls_and_nan_decide_as_sql_does(where: str, counts: dict[str, Any], may_match: bool) -> None:
    assert row_filter(where, table(), 0)(data_file("f", 1, **counts), 0) is may_match


def test_equal_uuid_bounds_decide() -> None:
    judge = row_filter(f"c4 = '{ONE}'", table(), 0)
    counts: dict[str, Any] = {"value_counts": {4: 10}, "null_value_counts": {4: 0}}
    for number, may_match in ((1, True), (2, False)):
        bound = {4: uuid.UUID(int=number).bytes}
        assert judge(data_file("f", 1, lower_bounds=bound, upper_bounds=bound, **counts), 0) is may_match


def test_a_file_of_a_spec_with_a_dropped_column_is_selected() -> None:
    judge = row_filter("c2 = 'us'", table((9, "void"), (2, "identity")), 0)
    assert judge(data_file("f", 1, (None, "eu")), 0)


@pytest.mark.parametrize("where", ["c2 = 'us'", "c2 > 'z'", "c2 in ('a', 'b')", "c2 like 'x%'"])
def test_a_file_with_bounds_that_are_not_utf8_is_selected(where: str) -> None:
    """Some writers truncate bounds within a character, or write text that is not UTF-8."""
    file = data_file("f", 1, lower_bounds={2: b"\xff\xfe"}, upper_bounds={2: b"\xff\xff"})
    assert row_filter(where, table(), 0)(file, 0)


# Times relative to now in the filter of a rewrite: their meaning, their columns, and error messages.
# ``tests/property/test_where.py`` compares filters with every row of a partition.

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 3, 31, 12, 30, tzinfo=UTC)
NOW_MS = (NOW - EPOCH) // timedelta(milliseconds=1)
TIME_COLUMNS = {1: ("ts", "timestamp"), 2: ("tz", "timestamptz"), 3: ("d", "date"), 4: ("name", "string")}
TIME_COLUMNS[5] = ("nanos", "timestamp_ns")


def table_of_times(source: int, transform: str) -> TableMetadata:
    columns = [{"id": i, "name": name, "required": False, "type": kind} for i, (name, kind) in TIME_COLUMNS.items()]
    fields = [{"source-id": source, "field-id": 1000, "name": "p", "transform": transform}]
    schema = {"type": "struct", "schema-id": 0, "fields": columns}
    specs = {"partition-specs": [{"spec-id": 0, "fields": fields}]}
    return TableMetadata(new_document("s3://b/t", 3, schemas=[schema], **specs))


def is_selected(where: str, source: int, transform: str, value: PartitionValue) -> bool:
    return row_filter(where, table_of_times(source, transform), NOW_MS)(data_file("f", 1, (value,)), 0)


def refusal(where: str, source: int = 1, transform: str = "day") -> str:
    with pytest.raises(PolicyError) as caught:
        row_filter(where, table_of_times(source, transform), NOW_MS)
    return str(caught.value)


def day(*ymd: int) -> int:
    return (datetime(*ymd, tzinfo=UTC) - EPOCH).days  # type: ignore[misc, arg-type]  # three numbers


def hour(*ymdh: int) -> int:
    return (datetime(*ymdh, tzinfo=UTC) - EPOCH) // timedelta(hours=1)  # type: ignore[misc, arg-type]  # four numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now()", NOW),
        ("current_timestamp", NOW),
        ("CURRENT_TIMESTAMP()", NOW),
        ("current_date", datetime(2026, 3, 31, tzinfo=UTC)),
        ("now() - interval '1 hour'", NOW - timedelta(hours=1)),
        ("now()-INTERVAL '90' MINUTES", NOW - timedelta(minutes=90)),
        ("now() + interval 2 weeks", NOW + timedelta(days=14)),
        ("current_date - interval '7' day", datetime(2026, 3, 24, tzinfo=UTC)),
        ("now() - interval '1 day 2 hours 3 seconds'", NOW - timedelta(days=1, hours=2, seconds=3)),
        ("now() - interval '1' month", datetime(2026, 2, 28, 12, 30, tzinfo=UTC)),  # there is no 31 February
        ("current_date + interval '11' month", datetime(2027, 2, 28, tzinfo=UTC)),
        ("current_date + interval '9' month", datetime(2026, 12, 31, tzinfo=UTC)),
        ("now() - interval '2 years' + interval '1 hour'", datetime(2024, 3, 31, 13, 30, tzinfo=UTC)),
    ],
)
def test_a_relative_time_is_resolved_to_a_moment(text: str, expected: datetime) -> None:
    found = parse_filter(f"ts < {text}")
    assert isinstance(found, Comparison)
    (moment,) = found.literals
    assert isinstance(moment, Moment)
    assert EPOCH + timedelta(microseconds=moment.at(NOW_MS) // 1000) == expected
    assert depends_on_now(f"x = 1 and not (ts < {text} or x = 2)")


@pytest.mark.parametrize("text", ["name = 'now()'", "`now()` = 1", "x.current_date > 5", "interval > 5", "day = 3"])
def test_text_that_only_resembles_a_relative_time_is_kept(text: str) -> None:
    assert not depends_on_now(text)


# Filters that Spark prints and its users paste; a `timestamptz` without a zone is in UTC.
PASTED = [
    ("now() - interval '1 hour' > ts", 1, "hour", hour(2026, 3, 31, 11), hour(2026, 3, 31, 12)),
    ("day(d) <= '2026-03-30'", 3, "identity", day(2026, 3, 30), day(2026, 3, 31)),
    ("ts < now() - interval '1 month'", 1, "month", 12 * 56 + 1, 12 * 56 + 2),
    ("ts < '2026-03-24'", 1, "day", day(2026, 3, 23), day(2026, 3, 24)),
    ("tz < '2026-03-24'", 2, "day", day(2026, 3, 23), day(2026, 3, 24)),
    ("tz < '2026-03-24 00:00:00'", 2, "day", day(2026, 3, 23), day(2026, 3, 24)),
    ("ts < '2026-03-24 00:00'", 1, "day", day(2026, 3, 23), day(2026, 3, 24)),
    ("ts < '2026-03-24 00:00:00.5'", 1, "day", day(2026, 3, 24), day(2026, 3, 25)),
    ("ts < date '2026-03-24'", 1, "day", day(2026, 3, 23), day(2026, 3, 24)),
    ("ts < timestamp '2026-03-24 00:00:00'", 1, "day", day(2026, 3, 23), day(2026, 3, 24)),
    ("tz < TIMESTAMP '2026-03-24 01:00:00+01:00'", 2, "day", day(2026, 3, 23), day(2026, 3, 24)),
    ("tz < '2026-03-24T00:00:00Z'", 2, "hour", hour(2026, 3, 23, 23), hour(2026, 3, 24, 0)),
    ("tz < '2026-03-24 02:00:00 +0200'", 2, "hour", hour(2026, 3, 23, 23), hour(2026, 3, 24, 0)),
    ("nanos < timestamp_ntz '2026-03-24 00:00:00'", 5, "day", day(2026, 3, 23), day(2026, 3, 24)),
    ("d < date '2026-03-24'", 3, "identity", day(2026, 3, 23), day(2026, 3, 24)),
    ("d < '2026-03-24 00:00:00'", 3, "identity", day(2026, 3, 23), day(2026, 3, 24)),
    ("d < timestamp '2026-03-24 06:00:00'", 3, "identity", day(2026, 3, 24), day(2026, 3, 25)),
    ("ts between '2026-03-01' and '2026-03-24'", 1, "day", day(2026, 3, 24), day(2026, 3, 25)),
    ("days(ts) = date '2026-03-24'", 1, "day", day(2026, 3, 24), day(2026, 3, 25)),
    ("system.days(ts) <= '2026-03-24'", 1, "day", day(2026, 3, 24), day(2026, 3, 25)),
    ("spark_catalog.system.months(ts) = 674", 1, "day", day(2026, 3, 31), day(2026, 4, 1)),
    (f"hours(tz) <= {hour(2026, 3, 24, 7)}", 2, "hour", hour(2026, 3, 24, 7), hour(2026, 3, 24, 8)),
    ("years(ts) = 56", 1, "day", day(2026, 12, 31), day(2027, 1, 1)),
    ("bucket(4, name) = 1", 4, "bucket[4]", 1, 2),
    ("1 = system.bucket(4, name)", 4, "bucket[4]", 1, 0),
    ("my.system.bucket(4, d) in (1, 3)", 3, "bucket[4]", 3, 2),
    ("bucket(4, name) = 3", 4, "identity", "c", "a"),
    ("truncate(2, name) = 'us'", 4, "truncate[2]", "us", "uk"),
    ("truncate(2, name) = 'us'", 4, "identity", "usa", "uk"),
    ("truncate(1, name) = 'u'", 4, "truncate[2]", "us", "eu"),
    ("`name` = 'us' and `d` is null", 4, "identity", "us", "eu"),
    ("days(`ts`) = date '2026-03-24'", 1, "day", day(2026, 3, 24), day(2026, 3, 25)),
    ("name = 'u`s`'", 4, "identity", "u`s`", "us"),
]


@pytest.mark.parametrize(("where", "source", "transform", "taken", "left"), PASTED, ids=[case[0] for case in PASTED])
def test_filters_pasted_from_spark_select_the_same(
    where: str, source: int, transform: str, taken: PartitionValue, left: PartitionValue
) -> None:
    assert is_selected(where, source, transform, taken)
    assert not is_selected(where, source, transform, left)


@pytest.mark.parametrize(
    ("where", "value", "selected"),
    [
        ("day(ts) != current_date", day(2026, 3, 31), False),
        ("day(ts) in (current_date, '2026-03-01')", day(2026, 3, 1), True),
        ("day(ts) in (current_date, '2026-03-01')", day(2026, 3, 2), False),
        ("day(ts) not in (current_date, '2026-03-01')", day(2026, 3, 1), False),
        ("not (ts >= current_date)", day(2026, 3, 31), False),
        ("ts between current_date - interval '2' day and current_date", day(2026, 3, 29), True),
        ("ts between current_date - interval '2' day and current_date", day(2026, 3, 28), False),
        ("day(ts) is null", None, True),
        ("day(ts) is null", 5, False),
        ("ts < now()", None, False),
    ],
)
def test_every_kind_of_predicate_selects_partitions(where: str, value: PartitionValue, selected: bool) -> None:
    assert is_selected(where, 1, "day", value) is selected


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("ts < now() - 1 hour", "'hour' is not expected there"),
        ("ts < now() - 1", "an interval is missing after now()"),
        ("nam = 'us'", "the table has no column 'nam' (did you mean 'name'?)"),
        ("ts < now() - interval '1 fortnight'", "'INTERVAL '1' FORTNIGHT' is not an interval of second, minute, hour"),
        ("ts < now() - interval '1'", "'INTERVAL '1'' is not an interval of second, minute, hour"),
        (
            "ts - interval '1 hour' < now()",
            "ts - INTERVAL '1' HOUR cannot be decided from partitions and column bounds",
        ),
        ("ts < interval '1 hour'", "INTERVAL '1' HOUR must follow a date or time"),
        ("ts < now() - interval '1001 years'", "is more than 1000 years from its start"),
        ("name < now()", "now() needs a date or timestamp, but column name is string"),
        ("name < date '2026-11-23'", "CAST('2026-11-23' AS DATE) needs a date or timestamp, but column name is string"),
        ("ts < date '2026-11-31'", "'2026-11-31' is not a date or time; write for example '2026-01-31'"),
        ("ts < 1700000000", "column ts must be compared with a date or time, for example '2026-01-31' or current_date"),
        ("ts < '2026-11-23 00:00:00Z'", "column ts is timestamp, which has no time zone: leave the zone of"),
        ("d < '2026-11-23 06:00'", "column d is date; write timestamp '2026-11-23 06:00' to compare its midnight"),
        ("years(ts) < 2026", "years(ts) counts from 1970, as in Spark: 2026 is 56"),
        ("bucket(4, name) = 'a'", "bucket(4, name) must be compared with a whole number"),
        ("bucket(0, name) = 1", "bucket(0, name) needs a number greater than 0"),
        ("truncate(4, ts) = 'a'", "truncate(4, ts) is not possible: column ts is timestamp"),
        ("hour(d) < now()", "column d is a date, which has no hour; write day(d)"),
        ("day(ts) = 5", "day(ts) must be compared with a date or time, for example '2026-01-31' or current_date"),
        ("day(name) = '2026-01-31'", "day(name) needs a date or timestamp, but column name is string"),
    ],
)
def test_an_invalid_filter_is_refused_in_one_sentence(where: str, reason: str) -> None:
    message = refusal(where)
    assert message.startswith(f"policy key where cannot be '{where}': ")
    assert reason in message
    assert "\n" not in message


def test_an_unknown_column_is_named() -> None:
    assert "nothing" in refusal("nothing < now()")
    assert "nothing" in refusal("day(nothing) < now()")


@pytest.mark.parametrize("where", ["day(nothing) < now() and", "name like now()", "ts < now() ts < now()"])
def test_a_message_shows_no_placeholder(where: str) -> None:
    assert "\ue000" not in refusal(where)
