"""Paths: spellings, folders, and which table a file is below."""

from __future__ import annotations

import errno
import os
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.deletion.referenced_paths import ReferencedPaths, path_hash
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.operations.expiry.unreferenced import Candidates
from icekeeper.operations.orphans.orphan_rules import TableLocations
from icekeeper.pass_context.footprint import Footprint, data_folders, data_root
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import (
    FolderNames,
    PathSet,
    _RealPaths,
    any_spelling,
    authority,
    compared,
    is_under,
    may_be_under,
    merged_spelling,
    normalise,
    real_path,
)

# A compared path reads the file system once, and compares like its text.

PATHS = st.one_of(
    st.text(st.sampled_from("/.:%2Ffiles3a\\x"), max_size=20),
    st.lists(st.sampled_from(["a", "b", "..", ".", "%41", ".h", ""]), max_size=4).map("/".join),
    st.lists(st.sampled_from(["a", "b", "..", ".", "%41", ".h", ""]), max_size=4).map(lambda p: "/" + "/".join(p)),
    st.lists(st.sampled_from(["a", "b", "..", "%41"]), max_size=4).map(lambda parts: "s3://b/" + "/".join(parts)),
)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of link checks per path."""
    counted, lstat = Counter[str](), os.lstat

    def counting(path: Any, **more: Any) -> os.stat_result:
        counted[str(path)] += 1
        return lstat(path, **more)

    monkeypatch.setattr(os, "lstat", counting)
    return counted


@given(PATHS, PATHS)
def test_a_compared_path_compares_like_its_text(path: str, location: str) -> None:
    now, place = compared(path), compared(location)
    assert now == path
    assert normalise(now) == normalise(path)
    assert authority(now) == authority(path)
    assert is_under(now, place) == is_under(path, location)
    assert may_be_under(now, place) == may_be_under(path, location)
    assert PathSet([location]).may_contain(now) == PathSet([location]).may_contain(path)
    again = compared(path, is_plain=now.is_plain)
    assert (again.key, again.normal, again.is_plain) == (now.key, now.normal, now.is_plain)


def test_comparisons_of_a_compared_path_do_not_read_the_file_system(tmp_path: Path, looks: Counter[str]) -> None:
    now, place = compared(str(tmp_path / "t/f")), compared(str(tmp_path / "t"))
    looks.clear()
    assert is_under(now, place)
    assert may_be_under(now, place)
    assert normalise(now) == str(tmp_path / "t/f")
    assert not PathSet([str(tmp_path)]).may_contain(compared("s3://b/x"))
    assert looks[str(tmp_path / "t/f")] == 0


def test_each_comparison_sees_the_current_links(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    path = str(tmp_path / "f")
    before = compared(path)
    (tmp_path / "f").symlink_to("target")
    after = compared(path)
    assert (before.normal, before.is_plain) == (path, True)
    assert (after.normal, after.is_plain) == (str(tmp_path / "target"), False)


def test_an_expiry_plans_without_a_look_at_each_file(tmp_path: Path, looks: Counter[str]) -> None:
    """A folder of many files is listed once; only beside a link is each file looked at."""
    for folder in ("data", "linked"):
        (tmp_path / folder).mkdir()
    (tmp_path / "linked" / "part-7.parquet").symlink_to("nothing")
    plain, linked = (
        [str(tmp_path / folder / f"part-{number}.parquet") for number in range(20)] for folder in ("data", "linked")
    )
    needed = set[str]()
    candidates = Candidates(lambda path: normalise(path) in needed or not is_under(path, str(tmp_path)))
    for path in (*plain, *linked):
        candidates.add(path, 1, holds_rows=True)
    needed.add(plain[3])
    candidates.leave_out_needed()
    assert set(candidates.paths()) == {*plain, *linked} - {plain[3]}
    assert {looks[path] for path in plain[9:]} == {0}
    assert {looks[path] for path in linked[9:]} == {1}
    assert {looks[path] for path in (*plain[:9], *linked[:9]) if path != linked[7]} == {1, 2}
    examined = [*candidates.of_each_folder()]
    assert linked[7] in examined  # a link may point anywhere
    assert len(examined) <= 3


def test_a_path_that_certainly_is_its_real_path_is_compared_as_by_a_look_at_it(tmp_path: Path) -> None:
    for name in ("real", "beside"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "beside" / "x7").symlink_to(tmp_path / "real" / "x7")
    names, found = FolderNames(), list[bool]()
    for folder in ("real", "link", "beside", "gone"):
        for name in (*(f"x{number}" for number in range(20)), "x%41", ".", "..", ".x", ""):
            path = f"{tmp_path}/{folder}/{name}"
            found.append(names.is_plain(path))
            now, then = compared(path), compared(path, is_plain=found[-1])
            assert (now.key, now.normal, now.is_plain) == (then.key, then.normal, then.is_plain)
    assert sum(found) == 2 * 12  # of real and gone: x9 to x19, and x%41


# Paths of a folder of many files are normalised as each path alone.

OBJECTS = ["s3://b/t", "s3a://b", "s3://b//t/", "s3://b/%41", "s3://b/t/..", "hdfs://h:1/t", "gs:/", "s3:/", "s3:"]
LOCAL = ["/t", "/", "//t", "file:///t", "file:/t/.x", "", ".", "/t/%2541", "/t/./u"]
FOLDERS = st.sampled_from([*OBJECTS, *LOCAL])
NAMES = st.sampled_from(["f", "fg", "a b", "a%20b", "%41", "..", ".", ".f", "", "é", "\udcff", "a:b", "s3:", "a\\b"])


@given(st.lists(st.tuples(FOLDERS, NAMES), max_size=5))
def test_many_paths_of_a_folder_are_normalised_like_each_alone(drawn: list[tuple[str, str]]) -> None:
    names, paths = FolderNames(), [f"{folder}/{name}" for folder, name in drawn] + [name for _, name in drawn]
    for _ in range(10):
        assert [names.normal(path) for path in paths] == [normalise(path) for path in paths]
        for some in (paths, *([path] for path in paths)):  # a path alone is not read as awkward as its neighbours
            assert names.spellings(some) == [any_spelling(path) for path in some]


def test_a_link_among_many_files_is_resolved(tmp_path: Path) -> None:
    """The table's folder is itself reached by a link, and contains a link to a file elsewhere."""
    real, other = tmp_path / "real", tmp_path / "other.parquet"
    real.mkdir()
    other.touch()
    (tmp_path / "t").symlink_to(real)
    (real / "link.parquet").symlink_to(other)
    paths = [f"{tmp_path}/t/{number}.parquet" for number in range(20)] + [f"{tmp_path}/t/link.parquet"]
    names = FolderNames()
    assert [names.normal(path) for path in paths] == [*(f"{real}/{n}.parquet" for n in range(20)), str(other)]
    real_paths = [path.replace("/t/", "/real/") for path in paths]
    for some in (paths, real_paths):
        assert FolderNames().spellings(some) == names.spellings(some) == [names.normal(path) for path in paths]
    listed = [ListedObject(path, 1, 1) for path in (str(other), f"{real}/3.parquet", f"{real}/orphan.parquet")]
    kept = ReferencedPaths(str(real), paths)
    assert [found.path for found in kept.unreferenced(listed)] == [f"{real}/orphan.parquet"]


def test_each_file_of_an_unlistable_folder_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "other")
    monkeypatch.setattr(os, "scandir", Mock(side_effect=PermissionError))
    names, paths = FolderNames(), [f"{tmp_path}/{number}" for number in range(20)]
    assert [names.normal(path) for path in paths] == paths
    assert names.normal(f"{tmp_path}/link") == f"{tmp_path}/other"


# The roots of a table's data files, without the folders of partition and hash.


def test_every_layout_of_a_folder_has_the_folder_as_its_root() -> None:
    for path in (
        *("s3://b/t/data/f", "s3a://b/t/data/f", "s3://b/t/data/day=2026-01-01/f", "s3://b/t/data/day=/f"),
        "s3://b/t/data/day=2026-01-01/region=eu%2Fwest/f",
        *(f"s3://b/t/data/0110/1010/0011/10010110{name}" for name in ("/f", "/day=1/f", "-f")),
    ):
        assert data_root(f"{path}.parquet") == "s3://b/t/data", path
    for folder in ("0110", "0110/1010/0011", "year-2026", "1f3a99c0", "1f3a99c0d", "20260101", "zZ3_-a"):
        assert data_root(f"s3://b/t/{folder}/f.parquet") == f"s3://b/t/{folder}"
    assert data_root("file:///wh/t/data/p=1/f") == data_root("/wh/t/data/f") == "/wh/t/data"


def test_roots_are_reported_once() -> None:
    footprint = Footprint()
    for number in range(3):
        footprint.see([f"s3://b/t/data/p={number}/f"])
    assert footprint.news() == {"s3://b/t/data"}
    footprint.see(["s3://b/t/data/p=7/f"])
    assert footprint.news() == set()
    footprint.see(["s3://c/x/f"])
    assert footprint.news() == {"s3://c/x"}
    assert footprint.roots() == {"s3://b/t/data", "s3://c/x"}


def test_hashes_of_earlier_versions_are_recognised_in_the_data_folder() -> None:
    footprint = Footprint()
    for folder in ("1f3a99c0", "12345678/day=1", "zZ3_-a", "2026/01"):
        footprint.see([f"s3a://b/t/data/{folder}/f"], ("s3://b/t/data",))
    assert footprint.roots() == {"s3://b/t/data"}
    footprint.see(["s3://b/t/database/1f3a99c0/f"], ("s3://b/t/data",))
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
def test_a_folder_with_more_than_data_is_not_a_root_of_everything_below(
    properties: dict[str, str], folders: list[str]
) -> None:
    table = TableMetadata({"format-version": 2, "location": "s3://b/t", "properties": properties})
    assert list(data_folders(table)) == folders


def test_too_many_roots_become_the_whole_store() -> None:
    footprint = Footprint()
    for number in range(1_500):
        footprint.see([f"s3://b/t/{number}x/f"])
    assert "s3://b" in footprint.roots()
    assert len(footprint.roots()) <= 1_001


# A reference protects every object that a store or client may resolve it to (rule: any-spelling-protects).

HOME = "s3://b/t"
COMPOSED, DECOMPOSED = "k=\u00e9", "k=e\u0301"


@pytest.mark.parametrize(
    ("referenced", "listed"),
    [
        (f"s3a://b/t/data/{COMPOSED}/f", f"s3://b/t/data/{DECOMPOSED}/f"),
        (f"s3://b/t/data/{DECOMPOSED}/f", f"s3://b/t/data/{COMPOSED}/f"),
        ("s3://b/t/data/k=%C3%A9/f", f"s3://b/t/data/{DECOMPOSED}/f"),
        ("s3://b/t/data/a\\b", "s3://b/t/data/a/b"),
        ("s3a://b/t/./data/f", "s3://b/t/data/f"),
        ("s3a://b/t/data/../data//f", "s3://b/t/data/f"),
        ("s3a://b/../t/data/f", "s3://b/t/data/f"),
    ],
)
def test_a_reference_in_another_spelling_protects_the_object(referenced: str, listed: str) -> None:
    here, there = ReferencedPaths(HOME, [referenced]), ReferencedPaths(HOME, hash_of=path_hash)
    (normal,) = FolderNames().spellings([referenced])
    there.add_hashes([ReferencedPaths(HOME, hash_of=path_hash).hashes(normal)])
    other = f"{listed}.other"
    objects = [ListedObject(path, 1, 1) for path in (listed, other)]
    for known in (here, there):
        assert [found.path for found in known.unreferenced(objects)] == [other]
        assert (listed in known, other in known) == (True, False)
    elsewhere = ReferencedPaths(HOME, [referenced.replace("//b/", "//c/")])
    assert (elsewhere.has_prefix_mismatch(listed), elsewhere.has_prefix_mismatch(other)) == (True, False)


@pytest.mark.parametrize(
    ("protected", "listed"),
    [
        (f"s3://b/t/{COMPOSED}", f"s3://b/t/{DECOMPOSED}/f"),
        (f"s3://b/t/{DECOMPOSED}", f"s3a://b/t/{COMPOSED}"),
        ("s3://b/t/a\\b", "s3://b/t/a/b/f"),
        ("s3://b/t/a/b", "s3://b/t/a\\b"),
        ("s3a://b/u/../t/a", "s3://b/t/a/f"),
        ("s3://b/t", "s3://b/t/../u/f"),
        ("s3://b/u", "s3://b/t/../u/f"),
    ],
)
def test_a_folder_in_another_spelling_protects_its_files(protected: str, listed: str) -> None:
    assert may_be_under(listed, protected)
    assert PathSet([protected]).may_contain(listed)
    assert not PathSet([f"{protected}2"]).may_contain(listed)
    swept = PathSet([f"s3://b/t/{COMPOSED}"], protects=False)  # only the named folder
    assert swept.may_contain(f"s3a://b/t/{COMPOSED}/f")
    assert not swept.may_contain(f"s3://b/t/{DECOMPOSED}/f")


@pytest.mark.parametrize("path", ["s3://b/t/f", "s3://b/t/.f", "s3://b", "/w/t/.f", "/w/a\\b", "gs://b/t/a..b"])
def test_a_path_with_a_single_spelling_is_unchanged(path: str) -> None:
    assert merged_spelling(path) == path


# Real paths of local files, and the cache of folders.


def test_a_relative_folder_is_in_the_current_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache holds nothing of a folder of the same name in another working folder."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert real_path("./f") == str(tmp_path / name / "f")
        assert real_path("wh/f") == str(tmp_path / name / "wh" / "f")


LINKED = st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=4).map("/".join)


@given(st.dictionaries(LINKED, LINKED, max_size=4), st.lists(LINKED, min_size=1, max_size=8))
def test_a_remembered_folder_has_its_real_path(links: dict[str, str], paths: list[str]) -> None:
    """The links may name one another, or nothing; no file is behind a link that leads to itself."""
    with tempfile.TemporaryDirectory() as top:
        for path, target in links.items():
            with suppress(OSError):
                os.makedirs(os.path.dirname(f"{top}/{path}"), exist_ok=True)
                os.symlink(target, f"{top}/{path}")
        for path in (f"{top}/{path}" for path in links):
            try:
                os.stat(path)
            except OSError as error:
                if error.errno == errno.ELOOP and os.path.islink(path):
                    os.unlink(path)
        names = _RealPaths()
        for path in (f"{top}/{path}" for path in paths):
            assert names.of_folder(path) == os.path.realpath(path).rstrip("/")


# The table whose location contains a file.

OUTER, INNER, TWIN, OTHER = (TableName(("ns",), name) for name in ("outer", "inner", "twin", "other"))
TERRITORY = TableLocations(
    [
        (OUTER, "s3://b/w/outer"),
        (INNER, "s3a://b/w/outer/data/inner/"),
        (TWIN, "s3://b/w/outer/data/inner"),
        (OTHER, "s3://b/w/other"),
    ]
)


def test_a_file_belongs_to_the_innermost_table_around_it() -> None:
    expected: dict[str, tuple[TableName, ...]] = {
        "s3://b/w/outer/data/f": (OUTER,),
        "s3a://b/w/outer/data/f": (OUTER,),
        "s3://b/w/outer/data/inner/data/f": (INNER, TWIN),
        "s3://b/w/outer/data/inner2/f": (OUTER,),
        "s3://b/w/other/f": (OTHER,),
        **dict.fromkeys(("s3://b/w/f", "s3://b/w/outer", "s3://c/w/outer/f", "/b/w/outer/f"), ()),
        # These could be taken for files inside the location, but a deletion would delete another object.
        **dict.fromkeys(("s3://b/w/outer%2Ff", "s3://b/w//other/f", "s3://b/w/other/../f"), ()),
    }
    assert {path: TERRITORY.tables_around(path) for path in expected} == expected
    assert TableLocations([]).tables_around("/w/t/f") == ()
    assert TableLocations([(OTHER, "file:///w/t")]).tables_around("/w/t/f") == (OTHER,)
