"""A table keeps its protection under every name and every spelling of its paths."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.administration.pins import declare_load, stage_load
from icekeeper.machine.clock import system_clock
from icekeeper.model import CatalogId, TableName
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.state.claims import CutOff, CutWork
from icekeeper.state.identity import Entry
from icekeeper.state.open import open_state
from icekeeper.state.staging import LoadState
from support.command import CATALOG, EVERYTHING_IS_OLD, Command
from support.maintained_table import NAME, MaintainedTable, grow_old, new_table
from support.readers import canonical, duckdb_rows, pyiceberg_ids, pyiceberg_rows
from support.served import files_of, grow_old_in_history, ids

Spelling = tuple[str, str]
"""A catalog and its name of the table."""


def renamed(command: Command, patch: pytest.MonkeyPatch) -> Spelling:
    command.catalog.rename_table("ns.t", "ns.other")
    return CATALOG, "ns.other"


def under_another_catalog(command: Command, patch: pytest.MonkeyPatch) -> Spelling:
    """A table registered twice, as under two names of the same REST or Glue catalog."""
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
def test_pinned_and_pending_files_are_kept_under_every_name_of_the_table(
    command: Command, monkeypatch: pytest.MonkeyPatch, spell: Callable[[Command, pytest.MonkeyPatch], Spelling]
) -> None:
    """A table is its UUID, whatever its name and location (rule: table-identity-is-its-uuid)."""
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


# Two tables of a catalog whose names print alike: ``victim`` / ``x.t`` and ``victim.x`` / ``t``.

SWEEP = ("--operations", "expire_snapshots,remove_orphans", *EVERYTHING_IS_OLD, "--set", "orphan_max_delete_ratio=1")
RUN = ("run", "--once", "--engine", "local", "--set", "operations=compute_statistics")


@pytest.fixture
def owner(command: Command) -> Table:
    """A table that has overwritten the rows whose files a guest added."""
    command.catalog.create_namespace("victim")
    return command.table("victim.owner", appends=2)


@pytest.fixture
def guest(command: Command, owner: Table) -> Table:
    """``victim.x`` / ``t``, which added the owner's files; beside it a tenant's table whose name prints alike."""
    command.catalog.create_namespace("victim.x")
    guest = command.table("victim.x.t", appends=1)
    guest.add_files(files_of(owner))
    twin = command.table("ns.twin", appends=1).metadata_location
    with closing(sqlite3.connect(command.database)) as connection, connection:
        connection.execute(
            "UPDATE iceberg_tables SET table_namespace = 'victim', table_name = 'x.t' WHERE metadata_location = ?",
            (twin,),
        )
    owner.overwrite(owner.scan().to_arrow())
    grow_old_in_history(owner)
    return guest


def test_tables_whose_names_print_alike_keep_their_own_files(command: Command, owner: Table, guest: Table) -> None:
    rows = ids(guest)
    for _ in range(3):  # in each order of recording
        command(*RUN)
        answer = command("maintain", "victim.owner", *SWEEP, "--json")
        assert {item["status"] for item in answer.json["operations"]} <= {"succeeded", "skipped"}
        assert pyiceberg_ids(guest.metadata_location) == rows
    assert len(owner.refresh().snapshots()) == 1


def test_tables_whose_names_print_alike_have_separate_cut_offs(command: Command, guest: Table) -> None:
    warehouse = command.properties["warehouse"]
    entry = Entry(CatalogId(CATALOG, warehouse), TableName(("victim",), "x.t").key)
    cut = CutOff(entry=entry, work=CutWork.LOOK, times=1, cut_ms=system_clock(), why="it hangs")
    open_state(os.environ).cut_offs.record(cut)
    assert command(*RUN).out.count("victim.x.t failed: not looked at: it hangs") == 1


# A local file under two names: a warehouse, a folder or a file behind a symbolic link loses no file.

REAL, LINK = "real", "link"


def linked_table(catalog: SqlCatalog, folder: Path, named: str, located: str) -> MaintainedTable:
    """A table whose files use one spelling of its folder while its location uses the other."""
    (folder / REAL).mkdir()
    (folder / LINK).symlink_to(folder / REAL)
    table = new_table(catalog, folder, allowed=folder, location=(folder / named / "t").as_uri(), appends=2)
    table.rewrite_document(lambda document: document.update(location=(folder / located / "t").as_uri()))
    return table


def age(table: MaintainedTable) -> None:
    grow_old(path for path in table.folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(("named", "located"), [(REAL, LINK), (LINK, REAL)])
def test_a_file_is_known_by_its_real_path(local_catalog: SqlCatalog, tmp_path: Path, named: str, located: str) -> None:
    """Orphan removal, the cleaning of a failed load and expiry keep files that are needed under the other name."""
    table = linked_table(local_catalog, tmp_path, named, located)
    orphan = Path(table.plant("data/orphan.parquet"))
    age(table)
    outcome = table.run(Operation.REMOVE_ORPHANS)
    assert [Path(path.removeprefix("file://")).name for path in outcome.files_deleted] == [orphan.name]
    assert not orphan.exists()
    assert table.readers_agree() == [0, 1, 10, 11]

    live, lost = sorted((tmp_path / REAL / "t/data").glob("*.parquet"))[0], Path(table.plant("data/lost.parquet"))
    handle = TableHandle(table.catalog, NAME, table.state, system_clock)
    staged = [(tmp_path / located / "t/data" / path.name).as_uri() for path in (live, lost)]
    stage_load(handle, "load", staged, ())
    declare_load(handle, "load", LoadState.FAILED)
    cleaned = table.maintain("rewrite_position_deletes").staged
    assert cleaned is not None
    assert cleaned.files_deleted == (staged[1],)
    assert table.readers_agree() == [0, 1, 10, 11]

    imported = Path(table.plant("data/imported.parquet"))
    pq.write_table(table.new_rows(7), imported)
    table.table.add_files([(tmp_path / located / "t/data/imported.parquet").as_uri()])
    table.table.delete("id = 7")
    table.table.add_files([(tmp_path / named / "t/data/imported.parquet").as_uri()])
    outcome = table.run(Operation.EXPIRE_SNAPSHOTS)
    assert outcome.metrics["expire_snapshots.snapshots_expired"] > 0
    assert imported.exists()
    assert table.readers_agree() == [0, 1, 7, 10, 11]


def test_a_folder_below_the_location_may_be_a_link(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """``data`` points to ``data-2``, which a listing shows but no metadata names."""
    folder = tmp_path / "t"
    (folder / "data-2").mkdir(parents=True)
    (folder / "data").symlink_to("data-2")
    table = new_table(local_catalog, tmp_path, allowed=tmp_path, location=folder.as_uri(), appends=2)
    orphan = table.plant("data-2/orphan.parquet")
    age(table)
    assert table.run(Operation.REMOVE_ORPHANS).files_deleted == (f"file://{orphan}",)
    assert table.readers_agree() == [0, 1, 10, 11]


def test_a_link_to_a_file_protects_its_target(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """The table names the link; the listing shows only its target."""
    table = new_table(local_catalog, tmp_path, appends=1)
    target = Path(table.plant("data/target.parquet"))
    pq.write_table(table.new_rows(7), target)
    link = table.folder / "data" / "link.parquet"
    link.symlink_to(target)
    table.table.add_files([link.as_uri()])
    age(table)
    assert table.run(Operation.REMOVE_ORPHANS).files_deleted == ()
    assert table.readers_agree() == [0, 1, 7]


def test_nothing_is_deleted_where_a_link_leads_out_of_the_location(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """The owner of the outside folder is unknown: files that expiry frees in it are kept, and the pass succeeds."""
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    folder = tmp_path / "t"
    folder.mkdir()
    (folder / "data").symlink_to(outside)
    table = new_table(local_catalog, tmp_path, allowed=tmp_path, location=folder.as_uri(), appends=3)
    before = set(os.listdir(outside))
    outcome = table.maintain("compact,expire_snapshots,remove_orphans")
    assert [part.status for part in outcome.operations] == [Status.SUCCEEDED] * 3
    assert before <= set(os.listdir(outside))
    assert len(table.data_files()) == 1
    assert table.readers_agree() == [0, 1, 10, 11, 20, 21]
