"""What each branch, tag and snapshot holds alone: counted once per object, each manifest read once."""

from __future__ import annotations

import json

import pytest

from icekeeper.errors import MetadataUnreadable
from icekeeper.operations.expiry.ref_costs import TableCosts, cost_of_refs
from support.listed_manifests import FILE_BYTES, ListedManifests, path_of


def sizes(table: ListedManifests, *names: str) -> int:
    """Bytes of manifests and manifest lists."""
    return sum(len(table.objects[path_of(f"metadata/{name}.avro")]) for name in names)


def by_ref(costs: TableCosts) -> dict[str, tuple[int, int, int]]:
    return {ref.name: (ref.snapshots, ref.files_only_here, ref.bytes_only_here) for ref in costs.refs}


def by_snapshot(costs: TableCosts) -> dict[int, tuple[tuple[str, ...], int, int]]:
    return {s.snapshot_id: (s.refs, s.files_only_here, s.bytes_only_here) for s in costs.snapshots}


@pytest.fixture
def table() -> ListedManifests:
    """1 ← 2 ← 3 (main), 4 of a branch off 2, the tag on 1, and 5 that no ref names."""
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


def test_a_ref_is_charged_what_no_other_ref_reaches(table: ListedManifests) -> None:
    costs = cost_of_refs(table.reader)
    assert by_ref(costs) == {
        "main": (2, 3, FILE_BYTES + sizes(table, "merged", "snap-3")),
        "audit": (2, 3, FILE_BYTES + sizes(table, "audit", "snap-4")),
        "first": (1, 3, FILE_BYTES + sizes(table, "base", "snap-1")),
    }
    assert [ref.bytes_only_here for ref in costs.refs] == sorted((r.bytes_only_here for r in costs.refs), reverse=True)
    assert costs.bytes_without_ref == FILE_BYTES + sizes(table, "staged", "snap-5")
    assert (costs.files, costs.bytes) == (16, 6 * FILE_BYTES + sum(map(len, table.objects.values())))


def test_a_snapshot_is_charged_what_no_other_snapshot_reaches(table: ListedManifests) -> None:
    assert by_snapshot(cost_of_refs(table.reader)) == {
        1: (("first",), 2, sizes(table, "base", "snap-1")),
        2: (("audit", "main"), 2, sizes(table, "rest", "snap-2")),
        3: (("main",), 3, FILE_BYTES + sizes(table, "merged", "snap-3")),
        4: (("audit",), 3, FILE_BYTES + sizes(table, "audit", "snap-4")),
        5: ((), 3, FILE_BYTES + sizes(table, "staged", "snap-5")),
    }


def test_a_tag_holds_its_snapshot_and_not_what_came_before() -> None:
    """Dropping the tag on 2 gives back what 2 holds; 1 has a tag of its own."""
    table = ListedManifests()
    for number in (1, 2, 3):
        table.snapshot(number, table.manifest(f"m{number}", [f"data/{number}"]))
    del table.document["snapshots"][2]["parent-snapshot-id"]
    for name, number in (("one", 1), ("two", 2)):
        table.document["refs"][name] = {"type": "tag", "snapshot-id": number}
    costs = by_ref(cost_of_refs(table.reader))
    assert costs["one"] == (1, 3, FILE_BYTES + sizes(table, "m1", "snap-1"))
    assert costs["two"] == (1, 3, FILE_BYTES + sizes(table, "m2", "snap-2"))


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


def test_spellings_are_one_file_and_statistics_count() -> None:
    table = ListedManifests()
    table.snapshot(1, table.manifest("a", ["s3a://b/t/data/1"]))
    table.snapshot(2, table.manifest("b", ["s3://b/t//data/1"]))
    table.document["statistics"] = [
        {"snapshot-id": 1, "statistics-path": path_of("metadata/1.stats"), "file-size-in-bytes": 77}
    ]
    costs = by_snapshot(cost_of_refs(table.reader))
    assert costs[1][1:] == (3, 77 + sizes(table, "a", "snap-1"))
    assert costs[2][1:] == (2, sizes(table, "b", "snap-2"))


def test_it_is_json_and_a_table_without_snapshots_costs_nothing(table: ListedManifests) -> None:
    told = json.loads(json.dumps(cost_of_refs(table.reader).to_json()))
    assert {ref["name"] for ref in told["refs"]} == {"main", "audit", "first"}
    assert told["snapshots"][0]["refs"] == ["first"]
    assert cost_of_refs(ListedManifests().reader) == TableCosts((), (), 0, 0, 0)


def test_what_cannot_be_read_is_not_guessed(table: ListedManifests) -> None:
    del table.objects[path_of("metadata/staged.avro")]
    with pytest.raises(MetadataUnreadable, match="staged"):
        cost_of_refs(table.reader)
