"""If this machine's clock is wrong, ages come from the store's clock, and no staged file is deleted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.administration.pins import declare_load, stage_load
from icekeeper.catalogs.configured import CatalogKind, ConfiguredCatalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.catalogs.sql import SqlCatalog as SqlPointers
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.machine.clock import system_clock
from icekeeper.model import TableName
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.staging import LoadState
from icekeeper.storage.storage import Storage, store_now_ms
from support.maintained_table import NAME, MaintainedTable, ahead, new_table, same_clock, store_at
from support.scripted_catalog import ScriptedCatalog, once

HOURS_4_DAYS = 96
GRACE: dict[str, Any] = {"orphan_older_than_hours": "72"}


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    return new_table(local_catalog, tmp_path, appends=2)


def test_a_staged_file_is_kept_when_our_clock_is_days_ahead(table: MaintainedTable) -> None:
    """If the difference exceeds the grace period, no file is judged, and the sentence names a remedy."""
    in_flight = table.plant("data/in-flight.parquet", days_old=0)
    table.plant("data/old.parquet")
    outcome = table.maintain("remove_orphans", clock=ahead(HOURS_4_DAYS), store_clock=store_now_ms, **GRACE)
    (part,) = outcome.operations
    assert (part.status, part.files_planned, in_flight in table.files()) == (Status.REFUSED, (), True)
    assert (part.reason or "").startswith("this machine's clock is 34")
    assert "s ahead of the clock of the table's store" in (part.reason or "")
    assert "correct this machine's clock" in (part.reason or "")
    assert "orphan_older_than_hours (72 h)" in (part.reason or "")
    assert abs(part.metrics["clock.skew_s"] - HOURS_4_DAYS * 3600) < 60


@pytest.mark.parametrize("hours", [-48, 48])
def test_ages_come_from_the_store_and_the_difference_is_reported(table: MaintainedTable, hours: float) -> None:
    in_flight, old = table.plant("data/in-flight.parquet", days_old=2), table.plant("data/old.parquet", days_old=4)
    for dry_run in (True, False):
        outcome = table.maintain(
            "remove_orphans",
            clock=ahead(hours),
            store_clock=store_now_ms,
            dry_run=dry_run,
            run_id=f"{dry_run}",
            **GRACE,
        )
        (part,) = outcome.operations
        assert part.files_planned == (f"file://{old}",)
        assert abs(part.metrics["clock.skew_s"] - hours * 3600) < 60
        (warning,) = outcome.warnings
        assert ("ahead of" if hours > 0 else "behind") in warning
    assert (in_flight in table.files(), old in table.files()) == (True, False)


def test_a_correct_clock_is_not_reported_and_leaves_no_trace(table: MaintainedTable) -> None:
    before = {path: os.stat(path).st_mtime_ns for path in (table.folder, table.folder / "metadata")}
    outcome = table.maintain("remove_orphans", **GRACE)
    assert outcome.warnings == ()
    assert "clock.skew_s" not in outcome.metrics
    assert {path: os.stat(path).st_mtime_ns for path in before} == before


def test_snapshots_expire_by_the_clock_of_the_store(table: MaintainedTable) -> None:
    """By the store both are two days old and are kept; by our clock they would be older than three days."""
    settings: dict[str, Any] = {"snapshot_retention_hours": "72", "max_snapshots_to_keep": "1"}
    outcome = table.run(Operation.EXPIRE_SNAPSHOTS, clock=ahead(96), store_clock=store_at(ahead(48)), **settings)
    assert outcome.status is Status.SKIPPED
    assert len(table.metadata.snapshots) == 2
    refused = table.run(Operation.EXPIRE_SNAPSHOTS, clock=ahead(200), store_clock=store_at(ahead(96)), **settings)
    assert refused.status is Status.REFUSED
    assert "snapshot_retention_hours (72 h)" in (refused.reason or "")
    assert len(table.metadata.snapshots) == 2
    expired = table.run(Operation.EXPIRE_SNAPSHOTS, clock=ahead(40), store_clock=store_at(ahead(96)), **settings)
    assert expired.metrics["expire_snapshots.snapshots_expired"] == 1


def test_a_failed_load_waits_by_the_clock_of_the_store(table: MaintainedTable) -> None:
    staged = table.plant("data/staged.parquet", days_old=0)
    handle = table.handle
    stage_load(handle, "load", [f"file://{staged}"], ())
    declare_load(handle, "load", LoadState.FAILED)
    two_days: dict[str, Any] = {"orphan_older_than_hours": "47"}
    for hours in (46, 48):  # the first is reported, the second refused
        outcome = table.maintain("rewrite_position_deletes", clock=ahead(hours), store_clock=store_now_ms, **two_days)
        assert staged in table.files()
    assert outcome.staged is None
    due = table.maintain(
        "rewrite_position_deletes", clock=ahead(150), store_clock=store_at(ahead(49)), **two_days
    ).staged
    assert due is not None
    assert "no age can be trusted" in (due.problem or "")
    assert staged in table.files()
    gone = table.maintain("rewrite_position_deletes", clock=ahead(49), store_clock=same_clock, **two_days).staged
    assert gone is not None
    assert gone.files_deleted == (f"file://{staged}",)


def test_a_load_is_declared_by_the_clock_of_the_store(table: MaintainedTable) -> None:
    """Otherwise the load of a writer whose clock is days behind would be cleaned at once."""
    handle = TableHandle(table.catalog, NAME, table.state, ahead(-HOURS_4_DAYS))
    staged = table.plant("data/staged.parquet", days_old=0)
    load = stage_load(handle, "load", [f"file://{staged}"], ())
    assert abs(load.changed_ms - system_clock()) < 60_000


def test_our_commits_have_the_time_of_the_store(
    table: MaintainedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise writers with a correct clock would be refused for four days."""
    properties = {"uri": f"sqlite:///{tmp_path / 'catalog.db'}", "warehouse": (tmp_path / "warehouse").as_uri()}
    monkeypatch.setattr("icekeeper.catalogs.pointer.system_clock", ahead(HOURS_4_DAYS))
    catalog = SqlPointers(ConfiguredCatalog("local", CatalogKind.SQL, properties))
    clocks: dict[str, Any] = {"clock": ahead(HOURS_4_DAYS), "store_clock": store_now_ms}
    table.run(Operation.COMPACT, catalog=catalog, **clocks)
    catalog.close()
    head = table.metadata.current_snapshot
    assert head is not None
    assert head.summary["operation"] == "replace"
    assert abs(head.timestamp_ms - system_clock()) < 60_000
    assert abs(table.metadata.last_updated_ms - system_clock()) < 60_000


def test_a_bucket_is_swept_by_the_clock_of_the_store(table_bucket: dict[str, str], tmp_path: Path) -> None:
    """S3 sends the time with each response, so passes over a table or a bucket need no request for it."""
    rows = pa.table({"id": pa.array(range(5), pa.int64())})
    writer = load_catalog("writer", **table_bucket)
    writer.create_namespace("ns")
    writer.create_table("ns.a", rows.schema).append(rows)
    catalog, state = open_catalog("sw", table_bucket), SqliteStateStore(tmp_path / "state.db")
    loaded = catalog.load(TableName(("ns",), "a"))
    storage = Storage(loaded.io_properties)
    assert storage.s3_clock.now_ms() is None
    storage.can_list(loaded.metadata.location)
    store_ms = storage.s3_clock.now_ms()
    assert store_ms is not None
    assert -5_000 < store_ms - time.time() * 1000 <= 0
    in_flight = f"{loaded.metadata.location}/data/in-flight.parquet"
    storage.write(in_flight, b"x")
    settings = {"operations": "remove_orphans", "orphan_older_than_hours": "72"}
    for hours, status in ((48, "succeeded"), (HOURS_4_DAYS, "refused")):
        runtime = Runtime(catalog, state, environment={}, clock=ahead(hours))
        (outcome,) = runtime.maintain(loaded.name, settings, LocalEngine(1)).operations
        assert (outcome.status.value, outcome.files_planned) == (status, ())
        assert abs(outcome.metrics["clock.skew_s"] - hours * 3600) < 60
        swept = runtime.sweep_bucket(catalog.id.warehouse, settings, LocalEngine(1))
        assert swept.tables["ns.a"].status.value == status
        assert swept.metrics["clock.skew_s"] == swept.tables["ns.a"].metrics["clock.skew_s"]
    assert storage.status(in_flight) is not None


@pytest.mark.parametrize("hours", [48, 240])
def test_a_clock_that_is_set_during_a_pass_is_compared_again(table: MaintainedTable, hours: float) -> None:
    """The difference from the beginning of the pass is then outdated."""
    in_flight, wrong_by = table.plant("data/in-flight.parquet", days_old=1.5), [0.0]
    catalog = ScriptedCatalog(table.catalog, after_commit=once(lambda: wrong_by.__setitem__(0, hours)))
    outcome = table.maintain(
        "compact,remove_orphans", catalog=catalog, clock=lambda: ahead(wrong_by[0])(), store_clock=store_now_ms, **GRACE
    )
    assert catalog.commits == 1
    assert in_flight in table.files()
    assert outcome.operations[1].status is (Status.REFUSED if hours > 72 else Status.SUCCEEDED)
    assert abs(outcome.operations[1].metrics["clock.skew_s"] - hours * 3600) < 60
