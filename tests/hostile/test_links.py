"""Symbolic links in a local warehouse that lead out of it, there before a pass or put there meanwhile (rule 257)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.errors import LocationRefused
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage import local_files as local
from icekeeper.storage.storage import Storage
from support.maintained_table import NAME, MaintainedTable, grow_old, new_table

SWEEP = {"orphan_older_than_hours": "72", "orphan_max_delete_ratio": "1", "orphan_min_sightings": "1"}


@pytest.fixture
def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir()
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.table({"id": [4711], "part": ["x"]}), folder / name)
    grow_old(folder.iterdir())
    return folder


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path)
    made.fill(3)
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("place", "status"),
    [("data", Status.REFUSED), ("metadata/more", Status.SUCCEEDED), ("data/part=x", Status.SUCCEEDED)],
)
def test_nothing_behind_a_folder_that_leads_out_is_swept(
    table: MaintainedTable, private: Path, place: str, status: Status
) -> None:
    before, link = contents(private), table.folder / place
    if link.exists():
        link.rename(link.with_name("moved"))
    link.symlink_to(private)
    outcome = table.run(Operation.REMOVE_ORPHANS, **SWEEP)
    assert (outcome.status, outcome.files_deleted) == (status, ())
    assert contents(private) == before


def test_a_table_whose_folder_leads_out_is_left_alone(table: MaintainedTable, private: Path) -> None:
    home = table.folder
    home.rename(private / "t")
    home.symlink_to(private / "t")
    with pytest.raises(LocationRefused, match=r"metadata\.json lies outside file://"):
        table.run(Operation.COMPACT)


def test_a_registered_file_behind_a_link_is_not_copied_into_the_table(table: MaintainedTable, private: Path) -> None:
    (table.folder / "data" / "link.parquet").symlink_to(private / "a.parquet")
    table.table.add_files([(table.folder / "data" / "link.parquet").as_uri()])
    before = table.files()
    outcome = table.run(Operation.COMPACT, rewrite_all="true")
    assert outcome.status is Status.REFUSED
    assert "link.parquet lies outside" in str(outcome.reason)
    assert table.files() == before


@pytest.mark.skipif(not local._MAY_HOLD, reason="only Linux opens files by the folder that is held")
@pytest.mark.parametrize("operation", [Operation.COMPACT, Operation.REMOVE_ORPHANS, Operation.EXPIRE_SNAPSHOTS])
def test_a_folder_that_becomes_a_link_between_check_and_use_leads_nowhere(
    table: MaintainedTable, private: Path, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    """The attacker swaps it for each use of a file in it, after each look at where it leads."""
    for name in ("a.parquet", "b.parquet"):
        table.plant(f"data/{name}")
    if operation is Operation.EXPIRE_SNAPSHOTS:
        table.run(Operation.COMPACT)
    before, data, aside = contents(private), table.folder / "data", table.folder / "aside"
    uses: list[str] = []
    real = local.held

    @contextmanager
    def swapped(path: str, *, make: bool = False) -> Iterator[str]:
        if f"{data}/" not in path:
            with real(path, make=make) as name:
                yield name
            return
        uses.append(path)
        os.rename(data, aside)
        data.symlink_to(private)
        try:
            with real(path, make=make) as name:
                yield name
        finally:
            data.unlink()
            os.rename(aside, data)

    monkeypatch.setattr("icekeeper.storage.storage.held", swapped)
    settings = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1", **SWEEP}
    table.run(operation, **settings)
    assert uses
    assert contents(private) == before
    monkeypatch.undo()
    assert Storage(table.catalog.load(NAME).io_properties).allows(str(data))
