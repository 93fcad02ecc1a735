"""What is remembered of a lake: a warning is told when it comes and when it goes, stats are kept when they changed."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icekeeper.errors import StorageError
from icekeeper.health.lake_log import LakeLog
from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import TableName
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import LakeStats
from support.looked_at import IDENTITY, SUMMARY, health
from support.settings import MB, NOW_MS


@pytest.fixture
def store(tmp_path: Path) -> SqliteStateStore:
    return SqliteStateStore(tmp_path / "state.db")


def opened(store: SqliteStateStore) -> LakeLog:
    return LakeLog(store.lake_stats, IDENTITY.catalog, IDENTITY.warehouse)


def observe(log: LakeLog, stats: LakeStats) -> None:
    """A scan that meets one table."""
    log.observe(stats)
    log.finish()


SMALL = {**SUMMARY, "total-files-size": str(10 * MB)}
SENTENCE = "ns.t: 10 data files of 1 MB on average are below 192 MB"


def told(records: Iterable[logging.LogRecord]) -> list[tuple[str, str]]:
    """What the product told; Spark's gateway may close in another thread meanwhile, and say so."""
    return [(record.levelname, record.getMessage()) for record in records if record.name.startswith("icekeeper.")]


def test_a_warning_is_logged_when_it_appears_and_when_it_goes_and_not_between(
    store: SqliteStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    observe(opened(store), health(SMALL))
    assert told(caplog.records) == [("WARNING", SENTENCE)]
    fields = next(vars(one) for one in caplog.records if one.name.startswith("icekeeper."))
    expected = {"event": "lake_warning", "catalog": "C", "table": "ns.t", "warning": "small_files"}
    assert {key: fields[key] for key in expected} == expected
    # A later scan, another snapshot: the same warning is no news.
    observe(opened(store), health(SMALL, snapshots=2))
    assert len(told(caplog.records)) == 1
    observe(opened(store), health())
    assert told(caplog.records)[1:] == [("INFO", "ns.t: the warning small_files is gone")]


def test_stats_are_written_when_something_changed_and_age_alone_is_no_change(store: SqliteStateStore) -> None:
    observe(opened(store), health())
    hour_later = replace(
        health(), observed_ms=NOW_MS + HOUR_MS, counters={**health().counters, "lake_oldest_snapshot_age_hours": 2.0}
    )
    observe(opened(store), hour_later)
    known = store.lake_stats.of_table(IDENTITY)
    assert known is not None
    assert known.observed_ms == NOW_MS
    for news in (
        replace(hour_later, snapshot_id=9),
        replace(hour_later, counters={**hour_later.counters, "lake_refs": 2}),
        replace(hour_later, policy={"branch": "b (--set)"}),
        replace(hour_later, warnings={"small_files": "so"}),
    ):
        observe(opened(store), news)
        assert store.lake_stats.of_table(IDENTITY) == news


def test_tables_that_are_gone_are_forgotten(store: SqliteStateStore) -> None:
    other = replace(IDENTITY, table=TableName(("ns",), "other"))
    for identity in (IDENTITY, other):
        observe(opened(store), replace(health(), identity=identity))
    opened(store).forget_all_but({IDENTITY.table})
    assert [stats.identity for stats in store.lake_stats.of_catalog("C", "s3://prod-lake/")] == [IDENTITY]


def test_a_table_with_too_much_to_keep_costs_the_others_nothing(
    store: SqliteStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Its property would be an item that DynamoDB refuses, and with it the batch."""
    log, large = opened(store), {"where": {"source": "table property", "value": "x" * 400_000}}
    other = replace(IDENTITY, table=TableName(("ns",), "other"), uuid="other")
    log.observe(replace(health(), policy=large))
    log.observe(replace(health(), identity=other))
    log.finish()
    kept = store.lake_stats.of_catalog(IDENTITY.catalog, IDENTITY.warehouse)
    assert [str(one.identity.table) for one in kept] == ["ns.other"]
    ((level, message),) = told(caplog.records)
    assert (level, message.startswith("ns.t: its lake stats have 4000"), len(message) < 100) == ("WARNING", True, True)


def test_stats_that_cannot_be_kept_cost_one_message(
    store: SqliteStateStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> Any:
        raise StorageError("the disk is full")

    log = opened(store)
    monkeypatch.setattr(store.lake_stats, "record", lost)
    observe(log, health(SMALL))
    observe(log, replace(health(SMALL), identity=replace(IDENTITY, uuid="v")))
    log.forget_all_but(())
    assert told(caplog.records) == [
        ("WARNING", "lake stats cannot be written, so this scan leaves them: the disk is full")
    ]
    monkeypatch.setattr(store.lake_stats, "of_catalog", lost)
    observe(opened(store), health(SMALL))
    assert caplog.records[-1].getMessage().startswith("lake stats cannot be read")
