"""Catalogs that lose their answers, refuse, or are not there: which error, and what stays readable."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.errors import (
    CommitStateUnknown,
    StorageError,
)
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer
from support.catalog_lakes import CATALOGS, ENDPOINT, Lake, append, main_at, set_property
from support.proxies import FaultyProxy, closed_port, faulty_proxy


@contextmanager
def losing_answers(lake: Lake, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> Iterator[tuple[Catalog, Any]]:
    """A catalog, and a switch that from then on lets commits land but loses their answers."""
    if lake.name == "sql_lake":
        catalog: Any = lake.open()
        original = catalog._engine.dialect.do_commit

        def commit_then_fail(connection: Any) -> None:
            original(connection)
            raise sqlite3.OperationalError("connection lost")

        yield catalog, lambda: monkeypatch.setattr(catalog._engine.dialect, "do_commit", commit_then_fail)
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
    """One answer only: a client that sends the swap again would lose against itself and see a conflict."""
    proxy.fault, proxy.faults_left = answer, 1


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"])
def test_a_lost_answer_leaves_the_state_unknown_and_the_commit_readable(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    table = lake.table()
    with losing_answers(lake, monkeypatch, answer) as (catalog, break_now):
        base = catalog.load(table)
        break_now()
        with pytest.raises(CommitStateUnknown, match=f"ns.{table.name}: .*whether it landed is not known"):
            catalog.commit(base, [main_at(None)], append(base, 7))
    monkeypatch.undo()
    # It did land, so what it staged must be there.
    now = lake.open().load(table)
    assert now.token != base.token
    assert set(now.metadata.snapshots) == {7}
    assert Storage(now.io_properties).size(now.metadata_location)


@pytest.mark.parametrize("lake", ["rest"], indirect=True)
def test_an_unreachable_catalog_does_not_open(lake: Lake) -> None:
    with closed_port() as endpoint, pytest.raises(StorageError, match=f"nothing answers at {endpoint}$"):
        lake.open(uri=endpoint)


def test_a_server_that_is_no_catalog_does_not_open(moto_server: MotoServer) -> None:
    with pytest.raises(StorageError, match=r"is not an Iceberg REST catalog|cannot be used"):
        open_catalog("lake", {"type": "rest", "uri": f"{moto_server.endpoint}/moto-api/"})


def test_signing_without_credentials_is_an_error_that_says_so(
    table_bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", raising=False)  # of a local stack of this process
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    properties = {key: value for key, value in table_bucket.items() if not key.startswith("client.")}
    with pytest.raises(StorageError, match="catalog lake signs its requests, but no AWS credentials are configured"):
        open_catalog("lake", {**properties, "client.region": "us-east-1"})


@pytest.mark.parametrize("lake", ["sql"], indirect=True)
def test_an_unreachable_database_does_not_open(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="database of catalog sql_lake cannot be used: unable to open"):
        lake.open(uri=f"sqlite:///{tmp_path}/missing/catalog.db")


@pytest.mark.parametrize("lake", ["rest", "s3tables", "glue"], indirect=True)
def test_an_endpoint_that_refuses_is_a_storage_error_and_no_commit(lake: Lake) -> None:
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
