"""A catalog that may not list all of its tables is maintained as far as that is safe (rule 141)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ServerError

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.rest import RestCatalog
from icekeeper.catalogs.sql import SqlCatalog as OurSqlCatalog
from icekeeper.cycle.service import CycleSettings, Service, ServiceOptions
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import PartlyListed, StorageError
from icekeeper.model import TableName
from icekeeper.policy import Operation
from icekeeper.state.open import open_state
from support.command import CATALOG, EVERYTHING_IS_OLD, Command, local_path
from support.maintained_table import new_table
from support.scripted_rest import scripted_rest
from support.served import open_ours
from support.table_functions import Functions

HIDDEN = "the tables of 1 database(s) must not be listed (hr)"


def test_where_tables_may_be_hidden_files_are_merged_and_none_deleted(
    local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hidden table may need any of them (rule 88)."""
    table = new_table(local_catalog, tmp_path)
    table.fill(5)
    listed = OurSqlCatalog.list_tables

    def half(self: OurSqlCatalog) -> Iterator[TableName]:
        yield from listed(self)
        raise PartlyListed(HIDDEN)

    monkeypatch.setattr(OurSqlCatalog, "list_tables", half)
    before = table.files()
    assert table.run(Operation.COMPACT).status.value == "succeeded"
    planted = table.plant("data/orphan.parquet")
    for operation in (Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS):
        outcome = table.run(operation, snapshot_retention_hours="0", max_snapshots_to_keep="1")
        assert outcome.status.value == "refused"
        assert f"cannot be listed: {HIDDEN}; nothing was deleted" in str(outcome.reason)
    assert {*before, planted} <= table.files()
    assert table.ids() == [0, 1, 10, 11, 20, 21, 30, 31, 40, 41]


def test_a_service_tells_of_an_empty_catalog_when_it_becomes_one(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with every detection, and again when it happens again."""
    settings_of = CycleSettings.of
    monkeypatch.setattr(CycleSettings, "of", lambda policy: replace(settings_of(policy), interval_s=0))
    lines: list[str] = []
    between: list[Callable[[], object]] = [
        lambda: None,
        lambda: command.table(appends=1),
        lambda: command.catalog.drop_table("ns.t"),
    ]

    def tell(line: str) -> None:
        lines.append(line.partition(" ")[2])
        if "looked at" in line:
            (between.pop(0) if between else service.stop)()

    options = ServiceOptions(catalogs=[CATALOG], environment=os.environ)
    service = Service(options, open_state(os.environ), LocalEngine(1), tell)
    service.run()
    empty = (
        f"catalog {CATALOG} lists no table: if it has any, a right to see them is missing, such as a grant of AWS Lake "
        "Formation"
    )
    looked = [f"{count} looked at, 0 need maintenance" for count in ("0 tables", "1 table")]
    assert lines == [empty, looked[0], looked[0], looked[1], empty, looked[0]]


def test_a_deployment_counts_catalogs_without_tables(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm CatalogsEmptyAlarm goes by it."""
    monkeypatch.setenv("METRICS", "all")
    functions.table.pyiceberg.drop_table("ns.t")
    told = functions.send("detect")
    values = told.values("service")
    assert (values["CatalogsEmpty"], values["TablesScanned"], values["TablesNotReadable"]) == (1, 0, 0)
    assert [line["message"] for line in told.lines if line.get("level") == "WARNING"] == [
        "catalog local lists no table: if it has any, a right to see them is missing, such as a grant of AWS Lake "
        "Formation"
    ]


@pytest.mark.parametrize("deep", [False, True])
def test_a_rest_server_that_fails_for_one_lists_the_others(
    local_catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, *, deep: bool
) -> None:
    """One namespace of a tenant's must not stop all maintenance of the catalog."""
    with scripted_rest(open_ours(local_catalog)) as server:
        catalog = server.open()
        assert isinstance(catalog, RestCatalog)

        def tables(namespace: tuple[str, ...]) -> list[tuple[str, ...]]:
            if namespace == ("tenant",):
                raise ServerError("InternalServerError: no")
            return [(*namespace, "t0")]

        def namespaces(parent: tuple[str, ...]) -> list[tuple[str, ...]]:
            if deep and parent == ("tenant",):
                raise ServerError("InternalServerError: no")
            return [] if parent else [("tenant",), ("victim",)]

        monkeypatch.setattr(catalog._client, "list_tables", tables)
        monkeypatch.setattr(catalog._client, "list_namespaces", namespaces)
        found: list[TableName] = []
        with pytest.raises(PartlyListed, match=r"1 namespace.* as tenant: .*no") as caught:
            found.extend(catalog.list_tables())
        assert next(catalog.list_tables()) == TableName(("victim",), "t0")
        assert caught.value.hidden == (() if deep else (("tenant",),))
        monkeypatch.setattr(catalog._client, "list_namespaces", lambda parent: [] if parent else [("tenant",)])
        with pytest.raises(StorageError) as whole:  # none is listed: the catalog is out of order
            list(catalog.list_tables())
        assert not isinstance(whole.value, PartlyListed)


@pytest.mark.parametrize("apart", [False, True])
def test_a_sweep_of_the_bucket_goes_on_where_rules_keep_the_hidden_apart(
    command: Command, monkeypatch: pytest.MonkeyPatch, *, apart: bool
) -> None:
    table, listed = command.table(appends=1), OurSqlCatalog.list_tables
    orphan = local_path(table.location()) / "data/orphan.parquet"
    orphan.write_bytes(b"1")

    def half(self: OurSqlCatalog) -> Iterator[TableName]:
        yield from listed(self)
        raise PartlyListed(HIDDEN, hidden=[("hr",)])

    monkeypatch.setattr(OurSqlCatalog, "list_tables", half)
    if apart:
        rules = ";".join(f"C.{name}={command.warehouse.as_uri()}/{name}/" for name in ("ns", "hr"))
        monkeypatch.setenv("ICEKEEPER_ALLOWED_PREFIXES", rules)
    bucket = ("--bucket", command.warehouse.as_uri(), *EVERYTHING_IS_OLD, "--set", "orphan_max_delete_ratio=1")
    answer = command("orphans", *bucket, "--json")
    assert answer.json["warnings"] == [HIDDEN]
    assert [one["status"] for one in answer.json["tables"]] == ["succeeded" if apart else "refused"]
    assert orphan.exists() != apart


def test_a_table_that_the_catalog_fails_for_stops_nobody_that_rules_keep_apart(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers 500 for one table."""
    table, load = command.table(appends=1), OurSqlCatalog.load
    command.catalog.create_namespace("hr")
    command.table("hr.broken", appends=1)
    orphan = local_path(table.location()) / "data/orphan.parquet"

    def failing(self: OurSqlCatalog, name: TableName) -> LoadedTable:
        if name.namespace == ("hr",):
            raise StorageError(f"catalog C answered HTTP 500 about {name}: no")
        return load(self, name)

    monkeypatch.setattr(OurSqlCatalog, "load", failing)
    rules = ";".join(f"C.{name}={command.warehouse.as_uri()}/{name}/" for name in ("ns", "hr"))
    swept = ("maintain", "ns.t", "--operations", "remove_orphans", *EVERYTHING_IS_OLD)
    for said in ("", rules):
        monkeypatch.setenv("ICEKEEPER_ALLOWED_PREFIXES", said)
        orphan.write_bytes(b"1")
        assert command(*swept).code == (0 if said else 1)
        assert orphan.exists() == (not said)
