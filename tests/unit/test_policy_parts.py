"""Which schedules are due when, in which order, and which of them fit into one pass."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from icekeeper.errors import PolicyError
from icekeeper.policy import Operation, ResolvedPolicy, layers_for, resolve
from icekeeper.policy.due import (
    PolicyPart,
    due_parts,
    forced_part,
    in_one_pass,
    named_parts,
    next_count_ms,
    why_not_now,
)
from icekeeper.state.store import ScheduleRun
from support.settings import NONE

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
