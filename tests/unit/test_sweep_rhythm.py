"""When a table is swept for orphans again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icekeeper.detection.priority import Signal
from icekeeper.detection.signals import sweep_signals
from icekeeper.maintenance.pass_steps import remember_sweep
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import Operation, Policy
from icekeeper.policy.sweep_rhythm import (
    NOT_POSSIBLE,
    SweepMemory,
    first_sweep_ms,
    known_age_ms,
    next_proposal_ms,
    sweep_due_ms,
    why_no_sweep,
)
from icekeeper.report.outcome import OperationOutcome, failed, refused, skipped, succeeded
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.sweeps import SweepKind, SweepRecord
from support.scans import IDLE, PreparedCatalog, names, scanned, with_uuid
from support.settings import NOW_MS, policy, table
from support.state_stores import IDENTITY, sweep

# When a table is swept for orphans again, by the records of its last sweeps, and the reasons in words.

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
KEY = "5a3d83f2-2f5a-4b0e-8f5b-000000000000"
SWEPT, TRIED, FIRST = SweepKind.SWEPT, SweepKind.TRIED, SweepKind.FIRST


def remembered(**hours_ago: float) -> SweepMemory:
    at_ms = {name: NOW_MS - int(hours * HOUR_MS) for name, hours in hours_ago.items()}
    return SweepMemory(at_ms.get("swept_ms"), at_ms.get("first_ms"), at_ms.get("tried_ms"))


def test_the_memory_consists_of_the_records_of_sweeps() -> None:
    assert SweepMemory.of({}) == SweepMemory()
    assert SweepMemory.of({}).is_empty
    records = [replace(sweep(SWEPT, 1), finished_ms=5), sweep(FIRST, 2), sweep(TRIED, 3)]
    assert SweepMemory.of({entry.kind: entry for entry in records}) == SweepMemory(swept_ms=1, first_ms=2, tried_ms=3)
    assert SweepMemory.of({TRIED: sweep(TRIED, 4, is_impossible=True)}) == SweepMemory(tried_ms=4, is_impossible=True)
    assert not SweepMemory.of({TRIED: sweep(TRIED, 4)}).is_empty


@pytest.mark.parametrize(
    ("hours_ago", "is_due"),
    [
        ({}, True),
        ({"swept_ms": 21.5}, False),
        ({"swept_ms": 23.6}, True),  # a daily run may start a few minutes early
        ({"swept_ms": 24}, True),
        ({"swept_ms": 999}, True),
        ({"swept_ms": 1, "first_ms": 30}, False),
        ({"first_ms": -1}, False),
        ({"first_ms": -23.9}, False),
        ({"first_ms": 0}, True),
        # Times in the future, from a clock that was ahead.
        ({"swept_ms": -1}, True),
        ({"first_ms": -24.1}, True),
    ],
)
def test_a_sweep_is_due_an_interval_after_the_last(hours_ago: dict[str, float], is_due: bool) -> None:
    memory = remembered(**hours_ago)
    for number in range(20):
        assert (sweep_due_ms(memory, DAY_MS, f"key {number}", NOW_MS) <= NOW_MS) is is_due


def test_a_table_whose_sweep_failed_remains_due_and_is_proposed_again_later() -> None:
    memory = remembered(swept_ms=30, tried_ms=1)
    assert sweep_due_ms(memory, DAY_MS, KEY, NOW_MS) < NOW_MS
    assert next_proposal_ms(memory, DAY_MS, KEY, NOW_MS) == NOW_MS + 5 * HOUR_MS
    impossible = replace(memory, is_impossible=True)
    assert next_proposal_ms(impossible, DAY_MS, KEY, NOW_MS) == NOW_MS + 7 * DAY_MS - HOUR_MS
    never = remembered(tried_ms=1)
    assert next_proposal_ms(never, DAY_MS, KEY, NOW_MS) == NOW_MS + 5 * HOUR_MS
    # A failed sweep before the last sweep, or with a time in the future, does not count.
    for tried in (31, -1):
        memory = remembered(swept_ms=30, tried_ms=tried)
        assert next_proposal_ms(memory, DAY_MS, KEY, NOW_MS) == sweep_due_ms(memory, DAY_MS, KEY, NOW_MS)


@pytest.mark.parametrize(
    ("tables", "age_hours", "hours"),
    [
        (1, 72, (0, 0)),
        (24, 1000, (0, 0)),
        (25, 1000, (0, 1)),
        (48, 1000, (0, 1)),
        (49, 1000, (0, 2)),
        (100_000, 1000, (0, 24)),
        # Its oldest file is within the grace period.
        (1, 71, (12, 24)),
        (100_000, 0, (12, 24)),
    ],
)
def test_the_first_sweep_of_a_table_comes_within_an_interval(
    tables: int, age_hours: int, hours: tuple[int, int]
) -> None:
    settings = policy().policy
    found = [first_sweep_ms(f"key {n}", NOW_MS, settings, tables=tables, age_ms=age_hours * HOUR_MS) for n in range(50)]
    low, high = (NOW_MS + hour * HOUR_MS for hour in hours)
    assert all(low <= at_ms <= high for at_ms in found)
    assert len(set(found)) == (1 if hours == (0, 0) else 50)


def test_a_table_is_young_for_at_least_an_interval() -> None:
    settings = policy(orphan_older_than_hours="24", orphan_sweep_interval_hours="48").policy
    assert first_sweep_ms("k", NOW_MS, settings, tables=1, age_ms=2 * DAY_MS - 1) > NOW_MS
    assert first_sweep_ms("k", NOW_MS, settings, tables=1, age_ms=2 * DAY_MS) == NOW_MS


def why_not(sweeps: list[SweepRecord], **settings: str) -> str | None:
    return why_no_sweep(policy(**settings).policy, {entry.kind: entry for entry in sweeps}, KEY, NOW_MS)


def test_a_pass_states_why_it_leaves_out_the_sweep() -> None:
    swept = [sweep(SWEPT, NOW_MS - 3 * HOUR_MS)]
    assert why_not([]) is None
    assert why_not(swept) == "the last sweep was 3 hours ago; orphan_sweep_interval_hours is 24"
    assert why_not(swept, orphan_sweep_interval_hours="3") is None
    assert why_not(swept, orphan_sweep_interval_hours="0") is None
    assert why_not([sweep(SWEPT, NOW_MS - 90_000)], orphan_sweep_interval_hours="0.5") == (
        "the last sweep was 1 minute ago; orphan_sweep_interval_hours is 0.5"
    )
    # After a later failed sweep the table is as due as before.
    assert why_not([*swept, sweep(TRIED, NOW_MS - HOUR_MS)]) == why_not(swept)
    assert why_not([sweep(TRIED, NOW_MS - HOUR_MS)]) is None
    assert why_not([sweep(FIRST, NOW_MS + 7 * HOUR_MS)]) == (
        "the first sweep is due in 7 hours; first sweeps are spread over orphan_sweep_interval_hours 24"
    )


def test_the_history_shows_the_minimum_age_of_a_table() -> None:
    def aged(**more: Any) -> int:
        return known_age_ms(TableMetadata({**table(snapshots=0).document, **more}), NOW_MS) // HOUR_MS

    hours_ago = [{"timestamp-ms": NOW_MS - hours * HOUR_MS} for hours in range(9)]
    assert aged() == 0
    assert aged(**{"last-updated-ms": NOW_MS - 2 * HOUR_MS}) == 2
    assert aged(**{"last-updated-ms": NOW_MS, "metadata-log": hours_ago[:5]}) == 4
    assert aged(**{"last-updated-ms": NOW_MS, "snapshot-log": hours_ago[:7]}) == 6
    assert aged(**{"last-updated-ms": NOW_MS + HOUR_MS}) == 0
    # Missing log entries do not count.
    assert aged(**{"snapshot-log": None, "metadata-log": [{"metadata-file": "m"}, {"timestamp-ms": None}]}) == 0
    assert known_age_ms(table(snapshots=3, age_hours=5), NOW_MS) == 7 * HOUR_MS


# When the next sweep is due after each outcome of a sweep.

SWEEP = Operation.REMOVE_ORPHANS
NOTHING = SweepMemory()
WHOLE = SweepMemory(swept_ms=5)
TRIED_ONLY = SweepMemory(tried_ms=9)


@pytest.mark.parametrize(
    ("outcome", "memory"),
    [
        (succeeded(SWEEP, "removed 0 orphan file(s)"), WHOLE),
        (succeeded(SWEEP, "removed 2 orphan file(s)", metrics={"remove_orphans.files_failed": 0}), WHOLE),
        (succeeded(SWEEP, "removed 1 orphan file(s)", metrics={"remove_orphans.files_failed": 1}), TRIED_ONLY),
        (failed(SWEEP, "StorageError: the store broke"), TRIED_ONLY),
        (refused(SWEEP, "too many"), TRIED_ONLY),
        (
            skipped(SWEEP, "objects cannot be listed", metrics={NOT_POSSIBLE: 1}),
            SweepMemory(tried_ms=9, is_impossible=True),
        ),
        # These sweeps never began.
        (skipped(SWEEP, "orphan_sweep_enabled is false (this call)"), NOTHING),
        (skipped(SWEEP, "the process is about to end"), NOTHING),
        (succeeded(Operation.COMPACT, "compacted"), NOTHING),
    ],
)
def test_only_a_complete_sweep_postpones_the_next_sweep(
    tmp_path: Path, outcome: OperationOutcome, memory: SweepMemory
) -> None:
    state = SqliteStateStore(tmp_path / "state.db")
    for finished_ms in (8, 9):  # a repeated report
        remember_sweep(state, IDENTITY, outcome, 5, finished_ms)
    assert SweepMemory.of(state.sweeps.of_table(IDENTITY)) == memory


# Which tables a scan proposes only for an orphan sweep, and what it records of waiting tables.

NEVER = "the table was never swept for orphans"


@pytest.fixture
def state(tmp_path: Path) -> SqliteStateStore:
    return SqliteStateStore(tmp_path / "state.db")


def old(uuid: str = "", **properties: Any) -> TableMetadata:
    return with_uuid(table(age_hours=100, **properties), uuid)


def proposals(state: SqliteStateStore, metadata: TableMetadata, **environment: str) -> dict[str, tuple[str, ...]]:
    report = scanned(state, PreparedCatalog({"ns.t": metadata}), environment=environment)
    return {item.table: item.reasons for item in report.proposals}


def test_a_due_sweep_is_the_weakest_reason() -> None:
    def found(**hours_ago: float) -> list[Signal]:
        at_ms = {name: NOW_MS - int(hours * HOUR_MS) for name, hours in hours_ago.items()}
        memory = SweepMemory(at_ms.get("swept_ms"), at_ms.get("first_ms"), at_ms.get("tried_ms"))
        return list(sweep_signals(memory, Policy(), "key", NOW_MS))

    assert found() == found(first_ms=0) == found(swept_ms=-1) == [Signal(NEVER, 0.1)]
    sentence = "the last sweep for orphans was {} ago; orphan_sweep_interval_hours is 24"
    assert found(swept_ms=26) == [Signal(sentence.format("26 hours"), 0.1)]
    assert found(swept_ms=240) == [Signal(sentence.format("10 days"), 0.1)]
    assert found(swept_ms=21) == found(first_ms=-1) == found(swept_ms=30, tried_ms=5) == []
    assert found(swept_ms=30, tried_ms=6) == [Signal(sentence.format("30 hours"), 0.1)]


@pytest.mark.parametrize(
    ("metadata", "environment", "expected"),
    [
        (old(), {}, {"ns.t": (NEVER,)}),
        (table(snapshots=0), {}, {}),  # its age is unknown
        (TableMetadata({**table(snapshots=0).document, "last-updated-ms": NOW_MS - 99 * DAY_MS}), {}, {}),  # no history
        (table(age_hours=50), {}, {}),
        (old(gc_enabled="false"), {}, {}),
        (old(), {"ICEKEEPER_ORPHAN_SWEEP_ENABLED": "false"}, {}),
        (old(), {"ICEKEEPER_MAINTENANCE_ENABLED": "false"}, {}),
        (old(), {"ICEKEEPER_OPERATIONS": "compact"}, {}),
        (old(), {"ICEKEEPER_ORPHAN_SWEEP_INTERVAL_HOURS": "0"}, {}),
    ],
)
def test_only_tables_that_passes_sweep_are_proposed(
    state: SqliteStateStore, metadata: TableMetadata, environment: dict[str, str], expected: dict[str, tuple[str, ...]]
) -> None:
    assert proposals(state, metadata, **environment) == expected


def test_the_first_sweeps_of_a_large_fleet_are_spread_and_decided_once(
    state: SqliteStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[SweepRecord] = []
    record = state.sweeps.record

    def recording(identity: Any, run: SweepRecord) -> None:
        recorded.append(run)
        record(identity, run)

    monkeypatch.setattr(state.sweeps, "record", recording)
    fleet = PreparedCatalog({f"ns.t{n:02}": old(f"00000000-0000-0000-0000-0000000000{n:02}") for n in range(72)})
    report = scanned(state, fleet)
    assert {skip.reason for skip in report.skipped} == {IDLE}
    assert len(names(report)) + len(recorded) == 72
    assert len(recorded) >= 70
    # They take two hours at 24 an hour, and the next scan does not decide again.
    assert {NOW_MS < run.counted_ms < NOW_MS + 2 * HOUR_MS for run in recorded} == {True}
    count = len(recorded)
    assert names(scanned(state, fleet)) == names(report)
    assert len(recorded) == count
    small = PreparedCatalog({f"ns.s{n:02}": old(f"10000000-0000-0000-0000-0000000000{n:02}") for n in range(24)})
    assert len(names(scanned(state, small))) == 24
    assert len(recorded) == count


def test_a_due_sweep_does_not_start_the_waiting_time_of_a_table(state: SqliteStateStore) -> None:
    young = table({"total-data-files": "9", "total-files-size": "900"}, age_hours=5)
    for _ in range(2):
        (item,) = scanned(state, PreparedCatalog({"ns.t": young})).proposals
        assert item.waited_ms == 5 * HOUR_MS
