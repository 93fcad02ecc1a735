"""When partitions end: by transforms of time, by calendar columns, by text that is read with a pattern."""

from __future__ import annotations

import datetime
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.errors import PolicyError
from icekeeper.model import Nothing
from icekeeper.policy.partition_time import NO_TIME_FIELD, partition_times
from icekeeper.policy.relative_time import parse_time_pattern
from support.plans import ms, partitioned, policy, spec, times


@pytest.mark.parametrize(
    ("column", "transform", "value", "end"),
    [
        ("ts", "year", 54, ms(2025, 1, 1)),
        ("ts", "year", -1, ms(1970, 1, 1)),
        ("ts", "month", 11, ms(1971, 1, 1)),
        ("ts", "month", -1, ms(1970, 1, 1)),
        ("ts", "day", 19782, ms(2024, 3, 1)),
        ("ts", "hour", 474_768 + 5, ms(2024, 2, 29, 6)),
        ("day", "identity", 19782, ms(2024, 3, 1)),
        ("day", "month", 649, ms(2024, 3, 1)),
        ("ts", "identity", 1_709_164_800_000_001, ms(2024, 2, 29) + 1),
        ("at_ns", "identity", 1_709_164_800_000_000_999, ms(2024, 2, 29) + 1),
        ("at_ns", "day", 19782, ms(2024, 3, 1)),
        ("meta.at", "hour", 0, ms(1970, 1, 1, 1)),
        ("ts", "day", None, None),
        ("ts", "year", 10**9, None),
    ],
)
def test_a_partition_ends_where_the_next_one_begins(
    column: str, transform: str, value: int | None, end: int | None
) -> None:
    """Specification, "Partition Transforms": everything counts from 1970 in UTC."""
    found = times(partitioned(spec(0, ("id", "bucket[4]"), (column, transform))))
    ended = found.end_ms(0, (3, value))
    if value == 10**9:
        assert ended is not None
        assert ended > ms(9999, 12, 31)
    else:
        assert ended == end


def test_rows_lie_in_every_span_so_the_earliest_end_counts() -> None:
    """After evolution every file is judged by its own spec; one with both a day and its hours by the hour."""
    found = times(
        partitioned(
            spec(0),
            spec(1, ("ts", "month")),
            spec(2, ("ts", "day"), ("ts", "hour")),
            spec(3, ("ts", "void"), ("ts", "day")),
        )
    )
    assert found.end_ms(0, ()) is None
    assert found.end_ms(1, (649,)) == ms(2024, 3, 1)
    assert found.end_ms(2, (19782, 474_768)) == ms(2024, 2, 29, 1)
    assert found.end_ms(3, (None, 19782)) == ms(2024, 3, 1)


@pytest.mark.parametrize(
    "fields", [(), (("id", "bucket[4]"),), (("dt", "truncate[7]"),), (("ts", "void"),), (("dt", "identity"),)]
)
def test_other_partitions_tell_no_time(fields: tuple[tuple[str, str], ...]) -> None:
    assert partition_times(partitioned(spec(0, *fields)), policy()) == Nothing(NO_TIME_FIELD)


def test_the_first_time_of_the_current_spec_is_taken_unless_one_is_named() -> None:
    metadata = partitioned(spec(0, ("day", "identity")), spec(1, ("dt", "identity"), ("ts", "day"), ("day", "month")))
    assert times(metadata).end_ms(1, ("x", 19782, 0)) == ms(2024, 3, 1)
    assert times(metadata).end_ms(0, (19782,)) is None
    for name in ("day", "day_month"):
        found = times(metadata, partition_time_column=name)
        assert found.end_ms(1, ("x", 19782, 0)) == ms(1970, 2, 1)
        assert found.end_ms(0, (19782,)) == ms(2024, 3, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"partition_time_column": "nope"},
            "not partitioned by 'nope'; its partition fields are: dt, id_bucket",
        ),
        (
            {"partition_time_column": "dt"},
            "names 'dt', whose partitions tell no time by themselves; set partition_t",
        ),
        ({"partition_time_column": "id"}, "names 'id', whose partitions tell no time"),
        ({"partition_time_pattern": "%Y-%m-%d"}, "needs partition_time_column, or the name of every field: dt=%Y"),
        ({"partition_time_pattern": "id=%Y"}, "reads id, which no partition spec of the table has as they are"),
        ({"partition_time_pattern": "nope=%Y"}, "not partitioned by 'nope'"),
    ],
)
def test_what_the_table_is_not_partitioned_by_is_an_error(settings: dict[str, str], message: str) -> None:
    metadata = partitioned(spec(0, ("dt", "identity"), ("id", "bucket[4]")))
    with pytest.raises(PolicyError, match=message):
        partition_times(metadata, policy(**settings))


@pytest.mark.parametrize(
    ("pattern", "value", "end"),
    [
        ("%Y-%m-%d", "2024-02-29", ms(2024, 3, 1)),
        ("%Y-%m-%d", "2024-2-9", ms(2024, 2, 10)),
        ("%Y-%m-%d", "2023-02-29", None),
        ("%Y-%m-%d", "2024-02-29 ", None),
        ("%Y-%m-%d", "2024-13-01", None),
        ("%Y-%m-%d", "2024-00-01", None),
        ("%Y-%m-%d", "\u0662\u0660\u0662\u0664-02-09", None),
        ("%Y%m%d", "20240229", ms(2024, 3, 1)),
        ("%Y%m%d", "2024111", None),
        ("%Y%j", "2024366", ms(2025, 1, 1)),
        ("%Y%j", "2023366", None),
        ("%Y/%m", "2024/12", ms(2025, 1, 1)),
        ("%Y", "2024", ms(2025, 1, 1)),
        ("%Y", "0000", None),
        ("%Y-%m-%dT%H", "2024-02-29T23", ms(2024, 3, 1)),
        ("%Y-%m-%dT%H", "2024-02-29T24", None),
        ("%Y-%m-%d %H:%M:%S", "2024-02-29 23:59:59", ms(2024, 3, 1)),
        ("%Y-%m-%d %H:%M", "2024-02-29 00:00", ms(2024, 2, 29, 0, 1)),
        ("dt-%Y%%", "dt-2024%", ms(2025, 1, 1)),
        ("%Y.%m", "2024x01", None),
        ("%Y", "__HIVE_DEFAULT_PARTITION__", None),
    ],
)
def test_text_is_read_as_a_whole_or_not_at_all(pattern: str, value: str, end: int | None) -> None:
    assert parse_time_pattern(pattern).end_ms([value]) == end


def test_a_pattern_may_read_several_fields() -> None:
    metadata = partitioned(
        spec(0, ("year", "identity")), spec(1, ("dt", "identity"), ("month", "identity"), ("year", "identity"))
    )
    found = times(metadata, partition_time_pattern="year=%Y,month=%m")
    assert found.end_ms(1, ("x", 2, 2024)) == ms(2024, 3, 1)
    assert found.end_ms(1, ("x", None, 2024)) is None
    assert not found.is_unparsed(1, ("x", None, 2024))
    assert found.end_ms(1, ("x", 13, 2024)) is None
    assert found.is_unparsed(1, ("x", 13, 2024))
    assert found.end_ms(0, (2024,)) is None
    assert not found.is_unparsed(0, (2024,))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x", "%Y is missing"),
        ("%d", "%m is missing beside %d"),
        ("%m-%d", "%Y is missing"),
        ("%Y-%H", "%d is missing beside %H"),
        ("%Y %Y", "%Y appears twice"),
        ("%B %Y", "%B is not one of %Y, %m"),
        ("year=%Y,month", "write FIELD=PATTERN"),
        ("year=", "write FIELD=PATTERN"),
    ],
)
def test_a_pattern_that_names_no_moment_is_bad_usage(text: str, complaint: str) -> None:
    with pytest.raises(
        PolicyError, match=re.escape(f"partition_time_pattern cannot be '{text}' (from") + ".*"
    ) as found:
        policy(partition_time_pattern=text)
    assert complaint in str(found.value)


@given(st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9998, 12, 31)), st.sampled_from("dHMS"))
def test_ends_agree_with_the_calendar(moment: datetime.datetime, finest: str) -> None:
    pattern = {"d": "%Y-%m-%d", "H": "%Y%m%d%H", "M": "%Y-%j %H.%M", "S": "%Y-%m-%d %H:%M:%S"}[finest]
    kept = {"d": 3, "H": 4, "M": 5, "S": 6}[finest]
    length = {"d": "days", "H": "hours", "M": "minutes", "S": "seconds"}[finest]
    start = datetime.datetime(*moment.timetuple()[:kept])  # type: ignore[arg-type]
    text = f"{moment.year:04}" + start.strftime(pattern.removeprefix("%Y"))
    end = start + datetime.timedelta(**{length: 1})
    since = end - datetime.datetime(1970, 1, 1)
    assert parse_time_pattern(pattern).end_ms([text]) == since // datetime.timedelta(milliseconds=1)
