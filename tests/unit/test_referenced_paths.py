"""A set of hashed paths: it never misses a referenced path, whatever its spelling."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.deletion import referenced_paths
from icekeeper.deletion.neighbours import without_authority
from icekeeper.deletion.referenced_paths import ReferencedPaths, path_hash
from icekeeper.storage.paths import authority, merged_spelling, normalise

HOME = "s3://b/t"
SEGMENTS = st.sampled_from(["data", "a b", "a%20b", "%41", "A", "..", ".", "", "é", "\udcff"])
PATHS = st.builds(
    str.__add__,
    st.sampled_from(["s3://b/t/", "s3a://b/t/", "s3://other/t/", "hdfs://h:1/t/", "/t/", "file:///t/"]),
    st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join),
)


@given(st.lists(PATHS, max_size=30), st.lists(PATHS, max_size=10))
def test_it_holds_what_a_set_of_normalised_paths_holds(added: list[str], asked: list[str]) -> None:
    kept = ReferencedPaths(HOME, added)
    keys = set(map(_key, added))
    elsewhere = {without_authority(key) for key in keys if authority(key) != authority(HOME)}
    for path in [*added, *asked]:
        assert (path in kept) == (_key(path) in keys)
        assert kept.has_prefix_mismatch(path) == (without_authority(_key(path)) in elsewhere)
    assert len(kept) == len(keys)


def _key(path: str) -> str:
    return merged_spelling(normalise(path))


def test_it_stays_right_while_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorted again and again, asked in between, repetitions dropped."""
    monkeypatch.setattr(referenced_paths, "_UNSORTED", 10)
    order, kept, added = random.Random(1), ReferencedPaths(HOME), set[str]()
    for _ in range(50):
        some = [f"{HOME}/data/{order.randrange(200)}" for _ in range(7)]
        kept.update(some)
        added.update(some)
        assert len(kept) == len(added)
        assert all((f"{HOME}/data/{n}" in kept) == (f"{HOME}/data/{n}" in added) for n in range(200))


@pytest.mark.parametrize("reference", ["s3://b/t/%41", "s3://b/t/A", "s3://b/t/%2541"])
@pytest.mark.parametrize("key", ["%41", "A", "%2541"])
def test_a_key_that_is_really_percent_encoded_is_kept_by_either_spelling(reference: str, key: str) -> None:
    """``%41`` and ``A`` are two objects; a writer who names one of them may mean the other."""
    assert f"s3://b/t/{key}" in ReferencedPaths(HOME, [reference])


def test_a_path_has_the_same_hash_in_every_process() -> None:
    assert path_hash("s3://b/t/data/f.parquet") == 6152792432115594036
