"""Every catalog: listing, loading, commits, and failures."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icekeeper.catalogs.catalog import Catalog, MovesPointers
from icekeeper.catalogs.load import open_catalog
from icekeeper.errors import (
    CommitConflict,
    CommitRefused,
    CommitStateUnknown,
    MetadataUnreadable,
    PolicyError,
    StorageError,
)
from icekeeper.model import TableName
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer
from support.catalog_lakes import (
    CATALOGS,
    ENDPOINT,
    POINTERS,
    VERSIONS,
    Lake,
    append,
    main_at,
    metadata_files,
    set_property,
)
from support.dying_database import DyingDatabase
from support.proxies import FaultyProxy, closed_port, faulty_proxy
from support.settings import forget_credentials

# A commit lands once and completely, or is a conflict: of two commits on one base exactly one lands.


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_commit_lands_and_all_readers_see_it(lake: Lake, version: int) -> None:
    table, catalog = lake.table(version), lake.open()
    base = catalog.load(table)
    assert (base.name, base.metadata.format_version) == (table, version)
    assert base.metadata_location.startswith(base.metadata.location)
    assert base.metadata_location.endswith(".metadata.json")
    assert Storage(base.io_properties).size(base.metadata_location)
    assert not {"credential", "token", "uri"} & set(base.io_properties)
    requirements = [{"type": "assert-table-uuid", "uuid": base.metadata.uuid}, main_at(None)]
    after = catalog.commit(base, requirements, [set_property("owner", "me"), *append(base, 7)])
    assert after.metadata.properties["owner"] == "me"
    again = catalog.load(table)
    assert again.metadata.document == after.metadata.document
    assert (again.metadata_location, again.token) == (after.metadata_location, after.token)
    assert again.token != base.token
    head = again.metadata.current_snapshot
    assert head is not None
    assert head.snapshot_id == 7
    assert again.metadata.last_sequence_number == (0 if version == 1 else 1)
    if version == 3:
        assert again.metadata.document["next-row-id"] == 3
    if lake.client is not None:
        seen = lake.client.load_table(("ns", table.name))
        assert seen.metadata_location == after.metadata_location
        assert seen.properties["owner"] == "me"
        assert seen.metadata.current_snapshot_id == 7
    tagged = catalog.commit(
        again, [], [{"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 7}]
    )
    assert tagged.metadata.refs["v1"].snapshot_id == 7


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
def test_of_two_commits_on_one_base_exactly_one_lands(lake: Lake) -> None:
    """A catalog swaps its pointer conditionally, to an existing document (rule: swap-pointers-conditionally)."""
    is_pointer = lake.name != "rest_lake"
    table = lake.table(2, **{"zz-future": {"kept": [1, 2]}} if is_pointer else {})
    first, second = lake.open(), lake.open()
    base = first.load(table)
    assert second.load(table).token == base.token
    with pytest.raises(CommitConflict):
        first.commit(base, [{"type": "assert-table-uuid", "uuid": str(uuid.uuid4())}], [set_property("a", "b")])
    assert first.load(table).token == base.token
    landed = first.commit(base, [main_at(None)], append(base, 1))
    # A table bucket neither lists nor deletes; its own maintenance removes unreferenced files.
    files = metadata_files(landed) if lake.name != "s3tables_lake" else set()
    with pytest.raises(CommitConflict):
        second.commit(base, [main_at(None)], append(base, 2))
    if is_pointer:  # a moved pointer is a conflict even without requirements
        with pytest.raises(CommitConflict, match="another writer committed first"):
            second.commit(base, [], [set_property("b", "2")])
    now = second.load(table)
    assert now.metadata.document == landed.metadata.document
    assert not is_pointer or now.metadata.document["zz-future"] == {"kept": [1, 2]}
    if files:
        assert metadata_files(now) == files, "the loser's document must be gone"


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
def test_a_pointer_moves_to_a_file_from_its_base_only(lake: Lake) -> None:
    """Catalogs that have no conditional way to do so have no such method."""
    table, catalog = lake.table(2), lake.open()
    assert isinstance(catalog, MovesPointers) is (lake.name in ("sql_lake", "glue_lake"))
    if not isinstance(catalog, MovesPointers):
        return
    base = catalog.load(table)
    after = catalog.commit(base, [], append(base, 1))
    catalog.point_to(after, base.metadata_location)
    assert catalog.load(table).metadata_location == base.metadata_location
    with pytest.raises(CommitConflict):
        catalog.point_to(after, after.metadata_location)
    catalog.point_to(catalog.load(table), after.metadata_location)
    assert catalog.load(table).metadata.document == after.metadata.document


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
def test_racing_writers_all_land(lake: Lake) -> None:
    """Three writers append four snapshots each and retry conflicts: twelve snapshots, numbered without a gap."""
    table = lake.table(3)
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            catalog = lake.open()
            for i in range(4):
                while True:
                    base = catalog.load(table)
                    head = base.metadata.current_snapshot
                    try:
                        catalog.commit(
                            base, [main_at(head.snapshot_id if head else None)], append(base, 100 * number + i + 1)
                        )
                        break
                    except CommitConflict:
                        continue
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    metadata = lake.open().load(table).metadata
    assert sorted(metadata.snapshots) == sorted(100 * n + i + 1 for n in range(3) for i in range(4))
    assert sorted(s.sequence_number for s in metadata.snapshots.values()) == list(range(1, 13))
    head = metadata.current_snapshot
    assert head is not None
    assert len(list(metadata.ancestors(head.snapshot_id))) == 12
    assert sorted(s.raw["first-row-id"] for s in metadata.snapshots.values()) == list(range(0, 36, 3))


@pytest.mark.parametrize("lake", ["rest"], indirect=True)
def test_a_commit_to_a_replaced_table_is_a_conflict_even_without_requirements(lake: Lake) -> None:
    """Every commit requires the UUID of its base (rule: swap-pointers-conditionally)."""
    table, catalog = lake.table(), lake.open()
    base = catalog.load(table)
    assert lake.client is not None
    lake.client.drop_table(("ns", table.name))
    lake.create(table.name, 2, {})
    with pytest.raises(CommitConflict, match="UUID"):
        catalog.commit(base, [], [set_property("a", "b")])


@pytest.mark.parametrize("lake", ["rest"], indirect=True)
def test_an_overtaken_sequence_number_or_row_id_is_a_conflict(lake: Lake) -> None:
    """Without a failing requirement, SeaweedFS answers 400, not 409."""
    table, catalog = lake.table(3), lake.open()
    base = catalog.load(table)
    base = catalog.commit(base, [], append(base, 1))
    catalog.commit(base, [], append(base, 2))
    stale = append(base, 3)
    with pytest.raises(CommitConflict):
        catalog.commit(base, [], stale)
    stale[0]["snapshot"]["sequence-number"] += 1
    with pytest.raises(CommitConflict, match="next-row-id"):
        catalog.commit(base, [], stale)


# Errors of catalogs that lose answers, refuse or are unreachable.


@contextmanager
def losing_answers(lake: Lake, answer: bytes) -> Iterator[tuple[Catalog, Any]]:
    """A catalog, and a function after whose call commits land but their answers are lost."""
    if lake.name == "sql_lake":
        catalog: Any = lake.open()
        database = DyingDatabase(catalog)
        yield catalog, lambda: setattr(database, "after_commit", True)
        return
    key = ENDPOINT[lake.name]
    with faulty_proxy(lake.properties[key]) as proxy:
        catalog = lake.open(**{key: proxy.url})
        if lake.name == "glue_lake":  # it reads Glue's entry once more before the swap
            events = catalog._clients.once.meta.events
            yield catalog, lambda: events.register("before-send.glue.UpdateTable", lambda **_: lose(proxy, answer))
        else:
            yield catalog, lambda: lose(proxy, answer)


def lose(proxy: FaultyProxy, answer: bytes) -> None:
    """Lose one answer: a client that sends the swap again would see its own commit as a conflict."""
    proxy.fault, proxy.faults_left = answer, 1


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"])
def test_a_lost_answer_leaves_the_state_unknown_and_the_commit_readable(lake: Lake, answer: bytes) -> None:
    table = lake.table()
    with losing_answers(lake, answer) as (catalog, break_now):
        base = catalog.load(table)
        break_now()
        with pytest.raises(CommitStateUnknown, match=f"ns.{table.name}: .*it is unknown whether it landed"):
            catalog.commit(base, [main_at(None)], append(base, 7))
    # The commit landed, so its files must exist.
    now = lake.open().load(table)
    assert now.token != base.token
    assert set(now.metadata.snapshots) == {7}
    assert Storage(now.io_properties).size(now.metadata_location)


@pytest.mark.parametrize("lake", ["rest"], indirect=True)
def test_an_unreachable_catalog_does_not_open(lake: Lake) -> None:
    with closed_port() as endpoint, pytest.raises(StorageError, match=f"nothing answers at {endpoint}$"):
        lake.open(uri=endpoint)


def test_a_server_that_is_not_a_catalog_does_not_open(moto_server: MotoServer) -> None:
    with pytest.raises(StorageError, match=r"is not an Iceberg REST catalog|cannot be used"):
        open_catalog("lake", {"type": "rest", "uri": f"{moto_server.endpoint}/moto-api/"})


def test_signing_without_credentials_is_a_named_error(
    table_bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forget_credentials(monkeypatch, tmp_path)
    properties = {key: value for key, value in table_bucket.items() if not key.startswith("client.")}
    with pytest.raises(
        StorageError, match="requests to catalog lake must be signed, but no AWS credentials are configured"
    ):
        open_catalog("lake", {**properties, "client.region": "us-east-1"})


@pytest.mark.parametrize("lake", ["sql"], indirect=True)
def test_an_unreachable_database_does_not_open(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="database of catalog sql_lake cannot be used: unable to open"):
        lake.open(uri=f"sqlite:///{tmp_path}/missing/catalog.db")


@pytest.mark.parametrize("lake", ["rest", "s3tables", "glue"], indirect=True)
def test_a_refused_connection_is_a_storage_error_and_commits_nothing(lake: Lake) -> None:
    table = lake.table()
    key = ENDPOINT[lake.name]
    with faulty_proxy(lake.properties[key]) as proxy:
        catalog = lake.open(**{key: proxy.url})
        base = catalog.load(table)
    attempts: list[Callable[[], object]] = [
        lambda: catalog.load(table),
        lambda: catalog.commit(base, [], [set_property("a", "b")]),
        lambda: list(catalog.list_tables()),
    ]
    for attempt in attempts:
        with pytest.raises(StorageError, match=f"cannot be reached: nothing answers at {proxy.url}$"):
            attempt()
    assert lake.open().load(table).token == base.token


@pytest.mark.parametrize("lake", ["rest"], indirect=True)
def test_wrong_credentials_are_refused_without_showing_them(lake: Lake) -> None:
    table = lake.table()
    with pytest.raises(StorageError) as caught:
        lake.open(**{"client.secret-access-key": "not-the-secret-key"}).load(table)
    assert "not-the-secret-key" not in str(caught.value)


# Listing, loading and metadata files: REST on a SeaweedFS table bucket, SQL on SQLite, S3 Tables and Glue on moto.


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
def test_table_properties_do_not_change_io_properties(lake: Lake) -> None:
    """PyIceberg would add them to the properties of its FileIO (rule: admit-server-settings-by-list)
    (rule: own-keys-stay-with-own-endpoint)."""
    catalog = lake.open()
    base = catalog.load(lake.table())
    claims = {
        "s3.endpoint": "http://127.0.0.1:1",
        "s3.access-key-id": "THEIRS",
        "s3.secret-access-key": "their-secret-key",
        "s3.region": "eu-south-2",
        "py-io-impl": "subprocess.Popen",
    }
    landed = catalog.commit(base, [], [{"action": "set-properties", "updates": claims}])
    assert landed.metadata.properties.items() >= claims.items()
    assert dict(catalog.load(base.name).io_properties) == dict(landed.io_properties) == dict(base.io_properties)


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
def test_tables_are_listed_and_missing_tables_are_named(lake: Lake) -> None:
    tables, catalog = {lake.table(), lake.table()}, lake.open()
    assert set(catalog.list_tables()) == tables
    present, dropped = sorted(tables, key=str)
    for name in (TableName(("ns",), "missing"), TableName(("nowhere",), present.name)):
        with pytest.raises(PolicyError, match=f"there is no table {name} in catalog {lake.name}") as caught:
            catalog.load(name)
    assert f" (did you mean '{present}'?)" == caught.value.hint()
    base = catalog.load(dropped)
    if lake.client is not None:
        lake.client.drop_table(("ns", dropped.name))
    else:
        address = {"tableBucketARN": lake.properties["warehouse"], "namespace": "ns", "name": dropped.name}
        client: Any = catalog
        client._clients.repeating.delete_table(**address)
    # REST refuses; SQL's pointer is missing; the table bucket has removed the files; Glue reports a missing table
    error = {
        "rest_lake": CommitRefused,
        "sql_lake": CommitConflict,
        "s3tables_lake": StorageError,
        "glue_lake": PolicyError,
    }[lake.name]
    with pytest.raises(error):
        catalog.commit(base, [], [set_property("a", "b")])


@pytest.mark.parametrize("lake", ["rest", "sql"], indirect=True)
def test_tables_of_nested_namespaces_are_listed_and_loaded(lake: Lake) -> None:
    assert lake.client is not None
    lake.client.create_namespace(("ns", "inner"))
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    lake.client.create_table(("ns", "inner", "t"), schema)
    catalog = lake.open()
    assert list(catalog.list_tables()) == [TableName(("ns", "inner"), "t")]
    assert catalog.load(TableName(("ns", "inner"), "t")).metadata.format_version == 2


@pytest.mark.parametrize("lake", POINTERS, indirect=True)
def test_a_missing_or_damaged_metadata_file_is_named(lake: Lake) -> None:
    table, catalog = lake.table(), lake.open()
    base = catalog.load(table)
    storage = Storage(base.io_properties)
    storage.write(base.metadata_location, b"{")
    with pytest.raises(MetadataUnreadable, match=base.metadata_location):
        catalog.load(table)
    if lake.name != "s3tables_lake":
        storage.delete([base.metadata_location])
        with pytest.raises(MetadataUnreadable, match=f"{base.metadata_location} does not exist"):
            catalog.load(table)


@pytest.mark.parametrize("lake", POINTERS, indirect=True)
@pytest.mark.parametrize(("codec", "extension"), [("gzip", ".gz.metadata.json"), ("none", ".metadata.json")])
def test_metadata_files_are_numbered_and_compressed_as_set(lake: Lake, codec: str, extension: str) -> None:
    table, catalog = lake.table(2, properties={"write.metadata.compression-codec": codec}), lake.open()
    loaded = catalog.load(table)
    for number in (1, 2):
        loaded = catalog.commit(loaded, [], [set_property("n", str(number))])
        name = loaded.metadata_location.rpartition("/")[2]
        assert name.startswith(f"{number:05d}-")
        assert name.endswith(extension)
        assert (name.count(".gz.") == 1) is (codec == "gzip")
        data = Storage(loaded.io_properties).read(loaded.metadata_location)
        assert (data[:2] == b"\x1f\x8b") is (codec == "gzip")
    assert catalog.load(table).metadata.properties["n"] == "2"
    if lake.client is not None:
        assert lake.client.load_table(("ns", table.name)).properties["n"] == "2"


@pytest.mark.parametrize("lake", ["sql", "glue"], indirect=True)
@pytest.mark.parametrize(("collect", "remaining"), [("true", 3), ("false", 6)])
def test_metadata_files_beyond_the_log_are_deleted_if_allowed(lake: Lake, collect: str, remaining: int) -> None:
    settings = {
        "write.metadata.previous-versions-max": "2",
        "write.metadata.delete-after-commit.enabled": "true",
        "gc.enabled": collect,
    }
    table, catalog = lake.table(2, properties=settings), lake.open()
    loaded = catalog.load(table)
    for number in range(5):
        loaded = catalog.commit(loaded, [], [set_property("n", str(number))])
    files = metadata_files(loaded)
    assert len(files) == remaining
    assert {loaded.metadata_location, *(e["metadata-file"] for e in loaded.metadata.metadata_log)} <= files


@pytest.mark.parametrize("lake", ["sql"], indirect=True)
def test_metadata_files_outside_the_table_are_not_deleted(lake: Lake, tmp_path: Path) -> None:
    foreign = tmp_path / "elsewhere.metadata.json"
    foreign.write_text("{}")
    settings = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    log = [{"timestamp-ms": 1, "metadata-file": str(foreign)}]
    table, catalog = lake.table(2, properties=settings, **{"metadata-log": log}), lake.open()
    loaded = catalog.commit(catalog.load(table), [], [set_property("n", "1")])
    assert len(loaded.metadata.metadata_log) == 1
    assert foreign.exists()


@pytest.mark.parametrize("lake", ["s3tables"], indirect=True)
def test_a_table_without_metadata_fails_by_name(lake: Lake, moto_server: MotoServer) -> None:
    moto_server.client("s3tables").create_table(
        tableBucketARN=lake.properties["warehouse"], namespace="ns", name="empty", format="ICEBERG"
    )
    with pytest.raises(MetadataUnreadable, match=r"ns\.empty has no metadata file yet"):
        lake.open().load(TableName(("ns",), "empty"))
