"""What protects a table's files holds whatever the table is called: its UUID counts, no name and no spelling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from support.command import CATALOG, EVERYTHING_IS_OLD, Command
from support.readers import canonical, duckdb_rows, pyiceberg_rows

Spelling = tuple[str, str]
"""A catalog, and what it calls the table."""


def renamed(command: Command, patch: pytest.MonkeyPatch) -> Spelling:
    command.catalog.rename_table("ns.t", "ns.other")
    return CATALOG, "ns.other"


def under_another_catalog(command: Command, patch: pytest.MonkeyPatch) -> Spelling:
    """One table registered twice, as two names of one REST or Glue catalog have it."""
    properties = {**command.properties, "uri": f"sqlite:///{command.folder / 'alias.db'}"}
    configure(patch, "alias", properties)
    alias = SqlCatalog("alias", **properties)
    alias.create_namespace("ns")
    alias.register_table("ns.t", command.pointers()[0][1])
    return "alias", "ns.t"


def in_another_case(command: Command, patch: pytest.MonkeyPatch) -> Spelling:
    command.catalog.create_namespace("NS")
    command.catalog.rename_table("ns.t", "NS.T")
    return CATALOG, "NS.T"


def with_another_warehouse(command: Command, patch: pytest.MonkeyPatch) -> Spelling:
    configure(patch, CATALOG, {**command.properties, "warehouse": f"{command.warehouse.as_uri()}/"})
    return CATALOG, "ns.t"


def configure(patch: pytest.MonkeyPatch, catalog: str, properties: dict[str, str]) -> None:
    for key, value in properties.items():
        patch.setenv(f"PYICEBERG_CATALOG__{catalog.upper()}__{key.upper()}", value)


@pytest.mark.parametrize("spell", [renamed, under_another_catalog, in_another_case, with_another_warehouse])
def test_what_is_pinned_or_pending_stays_whatever_the_table_is_called(
    command: Command, monkeypatch: pytest.MonkeyPatch, spell: Callable[[Command, pytest.MonkeyPatch], Spelling]
) -> None:
    table = command.table(appends=3)
    pinned = table.metadata.snapshots[0].snapshot_id
    added = command("pin", "add", "ns.t", "--snapshot", str(pinned), "--ttl", "6h", "--name", "reader", "--json")
    metadata = added.json["pin"]["metadata_location"]
    rows = canonical(pyiceberg_rows(metadata, pinned))
    pending = Path(table.location().removeprefix("file://")) / "data" / "pending.parquet"
    pending.write_bytes(b"rows of a load")
    assert command("stage", "add", "ns.t", "--name", "load", "--file", pending.as_uri()).code == 0

    catalog, name = spell(command, monkeypatch)
    swept = "expire_snapshots,remove_orphans"
    done = command(
        "maintain", name, "--engine", "local", *EVERYTHING_IS_OLD, "--operations", swept, "--json", catalog=catalog
    )

    assert done.code == 0, done.err
    assert done.json["status"] == "succeeded"
    assert pending.exists()
    assert canonical(duckdb_rows(metadata, pinned)) == rows
    listed = command("pin", "list", name, "--json", catalog=catalog).json["pins"]
    assert [pin["name"] for pin in listed] == ["reader"]
