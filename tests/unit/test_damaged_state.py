"""Bytes of the state file that were flipped: one sentence that names the file and says what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from icekeeper.errors import StorageError
from icekeeper.state.claims import TableClaims
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import LakeStats, MaintenanceRequest, PassRecord, Pin, StagedLoad
from support.state_stores import IDENTITY

READS: dict[str, Callable[[SqliteStateStore], Any]] = {
    "passes.metrics": lambda store: store.history(IDENTITY),
    "pins.kind": lambda store: store.pins(IDENTITY, now_ms=0),
    "staged_loads.state": lambda store: store.staging.loads(IDENTITY),
    "staged_loads.prefixes": lambda store: store.glance(IDENTITY, now_ms=0),
    "staged_files.paths": lambda store: list(store.staging.files(IDENTITY, "load")),
    "pending_deletions.paths": lambda store: list(store.pending_deletions.paths(IDENTITY, "list")),
    "claims.folders": lambda store: list(store.claims.of_catalog("c", "w")),
    "lake_stats.counters": lambda store: list(store.lake_stats.of_catalog(IDENTITY.catalog, IDENTITY.warehouse)),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> SqliteStateStore:
    store = SqliteStateStore(tmp_path_factory.mktemp("state") / "state.db")
    store.record_pass(
        PassRecord(
            identity=IDENTITY, run_id="r", started_ms=1, finished_ms=2, status="failed", summary="", engine="local"
        )
    )
    store.add_pin(Pin(identity=IDENTITY, name="p", snapshot_id=1, metadata_location="s3://b/m", expires_ms=9))
    store.requests.file(MaintenanceRequest(identity=IDENTITY, requested_ms=1, settings={"a": "b"}))
    store.staging.stage(StagedLoad(identity=IDENTITY, name="load", changed_ms=1), ["s3://b/f"])
    store.pending_deletions.expect(IDENTITY, "list", ["s3://b/f"])
    folders = frozenset({"s3://b/t/data"})
    store.claims.record(
        TableClaims(
            catalog="c",
            warehouse="w",
            table=IDENTITY.table,
            uuid="u",
            location="s3://b/t",
            folders=folders,
            data_roots=folders,
            seen_sequence_number=1,
            seen_ms=1,
        )
    )
    store.lake_stats.record(
        LakeStats(identity=IDENTITY, observed_ms=1, snapshot_id=1, counters={"n": 1}, warnings={}, policy={})
    )
    return store


@pytest.mark.parametrize("column", READS)
@pytest.mark.parametrize("text", ["~", b"\xff~", "[" * 5_000], ids=["another text", "no text", "nested"])
def test_flipped_bytes_are_told_in_one_sentence(filled: SqliteStateStore, column: str, text: str | bytes) -> None:
    path, (table, name) = filled._file.path, column.split(".")
    assert READS[column](filled)
    with closing(sqlite3.connect(path)) as connection:
        ((rowid, before),) = connection.execute(f"SELECT min(rowid), {name} FROM {table}")
        connection.execute(f"UPDATE {table} SET {name} = CAST(? AS TEXT) WHERE rowid = ?", (text, rowid))
        connection.commit()
        try:
            with pytest.raises(StorageError) as caught:
                READS[column](filled)
        finally:
            connection.execute(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (before, rowid))
            connection.commit()
    told = str(caught.value)
    assert told.startswith(f"the state file {path} is damaged (")
    assert told.endswith(
        "); put a copy of it in its place, or name another file with ICEKEEPER_STATE, where pins and staged loads must "
        "be made again before anything is deleted"
    )


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("leases.expires_ms", "soon"),
        ("leases.expires_ms", b"\x00"),
        ("leases.holder", b"\x00"),
        ("staged_loads.prefixes", 7),
        ("lake_stats.table_name", b"\x00"),
    ],
)
def test_a_value_of_another_type_is_told_in_one_sentence(
    filled: SqliteStateStore, column: str, value: str | bytes | int
) -> None:
    """SQLite keeps any type in any column; a TypeError would be a bug of ours to whoever reads it."""
    path, (table, name) = filled._file.path, column.split(".")
    filled.leases.acquire("k", "me", now_ms=0, ttl_ms=9)
    lease: Callable[[SqliteStateStore], Any] = lambda store: store.leases.current("k", now_ms=0)  # noqa: E731
    read = next((READS[one] for one in READS if one.startswith(f"{table}.")), lease)
    with closing(sqlite3.connect(path)) as connection:
        ((rowid, before),) = connection.execute(f"SELECT min(rowid), {name} FROM {table}")
        connection.execute(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (value, rowid))
        connection.commit()
        try:
            with pytest.raises(StorageError, match=rf"^the state file {path} ") as caught:
                read(filled)
            assert "damaged" in str(caught.value)
        finally:
            connection.execute(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (before, rowid))
            connection.commit()
