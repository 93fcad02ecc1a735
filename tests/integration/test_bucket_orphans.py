"""Orphans outside of one table's folder: of a whole bucket, and below a separate data path."""

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

# ``icekeeper orphans``: one listing of a warehouse against the references of all its tables.

GRACE = ("--set", "orphan_older_than_hours=72")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


def plant(where: Table | Path, relative: str, data: bytes = b"x", days_old: float = 10) -> str:
    """Below a table's location or a folder; the path."""
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


def test_each_table_loses_its_orphans_and_nothing_else(command: Command) -> None:
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


def test_each_table_keeps_its_own_policy(command: Command) -> None:
    """One listing may serve a whole bucket, but every table keeps its own guards
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


def test_a_table_whose_references_cannot_be_read_is_refused_and_others_go_on(command: Command) -> None:
    torn, sound = command.table("ns.torn", appends=2), command.table("ns.sound", appends=1)
    planted = [plant(torn, "data/o.parquet"), plant(sound, "data/o.parquet")]
    manifest = torn.current_snapshot().manifests(torn.io)[0].manifest_path  # type: ignore[union-attr]
    local_path(manifest).unlink()
    answer = sweep(command)
    assert of_table(answer, "ns.torn")["status"] == "refused"
    assert manifest in of_table(answer, "ns.torn")["reason"]
    assert of_table(answer, "ns.sound")["orphans_removed"] == 1
    assert [local_path(path).exists() for path in planted] == [True, False]
    assert manifest in one_sentence(answer.err.splitlines()[-1] + "\n")
    assert answer.code == 1


def test_a_table_around_one_that_cannot_be_read_is_refused_too(command: Command) -> None:
    outer = command.table("ns.outer", appends=1)
    command.catalog.create_table("ns.inner", outer.schema(), location=f"{outer.location()}/inner")
    inner = command.catalog.load_table("ns.inner")
    inner.append(outer.scan().to_arrow())
    planted = [plant(outer, "data/o.parquet"), plant(inner, "data/o.parquet")]
    local_path(inner.refresh().current_snapshot().manifest_list).unlink()  # type: ignore[union-attr]
    answer = sweep(command)
    assert {table["status"] for table in answer.json["tables"]} == {"refused"}
    assert all(local_path(path).exists() for path in planted)


def test_nested_tables_each_lose_their_own(command: Command) -> None:
    outer = command.table("ns.outer", appends=1)
    inner = command.catalog.create_table("ns.inner", outer.schema(), location=f"{outer.location()}/inner")
    inner.append(outer.scan().to_arrow())
    age(command)
    before = command.contents().keys()
    ours, theirs = plant(outer, "data/o.parquet"), plant(inner, "data/o.parquet")
    answer = sweep(command)
    assert of_table(answer, "ns.outer")["files"]["deleted"] == [ours]
    assert of_table(answer, "ns.inner")["files"]["deleted"] == [theirs]
    assert command.contents().keys() == before


def test_two_tables_in_one_location_are_both_refused(command: Command) -> None:
    one = command.table("ns.one", appends=1)
    two = command.catalog.create_table("ns.two", one.schema(), location=one.location())
    two.append(one.scan().to_arrow())
    orphan = plant(one, "data/o.parquet")
    answer = sweep(command)
    assert {table["status"] for table in answer.json["tables"]} == {"refused"}
    assert str(two.metadata.table_uuid) in of_table(answer, "ns.one")["reason"]
    assert local_path(orphan).exists()


def test_a_table_registered_twice_is_swept_once(command: Command) -> None:
    table = command.table("ns.a", appends=1)
    command.register(table.metadata_location, "ns.again")
    orphan = plant(table, "data/o.parquet")
    answer = sweep(command)
    assert of_table(answer, "ns.a")["files"]["deleted"] == [orphan]
    assert of_table(answer, "ns.again")["reason"] == "ns.again is a second entry of ns.a"


def test_files_that_another_table_references_stay(command: Command) -> None:
    """Imported ones: nothing but the other table's manifests tells of them."""
    a, b = command.table("ns.a", appends=1), command.table("ns.b", appends=1)
    source = next(iter(a.scan().plan_files())).file.file_path
    shared = plant(a, "data/imported.parquet", local_path(source).read_bytes())
    b.add_files([shared])
    orphan = plant(a, "data/o.parquet")
    age(command)
    answer = sweep(command)
    assert of_table(answer, "ns.a")["files"]["deleted"] == [orphan]
    assert local_path(shared).exists()


def test_a_lost_table_could_be_anywhere(command: Command) -> None:
    table, lost = command.table("ns.a", appends=1), command.table("ns.lost", appends=1)
    orphan = plant(table, "data/o.parquet")
    local_path(lost.metadata_location).write_text("{")
    answer = sweep(command)
    assert {table["table"]: table["status"] for table in answer.json["tables"]} == {
        "ns.a": "refused",
        "ns.lost": "refused",
    }
    assert local_path(orphan).exists()


def test_foreign_tables_are_reported_and_never_touched(command: Command) -> None:
    """One beside our tables, one under a table's location: that table is refused."""
    a, b = command.table("ns.a", appends=1), command.table("ns.b", appends=1)
    beside = new_document(f"{command.warehouse.as_uri()}/elsewhere", 2)
    inside = new_document(f"{a.location()}/x", 2, **{"table-uuid": "3f3f0000-0000-0000-0000-0000000000aa"})
    kept = [
        plant(command.warehouse, "elsewhere/metadata/v1.metadata.json", json.dumps(beside).encode()),
        plant(command.warehouse, "elsewhere/data/f.parquet"),
        plant(a, "x/metadata/v1.metadata.json", json.dumps(inside).encode()),
        plant(a, "data/o.parquet"),
    ]
    gone = plant(b, "data/o.parquet")
    answer = sweep(command)
    assert {(f["uuid"], f["location"]) for f in answer.json["foreign"]} == {
        (beside["table-uuid"], beside["location"]),
        (inside["table-uuid"], inside["location"]),
    }
    assert of_table(answer, "ns.a")["status"] == "refused"
    assert all(local_path(path).exists() for path in kept)
    assert not local_path(gone).exists()


def test_a_folder_of_the_warehouse_limits_the_sweep(command: Command) -> None:
    a = command.table("ns.a", appends=1)
    command.catalog.create_namespace("other")
    b = command.table("other.b", appends=1)
    planted = [plant(a, "data/o.parquet"), plant(b, "data/o.parquet")]
    answer = command("orphans", "--bucket", f"{command.warehouse}/other", *GRACE, "--json")
    assert of_table(answer, "ns.a")["status"] == "skipped"
    assert [local_path(path).exists() for path in planted] == [True, False]


def test_people_read_a_line_per_table(command: Command) -> None:
    plant(command.table("ns.a", appends=1), "data/o.parquet")
    plant(command.warehouse, "ns/notes.txt")
    answer = command("orphans", "--bucket", str(command.warehouse), *GRACE)
    assert answer.code == 0
    assert answer.out.splitlines()[1].split() == ["ns.a", "succeeded", "removed", "1", "orphan", "file(s)"]
    assert "outside all tables: 1 file(s), 1 B, left alone" in answer.out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--bucket", "/nowhere"), "catalog C has no table whose location is below /nowhere"),
        (("--bucket", "no-such-bucket"), "catalog C has no table whose location is below s3://no-such-bucket"),
        (("--bucket", "/", "--set", "orphan_older_than_hours=1"), "--unsafe allows it"),
        (("--bucket", "/", "--set", "orphan_older=1"), "unknown policy key 'orphan_older'"),
    ],
)
def test_wrong_calls_change_nothing(command: Command, arguments: tuple[str, ...], sentence: str) -> None:
    plant(command.table("ns.a", appends=1), "data/o.parquet")
    before = command.contents()
    answer = command("orphans", *arguments)
    assert answer.code == 2
    assert sentence in one_sentence(answer.err)
    assert command.contents() == before


def test_a_commit_between_listing_and_deletion_protects(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just before a table's batch its pointer is read again."""
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


# A data path outside of the table's location: swept where it is named and nobody else's
# (rule: sweep-only-table-folders).


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data path."""
    folder = tmp_path / "fast-disk" / "t"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path, data: Path) -> MaintainedTable:
    """Two appends there, one more in ``data/`` from before; all of it is old."""
    made = new_table(local_catalog, tmp_path, allowed=tmp_path)
    made.fill(1)
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


def test_it_is_swept_where_it_is_named(table: MaintainedTable, data: Path) -> None:
    ours = {plant_elsewhere(data, "left.parquet"), Path(table.plant("data/left.parquet"))}
    kept = [plant_elsewhere(data, "_temporary/f.parquet"), plant_elsewhere(data.parent, "beside.parquet")]
    outcome = sweep_elsewhere(table, orphan_sweep_prefixes=data.as_uri())
    assert (outcome.status, deleted(outcome)) == (Status.SUCCEEDED, ours)
    assert outcome.metrics["remove_orphans.locations_not_swept"] == 0
    assert all(path.exists() for path in kept)
    assert table.ids() == [0, 1, 10, 11, 20, 21]


def test_a_folder_in_it_may_be_named_alone(table: MaintainedTable, data: Path) -> None:
    named, other = plant_elsewhere(data, "day=1/left.parquet"), plant_elsewhere(data, "day=2/left.parquet")
    outcome = sweep_elsewhere(table, orphan_sweep_prefixes=f"{data}/day=1")
    assert (outcome.status, deleted(outcome), other.exists()) == (Status.SUCCEEDED, {named}, True)


def test_where_nobody_has_named_it_the_summary_says_so(table: MaintainedTable, data: Path) -> None:
    left = plant_elsewhere(data, "left.parquet")
    outcome = sweep_elsewhere(table)
    assert outcome.summary == (
        f"removed 0 orphan file(s); write.data.path {data.as_uri()} is outside of the table's location and not swept, "
        "unless orphan_sweep_prefixes names it"
    )
    assert (outcome.metrics["remove_orphans.locations_not_swept"], left.exists()) == (1, True)


def test_what_is_missing_there_is_noticed(table: MaintainedTable, data: Path) -> None:
    live = next(path for path in data.iterdir())
    copy = live.rename(live.with_name("copy.parquet"))
    outcome = sweep_elsewhere(table, orphan_sweep_prefixes=data.as_uri())
    assert (outcome.status, outcome.files_deleted, copy.exists()) == (Status.REFUSED, (), True)


@pytest.mark.parametrize("what", ["location", "data path", "imported file"])
def test_a_folder_in_which_another_table_has_files_is_refused(
    table: MaintainedTable, data: Path, what: str, tmp_path: Path
) -> None:
    left = plant_elsewhere(data, "left.parquet")
    location = (data / "nested" if what == "location" else tmp_path / "other").as_uri()
    properties = {"write.data.path": data.parent.as_uri()} if what == "data path" else {}
    other = table.create_beside("ns.other", location, **properties)
    if what == "imported file":
        imported = data / "imported.parquet"
        shutil.copy(Path(normalise(table.data_files()[0].file_path)), imported)
        grow_old([imported])
        other.add_files([imported.as_uri()])
    outcome = sweep_elsewhere(table, orphan_sweep_prefixes=data.as_uri())
    assert (outcome.status, outcome.files_deleted, left.exists()) == (Status.REFUSED, (), True)
    for word in ("orphan_sweep_prefixes", data.as_uri(), "ns.other of catalog local"):
        assert word in (outcome.reason or "")


def test_a_table_that_another_catalog_was_seen_to_have_there_is_one_that_is_known(
    table: MaintainedTable, data: Path, tmp_path: Path
) -> None:
    """That catalog cannot be opened from here."""
    left = plant_elsewhere(data, "left.parquet")
    claims = TableClaims(
        catalog=CatalogId("elsewhere", ""),
        table=TableName(("ns",), "guest"),
        uuid="3f3f0000-0000-0000-0000-000000000001",
        location=str(tmp_path / "guest"),
        folders=frozenset({str(data / "day=1")}),
        data_roots=frozenset(),
    )
    table.state.claims.record(claims)
    outcome = sweep_elsewhere(table, orphan_sweep_prefixes=data.as_uri())
    assert (outcome.status, outcome.files_deleted, left.exists()) == (Status.REFUSED, (), True)
    assert "ns.guest of catalog elsewhere, which cannot be loaded" in (outcome.reason or "")


def test_a_sweep_of_the_bucket_knows_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(tmp_path, monkeypatch, capsys)
    folder = command.warehouse / "fast-disk"
    table = command.table("ns.t", appends=2, properties={"write.data.path": folder.as_uri()})
    monkeypatch.setenv("ICEKEEPER_ORPHAN_SWEEP_PREFIXES", folder.as_uri())
    command.table("ns.other", appends=1)
    assert local_path(next(iter(table.scan().plan_files())).file.file_path).is_relative_to(folder)
    left = plant_elsewhere(folder, "left.parquet")
    grow_old(path for path in command.warehouse.rglob("*") if path.is_file())
    answer = command("orphans", "--bucket", command.warehouse.as_uri(), "--set", "orphan_older_than_hours=72", "--json")
    found = {one["table"]: one for one in answer.json["tables"]}
    assert (answer.code, found["ns.t"]["files"]["deleted"]) == (0, [left.as_uri()])
    assert answer.json["outside"]["files"] == 0


def test_a_tenant_names_no_folder_to_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a property removed private files of others (rule: properties-never-loosen)."""
    command = Command(tmp_path, monkeypatch, capsys)
    folder = command.warehouse / "private"
    properties = {"write.data.path": folder.as_uri(), "icekeeper.orphan_sweep_prefixes": folder.as_uri()}
    command.table("ns.t", appends=1, properties=properties)
    private = plant_elsewhere(folder, "private.parquet")
    grow_old(path for path in command.warehouse.rglob("*") if path.is_file())
    answer = command("maintain", "ns.t", "--operations", "remove_orphans", "--json")
    assert (answer.code, private.exists()) == (0, True)


HOME = "s3://lake/t"


@pytest.mark.parametrize(
    ("data_path", "named", "swept"),
    [
        ("s3://fast/t", ["s3://fast/t/"], ["s3://fast/t/"]),
        ("s3://fast/t", ["s3a://fast/t/day=1", "s3://fast/t"], ["s3://fast/t"]),
        ("s3://fast/t", ["s3://lake/t/imported", "s3://lake", "s3://other/u"], []),
        ("s3://fast/t", ["s3://fast"], None),
        (f"{HOME}/files", [f"{HOME}/files", "s3://fast/t"], []),
        ("s3://lake", ["s3://lake"], []),  # around the location
        ("s3://lake", ["s3://lake/x"], ["s3://lake/x"]),
    ],
)
def test_which_folders_are_named(data_path: str, named: list[str], swept: list[str] | None) -> None:
    metadata = TableMetadata(new_document(HOME, 2, properties={"write.data.path": data_path}))
    if swept is not None:
        assert list(folders_elsewhere(metadata, named)) == swept
        return
    with pytest.raises(OperationRefused, match=r"names s3://fast, .* write\.data\.path s3://fast/t"):
        folders_elsewhere(metadata, named)
