"""Orphan removal among file names and listings that nobody expects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from support.maintained_table import MaintainedTable, grow_old, new_table

SWEEP = Operation.REMOVE_ORPHANS


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    made = new_table(local_catalog, tmp_path)
    made.fill(2)
    return made


@pytest.mark.parametrize("name", ["a b", "a%20b", "ä", "a\nb", "a?b#c", "%ff", "a\\b", "+", "a:b", "'\"", "%"])
@pytest.mark.parametrize("sightings", ["1", "2"])
def test_an_orphan_of_any_name_goes(table: MaintainedTable, name: str, sightings: str) -> None:
    orphan = table.plant(f"data/{name}.parquet")
    for run in ("run-1", "run-2")[: int(sightings)]:
        outcome = table.run(SWEEP, run_id=run, orphan_min_sightings=sightings)
        assert outcome.status is Status.SUCCEEDED
    assert outcome.summary == "removed 1 orphan file(s)"
    assert orphan not in table.files()
    assert table.verify().ok


def test_a_name_that_is_no_text_is_left_alone_and_stops_nothing(table: MaintainedTable) -> None:
    folder = os.fsencode(table.folder / "data")
    strange = os.path.join(folder, b"\xff\xfe.parquet")
    Path(os.fsdecode(strange)).write_bytes(b"x")
    grow_old([Path(os.fsdecode(strange))])
    orphan = table.plant("data/orphan.parquet")
    for run in ("run-1", "run-2"):
        outcome = table.run(SWEEP, run_id=run, orphan_min_sightings="2")
        assert outcome.status is Status.SUCCEEDED, outcome.summary
    assert orphan not in table.files()
    assert os.path.exists(strange)


def test_a_file_that_is_listed_twice_is_counted_once(table: MaintainedTable) -> None:
    orphan = table.plant("data/orphan.parquet")
    listing = Storage.list

    def twice(self: Storage, prefix: str) -> Iterator[ListedObject]:
        found = list(listing(self, prefix))
        return iter([*found, *reversed(found)])

    with mock.patch.object(Storage, "list", twice):
        outcome = table.run(SWEEP)
    assert outcome.summary == "removed 1 orphan file(s)"
    assert [normalise(path) for path in outcome.files_deleted] == [orphan]


@pytest.mark.parametrize("location", ["t", "t/", "t%20", "t 2", "ä"])
def test_siblings_whose_names_begin_alike_are_left_alone(
    local_catalog: SqlCatalog, tmp_path: Path, location: str
) -> None:
    warehouse = tmp_path / "warehouse"
    table = new_table(local_catalog, tmp_path, location=f"{warehouse.as_uri()}/{location}")
    table.fill(2)
    siblings = [f"{location.rstrip('/')}{more}/data/x.parquet" for more in ("2", "-x", "%20", ".bak")]
    for sibling in siblings:
        (warehouse / sibling).parent.mkdir(parents=True)
        (warehouse / sibling).write_bytes(b"x")
        grow_old([warehouse / sibling])
    (warehouse / location / "data" / "orphan.parquet").write_bytes(b"x")
    outcome = table.run(SWEEP)
    assert outcome.summary == "removed 1 orphan file(s)"
    assert all((warehouse / sibling).exists() for sibling in siblings)
    assert table.run(Operation.COMPACT).status is Status.SUCCEEDED
    assert table.run(Operation.EXPIRE_SNAPSHOTS).status is Status.SUCCEEDED
    assert table.readers_agree() == [0, 1, 10, 11]
    assert all((warehouse / sibling).exists() for sibling in siblings)
