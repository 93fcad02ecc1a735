"""What every catalog lists and loads, and which of its metadata files it keeps: REST on a real SeaweedFS table bucket,
SQL on SQLite, S3 Tables and Glue as moto plays them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icekeeper.errors import (
    MetadataUnreadable,
    PolicyError,
)
from icekeeper.model import TableName
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer
from support.catalog_lakes import CATALOGS, POINTERS, VERSIONS, Lake, metadata_files, set_property


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_table_loads_as_it_is(lake: Lake, version: int) -> None:
    table = lake.table(version)
    loaded = lake.open().load(table)
    assert loaded.name == table
    assert loaded.metadata.format_version == version
    assert loaded.metadata_location.startswith(loaded.metadata.location)
    assert loaded.metadata_location.endswith(".metadata.json")
    assert Storage(loaded.io_properties).size(loaded.metadata_location)
    assert not {"credential", "token", "uri"} & set(loaded.io_properties)


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
def test_what_a_table_says_of_itself_is_not_how_its_files_are_reached(lake: Lake) -> None:
    """PyIceberg merges a table's properties into those of its FileIO (rule 250), (rule 251)."""
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
def test_tables_are_listed(lake: Lake) -> None:
    tables = {lake.table(), lake.table()}
    assert set(lake.open().list_tables()) == tables


@pytest.mark.parametrize("lake", ["rest", "sql"], indirect=True)
def test_tables_of_nested_namespaces_are_listed_and_loaded(lake: Lake) -> None:
    assert lake.client is not None
    lake.client.create_namespace(("ns", "inner"))
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    lake.client.create_table(("ns", "inner", "t"), schema)
    catalog = lake.open()
    assert list(catalog.list_tables()) == [TableName(("ns", "inner"), "t")]
    assert catalog.load(TableName(("ns", "inner"), "t")).metadata.format_version == 2


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
def test_an_unknown_table_is_the_callers_mistake(lake: Lake) -> None:
    present, catalog = TableName(("ns",), lake.table().name), lake.open()
    for name in (TableName(("ns",), "missing"), TableName(("nowhere",), present.name)):
        with pytest.raises(PolicyError, match=f"there is no table {name} in catalog {lake.name}") as told:
            catalog.load(name)
    assert told.value.hint() == f" (did you mean '{present}'?)"


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
def test_metadata_files_are_numbered_and_compressed_as_asked(lake: Lake, codec: str, extension: str) -> None:
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
def test_metadata_files_that_fall_off_the_log_are_deleted_when_asked(lake: Lake, collect: str, remaining: int) -> None:
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
    settings = {
        "write.metadata.previous-versions-max": "1",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    log = [{"timestamp-ms": 1, "metadata-file": str(foreign)}]
    table, catalog = lake.table(2, properties=settings, **{"metadata-log": log}), lake.open()
    loaded = catalog.commit(catalog.load(table), [], [set_property("n", "1")])
    assert len(loaded.metadata.metadata_log) == 1
    assert foreign.exists()


@pytest.mark.parametrize("lake", ["s3tables"], indirect=True)
def test_a_table_without_metadata_says_so(lake: Lake, moto_server: MotoServer) -> None:
    moto_server.client("s3tables").create_table(
        tableBucketARN=lake.properties["warehouse"], namespace="ns", name="empty", format="ICEBERG"
    )
    with pytest.raises(MetadataUnreadable, match=r"ns\.empty has no metadata file yet"):
        lake.open().load(TableName(("ns",), "empty"))
