"""Schedules: where they are set, when they are due, and when one is proposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from icekeeper.detection.assess import with_schedules
from icekeeper.detection.look_again import is_known_idle
from icekeeper.detection.proposal import Proposal, Skip
from icekeeper.detection.signals import Signal, schedule_signals
from icekeeper.errors import PolicyError
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import Operation, ResolvedPolicy, Strategy, layers_for, resolve
from icekeeper.policy.due import (
    PolicyPart,
    due_parts,
    forced_part,
    in_one_pass,
    named_parts,
    next_count_ms,
    why_not_now,
)
from icekeeper.policy.layers import SCHEDULE_KEYS, matching_layers, parse_policy_file
from icekeeper.state.store import ScheduleRun
from support.settings import NONE, NOW_MS, policy, table

# Which schedules are due when, in which order, and which of them fit into one pass.

HOUR_MS = 3_600_000
T0 = 1_767_225_600_000  # 2026-01-01


def scheduled(sets: Mapping[str, str] = NONE, **schedules: str) -> ResolvedPolicy:
    """``name="24h compact,rewrite_manifests"``: schedules with their intervals and operations."""
    table: dict[str, str] = {}
    for name, text in schedules.items():
        interval, _, operations = text.partition(" ")
        table[f"icekeeper.schedules.{name}.interval"] = interval
        if operations:
            table[f"icekeeper.schedules.{name}.operations"] = operations
    return resolve(layers_for(table, {"ICEKEEPER_TABLE_SETTINGS": "all"}, sets))  # sweeps every hour, too


def ran(**counted_ms: int) -> dict[str, ScheduleRun]:
    return {
        name: ScheduleRun(schedule=name, counted_ms=at, finished_ms=at + 5, snapshot_id=1, fingerprint="f", idle=False)
        for name, at in counted_ms.items()
    }


def names(parts: tuple[PolicyPart, ...]) -> list[str | None]:
    return [part.schedule for part in parts]


def test_a_policy_without_schedules_is_one_turn() -> None:
    resolved = scheduled()
    (part,) = due_parts(resolved, {}, T0)
    assert part.schedule is None
    assert part.resolved is resolved
    assert named_parts(resolved, ["nightly"], with_rest=False) == (part,)
    assert why_not_now(resolved, [part], {}, T0) == {}


def test_a_schedule_is_due_at_its_interval_to_the_millisecond() -> None:
    resolved = scheduled(nightly="24h compact,rewrite_manifests")
    assert names(due_parts(resolved, {}, T0)) == ["nightly", None]
    runs = ran(nightly=T0)
    assert names(due_parts(resolved, runs, T0 + 24 * HOUR_MS - 1)) == [None]
    assert names(due_parts(resolved, runs, T0 + 24 * HOUR_MS)) == ["nightly", None]
    # Recorded by a clock that was ahead.
    assert names(due_parts(resolved, runs, T0 - 1)) == ["nightly", None]


def test_what_no_schedule_names_is_always_due() -> None:
    resolved = scheduled(nightly="24h compact", weekly="7d rewrite_manifests,remove_orphans")
    (rest,) = due_parts(resolved, ran(nightly=T0, weekly=T0), T0)
    assert (rest.schedule, rest.operations) == (None, (Operation.REWRITE_POSITION_DELETES, Operation.EXPIRE_SNAPSHOTS))
    assert names(due_parts(scheduled(all="1h"), ran(all=T0), T0)) == []


def test_a_schedule_whose_operations_do_not_count_is_never_due() -> None:
    """Of a table that names ``expire_partitions``, which only the operator may add."""
    table = {"icekeeper.schedules.drop.interval": "24h", "icekeeper.schedules.drop.operations": "expire_partitions"}
    resolved = resolve(layers_for(table, NONE, NONE))
    assert names(due_parts(resolved, {}, T0)) == [None]
    assert names(named_parts(resolved, ["drop"], with_rest=True)) == [None]
    with pytest.raises(PolicyError, match=r"schedule 'drop' of shop\.t has no operation that counts; icekeeper policy"):
        forced_part(resolved, "drop", "shop.t")
    assert why_not_now(resolved, due_parts(resolved, {}, T0), {}, T0) == {}
    nothing = resolve(layers_for({**table, "icekeeper.operations": "expire_partitions"}, NONE, NONE))
    assert due_parts(nothing, {}, T0) == ()


def test_turns_run_in_the_order_of_their_operations_then_of_their_need() -> None:
    resolved = scheduled(a="1h rewrite_manifests", b="1h compact", c="1h compact", d="1h remove_orphans")
    now_ms = T0 + 5 * HOUR_MS
    runs = ran(a=T0, b=T0 + HOUR_MS, c=T0, d=T0)
    assert names(due_parts(resolved, runs, now_ms)) == ["c", "b", None, "d", "a"]


def test_one_pass_takes_of_each_operation_the_schedule_that_waits_longest() -> None:
    resolved = scheduled(hourly="1h compact", nightly="24h compact,rewrite_manifests", sweep="24h remove_orphans")
    now_ms = T0 + 48 * HOUR_MS
    for hourly_ms, nightly_ms, expected in (
        (T0 + 46 * HOUR_MS, T0 + 20 * HOUR_MS, ["nightly", None, "sweep"]),
        (T0 + 40 * HOUR_MS, T0 + 20 * HOUR_MS, ["hourly", None, "sweep"]),
    ):
        runs = ran(hourly=hourly_ms, nightly=nightly_ms, sweep=T0)
        chosen = in_one_pass(due_parts(resolved, runs, now_ms))
        assert names(chosen) == expected
        taken = [operation for part in chosen for operation in part.operations]
        assert len(taken) == len(set(taken))


def test_a_call_that_names_operations_is_outside_of_all_schedules() -> None:
    resolved = scheduled({"operations": "compact"}, nightly="24h compact")
    for parts in (due_parts(resolved, {}, T0), named_parts(resolved, ["nightly"], with_rest=True)):
        (part,) = parts
        assert (part.schedule, part.operations) == (None, (Operation.COMPACT,))
        assert part.resolved.fingerprint() == resolved.fingerprint()


def test_a_schedule_can_be_forced_and_an_unknown_one_is_told() -> None:
    resolved = scheduled(nightly="24h compact", weekly="7d rewrite_manifests")
    part = forced_part(resolved, "nightly", "ns.t")
    assert (part.schedule, part.operations) == ("nightly", (Operation.COMPACT,))
    with pytest.raises(PolicyError) as caught:
        forced_part(resolved, "nightley", "ns.t")
    assert str(caught.value) == (
        "ns.t has no schedule 'nightley' (did you mean 'nightly'?): its schedules are nightly, weekly"
    )
    with pytest.raises(PolicyError, match=r"ns.t has no schedule 'x': it has none; set for example schedules\.nightly"):
        forced_part(scheduled(), "x", "ns.t")


def test_named_turns_leave_out_what_is_gone() -> None:
    resolved = scheduled(nightly="24h compact")
    assert names(named_parts(resolved, ["nightly", "gone"], with_rest=True)) == ["nightly", None]
    assert names(named_parts(resolved, ["gone"], with_rest=False)) == []


def test_the_reason_for_what_does_not_run_now() -> None:
    resolved = scheduled(nightly="24h compact,rewrite_manifests", weekly="7d rewrite_manifests", hourly="1h compact")
    runs = ran(nightly=T0, weekly=T0, hourly=T0 - HOUR_MS)
    parts = due_parts(resolved, runs, T0 + 1)
    assert why_not_now(resolved, parts, runs, T0 + 1) == {
        Operation.REWRITE_MANIFESTS: (
            "schedule nightly is due 2026-01-02T00:00:00Z; schedule weekly is due 2026-01-08T00:00:00Z"
        )
    }
    forced = (forced_part(resolved, "weekly", "ns.t"),)
    assert why_not_now(resolved, forced, runs, T0 + 1) == {
        Operation.COMPACT: "schedule hourly was not asked for; schedule nightly is due 2026-01-02T00:00:00Z"
    }


@pytest.mark.parametrize(
    ("late_ms", "expected_ms"),
    [
        (-5, HOUR_MS - 5),  # forced before it was due
        (0, HOUR_MS),
        (40_000, HOUR_MS),
        (HOUR_MS // 2, HOUR_MS),
        (HOUR_MS, HOUR_MS + HOUR_MS // 2),
    ],
)
def test_a_late_turn_is_counted_from_when_it_was_due(late_ms: int, expected_ms: int) -> None:
    (last,) = ran(hourly=T0).values()
    assert next_count_ms(HOUR_MS, last, T0 + HOUR_MS + late_ms) == T0 + expected_ms


def test_the_first_turn_is_counted_from_its_beginning() -> None:
    assert next_count_ms(HOUR_MS, None, T0) == T0


def test_an_hourly_run_keeps_an_hourly_schedule_although_it_comes_some_seconds_early_or_late() -> None:
    resolved, parts = scheduled(hourly="1h"), 0
    runs: dict[str, ScheduleRun] = {}
    for hour in range(100):
        now_ms = T0 + hour * HOUR_MS + (hour * 7919) % 30_000
        if names(due_parts(resolved, runs, now_ms)) == ["hourly"]:
            runs = ran(hourly=next_count_ms(HOUR_MS, runs.get("hourly"), now_ms + 20_000))
            parts += 1
    assert parts >= 98


# Named schedules: where they may be set, what holds while one runs, and one clear sentence for every mistake.

NIGHTLY = {
    "schedules.nightly.interval": "24h",
    "schedules.nightly.strategy": "zorder",
    "schedules.nightly.zorder_columns": "a,b",
    "schedules.nightly.operations": "compact",
}


def settings(
    table: Mapping[str, str] = NONE, environment: Mapping[str, str] = NONE, sets: Mapping[str, str] = NONE
) -> ResolvedPolicy:
    properties = {f"icekeeper.{key}": value for key, value in table.items()}
    return resolve(layers_for(properties, environment, sets))


def shown(resolved: ResolvedPolicy) -> dict[str, tuple[str, str]]:
    return {key: (value, source) for key, value, source, _ in resolved.rows() if key.startswith("schedules.")}


def test_a_policy_without_schedules_is_as_it_was() -> None:
    resolved = settings({"min_input_files": "3"})
    assert resolved.schedules == {}
    assert resolved.unscheduled() is resolved
    assert shown(resolved) == {}


def test_a_schedule_has_its_own_settings_and_else_those_of_the_table() -> None:
    resolved = settings({"min_input_files": "3", "target_file_size_mb": "64", **NIGHTLY})
    schedule = resolved.schedules["nightly"]
    own = resolved.of_schedule("nightly")
    assert (schedule.name, schedule.interval_ms) == ("nightly", 24 * HOUR_MS)
    assert own.policy.operations == (Operation.COMPACT,)
    assert (own.policy.strategy, own.policy.zorder_columns, own.policy.min_input_files) == (
        Strategy.ZORDER,
        ("a", "b"),
        3,
    )
    assert own.schedules == {}
    # The table's own policy does not change, but for what it leaves to its schedules.
    assert (resolved.policy.strategy, resolved.policy.zorder_columns) == (Strategy.AUTO, ())
    assert resolved.policy.operations == settings().policy.operations
    left = resolved.unscheduled().policy.operations
    assert left == tuple(one for one in resolved.policy.operations if one is not Operation.COMPACT)


def test_a_schedule_without_operations_leaves_nothing_to_the_rest() -> None:
    resolved = settings({"schedules.all_day.interval": "6h"})
    assert resolved.of_schedule("all_day").policy.operations == resolved.policy.operations
    assert resolved.unscheduled().policy.operations == ()


def test_schedules_are_shown_with_their_sources() -> None:
    environment = {"ICEKEEPER_SCHEDULES__HOURLY__INTERVAL": "90m", "ICEKEEPER_SCHEDULES__HOURLY__MIN_INPUT_FILES": "4"}
    resolved = settings(
        {"schedules.hourly.min_input_files": "6"}, environment, {"schedules.hourly.where": "ts < now()"}
    )
    assert shown(resolved) == {
        "schedules.hourly.interval": ("90m", "deployment ICEKEEPER_SCHEDULES__HOURLY__INTERVAL"),
        "schedules.hourly.min_input_files": ("6", "table property icekeeper.schedules.hourly.min_input_files"),
        "schedules.hourly.where": ("ts < now()", "--set"),
    }


def test_a_policy_file_gives_schedules_to_the_tables_that_fit() -> None:
    file = parse_policy_file(
        "rules:\n- namespace: sales\n  settings:\n    schedules.weekly.interval: 7d\n"
        "    schedules.weekly.operations: rewrite_manifests\n",
        "f.yaml",
    )
    resolved = resolve(layers_for({}, {}, {}, rules=matching_layers(file, "s3://b", "sales", "t")))
    assert resolved.schedules["weekly"].interval_ms == 7 * 24 * HOUR_MS
    assert shown(resolved)["schedules.weekly.interval"] == ("7d", "policy file f.yaml rule 1 (*/sales/*)")
    assert matching_layers(file, "s3://b", "other", "t") == []
    with pytest.raises(PolicyError, match=r"policy file f.yaml rule 1 .*: write a time like 30m"):
        parse_policy_file("rules:\n- settings:\n    schedules.weekly.interval: often\n", "f.yaml")


def test_this_call_wins_over_what_a_schedule_says() -> None:
    resolved = settings(NIGHTLY, NONE, {"strategy": "binpack", "schedules.nightly.min_input_files": "7"})
    own = resolved.of_schedule("nightly").policy
    assert (own.strategy, own.min_input_files) == (Strategy.BINPACK, 7)
    # A setting of the table does not: the schedule's is the more exact one.
    assert settings({**NIGHTLY, "strategy": "binpack"}).of_schedule("nightly").policy.strategy is Strategy.ZORDER


def test_none_takes_a_schedule_of_a_lower_layer_away() -> None:
    environment = {"ICEKEEPER_SCHEDULES__HOURLY__INTERVAL": "1h", "ICEKEEPER_SCHEDULES__HOURLY__OPERATIONS": "compact"}
    assert settings({}, environment).schedules.keys() == {"hourly"}
    without = settings({}, environment, {"schedules.hourly.interval": "none"})
    assert without.schedules == {}
    assert without.unscheduled().policy.operations == settings().policy.operations


def test_bounds_hold_for_schedules_too() -> None:
    bound = {"ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS": "48"}
    table = {"schedules.tight.interval": "1h", "schedules.tight.snapshot_retention_hours": "1"}
    resolved = settings(table, bound)
    assert resolved.of_schedule("tight").policy.snapshot_retention_hours == 48
    source = "bound ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS"
    assert shown(resolved)["schedules.tight.snapshot_retention_hours"] == ("48", source)
    bounded = "bound ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS keeps it at 48"
    assert resolved.why_ignored("schedules.tight.snapshot_retention_hours") == bounded
    assert resolved.why_ignored("schedules.tight.interval") is None
    assert resolved.why_ignored("snapshot_retention_hours") is None
    assert settings({"snapshot_retention_hours": "1"}, bound).why_ignored("snapshot_retention_hours") == bounded


def test_the_fingerprint_knows_schedules_and_that_of_the_rest_is_the_whole_one() -> None:
    plain, scheduled = settings(), settings(NIGHTLY)
    longer = settings({**NIGHTLY, "schedules.nightly.interval": "25h"})
    other = settings({**NIGHTLY, "schedules.nightly.min_input_files": "9"})
    assert len({one.fingerprint() for one in (plain, scheduled, longer, other)}) == 4
    assert scheduled.unscheduled().fingerprint() == scheduled.fingerprint()
    assert scheduled.of_schedule("nightly").fingerprint() == longer.of_schedule("nightly").fingerprint()


@pytest.mark.parametrize(("text", "hours"), [("30m", 0.5), (" 6H ", 6), ("7d", 168), ("7200s", 2), ("366d", 8784)])
def test_intervals(text: str, hours: float) -> None:
    assert settings({"schedules.a.interval": text}).schedules["a"].interval_ms == hours * HOUR_MS


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schedules.nightly", "24h", "is no setting of a schedule; write schedules.NAME.KEY, for example"),
        ("schedules.Night.interval", "24h", "'Night' (from SOURCE) is no name for a schedule"),
        ("schedules.by-night.interval", "24h", "'by-night' (from SOURCE) is no name for a schedule"),
        ("schedules.nightly.strateg", "sort", "unknown key 'strateg' (from SOURCE) (did you mean 'strategy'?)"),
        (
            "schedules.nightly.branch",
            "b",
            "cannot set branch (from SOURCE): it holds for the whole table",
        ),
        (
            "schedules.nightly.table_filter",
            "b",
            "cannot set table_filter (from SOURCE): it is a setting",
        ),
        ("schedules.nightly.strategy", "zord", "policy key schedules.nightly.strategy cannot be 'zord' (from SOURCE)"),
        (
            "schedules.nightly.interval",
            "0h",
            "interval cannot be '0h' (from SOURCE): write a time like",
        ),
        ("schedules.nightly.interval", "24", "write a time like 30m, 6h or 7d, at most 366d, or none"),
        ("schedules.nightly.interval", "367d", "write a time like 30m, 6h or 7d, at most 366d, or none"),
        ("schedules.nightly.where", "ts < now() - 1 day", "after now() an interval is missing"),
        (
            "schedules.new.where",
            "id = 1",
            "schedule new (from SOURCE) has no interval; set schedules.new.interval",
        ),
        (
            "schedules.nightly.zorder_columns",
            "none",
            "schedule nightly: strategy zorder (from table property",
        ),
    ],
)
def test_a_mistake_is_told_in_one_sentence(key: str, value: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        settings({**NIGHTLY, key: value})
    told = str(caught.value).replace(f"table property icekeeper.{key}", "SOURCE")
    assert message in told
    assert "\n" not in told


def test_a_variable_with_single_underscores_is_told() -> None:
    with pytest.raises(PolicyError, match="ICEKEEPER_SCHEDULES__NAME__KEY, with two underscores"):
        settings({}, {"ICEKEEPER_SCHEDULES_HOURLY_INTERVAL": "1h"})


def test_a_schedule_takes_what_a_table_takes_and_nothing_of_the_deployment() -> None:
    assert {"interval", "strategy", "where", "operations", "min_partition_age_hours"} < set(SCHEDULE_KEYS)
    assert {"max_jobs_per_detection", "maintenance_enabled", "ownership", "branch"}.isdisjoint(SCHEDULE_KEYS)


# When a schedule that is due is proposed, and when its last turn says that it would find nothing.


def scheduled_table(operations: str = "compact", **more: str) -> ResolvedPolicy:
    own = {"interval": "6h", "operations": operations, **more}
    return policy(**{f"schedules.s.{key}": value for key, value in own.items()})


def run(resolved: ResolvedPolicy, **more: Any) -> ScheduleRun:
    """A part at the head of :func:`table`, 12 hours ago, which found nothing."""
    last = ScheduleRun(
        schedule="s",
        counted_ms=NOW_MS - 12 * HOUR_MS,
        finished_ms=NOW_MS - 12 * HOUR_MS,
        snapshot_id=1,
        fingerprint=resolved.of_schedule("s").fingerprint(),
        idle=True,
    )
    return replace(last, **more)


def test_a_schedule_that_is_due_is_a_reason_that_grows() -> None:
    resolved = scheduled_table()
    assert list(schedule_signals(resolved, due_parts(resolved, {}, NOW_MS), {}, NOW_MS)) == [
        Signal("schedule s has not run yet", 1.0)
    ]
    runs = {"s": run(resolved)}
    assert list(schedule_signals(resolved, due_parts(resolved, runs, NOW_MS), runs, NOW_MS)) == [
        Signal("schedule s is due, every 6h", 2.0)
    ]
    runs = {"s": run(resolved, counted_ms=NOW_MS - 6 * HOUR_MS + 1)}
    assert list(schedule_signals(resolved, due_parts(resolved, runs, NOW_MS), runs, NOW_MS)) == []


@pytest.mark.parametrize(
    ("settings", "last", "is_idle"),
    [
        ({}, {}, True),
        ({"operations": "compact,rewrite_position_deletes,rewrite_manifests,compute_statistics"}, {}, True),
        ({}, {"idle": False}, False),
        ({}, {"snapshot_id": 2}, False),
        ({}, {"fingerprint": "other"}, False),
        # Time alone makes work for these.
        ({"operations": "compact,remove_orphans"}, {}, False),
        ({"operations": "expire_snapshots"}, {}, False),
        ({"operations": "expire_partitions"}, {}, False),
        ({"min_data_age_hours": "2"}, {}, True),
        ({"min_data_age_hours": "12"}, {"finished_ms": NOW_MS - 18 * HOUR_MS}, False),
        ({"where": "ts < now() - interval '20 hours'"}, {"finished_ms": NOW_MS - 18 * HOUR_MS}, True),
        ({"partition_rest_hours": "12"}, {"finished_ms": NOW_MS - 18 * HOUR_MS}, False),
        ({}, {"finished_ms": NOW_MS - 24 * HOUR_MS}, False),
    ],
)
def test_a_turn_that_would_find_nothing_again_is_known(
    settings: dict[str, str], last: dict[str, Any], is_idle: bool
) -> None:
    resolved = scheduled_table(**settings)
    specs = [{"spec-id": 0, "fields": []}]
    metadata = TableMetadata({**table(age_hours=20).document, "partition-specs": specs, "default-spec-id": 0})
    part = forced_part(resolved, "s", "ns.t")
    assert is_known_idle(metadata, part, run(resolved, **last), NOW_MS) is is_idle
    assert not is_known_idle(metadata, part, None, NOW_MS)
    assert not is_known_idle(table(snapshots=0), part, run(resolved, **last), NOW_MS)


def test_schedules_are_proposed_with_or_without_the_rest() -> None:
    due, skip = [Signal("schedule s is due, every 6h", 1.0)], Skip("ns.t", "no sign of work")
    rest = Proposal("ns.t", ("many files",), 0.5, "u")
    assert with_schedules("ns.t", skip, [], [], "u") is skip
    assert with_schedules("ns.t", rest, [], [], "u") is rest
    assert with_schedules("ns.t", skip, due, ["s"], "u") == Proposal(
        "ns.t", ("schedule s is due, every 6h",), 0.5, "u", schedules=("s",), only_schedules=True
    )
    assert with_schedules("ns.t", rest, due, ["s"], "u") == Proposal(
        "ns.t", ("many files", "schedule s is due, every 6h"), 0.75, "u", schedules=("s",)
    )
