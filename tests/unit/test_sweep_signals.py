"""Which tables a scan proposes for nothing but a sweep for orphans, and what it records of those that wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icekeeper.detection.proposal import Proposal
from icekeeper.detection.signals import Signal, sweep_signals
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import Policy
from icekeeper.policy.due import FIRST_SWEEP, SWEPT, TRIED, SweepMemory
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import ScheduleRun
from support.scans import IDLE, PreparedCatalog, names, scanned, with_uuid
from support.settings import NOW_MS, refusal, table

HOUR_MS = 3_600_000
NEVER = "orphans were never looked for"


@pytest.fixture
def state(tmp_path: Path) -> SqliteStateStore:
    return SqliteStateStore(tmp_path / "state.db")


def old(uuid: str = "", **properties: Any) -> TableMetadata:
    return with_uuid(table(age_hours=100, **properties), uuid)


def proposals(state: SqliteStateStore, metadata: TableMetadata, **environment: str) -> dict[str, tuple[str, ...]]:
    report = scanned(state, PreparedCatalog({"ns.t": metadata}), environment=environment)
    return {item.proposal.table: item.proposal.reasons for item in report.proposals}


def test_a_sweep_that_is_due_is_the_least_of_reasons() -> None:
    def found(**hours_ago: float) -> list[Signal]:
        at_ms = {name: NOW_MS - int(hours * HOUR_MS) for name, hours in hours_ago.items()}
        memory = SweepMemory(at_ms.get("swept_ms"), at_ms.get("first_ms"), at_ms.get("tried_ms"))
        return list(sweep_signals(memory, Policy(), "key", NOW_MS))

    assert found() == found(first_ms=0) == found(swept_ms=-1) == [Signal(NEVER, 0.1)]
    told = "orphans were last looked for {} ago; orphan_sweep_interval_hours is 24"
    assert found(swept_ms=26) == [Signal(told.format("26 hours"), 0.1)]
    assert found(swept_ms=240) == [Signal(told.format("10 days"), 0.1)]
    assert found(swept_ms=21) == found(first_ms=-1) == found(swept_ms=30, tried_ms=5) == []
    assert found(swept_ms=30, tried_ms=6) == [Signal(told.format("30 hours"), 0.1)]


@pytest.mark.parametrize(
    ("metadata", "environment", "expected"),
    [
        (old(), {}, {"ns.t": (NEVER,)}),
        (table(snapshots=0), {}, {}),  # nothing is known of its age
        (table(age_hours=50), {}, {}),
        (old(gc_enabled="false"), {}, {}),
        (old(), {"ICEKEEPER_ORPHAN_SWEEP_ENABLED": "false"}, {}),
        (old(), {"ICEKEEPER_MAINTENANCE_ENABLED": "false"}, {}),
        (old(), {"ICEKEEPER_OPERATIONS": "compact"}, {}),
        (old(), {"ICEKEEPER_ORPHAN_SWEEP_INTERVAL_HOURS": "0"}, {}),
    ],
)
def test_only_what_passes_sweep_is_proposed(
    state: SqliteStateStore, metadata: TableMetadata, environment: dict[str, str], expected: dict[str, tuple[str, ...]]
) -> None:
    assert proposals(state, metadata, **environment) == expected


def test_a_schedule_that_sweeps_decides_when(state: SqliteStateStore) -> None:
    nightly = {"ICEKEEPER_SCHEDULES__NIGHTLY__INTERVAL": "24h"}
    named = {**nightly, "ICEKEEPER_SCHEDULES__NIGHTLY__OPERATIONS": "remove_orphans"}
    assert proposals(state, old(), **named) == {"ns.t": ("schedule nightly has not run yet",)}


def test_the_first_sweeps_of_a_large_fleet_are_spread_and_decided_once(
    state: SqliteStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[ScheduleRun] = []
    record = state.schedules.record

    def recording(identity: Any, run: ScheduleRun) -> None:
        recorded.append(run)
        record(identity, run)

    monkeypatch.setattr(state.schedules, "record", recording)
    fleet = PreparedCatalog({f"ns.t{n:02}": old(f"00000000-0000-0000-0000-0000000000{n:02}") for n in range(72)})
    report = scanned(state, fleet)
    assert {skip.reason for skip in report.skipped} == {IDLE}
    assert len(names(report)) + len(recorded) == 72
    assert len(recorded) >= 70
    # Within two hours, as 24 an hour take; and it is not decided anew by the next scan.
    assert {NOW_MS < run.counted_ms < NOW_MS + 2 * HOUR_MS for run in recorded} == {True}
    count = len(recorded)
    assert names(scanned(state, fleet)) == names(report)
    assert len(recorded) == count
    small = PreparedCatalog({f"ns.s{n:02}": old(f"10000000-0000-0000-0000-0000000000{n:02}") for n in range(24)})
    assert len(names(scanned(state, small))) == 24
    assert len(recorded) == count


def test_how_long_a_table_waits_for_a_pass_does_not_count_from_a_sweep_that_is_only_due(
    state: SqliteStateStore,
) -> None:
    young = table({"total-data-files": "9", "total-files-size": "900"}, age_hours=5)
    for _ in range(2):
        (item,) = scanned(state, PreparedCatalog({"ns.t": young})).proposals
        assert isinstance(item.proposal, Proposal)
        assert item.proposal.waited_ms == 5 * HOUR_MS


@pytest.mark.parametrize("name", [SWEPT, TRIED, FIRST_SWEEP])
def test_no_schedule_has_the_name_of_a_sweep(name: str) -> None:
    assert "is no name for a schedule" in refusal({f"icekeeper.schedules.{name}.interval": "1h"})
