"""Records of many tables are gathered and written some at a time, by a scan's threads or at its end."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from icekeeper.detection.detect import detect
from icekeeper.detection.proposal import FleetReport
from icekeeper.errors import StorageError
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.policy.due import FIRST_SWEEP
from icekeeper.state import store as gathered
from icekeeper.state.sqlite.file import SqliteFile
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import Gathered
from support.scans import PreparedCatalog, names, source, with_uuid
from support.settings import MB, NOW_MS, small_files, table

TABLES = 60


@pytest.fixture
def state(tmp_path: Path) -> SqliteStateStore:
    return SqliteStateStore(tmp_path / "state.db")


@pytest.fixture
def fleet() -> PreparedCatalog:
    """Young tables, whose first sweep is due later."""
    return PreparedCatalog({f"ns.t{n:02}": with_uuid(table(small_files(9, MB)), f"u{n}") for n in range(TABLES)})


def scan(state: SqliteStateStore, fleet: PreparedCatalog) -> FleetReport:
    return detect([source(fleet)], state, TablePolicies({}), clock=lambda: NOW_MS, threads=4)


def remembered(state: SqliteStateStore) -> tuple[int, int]:
    """Of how many tables the health is known, and when their first sweep is due."""
    known = [one.identity for one in state.lake_stats.of_catalog("C", "s3://prod-lake/")]
    with state._file.reading() as read:
        ((sweeps,),) = read("SELECT count(*) FROM schedule_runs WHERE schedule = ?", FIRST_SWEEP)
    return len(known), sweeps


def test_every_record_is_written_once_and_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered, "_AT_ONCE", 10)
    written: list[list[int]] = []
    records = Gathered[int](lambda some: written.append([*some]))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(records.add, range(995)))
    assert len(written) <= 99
    assert sum(map(len, written)) > 985  # fewer than ten are left
    records.write_rest()
    records.write_rest()
    assert sorted(number for some in written for number in some) == [*range(995)]
    assert all(written)


def test_a_scan_writes_in_few_transactions_what_it_remembers_of_many_tables(
    state: SqliteStateStore, fleet: PreparedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(rule 154)"""
    begun = []
    transaction = SqliteFile.transaction

    @contextmanager
    def counted(file: SqliteFile) -> Iterator[sqlite3.Connection]:
        begun.append(file)
        with transaction(file) as connection:
            yield connection

    monkeypatch.setattr(gathered, "_AT_ONCE", TABLES // 2)
    monkeypatch.setattr(SqliteFile, "transaction", counted)
    scan(state, fleet)
    assert remembered(state) == (TABLES, TABLES)
    assert 2 <= len(begun) <= 6
    begun.clear()
    scan(state, fleet)  # nothing is new
    assert not begun


def test_a_scan_opens_the_state_once_for_each_thread(
    state: SqliteStateStore, fleet: PreparedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[SqliteFile] = []
    plain = SqliteFile._open

    def counted(file: SqliteFile) -> sqlite3.Connection:
        opened.append(file)
        return plain(file)

    monkeypatch.setattr(SqliteFile, "_open", counted)
    scan(state, fleet)
    assert 0 < len(opened) <= 4 + 1 + 1  # its threads, the caller, and what asks before whether it can write


def test_what_a_scan_could_not_record_the_next_one_does(
    state: SqliteStateStore, fleet: PreparedCatalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """(rule 154)"""

    def lost(*_: object) -> Any:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(state.lake_stats, "record", lost)
        patch.setattr(state.schedules, "record_all", lost)
        report = scan(state, fleet)
    assert sorted(caplog.messages) == [
        "lake stats cannot be written, so this scan leaves them: the disk is full",
        "when first sweeps are due could not be recorded, so the next scan decides it again: the disk is full",
    ]
    assert remembered(state) == (0, 0)
    assert names(scan(state, fleet)) == names(report)
    assert remembered(state) == (TABLES, TABLES)


def test_rows_of_which_one_is_wrong_are_all_left_out(state: SqliteStateStore) -> None:
    """And the message names the file."""
    insert = "INSERT INTO leases (lease_key, holder, expires_ms) VALUES (?, ?, ?)"
    with pytest.raises(StorageError, match=r"state\.db cannot be used: "):
        state._file.write_all(insert, [("a", "h", 1), ("b", None, 1)])
    assert state.leases.current("a", now_ms=0) is None
