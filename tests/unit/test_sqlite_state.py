"""What is particular to the SQLite state store: its place, its errors, and processes that share it."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity, state_path
from icekeeper.state.sqlite import records as sqlite_lake_stats
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import LakeStats, PassRecord, Pin

IDENTITY = TableIdentity("C", "w", TableName(("ns",), "t"), "u")


def record_many(path: Path, worker: int) -> None:
    store = SqliteStateStore(path)
    for number in range(10):
        store.record_pass(
            PassRecord(
                identity=IDENTITY,
                run_id=f"{worker}-{number}",
                started_ms=0,
                finished_ms=number,
                status="succeeded",
                summary="",
                engine="local",
            )
        )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ICEKEEPER_STATE": "/x/s.db", "XDG_STATE_HOME": "/y", "HOME": "/h"}, "/x/s.db"),
        ({"XDG_STATE_HOME": "/y", "HOME": "/h"}, "/y/icekeeper/state.db"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/icekeeper/state.db"),
        ({"HOME": "/h"}, "/h/.local/state/icekeeper/state.db"),
    ],
)
def test_the_state_lives_where_the_environment_says(environment: dict[str, str], expected: str) -> None:
    assert state_path(environment) == Path(expected)


def test_processes_that_start_together_create_one_store_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=record_many, args=(path, worker)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert len(SqliteStateStore(path).history(IDENTITY)) == 40
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "state.db"
    with pytest.raises(StorageError) as caught:
        SqliteStateStore(path).pins(IDENTITY, now_ms=0)
    assert str(caught.value).startswith(f"the state file {path} cannot be used: ")


def test_a_damaged_file_is_a_storage_error_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(StorageError) as caught:
        SqliteStateStore(path).last_seen(IDENTITY)
    assert str(caught.value).startswith(f"the state file {path} cannot be used: file is not a database; it is another")
    assert path.read_bytes() == b"this is no database" * 100


@pytest.mark.parametrize("version", [1, 14, 16, 99])
def test_a_file_of_another_schema_version_is_refused_and_stays_as_it_is(tmp_path: Path, version: int) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE pins (name TEXT)")
        connection.execute("INSERT INTO pins VALUES ('p')")
        connection.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    pin = Pin(identity=IDENTITY, name="p", snapshot_id=1, metadata_location="m", expires_ms=1)
    store = SqliteStateStore(path)
    for use in (lambda: store.history(IDENTITY), lambda: store.add_pin(pin)):
        with pytest.raises(StorageError) as caught:
            use()
        assert str(caught.value) == (
            f"the state file {path} has schema version {version}, and this Icekeeper reads only 15; use the Icekeeper "
            "that wrote it, or name another file with ICEKEEPER_STATE, where pins and staged loads must be made again "
            "before anything is deleted"
        )
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["state.db"]


def test_another_applications_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE iceberg_tables (name TEXT)")
    with pytest.raises(StorageError) as caught:
        SqliteStateStore(path).add_pin(
            Pin(identity=IDENTITY, name="p", snapshot_id=1, metadata_location="m", expires_ms=1)
        )
    assert str(caught.value) == f"the file {path} is a database of another application, not a state file"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("iceberg_tables",)]


def test_orphans_are_written_in_batches(tmp_path: Path) -> None:
    paths = [f"s3://bucket/t/data/{number:06d}" for number in range(25_000)]
    ledger = SqliteStateStore(tmp_path / "state.db").quarantine
    ledger.see(IDENTITY, "run-1", iter(paths), now_ms=10)
    assert len(ledger.counts(IDENTITY, "run-2", iter(paths))) == len(paths)
    ledger.forget(IDENTITY, iter(paths[1:]))
    assert [entry.path for entry in ledger.sightings(IDENTITY)] == paths[:1]


def test_a_catalogs_lake_stats_are_read_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_lake_stats, "_TABLES_PER_READ", 2)
    store = SqliteStateStore(tmp_path / "state.db").lake_stats
    tables = [TableIdentity("C", "w", TableName(("ns",), name), uuid) for name in "abc" for uuid in ("1", "2")]
    for identity in reversed(tables[:5]):
        store.record(LakeStats(identity=identity, observed_ms=1, snapshot_id=None, counters={}))
    assert [each.identity for each in store.of_catalog("C", "w")] == tables[:5]


def test_a_new_state_file_is_for_its_owner_only(tmp_path: Path) -> None:
    """Also in a folder that somebody named and others may enter: it tells which tables there are (rule 286)."""
    before = os.umask(0o022)
    try:
        store = SqliteStateStore(tmp_path / "state.db")
        with store.kept_open():
            store.remove_pin(IDENTITY, "p")
            modes = {path.name: stat.filemode(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("state.db", "state.db-wal", "state.db-shm"), "-rw-------")


def test_a_state_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    """A group may share it on purpose."""
    path = tmp_path / "state.db"
    SqliteStateStore(path).remove_pin(IDENTITY, "p")
    path.chmod(0o660)
    SqliteStateStore(path).remove_pin(IDENTITY, "p")
    assert stat.filemode(path.stat().st_mode) == "-rw-rw----"
