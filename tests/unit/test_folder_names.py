"""Paths of a folder of many files get the names that each would get by itself (rule 87)."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import FolderNames, normalise

OBJECTS = ["s3://b/t", "s3a://b", "s3://b//t/", "s3://b/%41", "s3://b/t/..", "hdfs://h:1/t", "gs:/", "s3:/", "s3:"]
LOCAL = ["/t", "/", "//t", "file:///t", "file:/t/.x", "", ".", "/t/%2541", "/t/./u"]
FOLDERS = st.sampled_from([*OBJECTS, *LOCAL])
NAMES = st.sampled_from(["f", "a b", "a%20b", "%41", "..", ".", ".f", "", "é", "\udcff", "a:b", "s3:"])


@given(st.lists(st.tuples(FOLDERS, NAMES), max_size=5))
def test_many_paths_of_a_folder_are_named_as_each_by_itself(drawn: list[tuple[str, str]]) -> None:
    names, paths = FolderNames(), [f"{folder}/{name}" for folder, name in drawn] + [name for _, name in drawn]
    for _ in range(10):
        assert [names.normal(path) for path in paths] == [normalise(path) for path in paths]


def test_a_link_among_many_files_leads_to_its_target(tmp_path: Path) -> None:
    """Of the folder of a table that is itself reached by a link, and holds a link to a file elsewhere."""
    real, other = tmp_path / "real", tmp_path / "other.parquet"
    real.mkdir()
    other.touch()
    (tmp_path / "t").symlink_to(real)
    (real / "link.parquet").symlink_to(other)
    paths = [f"{tmp_path}/t/{number}.parquet" for number in range(20)] + [f"{tmp_path}/t/link.parquet"]
    names = FolderNames()
    assert [names.normal(path) for path in paths] == [*(f"{real}/{n}.parquet" for n in range(20)), str(other)]
    listed = [ListedObject(path, 1, 1) for path in (str(other), f"{real}/3.parquet", f"{real}/orphan.parquet")]
    kept = ReferencedPaths(str(real), paths)
    assert [found.path for found in kept.unreferenced(listed, FolderNames())] == [f"{real}/orphan.parquet"]


def test_of_a_folder_that_cannot_be_listed_each_file_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "other")
    monkeypatch.setattr(os, "scandir", Mock(side_effect=PermissionError))
    names, paths = FolderNames(), [f"{tmp_path}/{number}" for number in range(20)]
    assert [names.normal(path) for path in paths] == paths
    assert names.normal(f"{tmp_path}/link") == f"{tmp_path}/other"
