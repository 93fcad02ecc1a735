"""Paths of the same file compare equal, and no foreign path counts as the table's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icekeeper.deletion.file_needs import OwnPlaces
from icekeeper.storage.allowed_locations import AllowedLocations
from icekeeper.storage.paths import (
    PathSet,
    authority,
    compared,
    is_under,
    leads_out,
    may_be_under,
    normalise,
    split_path,
)

SEGMENTS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1), min_size=1, max_size=5)
# Characters with a special meaning, so that they often meet.
AWKWARD = st.text(st.sampled_from("/.:%2Ffiles3a\\x\u00e9e\u0301"), max_size=20)
PLAIN = st.lists(st.from_regex(r"[a-z0-9_=-]{1,8}", fullmatch=True), min_size=1, max_size=5)


# A scheme and little more.
STORES = st.from_regex(r"(s3|s3a|gs|a|file):/{0,4}[b./%2F]{0,4}", fullmatch=True)


@example("a:/")
@example("s3:/")
@given(
    st.one_of(
        AWKWARD, STORES, st.text(), SEGMENTS.map(lambda parts: "s3://b/" + "/".join(parts)), SEGMENTS.map("/".join)
    )
)
def test_normalising_twice_changes_nothing(path: str) -> None:
    assert normalise(normalise(path)) == normalise(path)


@given(PLAIN)
def test_twin_spellings_are_equal(parts: list[str]) -> None:
    key = "/".join(parts)
    s3 = [f"{scheme}://bucket/{key}" for scheme in ("s3", "s3a", "s3n", "S3")]
    s3 += [f"s3://bucket//{'//'.join(parts)}", "s3://bucket/" + "/".join(f"%{ord(p[0]):02X}{p[1:]}" for p in parts)]
    assert len({normalise(path) for path in s3}) == 1
    local = [f"/{key}", f"file:/{key}", f"file:///{key}", f"file://localhost/{key}", f"//{key}", f"/./{key}"]
    assert len({normalise(path) for path in local}) == 1


@given(PLAIN, PLAIN)
def test_a_child_is_under_its_location_and_a_sibling_is_not(location: list[str], child: list[str]) -> None:
    for root in ("s3://b/", "/", "file:///"):
        base = root + "/".join(location)
        path = f"{base}/{'/'.join(child)}"
        assert is_under(path, base)
        assert is_under(path, f"{base}/")
        assert may_be_under(path, base)
        assert not is_under(f"{base}2/{child[0]}", base)
        assert not may_be_under(f"{base}2/{child[0]}", base)
        assert not is_under(base, base)


FEW = st.builds(
    "{}{}".format,
    st.sampled_from(["s3://b/", "s3a://b/", "s3://c/", "/", "file:///", "s3:/", "s3://"]),
    st.lists(st.sampled_from(["t", "u", "t2", "", ".", "..", "%74", "t.parquet"]), max_size=4).map("/".join),
)


@given(st.lists(FEW, max_size=3), st.lists(FEW, min_size=1, max_size=3), st.lists(FEW, max_size=20))
def test_a_place_has_the_files_that_each_alone_is_in(
    locations: list[str], prefixes: list[str], paths: list[str]
) -> None:
    """What is remembered of a folder decides as a look at each file does."""
    allowed = AllowedLocations(tuple(prefixes), from_operator=True)
    places = OwnPlaces(locations, allowed)
    for path in paths:
        alone = allowed.allows(compared(path)) and any(is_under(path, location) for location in locations)
        assert places.have(path) is alone


@given(FEW)
def test_a_path_is_compared_by_its_parts(path: str) -> None:
    found, parts = compared(path), split_path(path)
    assert (found.authority, found.has_dots, found.normal) == (parts.store, parts.has_dots, normalise(path))
    if parts.scheme.startswith("s3"):
        assert (found.key, found.is_plain) == (parts.key, True)


@given(st.one_of(AWKWARD, st.text()), st.one_of(AWKWARD, st.text()))
def test_a_path_certainly_under_is_also_possibly_under(path: str, location: str) -> None:
    if is_under(path, location):
        assert may_be_under(path, location)


@example("", ["a:/"])
@given(
    st.one_of(AWKWARD, st.text(), PLAIN.map("/".join)),
    st.lists(st.one_of(AWKWARD, st.text(), PLAIN.map(lambda parts: "/".join(parts[:1]))), max_size=4),
)
def test_a_set_of_paths_agrees_with_its_members(path: str, locations: list[str]) -> None:
    members = PathSet(locations)
    assert members.may_contain(path) == any(may_be_under(path, location) for location in locations)
    below = f"/{path}"
    assert members.may_contain(below) == any(may_be_under(below, location) for location in locations)
    for location in locations:
        assert members.may_contain(f"{location}/x") == any(may_be_under(f"{location}/x", item) for item in locations)


@pytest.mark.parametrize(
    "path",
    [
        "s3://other/t/f",
        "s3://b/T/f",
        "s3://b/t%2Ff",
        "s3://b//t/f",
        "s3://b/t/../u/f",
        "s3://b/t/",
        "gs://b/t/f",
        "/b/t/f",
        "s3:/b/t/f",
    ],
)
def test_a_path_that_may_name_another_object_is_not_certainly_under(path: str) -> None:
    assert not is_under(path, "s3://b/t")


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("s3a://b/t/f", "s3://b/t"),
        ("s3://b/t//f", "s3://b/t/"),
        ("file:/w/t/f", "/w/t"),
        ("/w//t/f", "file:///w/t"),
        ("s3://b/a b/f%20", "s3://b/a b"),
        ("s3://b/f", "s3://b"),
    ],
)
def test_spellings_of_the_same_object_are_under(path: str, location: str) -> None:
    assert is_under(path, location)


def test_objects_that_a_client_may_confuse_normalise_alike() -> None:
    assert normalise("s3://b/t/a%2520b") == normalise("s3://b/t/a%20b") == normalise("s3://b/t/a b")
    assert may_be_under("s3://b/t%2Ff", "s3://b/t")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3a://b/k/l", ("s3a", "b", "k/l")),
        ("s3://b", ("s3", "b", "")),
        ("s3://b/k?x#y%20", ("s3", "b", "k?x#y%20")),
        ("file:/a", ("file", "", "/a")),
        ("file:///a/b", ("file", "", "/a/b")),
        ("file://./a", ("file", "", "./a")),
        ("/a/b", ("", "", "/a/b")),
        ("a/b", ("", "", "a/b")),
        ("ns:1/x", ("", "", "ns:1/x")),
    ],
)
def test_splitting_is_literal(path: str, expected: tuple[str, str, str]) -> None:
    parts = split_path(path)
    assert (parts.scheme, parts.authority, parts.key) == expected


@pytest.mark.parametrize(
    ("path", "expected"), [("s3n://b/x", "s3://b"), ("file:/x", "file://"), ("/x", "file://"), ("gs://b/x", "gs://b")]
)
def test_the_authority_is_extracted(path: str, expected: str) -> None:
    assert authority(path) == expected


# -- symbolic links


@pytest.mark.parametrize("spelled", [str, Path.as_uri, "file:{}".format, "/{}".format])
@pytest.mark.parametrize("name", ["link", "l nk", "l%41nk"])
def test_a_folder_and_a_link_to_it_are_equal(tmp_path: Path, name: str, spelled: Callable[[Path], str]) -> None:
    real, link = tmp_path / "real" / "wh", tmp_path / name
    (real / "t/data/k=%2F").mkdir(parents=True)
    link.symlink_to("real")
    for below in ("t", "t/data", "t/data/f", "t/data/k=%2F/f", "t/not/there/f"):
        item, other = str(real / below), spelled(link / "wh" / below)
        assert normalise(item) == normalise(other)
        assert (may_be_under(item, spelled(link)), may_be_under(other, str(real))) == (True, True)
        assert PathSet([spelled(link / "wh/t")]).may_contain(item)
        assert PathSet([str(real / "t")]).may_contain(other)
    if "%" not in spelled(link):  # the literal path, if encoded, names another file
        assert (is_under(other, str(real)), is_under(item, spelled(link))) == (True, True)


def test_a_link_to_a_file_resolves_to_its_target(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "c").symlink_to("b")
    assert normalise(str(tmp_path / "c")) == str(tmp_path / "a")


def test_a_path_through_a_link_to_the_outside_is_not_certainly_under(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "t/data").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "t/f").symlink_to(tmp_path / "elsewhere/f")
    for inside in ("t/data", "t/data/f", "t/f"):
        assert not is_under(str(tmp_path / inside), str(tmp_path / "t"))
        assert leads_out((tmp_path / inside).as_uri(), str(tmp_path / "t"))
    assert not leads_out(str(tmp_path / "elsewhere/f"), str(tmp_path / "t"))


def test_circular_links_and_invalid_paths_keep_their_text(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert normalise(str(tmp_path / "loop/f")) == str(tmp_path / "loop/f")
    assert normalise("/a/\0/f") == "/a/\0/f"


def test_a_relative_path_equals_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalise("file://./wh/f") == normalise("wh/f") == normalise(str(tmp_path / "wh/f"))
    assert is_under(str(tmp_path / "wh/f"), "file://./wh")
