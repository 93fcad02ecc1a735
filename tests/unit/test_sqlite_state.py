"""The state in SQLite: its path, errors, damage, and shared connections; contract tests cover the rest."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from icekeeper.errors import PolicyError, StorageError
from icekeeper.model import CatalogId, TableName
from icekeeper.state.claims import CutOff, CutWork, TableClaims
from icekeeper.state.dynamodb.table import DynamoTable, open_table
from icekeeper.state.findings import FileFinding
from icekeeper.state.identity import Entry, TableAddress, TableIdentity, parse_address, state_path
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.open import open_state, state_folder
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.sqlite import store as sqlite_store
from icekeeper.state.sqlite.store import SqliteFile, SqliteStateStore, SqliteTable
from icekeeper.state.staging import StagedLoad
from icekeeper.state.store import PassRecord, Pin
from icekeeper.state.sweeps import SweepKind, SweepRecord
from support.state_stores import CLAIMS, IDENTITY, look, remember

TABLE_OF_SQLITE = TableIdentity(CatalogId("C", "w"), TableName(("ns",), "t"), "u")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ICEKEEPER_STATE": "/x/s.db", "XDG_STATE_HOME": "/y", "HOME": "/h"}, "/x/s.db"),
        ({"XDG_STATE_HOME": "/y", "HOME": "/h"}, "/y/icekeeper/state.db"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/icekeeper/state.db"),
        ({"HOME": "/h"}, "/h/.local/state/icekeeper/state.db"),
    ],
)
def test_the_environment_gives_the_path_of_the_state_file(environment: dict[str, str], expected: str) -> None:
    assert state_path(environment) == Path(expected)


def test_a_file_that_is_not_a_state_file_is_refused_unchanged(tmp_path: Path) -> None:
    damaged, foreign = tmp_path / "state.db", tmp_path / "catalog.db"
    damaged.write_bytes(b"this is no database" * 100)
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE iceberg_tables (name TEXT)")
    below = damaged / "state.db"
    pin = Pin(identity=TABLE_OF_SQLITE, name="p", snapshot_id=1, metadata_location="m", expires_ms=1)
    for path, sentence in (
        (below, f"the state file {below} cannot be used: "),
        (damaged, f"the state file {damaged} cannot be used: file is not a database; it belongs to another"),
        (foreign, f"the file {foreign} is a database of another application, not a state file"),
    ):
        with pytest.raises(StorageError) as caught:
            SqliteStateStore(path).seen(TABLE_OF_SQLITE)
        assert str(caught.value).startswith(sentence)
        with pytest.raises(StorageError) as caught:
            SqliteStateStore(path).add_pin(pin)
        assert str(caught.value).startswith(sentence)
    assert damaged.read_bytes() == b"this is no database" * 100
    with closing(sqlite3.connect(foreign)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("iceberg_tables",)]


@pytest.mark.parametrize("version", [1, 17, 19, 99])
def test_a_file_of_another_schema_version_is_refused_unchanged(tmp_path: Path, version: int) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE pins (name TEXT)")
        connection.execute("INSERT INTO pins VALUES ('p')")
        connection.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    pin = Pin(identity=TABLE_OF_SQLITE, name="p", snapshot_id=1, metadata_location="m", expires_ms=1)
    store = SqliteStateStore(path)
    for use in (lambda: store.history(TABLE_OF_SQLITE), lambda: store.add_pin(pin)):
        with pytest.raises(StorageError) as caught:
            use()
        assert str(caught.value) == (
            f"the state file {path} has schema version {version}, and this Icekeeper reads only 18; use the Icekeeper "
            "that wrote it, or name another file with ICEKEEPER_STATE, where pins and staged loads must be created "
            "again before anything is deleted"
        )
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["state.db"]


def test_lake_stats_of_a_catalog_are_read_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "_PAGE", 200)
    store = SqliteStateStore(tmp_path / "state.db").lake_stats
    tables = [
        TableIdentity(CatalogId("C", "w"), TableName(("ns",), name), uuid) for name in "abc" for uuid in ("1", "2")
    ]
    for identity in reversed(tables[:5]):
        store.record(LakeStats(identity=identity, observed_ms=1, snapshot_id=None, counters={}))
    assert [each.identity for each in store.of_catalog(CatalogId("C", "w"))] == tables[:5]


def test_a_new_state_file_is_private_and_keeps_a_changed_mode(tmp_path: Path) -> None:
    """Also in a folder that others may enter: the file lists the tables (rule: state-is-private).  An operator may
    share it with a group."""
    before = os.umask(0o022)
    try:
        store = SqliteStateStore(tmp_path / "state.db")
        with store.kept_open():
            store.remove_pin(TABLE_OF_SQLITE, "p")
            modes = {path.name: stat.filemode(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("state.db", "state.db-wal", "state.db-shm"), "-rw-------")
    store.path.chmod(0o660)
    SqliteStateStore(store.path).remove_pin(TABLE_OF_SQLITE, "p")
    assert stat.filemode(store.path.stat().st_mode) == "-rw-rw----"


# Damage: the error is one sentence that names the file and the remedy.

READS: dict[str, Callable[[SqliteStateStore], Any]] = {
    "metrics": lambda store: store.history(IDENTITY),
    "kind": lambda store: store.pins(IDENTITY, now_ms=0),
    "state": lambda store: store.staging.loads(IDENTITY),
    "prefixes": lambda store: store.glance(IDENTITY, now_ms=0),
    "list_id": lambda store: list(store.pending_deletions.paths(IDENTITY, "list")),
    "folders": lambda store: list(store.claims.of_catalog(CatalogId("c", "w"))),
    "counters": lambda store: list(store.lake_stats.of_catalog(IDENTITY.catalog)),
    "until_ms": lambda store: store.leases.current("k", now_ms=0),
    "times": lambda store: store.cut_offs.of_catalog(CatalogId("c", "w")),
    "passes": lambda store: store.seen(IDENTITY),
    "counted_ms": lambda store: store.sweeps.of_table(IDENTITY),
    "tried_ms": lambda store: store.findings.of_table(IDENTITY),
}
"""Reads of an attribute, by its name."""
PARSED = ("metrics", "kind", "state", "prefixes", "folders", "counters")
SHAPES = ("~", "[" * 5_000, "7", "[]", "{}", 7, b"\x00")


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
    store.leases.acquire("k", "me", now_ms=0, ttl_ms=9)
    store.cut_offs.record(
        CutOff(entry=Entry(CatalogId("c", "w"), "ns.t"), work=CutWork.LOOK, times=1, cut_ms=1, why="slow")
    )
    remember(store, IDENTITY, look(1))
    store.sweeps.record(IDENTITY, SweepRecord(kind=SweepKind.SWEPT, counted_ms=1, finished_ms=1))
    store.findings.record(IDENTITY, [FileFinding(path="p", why="w", schema_digest="d", tried_ms=1)])
    store.claims.record(CLAIMS)
    store.lake_stats.record(
        LakeStats(identity=IDENTITY, observed_ms=1, snapshot_id=1, counters={"n": 1}, warnings={}, policy={})
    )
    return store


@contextmanager
def changed(path: Path, column: str, value: object, condition: str) -> Iterator[tuple[str, str]]:
    """Change a column of one item inside the block; yield the item's key."""
    with closing(sqlite3.connect(path)) as connection:
        ((pk, sk, before),) = connection.execute(f"SELECT pk, sk, {column} FROM items WHERE {condition} LIMIT 1")
        change = f"UPDATE items SET {column} = ? WHERE pk = ? AND sk = ?"
        connection.execute(change, (value, pk, sk))
        connection.commit()
        try:
            yield pk, sk
        finally:
            connection.execute(change, (before, pk, sk))
            connection.commit()


def assert_reported(store: SqliteStateStore, read: Callable[[SqliteStateStore], Any], pk: str, sk: str) -> str:
    with pytest.raises(StorageError) as caught:
        read(store)
    message = str(caught.value)
    assert message.startswith(f"the item {pk} / {sk} of the state file {store.path} is damaged (")
    assert message.endswith(
        "); restore it from a backup, or delete it, and create the pin or staged load that it held again before "
        "anything is deleted"
    )
    return message


@pytest.mark.parametrize("name", READS)
def test_a_damaged_item_is_reported_with_its_key(filled: SqliteStateStore, name: str) -> None:
    """SQLite stores any type in any column; a TypeError would look like a bug of ours."""
    read = READS[name]
    assert read(filled)
    found = f"json_extract(attributes, '$.{name}') IS NOT NULL AND sk NOT GLOB 'now#sweep*'"
    if name in PARSED:
        condition_of_item = f"{found} AND pk NOT LIKE 'passes#%'"
        with closing(sqlite3.connect(filled.path)) as connection:
            ((attributes,),) = connection.execute(f"SELECT attributes FROM items WHERE {condition_of_item}")
        for text in SHAPES[:2]:
            with changed(
                filled.path, "attributes", json.dumps({**json.loads(attributes), name: text}), condition_of_item
            ) as key:
                assert_reported(filled, read, *key)
    for value in SHAPES:
        condition = "sk GLOB 'now#sweep*'" if name == "counted_ms" else found
        with changed(filled.path, "attributes", value, condition) as key:
            assert_reported(filled, read, *key)


def test_malformed_paths_are_reported_with_their_key(filled: SqliteStateStore) -> None:
    def paths_of_all_lists(store: SqliteStateStore) -> None:
        list(store.staging.files(IDENTITY, "load"))
        list(store.pending_deletions.paths(IDENTITY, "list"))

    not_binary = "its paths is not binary"
    for value, what in (("~", not_binary), (7, not_binary), (None, "it has no paths"), (b"\xff~", "")):
        with changed(filled.path, "paths", value, "paths IS NOT NULL") as key:
            assert what in assert_reported(filled, paths_of_all_lists, *key)


def test_flipped_bytes_are_reported_in_one_sentence(filled: SqliteStateStore) -> None:
    """SQLite cannot read text that is not UTF-8."""
    with closing(sqlite3.connect(filled.path)) as connection:
        before = connection.execute("SELECT pk, sk, attributes FROM items").fetchall()
        connection.execute("UPDATE items SET attributes = CAST(? AS TEXT)", (b"\xff~",))
        connection.commit()
        try:
            for read in READS.values():
                with pytest.raises(StorageError) as caught:
                    read(filled)
                message = str(caught.value)
                assert message.startswith(f"the state file {filled.path} is damaged (")
                assert message.endswith(
                    "); put a copy of it in its place, or name another file with ICEKEEPER_STATE, where pins and "
                    "staged loads must be created again before anything is deleted"
                )
        finally:
            connection.executemany("UPDATE items SET attributes = ?3 WHERE pk = ?1 AND sk = ?2", before)
            connection.commit()


def test_claims_replaced_by_another_writer_are_updated_correctly(tmp_path: Path) -> None:
    claims = SqliteStateStore(tmp_path / "state.db").claims
    read = TableClaims(
        catalog=CatalogId("c", "w"),
        table=IDENTITY.table,
        uuid="u",
        location="s3://b/t",
        folders=frozenset({"s3://b/x"}),
    )
    claims.record(read)
    claims.record(replace(read, folders=frozenset()))
    claims.record(replace(read, data_roots=frozenset({"s3://b/t/data"})), replaces=read)
    assert list(claims.touching("s3://b/x")) == [replace(read, data_roots=frozenset({"s3://b/t/data"}))]


def test_a_search_for_claims_reads_one_consistent_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search finds an entry that moves from an enclosing folder to a nested folder during the search."""
    store = SqliteStateStore(tmp_path / "state.db")
    around = TableClaims(catalog=CatalogId("c", "w"), table=IDENTITY.table, uuid="u", location="s3://b/t")
    inside = replace(around, location="s3://b/t/x/y")
    store.claims.record(around)
    query = SqliteTable.query
    with ThreadPoolExecutor(1) as other:

        def moved(table: SqliteTable, *args: Any, **options: Any) -> Iterator[Any]:
            found = list(query(table, *args, **options))
            other.submit(store.claims.record, inside).result()
            return iter(found)

        monkeypatch.setattr(SqliteTable, "query", moved)
        assert list(store.claims.touching("s3://b/t/x")) == [inside]


# Addresses in ICEKEEPER_STATE.

HELP = "write a path, or dynamodb://TABLE[?region=REGION&profile=NAME&endpoint=URL]"


STACK_VARIABLES = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ENDPOINT_URL")
"""A local stack of the same process sets these."""


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No AWS configuration of the developer, and no metadata service."""
    for name in (
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        *STACK_VARIABLES,
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize(
    ("text", "environment", "address"),
    [
        ("dynamodb://State.Table_1-x", {}, TableAddress("State.Table_1-x")),
        ("dynamodb://T-1/", {"AWS_REGION": "eu-west-1"}, TableAddress("T-1", "eu-west-1")),
        ("dynamodb://T-1", {"AWS_DEFAULT_REGION": "eu-west-2"}, TableAddress("T-1", "eu-west-2")),
        ("dynamodb://T-1?region=eu-west-3", {"AWS_REGION": "eu-west-1"}, TableAddress("T-1", "eu-west-3")),
        (
            "dynamodb://T-1?region=r&endpoint=http://127.0.0.1:5000",
            {},
            TableAddress("T-1", "r", "http://127.0.0.1:5000"),
        ),
        ("/var/lib/state.db", {}, None),
        ("dynamodb", {}, None),
        ("", {}, None),
    ],
)
def test_an_address_names_a_table_or_a_file(
    text: str, environment: dict[str, str], address: TableAddress | None
) -> None:
    assert parse_address({"ICEKEEPER_STATE": text, **environment}) == address


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("sqlite:///x", "has an unknown scheme"),
        ("s3://bucket/state", "has an unknown scheme"),
        ("dynamodb://", "names no DynamoDB table"),
        ("dynamodb://ab", "names no DynamoDB table (the name of a table has at least 3 characters)"),
        ("dynamodb:table", "names no DynamoDB table"),
        ("dynamodb://[table", "names no DynamoDB table"),
        ("dynamodb://user@table", "names no DynamoDB table"),
        ("dynamodb://table/item", "names no DynamoDB table"),
        ("dynamodb://table#part", "names no DynamoDB table"),
        ("dynamodb://table?regoin=eu", "has an unknown setting 'regoin'"),
        ("dynamodb://table?endpoint=localhost:8000", "has an endpoint that is not an http(s) address"),
    ],
)
def test_a_malformed_address_is_refused(text: str, what: str) -> None:
    for parse in (parse_address, open_state, state_folder):
        with pytest.raises(PolicyError) as caught:
            parse({"ICEKEEPER_STATE": text})
        assert str(caught.value) == f"ICEKEEPER_STATE={text} {what}: {HELP}"


def test_the_folder_of_a_named_state_file_must_exist(tmp_path: Path) -> None:
    """Only the folder of the default state file is created."""
    volume = tmp_path / "volume"
    with pytest.raises(StorageError) as caught:
        open_state({"ICEKEEPER_STATE": str(volume / "s.db")})
    assert str(caught.value) == (
        f"the state file {volume}/s.db cannot be used: there is no folder {volume}; mount or make it, or correct "
        "ICEKEEPER_STATE"
    )
    assert not volume.exists()
    home = open_state({"HOME": str(tmp_path / "new")})
    home.require_writable()
    assert (tmp_path / "new/.local/state/icekeeper/state.db").is_file()


def test_the_environment_chooses_the_store_and_the_state_folder(tmp_path: Path) -> None:
    file = open_state({"ICEKEEPER_STATE": str(tmp_path / "s.db")})
    assert isinstance(file, SqliteStateStore)
    assert file.path == tmp_path / "s.db"
    assert isinstance(open_state({"ICEKEEPER_STATE": "dynamodb://table?region=eu-west-1"}).table, DynamoTable)
    home = {"HOME": str(tmp_path)}
    assert state_folder({**home, "ICEKEEPER_STATE": "/x/s.db"}) == Path("/x")
    assert state_folder({**home, "ICEKEEPER_STATE": "dynamodb://table"}) == tmp_path / ".local/state/icekeeper"
    assert state_folder(home) == tmp_path / ".local/state/icekeeper"


@pytest.mark.usefixtures("no_aws")
def test_a_region_and_credentials_are_needed() -> None:
    with pytest.raises(PolicyError) as caught:
        open_table(TableAddress("table"))
    assert str(caught.value) == (
        "the region of the state table table is not known: add ?region=REGION to ICEKEEPER_STATE"
    )
    with pytest.raises(StorageError) as failed:
        open_state({"ICEKEEPER_STATE": "dynamodb://table?region=eu-west-1"}).require_writable()
    assert str(failed.value) == (
        "the state table table cannot be used: no AWS credentials were found; configure them as for the AWS CLI"
    )


# A state file that a pass keeps open behaves like a state file opened for every call.

COUNT = "SELECT count(*) FROM items"
ADD = "INSERT INTO items VALUES (?, 'sk', '{}', NULL, NULL)"


@pytest.fixture
def file(tmp_path: Path) -> SqliteFile:
    file = SqliteFile(tmp_path / "state.db")
    file.require_writable()
    return file


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """The path of every opened connection."""
    paths: list[str] = []
    connect = sqlite3.connect

    def watched(path: Path, **options: object) -> sqlite3.Connection:
        paths.append(str(path))
        return connect(path, **options)  # type: ignore[call-overload,no-any-return]  # the caller's options

    with mock.patch.object(sqlite3, "connect", watched):
        yield paths


def count(file: SqliteFile) -> int:
    with file.connection() as connection:
        return int(connection.execute(COUNT).fetchone()[0])


def add_and_raise(file: SqliteFile, error: type[BaseException]) -> None:
    with file.transaction() as connection:
        connection.execute(ADD, ("lost",))
        raise error


def test_calls_in_a_block_share_a_connection_that_closes_with_the_block(file: SqliteFile, opened: list[str]) -> None:
    with file.kept_open():
        file.write(ADD, "a")
        with file.kept_open():
            assert count(file) == 1
        with file.transaction() as connection:
            connection.execute(ADD, ("b",))
        assert len(opened) == 1
    assert list(file.path.parent.iterdir()) == [file.path]  # the last connection to close removes the write-ahead log
    assert count(file) == 2
    assert len(opened) == 2


def test_a_kept_connection_sees_other_writes_and_blocks_no_writer(file: SqliteFile) -> None:
    with file.kept_open(), closing(sqlite3.connect(file.path, timeout=0)) as other:
        assert count(file) == 0
        with other:
            other.execute(ADD, ("theirs",))
        assert count(file) == 1
        file.write(ADD, "ours")
        assert other.execute(COUNT).fetchone() == (2,)


def test_a_transaction_that_fails_is_rolled_back_and_the_next_call_works(file: SqliteFile) -> None:
    with file.kept_open():
        for error in (ValueError, KeyboardInterrupt):
            with pytest.raises((StorageError, KeyboardInterrupt)):
                add_and_raise(file, error)
        assert count(file) == 0
        with file.connection() as connection:
            connection.execute("BEGIN")
            connection.execute(ADD, ("a",))
            assert count(file) == 0, "a call within a call sees what others see"
            connection.execute("ROLLBACK")
        file.write(ADD, "kept")
    assert count(file) == 1


@pytest.mark.parametrize("is_kept", [True, False])
def test_calls_within_a_transaction_are_part_of_it(file: SqliteFile, *, is_kept: bool) -> None:
    def interrupted() -> None:
        with file.transaction():
            file.write(ADD, "a")
            with file.transaction():
                file.write(ADD, "b")
            assert count(file) == 2
            with ThreadPoolExecutor(1) as other:
                assert other.submit(count, file).result() == 0
            with mock.patch.object(os, "getpid", return_value=os.getpid() + 1):
                assert count(file) == 0, "a forked process opens its own"
            raise KeyboardInterrupt

    with file.kept_open() if is_kept else nullcontext():
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert count(file) == 0
        with file.transaction():
            file.write(ADD, "c")
        assert count(file) == 1


def test_other_threads_and_forked_processes_open_their_own_connections(file: SqliteFile, opened: list[str]) -> None:
    with file.kept_open():
        file.write(ADD, "a")
        thread = threading.Thread(target=count, args=(file,))
        thread.start()
        thread.join()
        assert len(opened) == 2
        with mock.patch.object(os, "getpid", return_value=os.getpid() + 1):
            assert count(file) == 1
        assert len(opened) == 3
        assert count(file) == 1
        assert len(opened) == 3


def test_a_file_that_replaces_the_state_file_is_used(file: SqliteFile, tmp_path: Path) -> None:
    """A lease that the new file does not contain must not look held."""
    with file.kept_open():
        file.write(ADD, "a")
        file.path.rename(tmp_path / "away.db")
        assert count(file) == 0
        file.write(ADD, "b")
        file.write(ADD, "c")
    assert count(file) == 2


def test_an_upgrade_of_the_open_file_is_noticed(file: SqliteFile) -> None:
    with file.kept_open():
        assert count(file) == 0
        with closing(sqlite3.connect(file.path)) as other:
            other.execute("PRAGMA user_version = 99")
        with pytest.raises(StorageError, match="has schema version 99"):
            count(file)
