"""The Glue Data Catalog: behaviour that other catalogs lack, beside PyIceberg's GlueCatalog on the same tables."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyiceberg.catalog
import pytest
from botocore.stub import Stubber

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.glue import GlueCatalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.errors import CommitConflict, MetadataUnreadable, PartlyListed, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer

ROWS = pa.table({"id": pa.array(range(5), pa.int64()), "name": ["a", "b", "c", "d", "e"]})
TABLE = TableName(("ns",), "t")
RENAMED = [{"action": "set-properties", "updates": {"owner": "me"}}]


@pytest.fixture
def properties(moto_server: MotoServer) -> Iterator[dict[str, str]]:
    """A catalog with an empty database ``ns``."""
    bucket = f"lake-{uuid.uuid4()}"
    moto_server.client("s3").create_bucket(Bucket=bucket)
    glue = moto_server.client("glue")
    glue.create_database(DatabaseInput={"Name": "ns"})
    yield {**moto_server.glue_properties, "warehouse": f"s3://{bucket}"}
    for database in glue.get_databases()["DatabaseList"]:
        glue.delete_database(Name=database["Name"])


@pytest.fixture
def catalog(properties: dict[str, str]) -> Iterator[GlueCatalog]:
    opened = open_catalog("lake", properties)
    assert isinstance(opened, GlueCatalog)
    yield opened
    opened.close()


@pytest.fixture
def theirs(properties: dict[str, str]) -> pyiceberg.catalog.Catalog:
    """PyIceberg's GlueCatalog."""
    return pyiceberg.catalog.load_catalog("lake", **properties)


def test_a_commit_keeps_all_fields_of_the_glue_entry(
    catalog: GlueCatalog, theirs: pyiceberg.catalog.Catalog, moto_server: MotoServer
) -> None:
    theirs.create_table("ns.t", ROWS.schema)
    glue = moto_server.client("glue")
    entry = glue.get_table(DatabaseName="ns", Name="t")["Table"]
    fields: dict[str, Any] = {
        "Name": "t",
        "Description": "orders",
        "Owner": "sales",
        "Retention": 7,
        "TableType": "EXTERNAL_TABLE",
        "PartitionKeys": [{"Name": "day", "Type": "date"}],
        "ViewOriginalText": "kept",
        "StorageDescriptor": {
            **entry["StorageDescriptor"],
            "NumberOfBuckets": 3,
            "SerdeInfo": {"Name": "s", "Parameters": {"p": "q"}},
        },
        "Parameters": {**entry["Parameters"], "classification": "parquet"},
    }
    glue.update_table(DatabaseName="ns", TableInput=fields)
    base = catalog.load(TABLE)
    after = catalog.commit(base, [], RENAMED)
    now = glue.get_table(DatabaseName="ns", Name="t")["Table"]
    pointers = {"metadata_location": after.metadata_location, "previous_metadata_location": base.metadata_location}
    assert {key: now[key] for key in fields} == {**fields, "Parameters": {**fields["Parameters"], **pointers}}
    assert now["VersionId"] == "3"


def test_a_commit_that_lands_between_reading_the_entry_and_the_swap_is_a_conflict(
    catalog: GlueCatalog, theirs: pyiceberg.catalog.Catalog, properties: dict[str, str]
) -> None:
    """Only the entry's version shows the conflict: the pointer was still at the base when it was read."""
    theirs.create_table("ns.t", ROWS.schema)
    base = catalog.load(TABLE)
    other = open_catalog("lake", properties)
    landed: list[LoadedTable] = []

    def overtake(**_: Any) -> None:
        if not landed:
            landed.append(other.commit(base, [], [{"action": "set-properties", "updates": {"first": "yes"}}]))

    client: Any = catalog
    client._clients.once.meta.events.register("before-send.glue.UpdateTable", overtake)
    with pytest.raises(CommitConflict, match=r"ns\.t has changed: another writer committed first"):
        catalog.commit(base, [], RENAMED)
    now = catalog.load(TABLE)
    assert now.metadata.properties["first"] == "yes"
    assert "owner" not in now.metadata.properties
    files = {item.path for item in Storage(now.io_properties).list(now.metadata.metadata_directory)}
    assert files == {base.metadata_location, now.metadata_location}, "the loser's document must be gone"


def test_a_commit_lands_if_the_entry_but_not_the_pointer_has_changed(
    catalog: GlueCatalog, theirs: pyiceberg.catalog.Catalog, moto_server: MotoServer
) -> None:
    """A new description of the table survives the commit and is not a conflict."""
    theirs.create_table("ns.t", ROWS.schema)
    base = catalog.load(TABLE)
    glue = moto_server.client("glue")
    entry = glue.get_table(DatabaseName="ns", Name="t")["Table"]
    table_input = {key: entry[key] for key in ("Name", "TableType", "StorageDescriptor", "Parameters")}
    glue.update_table(DatabaseName="ns", TableInput={**table_input, "Description": "new"})
    catalog.commit(base, [], RENAMED)
    assert glue.get_table(DatabaseName="ns", Name="t")["Table"]["Description"] == "new"


def test_only_iceberg_tables_are_listed_and_loaded(
    catalog: GlueCatalog, theirs: pyiceberg.catalog.Catalog, moto_server: MotoServer
) -> None:
    theirs.create_table("ns.t", ROWS.schema)
    glue = moto_server.client("glue")
    iceberg = {"table_type": "ICEBERG", "metadata_location": "s3://x/metadata/00000-x.metadata.json"}
    target = {"CatalogId": "111122223333", "DatabaseName": "there", "Name": "orders"}
    glue.create_table(DatabaseName="ns", TableInput={"Name": "hive", "Parameters": {"EXTERNAL": "TRUE"}})
    glue.create_table(DatabaseName="ns", TableInput={"Name": "bare"})
    glue.create_table(DatabaseName="ns", TableInput={"Name": "link", "Parameters": iceberg, "TargetTable": target})
    glue.create_table(DatabaseName="ns", TableInput={"Name": "empty", "Parameters": {"table_type": "iceberg"}})
    assert set(catalog.list_tables()) == {TABLE, TableName(("ns",), "empty")}
    for name in ("hive", "bare"):
        with pytest.raises(PolicyError, match=rf"ns\.{name} in catalog lake is not an Iceberg table"):
            catalog.load(TableName(("ns",), name))
    with pytest.raises(PolicyError, match=r"resource link; maintain the table itself: there\.orders in catalog 1111"):
        catalog.load(TableName(("ns",), "link"))
    with pytest.raises(MetadataUnreadable, match=r"ns\.empty has no metadata_location in catalog lake"):
        catalog.load(TableName(("ns",), "empty"))


def test_every_page_is_read_and_a_database_dropped_during_the_listing_is_skipped(catalog: GlueCatalog) -> None:
    """moto returns one page."""
    client: Any = catalog
    iceberg = {"Parameters": {"table_type": "ICEBERG"}}
    with Stubber(client._clients.repeating) as glue:
        linked = {"Name": "linked", "TargetDatabase": {"CatalogId": "111122223333", "DatabaseName": "a"}}
        glue.add_response("get_databases", {"DatabaseList": [{"Name": "a"}, linked], "NextToken": "n"})
        glue.add_response("get_tables", {"TableList": [{"Name": "x", **iceberg}], "NextToken": "n"})
        glue.add_response("get_tables", {"TableList": [{"Name": "y", **iceberg}]})
        glue.add_response("get_databases", {"DatabaseList": [{"Name": "gone"}, {"Name": "b.c"}]})
        glue.add_client_error("get_tables", "EntityNotFoundException")
        glue.add_response("get_tables", {"TableList": [{"Name": "z", **iceberg}]})
        glue.add_response("get_databases", {"DatabaseList": [{"Name": "a"}, {"Name": "b.c"}]})
        assert [str(table) for table in catalog.list_tables()] == ["a.x", "a.y", "b.c.z"]
        glue.assert_no_pending_responses()
        glue.add_response("get_databases", {"DatabaseList": [{"Name": "gone"}]})
        glue.add_client_error("get_tables", "EntityNotFoundException")
        glue.add_response("get_databases", {"DatabaseList": [{"Name": "gone"}]})  # so it is hidden
        with pytest.raises(PartlyListed, match=r"access to the tables of 1 database\(s\) is denied \(gone\)"):
            list(catalog.list_tables())
        glue.add_client_error("get_databases", "AccessDeniedException", "no")
        with pytest.raises(StorageError, match=r"catalog lake \(Glue Data Catalog\) was refused by the store"):
            list(catalog.list_tables())


def test_requests_have_the_configured_catalog_id_and_archiving(
    theirs: pyiceberg.catalog.Catalog, properties: dict[str, str]
) -> None:
    theirs.create_table("ns.t", ROWS.schema)
    sent: list[tuple[str, dict[str, Any]]] = []
    for more, skipped in (({}, True), ({"glue.skip-archive": "False"}, False)):
        ours: Any = open_catalog("lake", {**properties, "glue.id": "123456789012", **more})
        for client in (ours._clients.repeating, ours._clients.once):
            client.meta.events.register(
                "provide-client-params.glue", lambda params, model, **_: sent.append((model.name, params))
            )
        list(ours.list_tables())
        ours.commit(ours.load(TABLE), [], RENAMED)
        assert {params["CatalogId"] for _, params in sent} == {"123456789012"}
        [update] = [params for operation, params in sent if operation == "UpdateTable"]
        assert update["SkipArchive"] is skipped
        assert update["VersionId"]
        sent.clear()
        ours.close()


def test_a_table_has_one_identity_in_any_case_of_its_name(
    catalog: GlueCatalog, theirs: pyiceberg.catalog.Catalog
) -> None:
    """Glue folds names to lower case; moto does not."""
    location = theirs.create_table("ns.t", ROWS.schema).metadata_location
    entry = {"DatabaseName": "ns", "Name": "t", "VersionId": "1"}
    parameters = {"table_type": "ICEBERG", "metadata_location": location}
    client: Any = catalog
    with Stubber(client._clients.repeating) as glue:
        expected = {"DatabaseName": "NS", "Name": "T"}
        glue.add_response("get_table", {"Table": {**entry, "Parameters": parameters}}, expected)
        assert catalog.load(TableName(("NS",), "T")).name == TABLE


def test_an_entry_without_a_version_is_not_committed(catalog: GlueCatalog, theirs: pyiceberg.catalog.Catalog) -> None:
    theirs.create_table("ns.t", ROWS.schema)
    base = catalog.load(TABLE)
    parameters = {"table_type": "ICEBERG", "metadata_location": base.metadata_location}
    client: Any = catalog
    with Stubber(client._clients.repeating) as glue, Stubber(client._clients.once):
        glue.add_response("get_table", {"Table": {"DatabaseName": "ns", "Name": "t", "Parameters": parameters}})
        with pytest.raises(StorageError, match=r"sends no version of ns\.t.*nothing was sent"):
            catalog.commit(base, [], RENAMED)
