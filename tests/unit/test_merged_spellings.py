"""A reference protects the object that some store or client takes for it (rule 85)."""

from __future__ import annotations

import pytest

from icekeeper.deletion.referenced_paths import ReferencedPaths, path_hash
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import FolderNames, PathSet, may_be_under, merged_spelling, merged_spellings

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
    there.add_hashes([ReferencedPaths(HOME, hash_of=path_hash).hashes(referenced)])
    other = f"{listed}.other"
    objects = [ListedObject(path, 1, 1) for path in (listed, other)]
    for known in (here, there):
        assert [found.path for found in known.unreferenced(objects, FolderNames())] == [other]
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
def test_a_folder_in_another_spelling_protects_what_is_in_it(protected: str, listed: str) -> None:
    assert may_be_under(listed, protected)
    assert PathSet([protected]).may_contain(listed)
    assert not PathSet([f"{protected}2"]).may_contain(listed)


def test_only_the_folder_that_was_named_is_swept() -> None:
    named = PathSet([f"s3://b/t/{COMPOSED}"], protects=False)
    assert (named.may_contain(f"s3a://b/t/{COMPOSED}/f"), named.may_contain(f"s3://b/t/{DECOMPOSED}/f")) == (
        True,
        False,
    )


@pytest.mark.parametrize("path", ["s3://b/t/f", "s3://b/t/.f", "s3://b", "/w/t/.f", "/w/a\\b", "gs://b/t/a..b"])
def test_what_has_one_spelling_stays_as_it_is(path: str) -> None:
    assert (merged_spelling(path), merged_spellings([path])) == (path, [path])
