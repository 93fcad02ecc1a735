"""Fixtures of the contract suites: every state store, and every catalog with a new table bucket or warehouse."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyiceberg.catalog
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer
from support.catalog_lakes import Lake
from support.maintained_table import new_table
from support.scripted_rest import ScriptedRest, scripted_rest
from support.state_stores import STORES, OpenStore
from support.tables import new_document


@pytest.fixture(params=sorted(STORES))
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    """A function that opens the same store again, as another process would."""
    return STORES[request.param](request)


@pytest.fixture
def server(local_catalog: SqlCatalog, tmp_path: Path) -> Iterator[ScriptedRest]:
    """A REST catalog with one table, whose answers a test scripts."""
    with scripted_rest(new_table(local_catalog, tmp_path).catalog) as server:
        yield server


@pytest.fixture
def lake(request: pytest.FixtureRequest) -> Iterator[Lake]:
    found: Lake = request.getfixturevalue(f"{request.param}_lake")
    yield found
    for catalog in found.opened:
        catalog.close()
    if found.client is not None:
        found.client.close()


@pytest.fixture
def rest_lake(table_bucket: dict[str, str]) -> Lake:
    client = pyiceberg.catalog.load_catalog("rest_lake", **table_bucket)
    client.create_namespace("ns")

    def create(name: str, version: int, more: dict[str, Any]) -> None:
        schema = Schema(NestedField(1, "id", LongType(), required=False))
        properties = {"format-version": str(version), **more.get("properties", {})}
        client.create_table(("ns", name), schema, properties=properties)

    return Lake("rest_lake", table_bucket, create, client)


@pytest.fixture
def sql_lake(tmp_path: Path) -> Lake:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    client = pyiceberg.catalog.load_catalog("sql_lake", **properties)
    client.create_namespace("ns")

    def create(name: str, version: int, more: dict[str, Any]) -> None:
        location = f"file://{tmp_path}/warehouse/ns/{name}"
        metadata = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
        Storage({}).write(metadata, json.dumps(new_document(location, version, **more)).encode())
        client.register_table(("ns", name), metadata)

    return Lake("sql_lake", properties, create, client)


@pytest.fixture
def sqlalchemy_lake(sql_lake: Lake) -> Lake:
    """The SQL catalog through SQLAlchemy, as for databases other than SQLite."""
    return replace(sql_lake, properties={**sql_lake.properties, "uri": f"{sql_lake.properties['uri']}?timeout=5"})


@pytest.fixture
def s3tables_lake(moto_server: MotoServer) -> Lake:
    s3tables = moto_server.client("s3tables")
    arn = s3tables.create_table_bucket(name=f"lake-{uuid.uuid4()}")["arn"]
    s3tables.create_namespace(tableBucketARN=arn, namespace=["ns"])
    properties = {
        "type": "s3tables",
        "warehouse": arn,
        "s3tables.endpoint": moto_server.endpoint,
        **moto_server.s3_properties,
    }

    def create(name: str, version: int, more: dict[str, Any]) -> None:
        address = {"tableBucketARN": arn, "namespace": "ns", "name": name}
        s3tables.create_table(**address, format="ICEBERG")
        pointer = s3tables.get_table_metadata_location(**address)
        location = pointer["warehouseLocation"]
        metadata = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
        Storage(properties).write(metadata, json.dumps(new_document(location, version, **more)).encode())
        s3tables.update_table_metadata_location(
            **address, versionToken=pointer["versionToken"], metadataLocation=metadata
        )

    return Lake("s3tables_lake", properties, create)


@pytest.fixture
def glue_lake(moto_server: MotoServer) -> Iterator[Lake]:
    bucket = f"lake-{uuid.uuid4()}"
    moto_server.client("s3").create_bucket(Bucket=bucket)
    properties = {**moto_server.glue_properties, "warehouse": f"s3://{bucket}"}
    client = pyiceberg.catalog.load_catalog("glue_lake", **properties)
    client.create_namespace("ns")

    def create(name: str, version: int, more: dict[str, Any]) -> None:
        location = f"s3://{bucket}/ns/{name}"
        metadata = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
        Storage(properties).write(metadata, json.dumps(new_document(location, version, **more)).encode())
        client.register_table(("ns", name), metadata)

    yield Lake("glue_lake", properties, create, client)
    moto_server.client("glue").delete_database(Name="ns")
