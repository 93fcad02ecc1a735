"""The roots in which a table's data files lie, less the folders of partition and hash."""

from __future__ import annotations

import pytest

from icekeeper.metadata.document import TableMetadata
from icekeeper.pass_context.stores import Footprint, data_folders, data_root


@pytest.mark.parametrize(
    "path",
    [
        "s3://b/t/data/f.parquet",
        "s3a://b/t/data/f.parquet",
        "s3://b/t/data/day=2026-01-01/f.parquet",
        "s3://b/t/data/day=2026-01-01/region=eu%2Fwest/f.parquet",
        "s3://b/t/data/0110/1010/0011/10010110/f.parquet",
        "s3://b/t/data/0110/1010/0011/10010110/day=1/f.parquet",
        "s3://b/t/data/0110/1010/0011/10010110-f.parquet",
        "s3://b/t/data/day=/f.parquet",
    ],
)
def test_every_layout_of_one_folder_has_it_as_its_root(path: str) -> None:
    assert data_root(path) == "s3://b/t/data"


@pytest.mark.parametrize(
    "folder", ["0110", "0110/1010/0011", "year-2026", "1f3a99c0", "1f3a99c0d", "20260101", "zZ3_-a"]
)
def test_other_folders_are_roots_themselves(folder: str) -> None:
    assert data_root(f"s3://b/t/{folder}/f.parquet") == f"s3://b/t/{folder}"


def test_local_files_too() -> None:
    assert data_root("file:///wh/t/data/p=1/f") == data_root("/wh/t/data/f") == "/wh/t/data"


def test_roots_are_told_once() -> None:
    footprint = Footprint()
    for number in range(3):
        footprint.see(f"s3://b/t/data/p={number}/f")
    assert footprint.news() == {"s3://b/t/data"}
    footprint.see("s3://b/t/data/p=7/f")
    assert footprint.news() == set()
    footprint.see("s3://c/x/f")
    assert footprint.news() == {"s3://c/x"}
    assert footprint.roots() == {"s3://b/t/data", "s3://c/x"}


def test_hashes_of_earlier_versions_are_known_where_the_table_keeps_its_data() -> None:
    footprint = Footprint()
    for folder in ("1f3a99c0", "12345678/day=1", "zZ3_-a", "2026/01"):
        footprint.see(f"s3a://b/t/data/{folder}/f", ("s3://b/t/data",))
    assert footprint.roots() == {"s3://b/t/data"}
    footprint.see("s3://b/t/database/1f3a99c0/f", ("s3://b/t/data",))
    assert footprint.roots() == {"s3://b/t/data", "s3://b/t/database/1f3a99c0"}


@pytest.mark.parametrize(
    ("properties", "folders"),
    [
        ({}, ["s3://b/t/data"]),
        ({"write.data.path": "s3a://c/x/"}, ["s3://b/t/data", "s3://c/x"]),
        ({"write.data.path": "s3://b/t"}, ["s3://b/t/data"]),
        ({"write.data.path": "s3://b"}, ["s3://b/t/data"]),
        ({"write.metadata.path": "s3://b/t/data/m"}, []),
    ],
)
def test_a_folder_that_holds_more_than_data_is_no_root_of_all_below_it(
    properties: dict[str, str], folders: list[str]
) -> None:
    table = TableMetadata({"format-version": 2, "location": "s3://b/t", "properties": properties})
    assert list(data_folders(table)) == folders


def test_of_too_many_roots_the_store_is_told_so_that_nothing_is_missed() -> None:
    footprint = Footprint()
    for number in range(1_500):
        footprint.see(f"s3://b/t/{number}x/f")
    assert "s3://b" in footprint.roots()
    assert len(footprint.roots()) <= 1_001
