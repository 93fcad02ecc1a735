"""When partitions end, and how long they are left alone afterwards."""

from __future__ import annotations

import datetime as dt
import re
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.errors import PolicyError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import DataFile, Nothing
from icekeeper.operations.compaction.plan.candidates import TableState
from icekeeper.operations.compaction.plan.plan_groups import plan_compaction
from icekeeper.operations.compaction.plan.where import file_scope
from icekeeper.policy.partition_time import NO_TIME_FIELD, partition_times
from icekeeper.policy.time_patterns import end_by_pattern, parse_partition_time
from support.plans import HEAD_MS, MB, data_file, live_file, ms, partitioned, policy, spec, times

# When partitions end: by time transforms, by calendar columns, by text with a pattern.


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
def test_a_partition_ends_where_the_next_partition_begins(
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


def test_of_several_time_fields_the_earliest_end_counts() -> None:
    """After evolution every file is judged by its own spec; a spec with a day and an hour is judged by the hour."""
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
def test_partitions_without_time_fields_have_no_end(fields: tuple[tuple[str, str], ...]) -> None:
    assert partition_times(partitioned(spec(0, *fields)), policy()) == Nothing(NO_TIME_FIELD)


def test_the_first_time_field_of_the_current_spec_is_used_unless_a_field_is_named() -> None:
    metadata = partitioned(spec(0, ("day", "identity")), spec(1, ("dt", "identity"), ("ts", "day"), ("day", "month")))
    assert times(metadata).end_ms(1, ("x", 19782, 0)) == ms(2024, 3, 1)
    assert times(metadata).end_ms(0, (19782,)) is None
    for name in ("day", "day_month"):
        found = times(metadata, partition_time=name)
        assert found.end_ms(1, ("x", 19782, 0)) == ms(1970, 2, 1)
        assert found.end_ms(0, (19782,)) == ms(2024, 3, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition_time": "nope"}, "not partitioned by 'nope'; its partition fields are: dt, id_bucket"),
        ({"partition_time": "dt"}, "names 'dt', whose partitions have no time by themselves; add the format of"),
        ({"partition_time": "id"}, "names 'id', whose partitions have no time"),
        ({"partition_time": "id=%Y"}, "reads id, but no partition spec of the table has this untransformed"),
        ({"partition_time": "nope=%Y"}, "not partitioned by 'nope'"),
    ],
)
def test_a_field_that_the_table_is_not_partitioned_by_is_an_error(settings: dict[str, str], message: str) -> None:
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
def test_text_is_parsed_as_a_whole_or_not_at_all(pattern: str, value: str, end: int | None) -> None:
    _, expressions = parse_partition_time(f"dt={pattern}")
    assert end_by_pattern(expressions, [value]) == end


def test_a_pattern_may_read_several_fields() -> None:
    metadata = partitioned(
        spec(0, ("year", "identity")), spec(1, ("dt", "identity"), ("month", "identity"), ("year", "identity"))
    )
    found = times(metadata, partition_time="year=%Y,month=%m")
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
        ("dt=x", "%Y is missing"),
        ("dt=%d", "%m is missing beside %d"),
        ("dt=%m-%d", "%Y is missing"),
        ("dt=%Y-%H", "%d is missing beside %H"),
        ("dt=%Y %Y", "%Y appears twice"),
        ("dt=%B %Y", "%B is not one of %Y, %m"),
        ("%Y-%m-%d", "write FIELD=PATTERN"),
        ("year=%Y,month", "write FIELD=PATTERN"),
        ("year=", "write FIELD=PATTERN"),
    ],
)
def test_a_pattern_without_a_time_is_bad_usage(text: str, complaint: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(f"partition_time cannot be '{text}' (from") + ".*") as found:
        policy(partition_time=text)
    assert complaint in str(found.value)


@given(st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9998, 12, 31)), st.sampled_from("dHMS"))
def test_ends_agree_with_the_calendar(moment: dt.datetime, finest: str) -> None:
    pattern = {"d": "%Y-%m-%d", "H": "%Y%m%d%H", "M": "%Y-%j %H.%M", "S": "%Y-%m-%d %H:%M:%S"}[finest]
    kept = {"d": 3, "H": 4, "M": 5, "S": 6}[finest]
    length = {"d": "days", "H": "hours", "M": "minutes", "S": "seconds"}[finest]
    start = dt.datetime(*moment.timetuple()[:kept])  # type: ignore[arg-type]
    text = f"{moment.year:04}" + start.strftime(pattern.removeprefix("%Y"))
    end = start + dt.timedelta(**{length: 1})
    since = end - dt.datetime(1970, 1, 1)
    _, expressions = parse_partition_time(f"dt={pattern}")
    assert end_by_pattern(expressions, [text]) == since // dt.timedelta(milliseconds=1)


# ``min_partition_age_hours``: a partition is left alone for this time after its end, to the millisecond.

ONE_DAY, END_MS = 20_454, ms(2026, 1, 2)
BY_DAY = partitioned(spec(1), spec(0, ("id", "bucket[4]"), ("ts", "day")))


def of_day(day: int | None, name: str = "f", **more: Any) -> DataFile:
    return data_file(name, MB, (3, day), **more)


@pytest.mark.parametrize("hours", ["0", "1", "36.5"])
def test_a_partition_is_rewritten_once_its_end_has_the_minimum_age(hours: str) -> None:
    settings, edge_ms = policy(min_partition_age_hours=hours), END_MS + int(float(hours) * HOUR_MS)
    assert file_scope(settings, BY_DAY, edge_ms)(of_day(ONE_DAY), 0)
    assert not file_scope(settings, BY_DAY, edge_ms - 1)(of_day(ONE_DAY), 0)


def test_without_the_key_or_a_time_every_partition_is_rewritten() -> None:
    """A null, an earlier spec without the field, and a table without time fields have no time."""
    assert file_scope(policy(), BY_DAY, HEAD_MS)(of_day(40_000), 0)
    settings = policy(min_partition_age_hours="100000")
    in_scope = file_scope(settings, BY_DAY, HEAD_MS)
    assert in_scope(of_day(None), 0)
    assert in_scope(data_file("f", 1), 1)
    text = partitioned(spec(0, ("dt", "identity")))
    assert file_scope(settings, text, HEAD_MS)(data_file("f", 1, ("2100-01-01",)), 0)


def test_the_named_field_and_the_pattern_also_apply_to_files() -> None:
    text = policy(min_partition_age_hours="24", partition_time="dt=%Y-%m-%d")
    in_scope = file_scope(text, partitioned(spec(0, ("dt", "identity"))), ms(2026, 3, 12))
    found = {text: in_scope(data_file("f", 1, (text,)), 0) for text in ("2026-03-10", "2026-03-11", "unknown")}
    assert found == {"2026-03-10": True, "2026-03-11": False, "unknown": True}
    with pytest.raises(PolicyError, match="the table is not partitioned by 'nothing'"):
        file_scope(policy(min_partition_age_hours="1", partition_time="nothing"), BY_DAY, 0)


def test_a_plan_leaves_out_young_partitions_and_files_outside_the_filter() -> None:
    settings = policy(min_partition_age_hours="24", min_input_files=2, where="id > 5")
    counts: dict[str, Any] = {"value_counts": {1: 10}, "null_value_counts": {1: 0}}
    few: dict[str, Any] = {"lower_bounds": {1: struct.pack("<q", 1)}, "upper_bounds": {1: struct.pack("<q", 5)}}
    files = [
        live_file(of_day(day, f"{day}-{name}", **counts, **bounds))
        for day in (ONE_DAY, ONE_DAY + 1)
        for name, bounds in (("a", {}), ("b", {}), ("few", few))
    ]
    state = TableState(BY_DAY, BY_DAY.head("main"), live_files=files)
    now_ms = ms(2026, 1, 3)
    plan = plan_compaction(state, settings, now_ms=now_ms, in_scope=file_scope(settings, BY_DAY, now_ms))
    assert not isinstance(plan, Nothing)
    assert sorted(plan.input_files) == [f"{ONE_DAY}-a", f"{ONE_DAY}-b"]
