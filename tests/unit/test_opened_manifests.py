"""Which manifests are opened to find out what an expiry frees, in which order, and what a candidate costs."""

from __future__ import annotations

import tracemalloc

import pytest

from icekeeper.operations.expiry.unreferenced import Candidates, still_unreferenced
from support.freed_files import found, freed, names
from support.listed_manifests import LOCATION, ListedManifests, path_of


def test_appends_need_no_manifest_but_that_of_the_first_one_that_stays() -> None:
    """Rules 1 and 5."""
    table = ListedManifests()
    a, b = table.manifest("a", ["data/1"]), table.manifest("b", ["data/2"])
    table.snapshot(1, a)
    table.snapshot(2, a, b)
    table.snapshot(3, a, b, table.manifest("c", ["data/3"]))
    assert freed(table, 1) == {"metadata/snap-1.avro"}
    assert table.read_manifests() == {"b": 1}
    assert {table.reads[path_of(f"metadata/snap-{number}.avro")] for number in (1, 2, 3)} == {1}


def test_a_dropped_manifest_without_live_entries_is_not_opened() -> None:
    table = ListedManifests()
    kept = table.manifest("kept", ["data/1"])
    table.snapshot(1, kept, table.manifest("history", dead=["data/0"]))
    table.snapshot(2, kept)
    assert freed(table, 1) == {"metadata/snap-1.avro", "metadata/history.avro"}
    assert table.read_manifests() == {}


def test_what_was_listed_beside_a_dropped_manifest_is_opened_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 3: most likely "rewritten" holds what the dropped one held."""
    monkeypatch.setattr("icekeeper.metadata.table_reader._PARALLEL_READS", 1)
    table = ListedManifests()
    beside, dead = table.manifest("beside", ["data/b"]), table.manifest("dead", dead=["data/0"])
    table.snapshot(1, beside, table.manifest("gone", ["data/1"]))
    table.snapshot(2, beside, table.manifest("rewritten", ["data/1"]))
    assert freed(table, 1) == {"metadata/gone.avro", "metadata/snap-1.avro"}
    assert table.read_manifests() == {"gone": 1, "rewritten": 1}
    table.snapshot(3, beside, dead)
    table.snapshot(4, beside)
    assert freed(table, 3) == {"metadata/dead.avro", "metadata/snap-3.avro"}
    assert "beside" not in table.read_manifests()


def test_nothing_more_is_opened_once_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 4."""
    monkeypatch.setattr("icekeeper.metadata.table_reader._PARALLEL_READS", 1)
    table = ListedManifests()
    table.snapshot(1, table.manifest("old", ["data/1"]))
    later = [table.manifest(f"n{number}", ["data/1"] if number == 0 else [f"data/n{number}"]) for number in range(9)]
    table.snapshot(2, *later)
    table.snapshot(3, later[0])
    assert freed(table, 1) == {"metadata/old.avro", "metadata/snap-1.avro"}
    assert table.read_manifests().keys() == {"old", "n0"}


def test_two_manifests_that_could_be_one_are_both_opened() -> None:
    """An object store may hold "m 1" and "m%201" side by side: only what is spelled alike is surely the same."""
    table = ListedManifests()
    table.snapshot(1, table.manifest("old", ["data/1", "data/2"]))
    first, second = table.manifest("m 1", ["data/3"]), table.manifest("m%201", ["data/1"])
    table.snapshot(2, first, second)
    assert freed(table, 1) == {"data/2", "metadata/old.avro", "metadata/snap-1.avro"}


def test_the_guard_does_not_ask_again_what_is_proven_and_asks_what_is_new() -> None:
    table = ListedManifests()
    kept, gone = table.manifest("kept", ["data/k"]), table.manifest("gone", ["data/1", "data/2"])
    table.snapshot(1, kept, gone)
    table.snapshot(2, kept)
    freed_now = found(table, 1)
    assert table.read_manifests() == {"gone": 1, "kept": 1}
    table.snapshot(3, kept, table.manifest("adopted", ["data/1"]))
    table.snapshot(4, kept, gone, table.manifest("adopted", ["data/1"]))
    told = set(freed_now.references.follow(table.reader, table.metadata.snapshots.values()))
    assert {path_of("data/1"), path_of("data/2"), path_of("metadata/gone.avro")} < told
    assert table.read_manifests() == {"gone": 2, "kept": 1, "adopted": 1}


def test_after_a_lost_swap_only_what_is_new_is_read() -> None:
    table = ListedManifests()
    table.snapshot(1, table.manifest("gone", ["data/1", "data/2"]))
    table.snapshot(2, table.manifest("kept", ["data/k"]))
    freed_now = found(table, 1)
    before = table.reads.copy()
    table.snapshot(3, table.manifest("adopted", ["data/1"]))
    still_unreferenced(table.reader, {1}, freed_now)
    assert names(freed_now) == {"data/2", "metadata/gone.avro", "metadata/snap-1.avro"}
    assert (table.reads - before).keys() == {path_of("metadata/adopted.avro"), path_of("metadata/snap-3.avro")}


def test_manifests_that_v1_lists_inline_are_read_once() -> None:
    table = ListedManifests(1)
    gone, kept = table.manifest("gone", ["data/1"]), table.manifest("kept", ["data/2"])
    for number, listed in ((1, [gone]), (2, [kept])):
        table.snapshot(number, manifests=[manifest.manifest_path for manifest in listed])
        del table.document["snapshots"][-1]["manifest-list"]
    assert freed(table, 1) == {"data/1", "metadata/gone.avro"}
    assert table.reads == {path_of("metadata/gone.avro"): 1, path_of("metadata/kept.avro"): 1}


def test_a_candidate_costs_little_more_than_its_path() -> None:
    """A million of them fit beside everything else: no second copy of a path, no object per file."""
    count = 20_000
    paths = [f"file:///warehouse/ns/t/data/part-{number:08d}-{'x' * 60}.parquet" for number in range(count)]
    candidates = Candidates(["file:///warehouse/ns/t"])
    tracemalloc.start()
    try:
        for path in paths:
            candidates.add(path, 10, holds_rows=True)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (candidates.files_left, candidates.size) == (count, 10 * count)
    assert used / count < 200
    for path in paths:
        candidates.spare(path.replace("file:///", "file:/"))
    assert (candidates.files_left, candidates.size, candidates.paths()) == (0, 0, ())


def test_candidates_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.operations.expiry.unreferenced.hash", lambda text: 7, raising=False)
    candidates = Candidates([LOCATION])
    for name in ("a", "b", "c", "b", "d"):
        candidates.add(path_of(name), 10)
    candidates.spare(path_of("b"))
    candidates.spare(path_of("e"))
    assert candidates.paths() == tuple(map(path_of, "acd"))
    assert candidates.size == 30
