"""What the outcome of a sweep says about when the next one is due (rule 128)."""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.maintenance.begin_and_end_pass import remember_sweep
from icekeeper.policy import Operation
from icekeeper.policy.due import SweepMemory
from icekeeper.report.outcome import OperationOutcome, failed, refused, skipped, succeeded
from icekeeper.state.sqlite.store import SqliteStateStore
from support.state_stores import IDENTITY

SWEEP = Operation.REMOVE_ORPHANS
NOTHING = SweepMemory()
WHOLE = SweepMemory(swept_ms=5)
IN_VAIN = SweepMemory(tried_ms=9)


@pytest.mark.parametrize(
    ("outcome", "memory"),
    [
        (succeeded(SWEEP, "removed 0 orphan file(s)"), WHOLE),
        (succeeded(SWEEP, "removed 2 orphan file(s)", metrics={"remove_orphans.files_failed": 0}), WHOLE),
        # Some wait for another sighting: that is what this sweep had to do.
        (succeeded(SWEEP, "removed 0 orphan file(s)", metrics={"remove_orphans.files_quarantined": 3}), WHOLE),
        (succeeded(SWEEP, "removed 1 orphan file(s)", metrics={"remove_orphans.files_failed": 1}), IN_VAIN),
        (failed(SWEEP, "StorageError: the store broke"), IN_VAIN),
        (refused(SWEEP, "too many"), IN_VAIN),
        (
            skipped(SWEEP, "objects cannot be listed", metrics={"remove_orphans.orphans_known": 0}),
            SweepMemory(tried_ms=9, is_impossible=True),
        ),
        # These never began.
        (skipped(SWEEP, "orphan_sweep_enabled is false (--set)"), NOTHING),
        (skipped(SWEEP, "the process is about to end"), NOTHING),
        (succeeded(Operation.COMPACT, "compacted"), NOTHING),
    ],
)
def test_only_a_whole_sweep_puts_the_next_one_off(
    tmp_path: Path, outcome: OperationOutcome, memory: SweepMemory
) -> None:
    state = SqliteStateStore(tmp_path / "state.db")
    for finished_ms in (8, 9):  # a report that is repeated
        remember_sweep(state, IDENTITY, outcome, 5, finished_ms)
    assert SweepMemory.of(state.schedules.of_table(IDENTITY)) == memory
