"""A data path outside of the table's location: swept where it is named and nobody else's (rule 228)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.errors import OperationRefused
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.operations.orphans.delete_orphans import folders_elsewhere
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.state.claims import TableClaims
from icekeeper.storage.paths import normalise
from support.command import Command, local_path
from support.maintained_table import MaintainedTable, grow_old, new_table
from support.tables import new_document


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


def plant(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    grow_old([path])
    return path


def sweep(table: MaintainedTable, **more: Any) -> OperationOutcome:
    return table.run(Operation.REMOVE_ORPHANS, **{"orphan_older_than_hours": "72", **more})


def deleted(outcome: OperationOutcome) -> set[Path]:
    return {Path(normalise(path)) for path in outcome.files_deleted}


def test_it_is_swept_where_it_is_named(table: MaintainedTable, data: Path) -> None:
    ours = {plant(data, "left.parquet"), Path(table.plant("data/left.parquet"))}
    kept = [plant(data, "_temporary/f.parquet"), plant(data.parent, "beside.parquet")]
    outcome = sweep(table, orphan_sweep_prefixes=data.as_uri())
    assert (outcome.status, deleted(outcome)) == (Status.SUCCEEDED, ours)
    assert outcome.metrics["remove_orphans.locations_not_swept"] == 0
    assert all(path.exists() for path in kept)
    assert table.ids() == [0, 1, 10, 11, 20, 21]


def test_a_folder_in_it_may_be_named_alone(table: MaintainedTable, data: Path) -> None:
    named, other = plant(data, "day=1/left.parquet"), plant(data, "day=2/left.parquet")
    outcome = sweep(table, orphan_sweep_prefixes=f"{data}/day=1")
    assert (outcome.status, deleted(outcome), other.exists()) == (Status.SUCCEEDED, {named}, True)


def test_where_nobody_has_named_it_the_summary_says_so(table: MaintainedTable, data: Path) -> None:
    left = plant(data, "left.parquet")
    outcome = sweep(table)
    assert outcome.summary == (
        f"removed 0 orphan file(s); write.data.path {data.as_uri()} is outside of the table's location and not swept, "
        "unless orphan_sweep_prefixes names it"
    )
    assert (outcome.metrics["remove_orphans.locations_not_swept"], left.exists()) == (1, True)


def test_what_is_missing_there_is_noticed(table: MaintainedTable, data: Path) -> None:
    live = next(path for path in data.iterdir())
    copy = live.rename(live.with_name("copy.parquet"))
    outcome = sweep(table, orphan_sweep_prefixes=data.as_uri())
    assert (outcome.status, outcome.files_deleted, copy.exists()) == (Status.REFUSED, (), True)


@pytest.mark.parametrize("what", ["location", "data path", "imported file"])
def test_a_folder_in_which_another_table_has_files_is_refused(
    table: MaintainedTable, data: Path, what: str, tmp_path: Path
) -> None:
    left = plant(data, "left.parquet")
    location = (data / "nested" if what == "location" else tmp_path / "other").as_uri()
    properties = {"write.data.path": data.parent.as_uri()} if what == "data path" else {}
    other = table.create_beside("ns.other", location, **properties)
    if what == "imported file":
        imported = data / "imported.parquet"
        shutil.copy(Path(normalise(table.data_files()[0].file_path)), imported)
        grow_old([imported])
        other.add_files([imported.as_uri()])
    outcome = sweep(table, orphan_sweep_prefixes=data.as_uri())
    assert (outcome.status, outcome.files_deleted, left.exists()) == (Status.REFUSED, (), True)
    for word in ("orphan_sweep_prefixes", data.as_uri(), "ns.other of catalog local"):
        assert word in (outcome.reason or "")


def test_a_table_that_another_catalog_was_seen_to_have_there_is_one_that_is_known(
    table: MaintainedTable, data: Path, tmp_path: Path
) -> None:
    """That catalog cannot be opened from here."""
    left = plant(data, "left.parquet")
    claims = TableClaims(
        catalog="elsewhere",
        warehouse="",
        table=TableName(("ns",), "guest"),
        uuid="3f3f0000-0000-0000-0000-000000000001",
        location=str(tmp_path / "guest"),
        folders=frozenset({str(data / "day=1")}),
        data_roots=frozenset(),
    )
    table.state.claims.record(claims)
    outcome = sweep(table, orphan_sweep_prefixes=data.as_uri())
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
    left = plant(folder, "left.parquet")
    grow_old(path for path in command.warehouse.rglob("*") if path.is_file())
    answer = command("orphans", "--bucket", command.warehouse.as_uri(), "--set", "orphan_older_than_hours=72", "--json")
    found = {one["table"]: one for one in answer.json["tables"]}
    assert (answer.code, found["ns.t"]["files"]["deleted"]) == (0, [left.as_uri()])
    assert answer.json["outside"]["files"] == 0


def test_a_tenant_names_no_folder_to_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a property removed private files of others (rule 260)."""
    command = Command(tmp_path, monkeypatch, capsys)
    folder = command.warehouse / "private"
    properties = {"write.data.path": folder.as_uri(), "icekeeper.orphan_sweep_prefixes": folder.as_uri()}
    command.table("ns.t", appends=1, properties=properties)
    private = plant(folder, "private.parquet")
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
