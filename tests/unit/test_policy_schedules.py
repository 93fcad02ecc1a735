"""Named schedules: where they may be set, what holds while one runs, and one clear sentence for every mistake."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from icekeeper.errors import PolicyError
from icekeeper.policy import Operation, ResolvedPolicy, Strategy, layers_for, resolve
from icekeeper.policy.layers import SCHEDULE_KEYS
from icekeeper.policy.policy_file import parse_policy_file
from support.settings import NONE

HOUR_MS = 3_600_000
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
    resolved = resolve(layers_for({}, {}, {}, rules=file.layers("s3://b", "sales", "t")))
    assert resolved.schedules["weekly"].interval_ms == 7 * 24 * HOUR_MS
    assert shown(resolved)["schedules.weekly.interval"] == ("7d", "policy file f.yaml rule 1 (*/sales/*)")
    assert file.layers("s3://b", "other", "t") == []
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
        ("schedules.nightly.where", "ts < now() - 1 day", "after now() stands no interval"),
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
