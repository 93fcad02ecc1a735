"""Fails when moto or PyIceberg no longer needs, or no longer has, what we build on."""

from __future__ import annotations

import http.client
import inspect
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError
from moto.glue.responses import GlueResponse
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import Transaction, update
from pyiceberg.utils.config import Config

from local_stack.moto_server import MotoServer

# Sings while moto still needs what the local stack adds to it.


@contextmanager
def moto_ignores_versions() -> Iterator[None]:
    """moto as it is, without what ``moto_glue`` adds."""
    with mock.patch.object(GlueResponse, "update_table", inspect.unwrap(GlueResponse.update_table)):
        yield


def test_moto_still_updates_a_glue_table_whatever_version_is_asked_for(moto_server: MotoServer) -> None:
    glue = moto_server.client("glue")
    glue.create_database(DatabaseInput={"Name": "canary"})
    glue.create_table(DatabaseName="canary", TableInput={"Name": "t"})
    stale = {"DatabaseName": "canary", "TableInput": {"Name": "t"}, "VersionId": "0"}
    try:
        with pytest.raises(ClientError, match="ConcurrentModificationException"):
            glue.update_table(**stale)
        with moto_ignores_versions():
            try:
                glue.update_table(**stale)
            except ClientError:
                pytest.fail("moto checks VersionId by now: remove local_stack/moto_glue.py and its use")
    finally:
        glue.delete_database(Name="canary")


# Connections to the AWS of the tests stay open: each answer ends where it says, and each request is read whole.


@pytest.fixture
def connection(moto_server: MotoServer) -> Iterator[http.client.HTTPConnection]:
    with closing(http.client.HTTPConnection(moto_server.endpoint.removeprefix("http://"), timeout=10)) as connection:
        yield connection


def answer(connection: http.client.HTTPConnection, method: str, path: str) -> tuple[int, str | None]:
    """Status and length of an answer."""
    connection.request(method, path)
    response = connection.getresponse()
    response.read()
    return response.status, response.getheader("Content-Length")


def test_answers_with_and_without_a_body_follow_each_other_on_one_connection(
    moto_server: MotoServer, connection: http.client.HTTPConnection
) -> None:
    bucket = f"kept-{uuid4()}"
    s3 = moto_server.client("s3")
    s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=bucket, Key="k", Body=b"four")
    operations = {"GET": "get_object", "HEAD": "head_object", "DELETE": "delete_object"}
    paths = {
        method: s3.generate_presigned_url(operation, {"Bucket": bucket, "Key": "k"}).removeprefix(moto_server.endpoint)
        for method, operation in operations.items()
    }
    connection.connect()
    socket = connection.sock
    answers = [answer(connection, method, path) for method, path in paths.items()]
    assert answers == [(200, "4"), (200, "4"), (204, None)]
    assert connection.sock is socket


def test_after_a_failure_inside_moto_the_connection_serves_on(connection: http.client.HTTPConnection) -> None:
    with mock.patch.object(DomainDispatcherApplication, "__call__", side_effect=KeyError("of moto's own")):
        connection.request("POST", "/", body=b"GET /read/as/a/request HTTP/1.1\r\n\r\n")
        response = connection.getresponse()
        assert response.status == 500
        response.read()
    socket = connection.sock
    assert answer(connection, "GET", f"/kept-{uuid4()}")[0] == 404  # S3: no such bucket
    assert connection.sock is socket is not None


# Sings while PyIceberg has what icekeeper.pyiceberg_private takes from it beyond its public API.


def test_pyiceberg_still_has_the_private_names_we_use() -> None:
    expected: dict[Any, dict[str, tuple[str, ...]]] = {
        RestCatalog: {
            "_config_headers": ("self", "session"),
            "_create_session": ("self",),
            "_fetch_config": ("self",),
            "_split_identifier_for_path": ("self", "identifier", "kind"),
            "_refresh_token": ("self",),
            "_resolve_storage_credentials": ("storage_credentials", "location"),
            "url": ("self", "endpoint", "prefixed", "kwargs"),
        },
        SqlCatalog: {"_iceberg_type_filter": ("self",)},
        update: {"update_table_metadata": ("base_metadata", "updates", "enforce_validation", "metadata_location")},
        Config: {"get_known_catalogs": ("self",), "get_catalog_config": ("self", "catalog_name")},
    }
    missing = []
    for owner, functions in expected.items():
        for name, parameters in functions.items():
            function = getattr(owner, name, None)
            if function is None or tuple(inspect.signature(function).parameters) != parameters:
                missing.append(f"{owner.__name__}.{name}({', '.join(parameters)})")
    sources: dict[Any, tuple[str, ...]] = {
        RestCatalog: ("self._session",),
        SqlCatalog: ("self.engine",),
        Transaction: ("self._table", "self._updates"),
    }
    for owner, attributes in sources.items():
        source = inspect.getsource(owner.__init__)
        missing += [f"{owner.__name__}: {name}" for name in attributes if f"{name} = " not in source]
    # Our own _fetch_config must set the same attributes (rule: admit-server-settings-by-list).
    theirs = set(re.findall(r"self\.(\w+) = ", inspect.getsource(RestCatalog._fetch_config)))
    ours = {"properties", "uri", "_supported_endpoints", "_namespace_separator"}
    missing += [f"RestCatalog._fetch_config: {name}" for name in sorted(theirs ^ ours)]
    columns = ("catalog_name", "table_namespace", "table_name", "metadata_location", "previous_metadata_location")
    missing += [f"IcebergTables.{name}" for name in columns if not hasattr(IcebergTables, name)]
    assert not missing, f"PyIceberg moved {', '.join(missing)}: adapt icekeeper/pyiceberg_private/, nothing else"
