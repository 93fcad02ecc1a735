"""Which files, snapshots, specs and schemas an expiry frees."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.errors import CommitConflict, MetadataUnreadable, OperationRefused
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.updates import apply_updates, check_requirements
from icekeeper.operations.expiry.commit_expiry import removal_of
from icekeeper.operations.expiry.ref_costs import TableCosts, cost_of_refs, weigh
from icekeeper.operations.expiry.retention import ExpiryPlan
from icekeeper.operations.expiry.unreferenced import (
    Candidates,
    Unreferenced,
    UnusedMetadata,
    still_unreferenced,
    unreferenced_files,
    unused_metadata,
)
from icekeeper.storage.paths import is_under
from support.listed_manifests import FILE_BYTES, LOCATION, ListedManifests, path_of
from support.tables import new_document, snapshot

# The files that an expiry of some snapshots frees, by names below the location of the table.


def freed(table: ListedManifests, *expired: int) -> set[str]:
    """Names of the freed files, below the location."""
    return names(found(table, *expired))


def found(table: ListedManifests, *expired: int, **more: Any) -> Unreferenced:
    return unreferenced_files(table.reader, set(expired), is_elsewhere, **more)


def is_elsewhere(path: str) -> bool:
    return not is_under(path, LOCATION)


def names(freed_now: Unreferenced) -> set[str]:
    return {path.removeprefix(f"{LOCATION}/") for path in freed_now.candidates}


# Which manifests an expiry opens, in which order, and the memory for a candidate.


History = list[dict[str, list[Any]]]


def table_of(history: History) -> ListedManifests:
    """Snapshots 1, 2, … as manifests by name: 1 is the live file data/1, -1 its deleted entry, a pair is a vector."""
    vectors = {
        name
        for manifests in history
        for name, files in manifests.items()
        if any(isinstance(file, tuple) for file in files)
    }
    table, made = ListedManifests(3 if vectors else 2), {}
    for number, manifests in enumerate(history, start=1):
        for name, files in manifests.items():
            if name not in made:
                live = [f"data/{file}" if isinstance(file, int) else file for file in files if file not in (-1, -9)]
                dead = [f"data/{-file}" for file in files if file in (-1, -9)]
                made[name] = table.manifest(name, live, dead, deletes=name in vectors)
        table.snapshot(number, *(made[name] for name in manifests))
    return table


def of_manifests(*names: str) -> set[str]:
    return {f"metadata/{name}.avro" for name in names}


FREED: dict[str, tuple[History, set[int], set[str]]] = {
    "appends": ([{"a": [1]}, {"a": [1], "b": [2]}, {"a": [], "b": [], "c": [3]}], {1}, of_manifests("snap-1")),
    "no live entries": ([{"kept": [1], "old": [-9]}, {"kept": []}], {1}, of_manifests("snap-1", "old")),
    # An object store may hold both "m 1" and "m%201": only equal spellings are surely the same object.
    "two manifests that could be one": (
        [{"old": [1, 2]}, {"m 1": [3], "m%201": [1]}],
        {1},
        {"data/2", *of_manifests("old", "snap-1")},
    ),
    # The deleted entries of m2 name files that an earlier snapshot removed and another may add again.
    "deleted entries": (
        [{"m1": [1]}, {"m2": [2, -1, -9]}, {"m3": [3]}],
        {2},
        {"data/2", *of_manifests("m2", "snap-2")},
    ),
    # Snapshot 2 adds the file again in another manifest, and a tag keeps snapshot 1.
    "a file listed twice": (
        [{"first": [1]}, {"first": [], "again": [1, 2]}, {"rest": [3]}],
        {2},
        {"data/2", *of_manifests("again", "snap-2")},
    ),
    # A kept manifest that replaced the dropped manifest lists its files; no snapshot lists both.
    "a rewritten manifest": ([{"old": [1, 2]}, {"rewritten": [1]}], {1}, {"data/2", *of_manifests("old", "snap-1")}),
    "a manifest without live entries proves nothing about others": (
        [{"kept": [1], "history": [-9]}, {"gone": [1, 2]}, {"kept": []}],
        {1, 2},
        {"data/2", *of_manifests("history", "gone", "snap-1", "snap-2")},
    ),
    # A single snapshot lists both manifests, with vectors at different offsets of the same file.
    "a Puffin file with a live vector": (
        [{"kept": [("data/dv", 4)], "gone": [("data/dv", 44), ("data/old", 4)]}, {"kept": []}],
        {1},
        {"data/old", *of_manifests("gone", "snap-1")},
    ),
    # A snapshot lists "kept" only beside "d 1".
    "two dropped manifests that could be one": (
        [{"d%201": [1]}, {"kept": [1], "d 1": [2]}, {"kept": []}],
        {1, 2},
        {"data/2", *of_manifests("d%201", "snap-1", "snap-2")},
    ),
    # Paths that a store or client may treat as the same file or manifest.
    **{
        f"{kept} saves {dropped}": (
            [{"old": [dropped, "data/other"]}, {"new": [kept]}],
            {1},
            {"data/other", *of_manifests("old", "snap-1")},
        )
        for dropped, kept in (
            ("data/k=a%20b", "s3a://b/t/data/k=a b"),
            ("data/k=a%20b", "s3n://b/t/data/k=a%20b"),
            ("data/k=a%20b", "s3://b/t//data/k=a%20b"),
            ("data/k=\u00e9/f", "data/k=e\u0301/f"),
            ("data/k=e\u0301/f", "data/k=%C3%A9/f"),
            ("data/a/b", "data/a\\b"),
            ("data/f", "./data/f"),
            ("data/f", "data/../data/f"),
        )
    },
    **{f"{kept} is m": ([{"m": [1]}, {kept: [1]}], {1}, of_manifests("snap-1")) for kept in ("./m", "a/../m")},
}


@pytest.mark.parametrize(("history", "expired", "expected"), FREED.values(), ids=FREED)
def test_an_expiry_frees_exactly_the_expected_files(history: History, expired: set[int], expected: set[str]) -> None:
    assert freed(table_of(history), *expired) == expected


def test_after_appends_only_the_first_kept_manifest_with_live_entries_is_opened() -> None:
    table = table_of(FREED["appends"][0])
    freed(table, 1)
    assert table.read_manifests() == {"b": 1}
    assert {table.reads[path_of(f"metadata/snap-{number}.avro")] for number in (1, 2, 3)} == {1}
    table = table_of(FREED["no live entries"][0])
    freed(table, 1)
    assert table.read_manifests() == {}


def test_manifests_listed_beside_a_dropped_manifest_are_opened_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most likely "rewritten" lists the files of the dropped manifest."""
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


def test_no_manifest_is_opened_once_no_candidate_is_left(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr("icekeeper.metadata.table_reader._PARALLEL_READS", 1)
    table = ListedManifests()
    table.snapshot(1, table.manifest("old", ["data/1"]))
    later = [table.manifest(f"n{number}", ["data/1"] if number == 0 else [f"data/n{number}"]) for number in range(9)]
    table.snapshot(2, *later)
    table.snapshot(3, later[0])
    assert freed(table, 1) == {"metadata/old.avro", "metadata/snap-1.avro"}
    assert table.read_manifests().keys() == {"old", "n0"}


def test_the_guard_reads_only_new_manifests_again() -> None:
    table = ListedManifests()
    kept, gone = table.manifest("kept", ["data/k"]), table.manifest("gone", ["data/1", "data/2"])
    table.snapshot(1, kept, gone)
    table.snapshot(2, kept)
    freed_now = found(table, 1)
    assert table.read_manifests() == {"gone": 1, "kept": 1}
    table.snapshot(3, kept, table.manifest("adopted", ["data/1"]))
    table.snapshot(4, kept, gone, table.manifest("adopted", ["data/1"]))
    needed = set(freed_now.references.follow(table.reader, table.metadata.snapshots.values()))
    assert {path_of("data/1"), path_of("data/2"), path_of("metadata/gone.avro")} < needed
    assert table.read_manifests() == {"gone": 2, "kept": 1, "adopted": 1}


def test_after_a_lost_swap_only_new_metadata_is_read() -> None:
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


def test_a_candidate_takes_little_more_memory_than_its_path() -> None:
    """A million candidates fit into memory: no second copy of a path, no object per file."""
    count = 4_000
    paths = [f"file:///warehouse/ns/t/data/part-{number:08d}-{'x' * 60}.parquet" for number in range(count)]
    candidates = Candidates(lambda path: False)
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


def test_candidates_with_the_same_hash_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.operations.expiry.unreferenced.hash", lambda text: 7, raising=False)
    candidates = Candidates(lambda path: False)
    for name in ("a", "b", "c", "b", "d"):
        candidates.add(path_of(name), 10)
    candidates.spare(path_of("b"))
    candidates.spare(path_of("e"))
    assert candidates.paths() == tuple(map(path_of, "acd"))
    assert candidates.size == 30


# What only one branch, tag or snapshot needs: each object is counted once, each manifest read once.


def sizes(table: ListedManifests, *names: str) -> int:
    """Bytes of manifests and manifest lists."""
    return sum(len(table.objects[path_of(f"metadata/{name}.avro")]) for name in names)


def by_ref(costs: TableCosts) -> dict[str, tuple[int, int, int]]:
    return {ref.name: (ref.snapshots, ref.files_only_here, ref.bytes_only_here) for ref in costs.refs}


def by_snapshot(costs: TableCosts) -> dict[int, tuple[tuple[str, ...], int, int]]:
    return {s.snapshot_id: (s.refs, s.files_only_here, s.bytes_only_here) for s in costs.snapshots}


@pytest.fixture
def table() -> ListedManifests:
    """1 ← 2 ← 3 (main), 4 of a branch from 2, a tag on 1, and 5 without a ref."""
    made = ListedManifests()
    base = made.manifest("base", ["data/1", "data/2"])
    made.snapshot(1, base)
    made.snapshot(2, made.manifest("rest", ["data/2", "data/3"]))
    made.snapshot(3, made.manifest("merged", ["data/4"], dead=["data/2", "data/3"]))
    made.snapshot(4, made.manifest("audit", ["data/5", "data/3"]))
    made.snapshot(5, made.manifest("staged", ["data/6", "data/1"]))
    _, second, third, fourth, fifth = made.document["snapshots"]
    for raw, parent in ((second, None), (third, 2), (fourth, 2), (fifth, 3)):
        raw["parent-snapshot-id"] = parent
    made.document["refs"] = {
        "main": {"type": "branch", "snapshot-id": 3},
        "audit": {"type": "branch", "snapshot-id": 4},
        "first": {"type": "tag", "snapshot-id": 1},
    }
    made.document["current-snapshot-id"] = 3
    return made


def test_a_ref_is_charged_for_files_that_no_other_ref_reaches(table: ListedManifests) -> None:
    costs = cost_of_refs(table.reader)
    assert by_ref(costs) == {
        "main": (2, 3, FILE_BYTES + sizes(table, "merged", "snap-3")),
        "audit": (2, 3, FILE_BYTES + sizes(table, "audit", "snap-4")),
        "first": (1, 3, FILE_BYTES + sizes(table, "base", "snap-1")),
    }
    assert [ref.bytes_only_here for ref in costs.refs] == sorted((r.bytes_only_here for r in costs.refs), reverse=True)
    assert costs.bytes_without_ref == FILE_BYTES + sizes(table, "staged", "snap-5")
    assert (costs.files, costs.bytes) == (16, 6 * FILE_BYTES + sum(map(len, table.objects.values())))


def test_a_snapshot_is_charged_for_files_that_no_other_snapshot_reaches(table: ListedManifests) -> None:
    assert by_snapshot(cost_of_refs(table.reader)) == {
        1: (("first",), 2, sizes(table, "base", "snap-1")),
        2: (("audit", "main"), 2, sizes(table, "rest", "snap-2")),
        3: (("main",), 3, FILE_BYTES + sizes(table, "merged", "snap-3")),
        4: (("audit",), 3, FILE_BYTES + sizes(table, "audit", "snap-4")),
        5: ((), 3, FILE_BYTES + sizes(table, "staged", "snap-5")),
    }


@st.composite
def trees(draw: st.DrawFn) -> TableMetadata:
    """Snapshots 1, 2, …, each with or without an earlier parent, and refs on them."""
    count = draw(st.integers(1, 8))
    parents = [draw(st.sampled_from([None, *range(1, number)])) for number in range(1, count + 1)]
    document = new_document("s3://b/t", 2)
    document["snapshots"] = [
        snapshot(number, format_version=2, sequence_number=number, parent_id=parent)
        for number, parent in enumerate(parents, start=1)
    ]
    kinds = st.tuples(st.sampled_from(["branch", "tag"]), st.integers(1, count + 1))
    refs = draw(st.lists(kinds, max_size=6))
    document["refs"] = {f"r{i}": {"type": kind, "snapshot-id": at} for i, (kind, at) in enumerate(refs)}
    return TableMetadata(document)


@given(trees(), st.dictionaries(st.integers(0, 255), st.tuples(st.integers(1, 9), st.integers(1, 99)), max_size=12))
def test_the_costs_equal_a_walk_over_each_ref(metadata: TableMetadata, weights: dict[int, tuple[int, int]]) -> None:
    bits = {i: 1 << place for place, i in enumerate(metadata.snapshots)}
    weights = {mask & sum(bits.values()): weight for mask, weight in weights.items()}
    held_by = {
        name: sum(bits[item.snapshot_id] for item in metadata.ancestors(ref.snapshot_id))
        if ref.type == "branch"
        else bits.get(ref.snapshot_id, 0)
        for name, ref in metadata.refs.items()
    }
    holders = {mask: [name for name, held in held_by.items() if held & mask] for mask in weights}
    costs = weigh(metadata, weights)
    assert by_ref(costs) == {
        name: (
            held.bit_count(),
            *(sum(weights[mask][part] for mask in weights if holders[mask] == [name]) for part in (0, 1)),
        )
        for name, held in held_by.items()
    }
    assert by_snapshot(costs) == {
        i: (tuple(sorted(name for name, held in held_by.items() if held & bit)), *weights.get(bit, (0, 0)))
        for i, bit in bits.items()
    }
    assert costs.bytes_without_ref == sum(weights[mask][1] for mask in weights if not holders[mask])


def test_the_costs_of_thousands_of_refs_take_seconds() -> None:
    """Each ancestor is visited once, not once per ref, and a snapshot names at most twenty refs."""
    count = 3_000
    document = new_document("s3://b/t", 2)
    document["snapshots"] = [
        snapshot(i, format_version=2, sequence_number=i, parent_id=i - 1 or None) for i in range(1, count + 1)
    ]
    document["refs"] = {f"b{i:04}": {"type": "branch", "snapshot-id": i} for i in range(1, count + 1)}
    metadata = TableMetadata(document)
    started_s = time.process_time()
    costs = weigh(metadata, {1 << place: (1, 7) for place in range(count)})
    assert time.process_time() - started_s < 3
    assert by_ref(costs)["b3000"] == (3_000, 1, 7)
    assert by_ref(costs)["b0001"] == (1, 0, 0)
    assert by_snapshot(costs)[1][0] == tuple(f"b{i:04}" for i in range(1, 21))
    assert by_snapshot(costs)[2_999][0] == ("b2999", "b3000")


def test_each_manifest_is_read_once_for_all_that_list_it() -> None:
    table = ListedManifests()
    manifests = [table.manifest(f"m{number}", [f"data/{number}"]) for number in range(5)]
    for number in range(1, 6):
        table.snapshot(number, *manifests[:number])
    costs = cost_of_refs(table.reader)
    assert set(table.reads.values()) == {1}
    assert by_snapshot(costs)[5] == (("main",), 3, FILE_BYTES + sizes(table, "m4", "snap-5"))


def test_a_puffin_file_counts_once_however_many_vectors_it_holds() -> None:
    table = ListedManifests(3)
    vectors = table.manifest("dv", [("data/v.puffin", 4), ("data/v.puffin", 44)], deletes=True)
    other = table.manifest("dv2", [("data/v.puffin", 84)], deletes=True)
    table.snapshot(1, vectors)
    table.snapshot(2, vectors, other)
    costs = cost_of_refs(table.reader)
    assert costs.bytes == FILE_BYTES + sizes(table, "dv", "dv2", "snap-1", "snap-2")
    assert by_snapshot(costs)[2] == (("main",), 2, sizes(table, "dv2", "snap-2"))


def test_spellings_count_as_the_same_file_and_statistics_count() -> None:
    table = ListedManifests()
    table.snapshot(1, table.manifest("a", ["s3a://b/t/data/1"]))
    table.snapshot(2, table.manifest("b", ["s3://b/t//data/1"]))
    table.document["statistics"] = [
        {"snapshot-id": 1, "statistics-path": path_of("metadata/1.stats"), "file-size-in-bytes": 77}
    ]
    costs = by_snapshot(cost_of_refs(table.reader))
    assert costs[1][1:] == (3, 77 + sizes(table, "a", "snap-1"))
    assert costs[2][1:] == (2, sizes(table, "b", "snap-2"))


def test_costs_are_json_and_a_table_without_snapshots_has_no_costs(table: ListedManifests) -> None:
    document = json.loads(json.dumps(cost_of_refs(table.reader).to_json()))
    assert {ref["name"] for ref in document["refs"]} == {"main", "audit", "first"}
    assert document["snapshots"][0]["refs"] == ["first"]
    assert cost_of_refs(ListedManifests().reader) == TableCosts((), (), 0, 0, 0)


def test_an_unreadable_manifest_raises_an_error(table: ListedManifests) -> None:
    del table.objects[path_of("metadata/staged.avro")]
    with pytest.raises(MetadataUnreadable, match="staged"):
        cost_of_refs(table.reader)


# The commit that removes snapshots: its requirements and its updates.

REFS = {
    "main": {"type": "branch", "snapshot-id": 3},
    "audit": {"type": "branch", "snapshot-id": 2},
    "release": {"type": "tag", "snapshot-id": 2},
    "old": {"type": "tag", "snapshot-id": 1, "max-ref-age-ms": 1},
}
PLAN = ExpiryPlan((1,), ("old",))


def table_with_refs(refs: dict[str, dict[str, object]]) -> TableMetadata:
    document = new_document("s3://b/t", 2, **{"table-uuid": "u", "refs": refs, "last-sequence-number": 3})
    document["snapshots"] = [snapshot(i, format_version=2, sequence_number=i) for i in (1, 2, 3)]
    document |= {
        "current-snapshot-id": 3,
        "statistics": [{"snapshot-id": i, "statistics-path": f"s3://b/t/metadata/{i}.stats"} for i in (1, 3)],
    }
    return TableMetadata(document)


@pytest.mark.parametrize("name", REFS)
def test_the_commit_requires_every_known_ref_unchanged_in_the_same_table(name: str) -> None:
    """Some catalogs drop a ref together with its snapshot, and a ref that has moved may need the snapshot
    (rule: assert-refs-on-expiry)."""
    commit = removal_of(table_with_refs(REFS), PLAN, UnusedMetadata())
    check_requirements(table_with_refs(REFS), commit.requirements)
    moved = REFS | {name: REFS[name] | {"snapshot-id": 1 if name != "old" else 2}}
    with pytest.raises(CommitConflict, match=f"ref '{name}' is at snapshot"):
        check_requirements(table_with_refs(moved), commit.requirements)
    other = TableMetadata({**table_with_refs(REFS).document, "table-uuid": "another"})
    with pytest.raises(CommitConflict, match="the table was replaced"):
        check_requirements(other, commit.requirements)


def test_snapshots_are_removed_with_their_statistics_and_expired_refs() -> None:
    """Each has its own update, because a catalog may not know what belongs to a snapshot."""
    commit = removal_of(table_with_refs(REFS), PLAN, UnusedMetadata())
    assert [update["action"] for update in commit.updates] == [
        "remove-snapshot-ref",
        "remove-statistics",
        "remove-snapshots",
    ]
    after = apply_updates(table_with_refs(REFS), commit.updates, metadata_location=None, now_ms=0)
    assert commit.landed(after)
    assert not commit.landed(table_with_refs(REFS))
    assert (set(after.snapshots), set(after.refs)) == ({2, 3}, {"main", "audit", "release"})
    assert [entry["snapshot-id"] for entry in after.statistics] == [3]


# Which files an expiry frees: files that no kept snapshot needs, and what keeps a file.


def test_the_removal_of_thousands_of_statistics_takes_seconds() -> None:
    document = new_document("s3://b/t", 2, **{"table-uuid": "u"})
    document["snapshots"] = [snapshot(i, format_version=2, sequence_number=i) for i in range(1, 9_002)]
    document["statistics"] = [
        {"snapshot-id": i, "statistics-path": f"s3://b/t/metadata/{i}.stats"} for i in range(1, 9_002)
    ]
    metadata = TableMetadata(document)
    commit = removal_of(metadata, ExpiryPlan(tuple(range(1, 9_001)), ()), UnusedMetadata())
    started_s = time.process_time()
    after = apply_updates(metadata, commit.updates, metadata_location=None, now_ms=1)
    assert time.process_time() - started_s < 2
    assert [item["snapshot-id"] for item in after.statistics] == [9_001]
    assert list(after.snapshots) == [9_001]


def test_an_unreadable_kept_snapshot_stops_the_expiry() -> None:
    """The manifest would not change the plan, but every kept snapshot needs it."""
    table = ListedManifests()
    a, b = table.manifest("a", ["data/1"]), table.manifest("b", ["data/2"])
    table.snapshot(1, a)
    table.snapshot(2, a, b)
    del table.objects[path_of("metadata/b.avro")]
    with pytest.raises(MetadataUnreadable, match=r"metadata/b\.avro"):
        freed(table, 1)


def test_the_same_path_under_another_bucket_is_refused() -> None:
    table = ListedManifests()
    table.snapshot(1, table.manifest("old", ["data/1"]))
    table.snapshot(2, table.manifest("new", ["s3://alias/t/data/1"]))
    with pytest.raises(OperationRefused, match="under s3://alias instead of s3://b"):
        freed(table, 1)


@pytest.mark.parametrize("lost", ["snap-1", "snap-2", "gone", "late", "beside"])
def test_metadata_that_decides_must_be_readable(lost: str) -> None:
    table = ListedManifests()
    beside = table.manifest("beside", ["data/b"])
    table.snapshot(1, beside, table.manifest("gone", ["data/1"]))
    table.snapshot(2, beside, table.manifest("late", ["data/2"]))
    assert "data/1" in freed(table, 1)
    del table.objects[path_of(f"metadata/{lost}.avro")]
    with pytest.raises(MetadataUnreadable, match=lost):
        freed(table, 1)


def test_files_elsewhere_and_held_files_are_kept() -> None:
    table = ListedManifests()
    table.snapshot(1, table.manifest("old", ["s3://b/t2/data/1", "s3://b/t/../u/data/2", "data/staged", "data/3"]))
    table.snapshot(2, table.manifest("new", ["data/4"]))
    freed_now = unreferenced_files(table.reader, {1}, lambda path: is_elsewhere(path) or path.endswith("staged"))
    assert names(freed_now) == {"data/3", "metadata/old.avro", "metadata/snap-1.avro"}


def test_statistics_are_freed_unless_another_snapshot_names_their_file() -> None:
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


def test_freed_bytes_count_each_object_once() -> None:
    table = ListedManifests(3)
    old = table.manifest("old", [("data/dv.puffin", 4), ("data/dv.puffin", 44)], deletes=True)
    data = table.manifest("data", ["data/1", "data/x.parquet"])
    table.snapshot(1, data, old)
    table.snapshot(2, table.manifest("rest", ["data/x.parquet"]))
    metadata = ("old", "data", "snap-1")
    assert found(table, 1).candidates.size == 2 * FILE_BYTES + sum(
        len(table.objects[path_of(f"metadata/{name}.avro")]) for name in metadata
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[dict[str, set[int]]], set[int]]:
    """Snapshots as manifests by name with their files, perhaps with repeated files; and which snapshots expire."""
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
def test_expiry_frees_exactly_the_files_that_no_kept_snapshot_needs(
    history: tuple[list[dict[str, set[int]]], set[int]], version: int
) -> None:
    """Branches, rewritten manifests, files added again: shortcuts do not change the result
    (rule: what-a-table-needs)."""
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

    remaining = set(range(1, len(snapshots) + 1)) - expired
    lists = {f"metadata/snap-{number}.avro" for number in expired}
    assert freed(table, *expired) == (held(expired) - held(remaining)) | lists
    assert set(table.reads.values()) <= {1}


# Partition specs and schemas are removed if nothing uses them, and kept if something may use them.


def schema(schema_id: int, *columns: int) -> dict[str, Any]:
    fields = [{"id": i, "name": f"c{i}", "required": False, "type": "long"} for i in columns]
    return {"type": "struct", "schema-id": schema_id, "fields": fields}


def spec(spec_id: int, *sources: int) -> dict[str, Any]:
    fields = [{"source-id": i, "field-id": 1000 + i, "name": f"p{i}", "transform": "bucket[4]"} for i in sources]
    return {"spec-id": spec_id, "fields": fields}


@pytest.fixture
def table_of_versions() -> ListedManifests:
    """Three snapshots, each with its own schema and spec; the last schema and spec are current."""
    made = ListedManifests()
    made.document |= {
        "schemas": [schema(0, 1), schema(1, 1, 2), schema(2, 1, 2, 3)],
        "partition-specs": [spec(0), spec(1), spec(2)],
        "current-schema-id": 2,
        "default-spec-id": 2,
    }
    for number in (1, 2, 3):
        manifest = made.manifest(f"m{number}", [f"data/{number}"], spec_id=number - 1)
        made.snapshot(number, manifest, **{"schema-id": number - 1})
    return made


def unused(table_of_versions: ListedManifests, *expired: int) -> UnusedMetadata:
    found = unreferenced_files(table_of_versions.reader, set(expired), is_elsewhere)
    return unused_metadata(table_of_versions.metadata, set(expired), found.kept_specs, found.keeps_deletes)


def test_specs_and_schemas_that_only_expired_snapshots_used_are_removed(table_of_versions: ListedManifests) -> None:
    assert unused(table_of_versions, 1) == UnusedMetadata((0,), (0,))
    assert unused(table_of_versions, 1, 2) == UnusedMetadata((0, 1), (0, 1))
    kept = table_of_versions.manifest("m4", ["data/4"], spec_id=0)
    table_of_versions.snapshot(4, kept, **{"schema-id": 2})
    assert unused(table_of_versions, 1, 2) == UnusedMetadata((1,), (0, 1)), "a kept manifest uses spec 0"


def test_schemas_are_kept_while_deletes_may_refer_to_dropped_columns(table_of_versions: ListedManifests) -> None:
    """Specs and schemas are removed only if nothing can refer to them."""
    deletes = table_of_versions.manifest("d", ["data/d"], deletes=True, spec_id=2)
    table_of_versions.snapshot(4, deletes, **{"schema-id": 2})
    assert unused(table_of_versions, 1, 2) == UnusedMetadata((0, 1), ())


@pytest.mark.parametrize("meaning", ["partition-specs", "sort-orders"])
def test_schemas_are_kept_while_a_spec_or_order_refers_to_a_dropped_column(
    table_of_versions: ListedManifests, meaning: str
) -> None:
    table_of_versions.document["schemas"][0] = schema(0, 1, 9)
    made = spec(2, 9) if meaning == "partition-specs" else {"order-id": 1, "fields": [{"source-id": 9}]}
    table_of_versions.document[meaning] = [*table_of_versions.document[meaning][:2], made]
    assert unused(table_of_versions, 1).schema_ids == ()


def test_a_schema_or_spec_of_unknown_use_is_kept(table_of_versions: ListedManifests) -> None:
    raw = table_of_versions.document["snapshots"][1]
    del raw["schema-id"]
    assert unused(table_of_versions, 1) == UnusedMetadata((0,), ())
    assert unused_metadata(table_of_versions.metadata, {1}, None, has_deletes=False) == UnusedMetadata()


def test_nested_columns_count_as_columns(table_of_versions: ListedManifests) -> None:
    inner = {"type": "struct", "fields": [{"id": 9, "name": "x", "required": False, "type": "long"}]}
    nested = {"type": "map", "key-id": 5, "key": "string", "value-id": 6, "value": inner, "value-required": False}
    current = schema(2, 1, 2)
    current["fields"].append({"id": 3, "name": "m", "required": False, "type": nested})
    table_of_versions.document["schemas"][2] = current
    table_of_versions.document["sort-orders"] = [{"order-id": 1, "fields": [{"source-id": 9}]}]
    assert unused(table_of_versions, 1, 2).schema_ids == (0, 1)


def test_the_document_loses_schemas_and_specs_unless_they_are_in_use_again(table_of_versions: ListedManifests) -> None:
    found = unused(table_of_versions, 1, 2)
    requirements = found.requirements(table_of_versions.metadata)
    assert requirements == [
        {"type": "assert-default-spec-id", "default-spec-id": 2},
        {"type": "assert-current-schema-id", "current-schema-id": 2},
    ]
    check_requirements(table_of_versions.metadata, requirements)
    after = apply_updates(table_of_versions.metadata, found.updates, metadata_location=None, now_ms=0)
    assert (list(after.schemas), list(after.specs)) == ([2], [2])
    for key in ("default-spec-id", "current-schema-id"):
        moved = TableMetadata({**table_of_versions.document, key: 1})
        with pytest.raises(CommitConflict):
            check_requirements(moved, requirements)
        with pytest.raises(CommitConflict):
            apply_updates(moved, found.updates, metadata_location=None, now_ms=0)
