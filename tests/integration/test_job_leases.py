"""The lease of a job: progress prolongs it, and who slept beyond it may have been cleaned up after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.catalogs.catalog import identity_of
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import PlanStale
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.model import TableName
from icekeeper.pass_context.context import running_job
from icekeeper.report.outcome import Status
from icekeeper.state.table_memory import TableMemory
from support.maintained_table import EAGER, NAME, MaintainedTable, new_table
from support.running_jobs import (
    LATER_MS,
    LEASE_MS,
    Interrupting,
    deleted,
    handle_of,
    later,
    loads,
)
from support.scripted_catalog import ScriptedCatalog


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path)
    made.fill(4)
    return made


def test_a_job_that_slept_until_its_files_were_cleaned_cannot_go_on(table: MaintainedTable) -> None:
    """Whatever it says next would be recorded anew, and its commit would name files that are gone."""
    first, second = str(table.folder / "data/first.parquet"), str(table.folder / "data/second.parquet")
    now_ms = [system_clock()]
    memory = TableMemory(table.state, identity_of(table.catalog, table.loaded), lambda: now_ms[0])
    with running_job(memory, "slow:compact", table.loaded, 1, lease_ms=LEASE_MS) as job:
        job.will_write([first])
        table.plant("data/first.parquet")
        now_ms[0] += LATER_MS
        assert deleted(later(table)) == [first]
        job.keep_alive()
        with pytest.raises(PlanStale, match="stood still"):
            job.will_write([second])


def test_progress_prolongs_pin_and_record(table: MaintainedTable) -> None:
    """Each step takes an hour; three of them are longer than the lease was."""
    now = [system_clock()]
    table.append(50, part="q")
    table.append(51, part="q")
    table.append(60, part="r")
    table.append(61, part="r")
    seen: list[tuple[int, int]] = []

    class Slow(LocalEngine):
        def map(self, function: Any, tasks: Any, on_done: Any) -> Any:
            results = [function(task) for task in tasks]
            for done in range(1, 5):
                now[0] += HOUR_MS
                on_done(done)
                (pin,), (load,) = table.state.pins(_identity(table), now_ms=now[0]), loads(table)
                assert load.expires_ms is not None
                seen.append((pin.expires_ms - now[0], load.expires_ms - now[0]))
            return results

    outcome = table.runtime_with(clock=lambda: now[0]).maintain(
        NAME, {**EAGER, "operations": "compact"}, Slow(1), unsafe=True
    )
    assert outcome.status.value == "succeeded"
    assert seen == [(LEASE_MS, LEASE_MS)] * 4
    assert loads(table) == ()


def _identity(table: MaintainedTable) -> Any:
    return handle_of(table).memory(table.loaded).identity


def test_a_job_that_slept_while_its_files_were_cleaned_does_not_commit_them(table: MaintainedTable) -> None:
    """Stopped for days, taken for dead, cleaned up after, woken up: it must plan again."""
    now = [system_clock()]
    ids = table.ids()

    def sleep_for_days() -> None:
        now[0] += LATER_MS
        assert len(deleted(later(table))) == 1

    runtime = table.runtime_with(clock=lambda: now[0])
    engine = Interrupting(after=sleep_for_days)
    outcome = runtime.maintain(NAME, {**EAGER, "operations": "compact"}, engine, unsafe=True)
    assert outcome.operations[0].status is Status.FAILED
    assert (outcome.operations[0].reason or "").startswith("PlanStale: job ")
    assert table.readers_agree() == ids
    assert table.verify().ok


def test_a_job_that_slept_between_two_swaps_does_not_commit_what_was_cleaned_meanwhile(table: MaintainedTable) -> None:
    """The first swap is lost to another writer; whoever was stopped then must ask again before the second."""
    now = [system_clock()]
    ids = [*table.ids(), 77]

    class Stopped(ScriptedCatalog):
        def commit(self, base: Any, requirements: Any, updates: Any) -> Any:
            if not self.commits:
                table.append(77, part="elsewhere")
            return super().commit(base, requirements, updates)

        def load(self, name: TableName) -> Any:
            if self.commits == 1:
                self.commits += 1
                now[0] += LATER_MS
                assert len(deleted(later(table))) >= 1
            return super().load(name)

    runtime = table.runtime_with(catalog=Stopped(table.catalog), clock=lambda: now[0])
    outcome = runtime.maintain(NAME, {**EAGER, "operations": "compact"}, LocalEngine(1), unsafe=True)
    assert outcome.operations[0].status is Status.FAILED
    assert (outcome.operations[0].reason or "").startswith("PlanStale: job ")
    assert sorted(table.readers_agree()) == sorted(ids)
    assert table.verify().ok


def test_a_job_that_overslept_its_lease_but_was_not_cleaned_commits(table: MaintainedTable) -> None:
    now = [system_clock()]

    def sleep_a_little() -> None:
        now[0] += LEASE_MS + 1

    runtime = table.runtime_with(clock=lambda: now[0])
    engine = Interrupting(after=sleep_a_little)
    outcome = runtime.maintain(NAME, {**EAGER, "operations": "compact"}, engine, unsafe=True)
    assert outcome.operations[0].status is Status.SUCCEEDED
    assert (loads(table), table.verify().ok) == ((), True)
