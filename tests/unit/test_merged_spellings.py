"""A reference protects the object that some store or client takes for it (rule 85)."""

from __future__ import annotations

import pytest

from icekeeper.deletion.referenced_paths import ReferencedPaths, path_hash
from icekeeper.storage.folder_names import FolderNames
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.merged_spellings import merged_spelling, merged_spellings

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


@pytest.mark.parametrize("path", ["s3://b/t/f", "s3://b/t/.f", "s3://b", "/w/t/.f", "/w/a\\b", "gs://b/t/a..b"])
def test_what_has_one_spelling_stays_as_it_is(path: str) -> None:
    assert (merged_spelling(path), merged_spellings([path])) == (path, [path])
