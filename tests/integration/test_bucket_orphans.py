"""Orphans of a whole bucket, and orphans below a separate data path."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.deletion.delete import delete_unneeded
from icekeeper.errors import OperationRefused
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import CatalogId, TableName
from icekeeper.operations.orphans.delete_orphans import folders_elsewhere
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.state.claims import TableClaims
from icekeeper.storage.paths import normalise
from support.command import Answer, Command, local_path, one_sentence
from support.maintained_table import MaintainedTable, grow_old, new_table
from support.tables import new_document

# ``icekeeper orphans``: a single listing of a warehouse, compared with the references of all its tables.

GRACE = ("--set", "orphan_older_than_hours=72")


def plant(where: Table | Path, relative: str, data: bytes = b"x", days_old: float = 10) -> str:
    """Write an old file below a table's location or a folder; return its path."""
    folder = where if isinstance(where, Path) else local_path(where.location())
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    grow_old([path], days_old)
    return path.as_uri()


def age(command: Command) -> None:
    grow_old(path for path in command.warehouse.rglob("*") if path.is_file())


def sweep(command: Command, *more: str) -> Answer:
    return command("orphans", "--bucket", command.warehouse.as_uri(), *GRACE, "--json", *more)


def of_table(answer: Answer, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(table for table in answer.json["tables"] if table["table"] == name)
    return found


def journal(command: Command) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(command.state)) as connection:
        return list(
            connection.execute(
                "SELECT json_extract(attributes, '$.table_name'), json_extract(attributes, '$.summary') FROM items "
                "WHERE sk GLOB 'pass#*' ORDER BY 1"
            )
        )


def test_only_orphans_are_deleted_from_each_table(command: Command) -> None:
    a, b = command.table("ns.a", appends=2), command.table("ns.b", appends=1)
    age(command)
    orphans = {plant(a, "data/o1.parquet"), plant(b, "data/o2.parquet"), plant(b, "metadata/o3.avro")}
    plant(a, "data/young.parquet", days_old=1)
    outside = plant(command.warehouse, "ns/notes.txt", b"12345")
    before = command.contents()

    dry = sweep(command, "--dry-run")
    assert command.contents() == before
    planned = [path for table in dry.json["tables"] for path in table["files"]["planned"]]
    assert set(planned) == orphans
    assert (dry.json["dry_run"], dry.json["status"], dry.code) == (True, "succeeded", 0)

    answer = sweep(command)
    assert answer.code == 0
    assert before.keys() - command.contents().keys() == {str(local_path(path)) for path in orphans}
    assert of_table(answer, "ns.a")["orphans_removed"] == 1
    assert of_table(answer, "ns.b")["bytes"] == 2
    assert of_table(answer, "ns.b")["files"]["deleted"] == sorted(p for p in orphans if "/b/" in p)
    assert answer.json["outside"] == {"files": 1, "bytes": 5, "first": [outside]}
    assert answer.json["foreign"] == []
    assert answer.json["metrics"]["remove_orphans.orphans_removed"] == 3
    assert journal(command) == [
        ("ns.a", "remove_orphans: removed 1 orphan file(s)"),
        ("ns.b", "remove_orphans: removed 2 orphan file(s)"),
    ]
    assert sweep(command).json["metrics"]["remove_orphans.orphans_removed"] == 0
    assert len(journal(command)) == 2


def test_a_bucket_sweep_follows_the_policy_of_each_table(command: Command) -> None:
    """A single listing may serve a whole bucket, but the policy of each table still applies
    (rule: ask-neighbours-before-deleting)."""
    tables = {
        "ns.off": {"icekeeper.maintenance_enabled": "false"},
        "ns.unswept": {"icekeeper.orphan_sweep_enabled": "false"},
        "ns.forever": {"gc.enabled": "false"},
        "ns.wrong": {"icekeeper.min_input_files": "soon"},
        "ns.plain": {},
    }
    planted = {}
    for name, properties in tables.items():
        planted[name] = plant(command.table(name, appends=1, properties=properties), "data/o.parquet")
    answer = sweep(command)
    statuses = {table["table"]: table["status"] for table in answer.json["tables"]}
    assert statuses == {
        "ns.off": "skipped",
        "ns.unswept": "skipped",
        "ns.forever": "skipped",
        "ns.wrong": "failed",
        "ns.plain": "succeeded",
    }
    assert {name for name, path in planted.items() if not local_path(path).exists()} == {"ns.plain"}
    assert (answer.code, answer.json["status"]) == (1, "partial")


def test_an_unsafe_sweep_is_refused_for_its_table_only(command: Command) -> None:
    """Unreadable references, also of a nested table; two tables at one location; a nested foreign table."""
    tables = {name: command.table(f"ns.{name}", appends=1) for name in ("torn", "sound", "outer", "one", "host")}
    rows = tables["outer"].scan().to_arrow()
    for name, place in (("inner", f"{tables['outer'].location()}/inner"), ("two", tables["one"].location())):
        tables[name] = command.catalog.create_table(f"ns.{name}", tables["one"].schema(), location=place)
        tables[name].append(rows)
    lost = [tables[name].refresh().current_snapshot() for name in ("torn", "inner")]
    manifest = lost[0].manifests(tables["torn"].io)[0].manifest_path  # type: ignore[union-attr]
    local_path(manifest).unlink()
    local_path(lost[1].manifest_list).unlink()  # type: ignore[union-attr]
    beside = new_document(f"{command.warehouse.as_uri()}/elsewhere", 2)
    inside = new_document(f"{tables['host'].location()}/x", 2, **{"table-uuid": "3f3f0000-0000-0000-0000-0000000000aa"})
    kept = [
        plant(command.warehouse, "elsewhere/metadata/v1.metadata.json", json.dumps(beside).encode()),
        plant(command.warehouse, "elsewhere/data/f.parquet"),
        plant(tables["host"], "x/metadata/v1.metadata.json", json.dumps(inside).encode()),
    ]
    kept += [plant(table, "data/o.parquet") for name, table in tables.items() if name != "sound"]
    gone = plant(tables["sound"], "data/o.parquet")
    answer = sweep(command)
    assert {table["table"]: table["status"] for table in answer.json["tables"]} == {
        f"ns.{name}": "succeeded" if name == "sound" else "refused" for name in tables
    }
    assert manifest in of_table(answer, "ns.torn")["reason"]
    assert str(tables["two"].metadata.table_uuid) in of_table(answer, "ns.one")["reason"]
    assert {(f["uuid"], f["location"]) for f in answer.json["foreign"]} == {
        (document["table-uuid"], document["location"]) for document in (beside, inside)
    }
    assert of_table(answer, "ns.sound")["orphans_removed"] == 1
    assert ([local_path(path).exists() for path in kept], local_path(gone).exists()) == ([True] * len(kept), False)
    assert answer.code == 1
    assert any(manifest in line for line in answer.err.splitlines())


def test_an_orphan_is_deleted_for_its_own_table(command: Command) -> None:
    """Nested tables, a second entry, and imported files that only the other table's manifests name."""
    outer, host = command.table("ns.outer", appends=1), command.table("ns.a", appends=1)
    inner = command.catalog.create_table("ns.inner", outer.schema(), location=f"{outer.location()}/inner")
    source = next(iter(host.scan().plan_files())).file.file_path
    shared = plant(host, "data/imported.parquet", local_path(source).read_bytes())
    inner.append(outer.scan().to_arrow())
    inner.add_files([shared])
    command.register(host.metadata_location, "ns.again")
    command.catalog.create_namespace("other")
    beyond = plant(command.table("other.b", appends=1), "data/o.parquet")
    age(command)
    orphans = {table.name()[-1]: plant(table, "data/o.parquet") for table in (outer, inner, host)}
    before = command.contents().keys()

    # A folder of the warehouse limits the sweep.
    answer = command("orphans", "--bucket", f"{command.warehouse}/other", *GRACE, "--json")
    assert of_table(answer, "ns.a")["status"] == "skipped"
    assert before - command.contents().keys() == {str(local_path(beyond))}

    answer = sweep(command)
    for name, orphan in orphans.items():
        assert of_table(answer, f"ns.{name}")["files"]["deleted"] == [orphan]
    assert of_table(answer, "ns.again")["reason"] == "ns.again is a second entry of ns.a"
    assert before - command.contents().keys() == {str(local_path(path)) for path in (beyond, *orphans.values())}
    assert local_path(shared).exists()


def test_a_table_with_unreadable_metadata_stops_the_sweep(command: Command) -> None:
    table, lost = command.table("ns.a", appends=1), command.table("ns.lost", appends=1)
    orphan = plant(table, "data/o.parquet")
    local_path(lost.metadata_location).write_text("{")
    answer = sweep(command)
    assert {table["table"]: table["status"] for table in answer.json["tables"]} == {
        "ns.a": "refused",
        "ns.lost": "refused",
    }
    assert local_path(orphan).exists()


def test_wrong_calls_change_nothing_and_the_text_has_a_line_per_table(command: Command) -> None:
    orphan = plant(command.table("ns.a", appends=1), "data/o.parquet")
    plant(command.warehouse, "ns/notes.txt")
    before = command.contents()
    for arguments, sentence in (
        (("--bucket", "/nowhere"), "catalog C has no table whose location is below /nowhere"),
        (("--bucket", "no-such-bucket"), "catalog C has no table whose location is below s3://no-such-bucket"),
        (("--bucket", "/", "--set", "orphan_older_than_hours=1"), "--unsafe allows it"),
        (("--bucket", "/", "--set", "orphan_older=1"), "unknown policy key 'orphan_older'"),
    ):
        answer = command("orphans", *arguments)
        assert answer.code == 2
        assert sentence in one_sentence(answer.err)
    assert command.contents() == before
    answer = command("orphans", "--bucket", str(command.warehouse), *GRACE)
    assert answer.code == 0
    assert answer.out.splitlines()[1].split() == ["ns.a", "succeeded", "removed", "1", "orphan", "file"]
    assert "outside all tables: 1 file, 1 B, left alone" in answer.out
    assert not local_path(orphan).exists()


def test_a_commit_before_the_deletion_protects_files(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog entry is read again just before a table's batch."""
    table = command.table("ns.a", appends=1)
    source = next(iter(table.scan().plan_files())).file.file_path
    adopted = plant(table, "data/adopted.parquet", local_path(source).read_bytes())

    def adopt_first(*args: Any) -> Any:
        table.add_files([adopted])
        return delete_unneeded(*args)

    monkeypatch.setattr("icekeeper.operations.orphans.delete_orphans.delete_unneeded", adopt_first)
    answer = sweep(command)
    assert of_table(answer, "ns.a")["files"]["planned"] == [adopted]
    assert of_table(answer, "ns.a")["files"]["deleted"] == []
    assert local_path(adopted).exists()


# A data path outside of the table's location: swept if the operator names it and no other table has files in it
# (rule: sweep-only-table-folders).


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data path, outside of the table's location."""
    folder = tmp_path / "fast-disk" / "t"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path, data: Path) -> MaintainedTable:
    """A table with two appends in the data path and an earlier append in ``data/``; all files are old."""
    made = new_table(local_catalog, tmp_path, allowed=tmp_path, appends=1)
    made.table.transaction().set_properties({"write.data.path": data.as_uri()}).commit_transaction()
    made.fill(2, start=1)
    grow_old(path for path in tmp_path.rglob("*") if path.is_file())
    return made


def plant_elsewhere(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    grow_old([path])
    return path


def sweep_elsewhere(table: MaintainedTable, **more: Any) -> OperationOutcome:
    return table.run(Operation.REMOVE_ORPHANS, **{"orphan_older_than_hours": "72", **more})


def deleted(outcome: OperationOutcome) -> set[Path]:
    return {Path(normalise(path)) for path in outcome.files_deleted}


def test_a_data_path_is_swept_only_if_it_is_named(table: MaintainedTable, data: Path) -> None:
    ours = {plant_elsewhere(data, "left.parquet"), plant_elsewhere(data, "day=2/left.parquet")}
    named, at_home = plant_elsewhere(data, "day=1/left.parquet"), Path(table.plant("data/left.parquet"))
    kept = [plant_elsewhere(data, "_temporary/f.parquet"), plant_elsewhere(data.parent, "beside.parquet")]
    files = set(data.rglob("*"))

    outcome = sweep_elsewhere(table)
    assert outcome.summary == (
        f"removed 1 orphan file(s); write.data.path {data.as_uri()} is outside the table's location and is not swept, "
        "unless orphan_sweep_prefixes names it"
    )
    assert outcome.metrics["remove_orphans.locations_not_swept"] == 1
    assert (set(data.rglob("*")), deleted(outcome)) == (files, {at_home})

    outcome = sweep_elsewhere(table, orphan_sweep_prefixes=f"{data}/day=1")
    assert (outcome.status, deleted(outcome)) == (Status.SUCCEEDED, {named})
    outcome = sweep_elsewhere(table, orphan_sweep_prefixes=data.as_uri())
    assert (outcome.status, deleted(outcome)) == (Status.SUCCEEDED, ours)
    assert outcome.metrics["remove_orphans.locations_not_swept"] == 0
    assert all(path.exists() for path in kept)
    assert table.ids() == [0, 1, 10, 11, 20, 21]

    live = next(data.glob("*.parquet"))  # a missing live file is noticed there, too
    copy = live.rename(live.with_name("copy.parquet"))
    outcome = sweep_elsewhere(table, orphan_sweep_prefixes=data.as_uri())
    assert (outcome.status, outcome.files_deleted, copy.exists()) == (Status.REFUSED, (), True)


@pytest.mark.parametrize("what", ["location", "data path", "imported file", "seen by another catalog"])
def test_a_folder_in_which_another_table_has_files_is_refused(
    table: MaintainedTable, data: Path, what: str, tmp_path: Path
) -> None:
    left = plant_elsewhere(data, "left.parquet")
    if what == "seen by another catalog":  # a catalog that cannot be opened from here
        claims = TableClaims(
            catalog=CatalogId("elsewhere", ""),
            table=TableName(("ns",), "guest"),
            uuid="3f3f0000-0000-0000-0000-000000000001",
            location=str(tmp_path / "guest"),
            folders=frozenset({str(data / "day=1")}),
            data_roots=frozenset(),
        )
        table.state.claims.record(claims)
        words = ["ns.guest of catalog elsewhere, which cannot be loaded"]
    else:
        location = (data / "nested" if what == "location" else tmp_path / "other").as_uri()
        properties = {"write.data.path": data.parent.as_uri()} if what == "data path" else {}
        other = table.create_beside("ns.other", location, **properties)
        if what == "imported file":
            imported = data / "imported.parquet"
            shutil.copy(Path(normalise(table.data_files()[0].file_path)), imported)
            grow_old([imported])
            other.add_files([imported.as_uri()])
        words = ["orphan_sweep_prefixes", data.as_uri(), "ns.other of catalog local"]
    outcome = sweep_elsewhere(table, orphan_sweep_prefixes=data.as_uri())
    assert (outcome.status, outcome.files_deleted, left.exists()) == (Status.REFUSED, (), True)
    for word in words:
        assert word in (outcome.reason or "")


def test_a_bucket_sweep_covers_named_data_paths_and_table_properties_name_none(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table property that names a folder would endanger files of others (rule: properties-never-loosen)."""
    folder = command.warehouse / "fast-disk"
    named = {"write.data.path": folder.as_uri(), "icekeeper.orphan_sweep_prefixes": folder.as_uri()}
    table = command.table("ns.t", appends=2, properties=named)
    command.table("ns.other", appends=1)
    assert local_path(next(iter(table.scan().plan_files())).file.file_path).is_relative_to(folder)
    left = plant_elsewhere(folder, "left.parquet")
    grow_old(path for path in command.warehouse.rglob("*") if path.is_file())
    answer = command("maintain", "ns.t", "--operations", "remove_orphans", "--json")
    assert (answer.code, left.exists()) == (0, True)
    monkeypatch.setenv("ICEKEEPER_ORPHAN_SWEEP_PREFIXES", folder.as_uri())
    answer = sweep(command)
    assert (answer.code, of_table(answer, "ns.t")["files"]["deleted"]) == (0, [left.as_uri()])
    assert answer.json["outside"]["files"] == 0


HOME = "s3://lake/t"


@pytest.mark.parametrize(
    ("data_path", "named", "swept"),
    [
        ("s3://fast/t", ["s3://fast/t/"], ["s3://fast/t/"]),
        ("s3://fast/t", ["s3a://fast/t/day=1", "s3://fast/t"], ["s3://fast/t"]),
        ("s3://fast/t", ["s3://lake/t/imported", "s3://lake", "s3://other/u"], []),
        ("s3://fast/t", ["s3://fast"], None),
        (f"{HOME}/files", [f"{HOME}/files", "s3://fast/t"], []),
        ("s3://lake", ["s3://lake"], []),  # contains the location
        ("s3://lake", ["s3://lake/x"], ["s3://lake/x"]),
    ],
)
def test_only_folders_in_the_data_path_are_swept(data_path: str, named: list[str], swept: list[str] | None) -> None:
    metadata = TableMetadata(new_document(HOME, 2, properties={"write.data.path": data_path}))
    if swept is not None:
        assert list(folders_elsewhere(metadata, named)) == swept
        return
    with pytest.raises(OperationRefused, match=r"names s3://fast, .* write\.data\.path s3://fast/t"):
        folders_elsewhere(metadata, named)
