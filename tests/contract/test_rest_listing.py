"""The REST adapter where something answers 200 that is not what the specification says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.errors import MetadataUnreadable, StorageError
from support.maintained_table import NAME, new_table
from support.scripted_rest import ScriptedRest, scripted_rest


class _Foreign(ScriptedRest):
    """Answers one path in its own way."""

    path = "nothing"
    body = b""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        if path.startswith("/v1/namespaces") and path.endswith(self.path):
            return 200, {}, self.body
        if path.startswith("/v1/namespaces") and path.partition("?")[0] == "/v1/namespaces":
            return 200, {}, b'{"namespaces": [["ns"]]}'
        return super().answer(method, path, body)


@pytest.fixture
def server(local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Foreign]:
    monkeypatch.setattr("support.scripted_rest.ScriptedRest", _Foreign)
    with scripted_rest(new_table(local_catalog, tmp_path).catalog) as server:
        assert isinstance(server, _Foreign)
        yield server


@pytest.mark.parametrize("path", ["/namespaces", "/tables"])
@pytest.mark.parametrize("body", [b"<html>sign in</html>", b"[]", b'{"hello": 1}', b"null", b""])
def test_a_listing_that_is_none_is_told(server: _Foreign, path: str, body: bytes) -> None:
    catalog = server.open()
    server.path, server.body = path, body
    with pytest.raises(StorageError) as caught:
        list(catalog.list_tables())
    told = f"what answers at {server.url} is not an Iceberg REST catalog; look for a proxy that answers in its place"
    assert str(caught.value) == told


@pytest.mark.parametrize("more", [{"storage-credentials": 1}, {"storage-credentials": [{"hello": 1}]}, {"config": 7}])
def test_credentials_that_are_none_are_told(server: _Foreign, more: Mapping[str, Any]) -> None:
    catalog = server.open()
    loaded = catalog.load(NAME)
    answer = {"metadata-location": loaded.metadata_location, "metadata": dict(loaded.metadata.document), **more}
    server.path, server.body = "/tables/t", json.dumps(answer).encode()
    with pytest.raises(MetadataUnreadable, match="answered with credentials or configuration that are not understood"):
        catalog.load(NAME)


def test_table_metadata_of_another_shape_are_refused_with_their_file(server: _Foreign) -> None:
    catalog = server.open()
    loaded = catalog.load(NAME)
    document = {**loaded.metadata.document, "snapshots": [{"snapshot-id": "1"}]}
    answer = {"metadata-location": loaded.metadata_location, "metadata": document}
    server.path, server.body = "/tables/t", json.dumps(answer).encode()
    with pytest.raises(MetadataUnreadable) as caught:
        catalog.load(NAME)
    told = str(caught.value)
    assert (
        f"metadata file {loaded.metadata_location}, which is not an Iceberg table's: snapshots[0].snapshot-id" in told
    )
