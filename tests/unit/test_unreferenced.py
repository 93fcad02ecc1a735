"""Which files an expiry frees, and which manifests are opened to find out: every rule of the module, and its limits."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.errors import MetadataUnreadable, OperationRefused
from icekeeper.operations.expiry.candidates import Candidates
from icekeeper.operations.expiry.unreferenced import Unreferenced, still_unreferenced, unreferenced_files
from support.listed_manifests import FILE_BYTES, LOCATION, ListedManifests, path_of


def freed(table: ListedManifests, *expired: int) -> set[str]:
    """Names of what goes, below the location."""
    return names(found(table, *expired))


def found(table: ListedManifests, *expired: int, **more: Any) -> Unreferenced:
    return unreferenced_files(table.reader, set(expired), [LOCATION], **more)


def names(freed_now: Unreferenced) -> set[str]:
    return {path.removeprefix(f"{LOCATION}/") for path in freed_now.candidates}


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


def test_a_past_is_not_given_up_for_a_present_that_cannot_be_read() -> None:
    """Rule 5: the manifest decides nothing, but every snapshot that would stay needs it."""
    table = ListedManifests()
    a, b = table.manifest("a", ["data/1"]), table.manifest("b", ["data/2"])
    table.snapshot(1, a)
    table.snapshot(2, a, b)
    del table.objects[path_of("metadata/b.avro")]
    with pytest.raises(MetadataUnreadable, match=r"metadata/b\.avro"):
        freed(table, 1)


def test_only_live_entries_of_dropped_manifests_are_candidates() -> None:
    """Rule 2: the DELETED entries of m2 name what a snapshot before lost, and another one may hold again."""
    table = ListedManifests()
    table.snapshot(1, table.manifest("m1", ["data/1"]))
    table.snapshot(2, table.manifest("m2", ["data/2"], dead=["data/1", "data/9"]))
    table.snapshot(3, table.manifest("m3", ["data/3"]))
    assert freed(table, 2) == {"data/2", "metadata/m2.avro", "metadata/snap-2.avro"}


def test_a_dropped_manifest_without_live_entries_is_not_opened() -> None:
    table = ListedManifests()
    kept = table.manifest("kept", ["data/1"])
    table.snapshot(1, kept, table.manifest("history", dead=["data/0"]))
    table.snapshot(2, kept)
    assert freed(table, 1) == {"metadata/snap-1.avro", "metadata/history.avro"}
    assert table.read_manifests() == {}


def test_a_file_listed_twice_stays_with_either_manifest() -> None:
    """Rule 3: snapshot 2 publishes the file again in a manifest of its own, and a tag keeps snapshot 1."""
    table = ListedManifests()
    first, again = table.manifest("first", ["data/1"]), table.manifest("again", ["data/1", "data/2"])
    table.snapshot(1, first)
    table.snapshot(2, first, again)
    table.snapshot(3, table.manifest("rest", ["data/3"]))
    assert freed(table, 2) == {"data/2", "metadata/again.avro", "metadata/snap-2.avro"}


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


def test_only_expired_snapshots_prove_anything_about_a_pair() -> None:
    """A kept manifest that rewrote the dropped one holds its files; it was never listed beside it."""
    table = ListedManifests()
    table.snapshot(1, table.manifest("old", ["data/1", "data/2"]))
    table.snapshot(2, table.manifest("rewritten", ["data/1"]))
    assert freed(table, 1) == {"data/2", "metadata/old.avro", "metadata/snap-1.avro"}


def test_a_dropped_manifest_without_live_entries_proves_nothing_about_others() -> None:
    table = ListedManifests()
    kept = table.manifest("kept", ["data/1"])
    table.snapshot(1, kept, table.manifest("history", dead=["data/0"]))
    table.snapshot(2, table.manifest("gone", ["data/1", "data/2"]))
    table.snapshot(3, kept)
    assert {"data/1", "data/2"} & freed(table, 1, 2) == {"data/2"}


def test_a_puffin_file_lives_as_long_as_one_of_its_vectors() -> None:
    """Both manifests are listed by one snapshot, with vectors at other offsets of one file."""
    table = ListedManifests(3)
    data = table.manifest("data", ["data/x.parquet"])
    kept = table.manifest("kept", [("data/dv.puffin", 4)], deletes=True)
    gone = table.manifest("gone", [("data/dv.puffin", 44), ("data/old.puffin", 4)], deletes=True)
    table.snapshot(1, data, kept, gone)
    table.snapshot(2, data, kept)
    assert freed(table, 1) == {"data/old.puffin", "metadata/gone.avro", "metadata/snap-1.avro"}


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


@pytest.mark.parametrize("spelling", ["s3a://b/t/data/k=a b", "s3n://b/t/data/k=a%20b", "s3://b/t//data/k=a%20b"])
def test_another_spelling_of_a_path_saves_the_file(spelling: str) -> None:
    table = ListedManifests()
    table.snapshot(1, table.manifest("old", ["data/k=a%20b"]))
    table.snapshot(2, table.manifest("new", [spelling]))
    assert freed(table, 1) == {"metadata/old.avro", "metadata/snap-1.avro"}


def test_two_manifests_that_could_be_one_are_both_opened() -> None:
    """An object store may hold "m 1" and "m%201" side by side: only what is spelled alike is surely the same."""
    table = ListedManifests()
    table.snapshot(1, table.manifest("old", ["data/1", "data/2"]))
    first, second = table.manifest("m 1", ["data/3"]), table.manifest("m%201", ["data/1"])
    table.snapshot(2, first, second)
    assert freed(table, 1) == {"data/2", "metadata/old.avro", "metadata/snap-1.avro"}


def test_two_dropped_manifests_that_could_be_one_stand_for_themselves() -> None:
    """ "kept" was listed beside "d 1" only."""
    table = ListedManifests()
    kept = table.manifest("kept", ["data/1"])
    table.snapshot(1, table.manifest("d%201", ["data/1"]))
    table.snapshot(2, kept, table.manifest("d 1", ["data/2"]))
    table.snapshot(3, kept)
    assert "data/1" not in freed(table, 1, 2)


def test_the_same_path_under_another_bucket_is_refused() -> None:
    table = ListedManifests()
    table.snapshot(1, table.manifest("old", ["data/1"]))
    table.snapshot(2, table.manifest("new", ["s3://alias/t/data/1"]))
    with pytest.raises(OperationRefused, match="under s3://alias instead of s3://b"):
        freed(table, 1)


@pytest.mark.parametrize("lost", ["snap-1", "snap-2", "gone", "late", "beside"])
def test_what_decides_must_be_readable(lost: str) -> None:
    table = ListedManifests()
    beside = table.manifest("beside", ["data/b"])
    table.snapshot(1, beside, table.manifest("gone", ["data/1"]))
    table.snapshot(2, beside, table.manifest("late", ["data/2"]))
    assert "data/1" in freed(table, 1)
    del table.objects[path_of(f"metadata/{lost}.avro")]
    with pytest.raises(MetadataUnreadable, match=lost):
        freed(table, 1)


def test_files_elsewhere_and_held_ones_are_nobody_s_to_delete() -> None:
    table = ListedManifests()
    table.snapshot(1, table.manifest("old", ["s3://b/t2/data/1", "s3://b/t/../u/data/2", "data/staged", "data/3"]))
    table.snapshot(2, table.manifest("new", ["data/4"]))
    freed_now = found(table, 1, is_held=lambda path: path.endswith("staged"))
    assert names(freed_now) == {"data/3", "metadata/old.avro", "metadata/snap-1.avro"}


def test_statistics_go_unless_another_snapshot_names_their_file() -> None:
    table = ListedManifests()
    kept = table.manifest("kept", ["data/1"])
    table.snapshot(1, kept)
    table.snapshot(2, kept)
    table.document["statistics"] = [
        {"snapshot-id": 1, "statistics-path": path_of("metadata/own.stats"), "file-size-in-bytes": 70},
        {"snapshot-id": 1, "statistics-path": path_of("metadata/shared.stats"), "file-size-in-bytes": 80},
    ]
    table.document["partition-statistics"] = [
        {"snapshot-id": 1, "statistics-path": path_of("metadata/p.parquet"), "file-size-in-bytes": 5},
        {"snapshot-id": 2, "statistics-path": path_of("metadata/shared.stats"), "file-size-in-bytes": 80},
    ]
    freed_now = found(table, 1)
    assert names(freed_now) == {"metadata/own.stats", "metadata/p.parquet", "metadata/snap-1.avro"}
    assert freed_now.candidates.size == 75 + len(table.objects[path_of("metadata/snap-1.avro")])


def test_bytes_are_those_of_objects_each_counted_once() -> None:
    table = ListedManifests(3)
    old = table.manifest("old", [("data/dv.puffin", 4), ("data/dv.puffin", 44)], deletes=True)
    data = table.manifest("data", ["data/1", "data/x.parquet"])
    table.snapshot(1, data, old)
    table.snapshot(2, table.manifest("rest", ["data/x.parquet"]))
    metadata = ("old", "data", "snap-1")
    assert found(table, 1).candidates.size == 2 * FILE_BYTES + sum(
        len(table.objects[path_of(f"metadata/{name}.avro")]) for name in metadata
    )


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


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[dict[str, set[int]]], set[int]]:
    """Snapshots as manifests by name with the files they hold, a file perhaps twice; and which of them expire."""
    snapshots: list[dict[str, set[int]]] = []
    manifests, head = 0, dict[str, set[int]]()
    for _ in range(draw(st.integers(1, 7))):
        forks = bool(snapshots) and draw(st.booleans())
        parent = dict(snapshots[draw(st.integers(0, len(snapshots) - 1))] if forks else head)
        for name in draw(st.lists(st.sampled_from(sorted(parent)), unique=True)) if parent else []:
            files = parent.pop(name)
            kept = {file for file in sorted(files) if draw(st.booleans())}
            if kept:
                manifests += 1
                parent[f"m{manifests}"] = kept
        added = set(draw(st.lists(st.integers(0, 11), max_size=3)))
        if added:
            manifests += 1
            parent[f"m{manifests}"] = added
        snapshots.append(parent)
        head = parent
    return snapshots, set(draw(st.lists(st.integers(1, len(snapshots)), max_size=5)))


@given(histories(), st.sampled_from([2, 3]))
def test_what_goes_is_exactly_what_no_kept_snapshot_holds(
    history: tuple[list[dict[str, set[int]]], set[int]], version: int
) -> None:
    """Branches, rewrites of manifests, files that come back: the shortcuts change nothing."""
    snapshots, expired = history
    table, made = ListedManifests(version), {}
    for number, manifests in enumerate(snapshots, start=1):
        for name, files in manifests.items():
            if name not in made:
                made[name] = table.manifest(name, [f"data/{file}" for file in sorted(files)])
        table.snapshot(number, *(made[name] for name in manifests))

    def held(numbers: set[int]) -> set[str]:
        some = [snapshots[number - 1] for number in numbers]
        files = {f"data/{file}" for manifests in some for held_files in manifests.values() for file in held_files}
        return files | {f"metadata/{name}.avro" for manifests in some for name in manifests}

    staying = set(range(1, len(snapshots) + 1)) - expired
    lists = {f"metadata/snap-{number}.avro" for number in expired}
    assert freed(table, *expired) == (held(expired) - held(staying)) | lists
    assert set(table.reads.values()) <= {1}


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
    monkeypatch.setattr("icekeeper.operations.expiry.candidates.hash", lambda text: 7, raising=False)
    candidates = Candidates([LOCATION])
    for name in ("a", "b", "c", "b", "d"):
        candidates.add(path_of(name), 10)
    candidates.spare(path_of("b"))
    candidates.spare(path_of("e"))
    assert candidates.paths() == tuple(map(path_of, "acd"))
    assert candidates.size == 30
