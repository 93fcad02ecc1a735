"""When a schedule that is due is proposed, and when its last turn says that it would find nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from icekeeper.detection.assess import with_schedules
from icekeeper.detection.proposal import Proposal, Skip
from icekeeper.detection.signals import Signal, is_known_idle, schedule_signals
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import ResolvedPolicy
from icekeeper.policy.due import due_parts, forced_part
from icekeeper.state.store import ScheduleRun
from support.settings import NOW_MS, policy, table

HOUR_MS = 3_600_000


def scheduled(operations: str = "compact", **more: str) -> ResolvedPolicy:
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
    resolved = scheduled()
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
        ({"where": "ts < now() - interval '20 hours'"}, {"finished_ms": NOW_MS - 18 * HOUR_MS}, False),
    ],
)
def test_a_turn_that_would_find_nothing_again_is_known(
    settings: dict[str, str], last: dict[str, Any], is_idle: bool
) -> None:
    resolved = scheduled(**settings)
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
