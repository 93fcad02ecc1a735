"""Which files an expiry frees: what no kept snapshot holds, and what saves a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.errors import MetadataUnreadable, OperationRefused
from support.freed_files import found, freed, names
from support.listed_manifests import FILE_BYTES, ListedManifests, path_of


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


def test_a_file_listed_twice_stays_with_either_manifest() -> None:
    """Rule 3: snapshot 2 publishes the file again in a manifest of its own, and a tag keeps snapshot 1."""
    table = ListedManifests()
    first, again = table.manifest("first", ["data/1"]), table.manifest("again", ["data/1", "data/2"])
    table.snapshot(1, first)
    table.snapshot(2, first, again)
    table.snapshot(3, table.manifest("rest", ["data/3"]))
    assert freed(table, 2) == {"data/2", "metadata/again.avro", "metadata/snap-2.avro"}


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


@pytest.mark.parametrize("spelling", ["s3a://b/t/data/k=a b", "s3n://b/t/data/k=a%20b", "s3://b/t//data/k=a%20b"])
def test_another_spelling_of_a_path_saves_the_file(spelling: str) -> None:
    table = ListedManifests()
    table.snapshot(1, table.manifest("old", ["data/k=a%20b"]))
    table.snapshot(2, table.manifest("new", [spelling]))
    assert freed(table, 1) == {"metadata/old.avro", "metadata/snap-1.avro"}


@pytest.mark.parametrize(
    ("dropped", "kept"),
    [
        ("data/k=\u00e9/f", "data/k=e\u0301/f"),
        ("data/k=e\u0301/f", "data/k=%C3%A9/f"),
        ("data/a/b", "data/a\\b"),
        ("data/f", "./data/f"),
        ("data/f", "data/../data/f"),
    ],
)
def test_what_a_store_or_client_takes_for_the_file_saves_it(dropped: str, kept: str) -> None:
    table = ListedManifests()
    table.snapshot(1, table.manifest("old", [dropped, "data/other"]))
    table.snapshot(2, table.manifest("new", [kept]))
    assert freed(table, 1) == {"data/other", "metadata/old.avro", "metadata/snap-1.avro"}


@pytest.mark.parametrize("kept", ["./m", "a/../m"])
def test_a_manifest_that_a_kept_snapshot_lists_in_another_spelling_stays(kept: str) -> None:
    table = ListedManifests()
    table.snapshot(1, table.manifest("m", ["data/1"]))
    table.snapshot(2, table.manifest(kept, ["data/1"]))
    assert freed(table, 1) == {"metadata/snap-1.avro"}


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
