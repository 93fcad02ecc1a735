"""Which position delete files are merged together, and which of their rows remain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.metadata.delete_scope import named_file
from icekeeper.model import EntryStatus, FileContent, LiveEntry, ManifestContent, ManifestEntry, ManifestFile, Nothing
from icekeeper.operations.position_deletes.convert_equality import ReachedFile, _portions
from icekeeper.operations.position_deletes.merge import MergeTask, PositionDeletes, merge_deletes
from icekeeper.operations.position_deletes.plan_merges import PositionDeletePlan, Target, plan_position_deletes
from icekeeper.storage.paths import PlannedFile
from support.plans import HEAD, MB, data_file, live_file, manifest, path_bounds, policy, table

DELETES = manifest("m-deletes", content=ManifestContent.DELETES)
DATA = manifest("m-data")
BY_ID = {"spec-id": 0, "fields": [{"name": "id", "transform": "identity", "source-id": 1, "field-id": 1000}]}


def delete(path: str, size: int = MB, partition: Sequence[Any] = ("a",), number: int = 9, **more: Any) -> LiveEntry:
    file = data_file(path, size, partition, content=FileContent.POSITION_DELETES, **more)
    return LiveEntry(DELETES, ManifestEntry(EntryStatus.EXISTING, HEAD, number, number, file))


def data(path: str, partition: Sequence[Any] = ("a",), number: int = 5) -> tuple[ManifestFile, ManifestEntry]:
    return DATA, ManifestEntry(EntryStatus.EXISTING, HEAD, number, number, data_file(path, MB, partition))


def plan(
    deletes: Iterable[LiveEntry],
    data_files: Iterable[tuple[ManifestFile, ManifestEntry]] = (),
    *,
    version: int = 2,
    properties: dict[str, str] | None = None,
    **settings: object,
) -> PositionDeletePlan | Nothing:
    metadata = table(version, properties=properties or {}, **{"partition-specs": [BY_ID]})
    chosen = policy(**{"min_input_files": 2, **settings})
    return plan_position_deletes(
        metadata, metadata.snapshots[HEAD], [DELETES, DATA], deletes, lambda: data_files, chosen
    )


def target(path: str, number: int) -> Target:
    return Target(path, "m-data", data(path, number=number)[1].identity)


def groups(planned: PositionDeletePlan | Nothing) -> list[list[str]]:
    return [] if isinstance(planned, Nothing) else [[e.file.file_path for e in g.deletes] for g in planned.groups]


def test_small_files_of_a_partition_are_grouped_by_age() -> None:
    given = [delete("b", number=7), delete("a"), delete("large", 48 * MB), delete("x", partition=("b",))]
    assert groups(plan(given)) == [["b", "a"]]
    assert groups(plan(given, rewrite_all=True)) == [["b", "a", "large"], ["x"]]
    planned = plan(given)
    assert isinstance(planned, PositionDeletePlan)
    assert (planned.files_considered, planned.groups[0].sequence_number) == (4, 9)
    assert planned.planning_manifests == {"m-deletes", "m-data"}


def test_a_group_is_closed_at_the_target_size() -> None:
    given = [delete(name, 40 * MB, number=number) for number, name in enumerate("abcde")]
    assert groups(plan(given)) == [["a", "b"], ["c", "d"]]
    small = {"write.delete.target-file-size-bytes": str(60 * MB)}
    assert groups(plan([*given, delete("f", 45 * MB)], properties=small)) == [["a", "b"], ["c", "d"]]


def test_a_group_fits_into_memory_for_any_target_size() -> None:
    """Its positions are merged in memory."""
    given = [delete(name, 200 * MB, number=number) for number, name in enumerate("abcdef")]
    large = {"write.delete.target-file-size-bytes": str(2**62)}
    assert groups(plan(given, properties=large)) == [["a", "b", "c"], ["d", "e", "f"]]


def test_unreadable_files_are_left_alone_in_v3_with_their_whole_partition() -> None:
    for lacking in (delete("x", file_format="LANCE"), delete("x", key_metadata=b"k")):
        assert groups(plan([delete("a"), delete("b"), lacking])) == [["a", "b"]]
        assert groups(plan([delete("a"), delete("b"), lacking], version=3)) == []
    alone = plan([delete("a")])
    assert isinstance(alone, Nothing)
    assert alone.reason == "no position delete files eligible for merging"


def test_the_data_files_of_the_partition_are_the_targets() -> None:
    given = [delete("a"), delete("b")]
    found = [data("d1"), data("d2", ("b",)), data("d3", number=8)]
    planned = plan(given, found)
    assert isinstance(planned, PositionDeletePlan)
    assert planned.groups[0].targets == (target("d1", 5), target("d3", 8))
    vector = delete("p", file_format="PUFFIN", referenced_data_file="d3", content_offset=4)
    planned = plan([*given, vector], found, version=3)
    assert isinstance(planned, PositionDeletePlan)
    assert planned.groups[0].targets == (target("d1", 5),)
    assert groups(planned) == [["a", "b"]]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", [{"referenced_data_file": "d2"}, path_bounds("d2")], ids=["field", "bounds"])
def test_a_delete_belongs_to_the_partition_of_the_file_that_it_names(version: int, name: dict[str, Any]) -> None:
    """Readers go by the name; merged into its own partition the delete would no longer apply, and in v3 the vector of
    its data file would replace it without its rows."""
    misplaced = delete("x", **name)
    given = [delete("a"), misplaced, delete("e", partition=("b",)), delete("f", partition=("b",))]
    found = [data("d1"), data("d2", ("b",))]
    planned = plan(given, found, version=version)
    assert isinstance(planned, PositionDeletePlan)
    assert [sorted(names) for names in groups(planned)] == [["e", "f", "x"]]
    assert (planned.groups[0].spec_id, planned.groups[0].partition) == (0, ("b",))
    assert planned.groups[0].targets == (target("d2", 5),)


def test_misplaced_deletes_are_merged_with_those_of_their_data_files() -> None:
    """They are merged with deletes of that partition without a file name, whose targets are all of its data files."""
    given = [delete("a"), delete("b"), *(delete(path, referenced_data_file="d2") for path in "xy")]
    found = [data("d1"), data("d2", ("b",)), data("d3", ("b",))]
    planned = plan(given, found)
    assert isinstance(planned, PositionDeletePlan)
    assert groups(planned) == [["a", "b"], ["x", "y"]]
    assert planned.groups[1].targets == (target("d2", 5),)
    with_another = plan([*given, delete("e", partition=("b",))], found)
    assert groups(with_another) == [["a", "b"], ["e", "x", "y"]]
    assert isinstance(with_another, PositionDeletePlan)
    assert with_another.groups[1].targets == (target("d2", 5), target("d3", 5))


@pytest.mark.parametrize("version", [2, 3])
def test_a_single_misplaced_delete_is_reason_enough(version: int) -> None:
    """Its size does not matter; a table with a single spec and partition is not searched for misplaced deletes
    (rule: named-deletes-reach-anywhere)."""
    found = [data("d1"), data("d2", ("b",))]
    misplaced = delete("x", 60 * MB, referenced_data_file="d2")
    planned = plan([delete("a"), misplaced], found, version=version, min_input_files=9)
    assert isinstance(planned, PositionDeletePlan)
    assert [(g.partition, g.targets, g.moved) for g in planned.groups] == [(("b",), (target("d2", 5),), 1)]
    at_home = plan([delete("a"), delete("x", referenced_data_file="d1")], found, version=version, min_input_files=9)
    assert isinstance(at_home, Nothing)
    vector = delete("p", file_format="PUFFIN", referenced_data_file="d2", content_offset=4)
    moved = plan([vector], found, version=3, min_input_files=9)
    assert isinstance(moved, PositionDeletePlan)
    assert [(g.partition, g.targets, g.moved) for g in moved.groups] == [(("b",), (target("d2", 5),), 1)]


def test_a_delete_of_a_missing_file_keeps_its_own_partition() -> None:
    assert groups(plan([delete("a"), delete("x", referenced_data_file="gone")], [data("d1")])) == [["a", "x"]]


@pytest.mark.parametrize("partition", ["a", "b"])
def test_deletes_of_a_file_that_is_listed_twice_are_left_alone(partition: str) -> None:
    """With the output's higher sequence number, a delete would apply to an entry that it did not apply to before."""
    found = [data("d1"), data("d1", (partition,), number=8)]
    named = [delete(path, number=7, referenced_data_file="d1") for path in "xy"]
    assert groups(plan(named, found)) == []
    by_partition = [delete("a", number=7), delete("b"), delete("c", partition=("b",))]
    assert groups(plan(by_partition, found)) == ([] if partition == "a" else [["a", "b"]])


def test_deletes_are_grouped_per_data_file_if_the_table_asks_for_it() -> None:
    given = [
        delete("a", **path_bounds("d1")),
        delete("b", referenced_data_file="d1"),
        delete("c", referenced_data_file="d2"),
        delete("d"),
        delete("e"),
    ]
    assert [named_file(d.entry.file) for d in given] == ["d1", "d1", "d2", None, None]
    assert groups(plan(given)) == [["a", "b", "c", "d", "e"]]
    assert groups(plan(given, properties={"write.delete.granularity": "file"})) == [["a", "b"], ["d", "e"]]


def test_a_row_older_than_its_data_file_is_dropped(tmp_path: Path) -> None:
    """It deletes nothing (rule: deletes-reach-by-sequence-number, drop-deletes-only-when-dangling), and must not start
    to with the output's higher sequence number."""
    inputs = []
    for number, rows in ((3, [("d5", 1), ("d3", 2)]), (7, [("d5", 4), ("gone", 1), (None, 3)])):
        path = str(tmp_path / f"{number}.parquet")
        columns = {"file_path": [p for p, _ in rows], "pos": pa.array([n for _, n in rows], pa.int64())}
        pq.write_table(pa.table(columns), path)
        inputs.append(PositionDeletes(path, "PARQUET", number, len(rows)))
    task = MergeTask(
        group_id=0,
        deletes=tuple(inputs),
        targets={"d5": 5, "d3": 3},
        into_vectors=False,
        partition=(),
        output=PlannedFile(str(tmp_path / "out"), "parquet"),
        io_properties={},
    )
    result = merge_deletes(task)
    assert (result.error, result.rows_read, result.rows_written) == (None, 5, 2)
    assert pq.read_table(task.path).to_pylist() == [{"file_path": "d3", "pos": 2}, {"file_path": "d5", "pos": 4}]
    assert merge_deletes(replace(task, targets={}, output=PlannedFile(str(tmp_path / "none"), "parquet"))).written == ()
    assert not list(tmp_path.glob("none*"))
    misplaced = replace(inputs[1], named_file="d3")  # no reader applies it to d5
    elsewhere = PlannedFile(str(tmp_path / "astray"), "parquet")
    assert merge_deletes(replace(task, deletes=(misplaced,), output=elsewhere)).written == ()
    wrong = replace(
        task, deletes=(replace(inputs[0], record_count=9),), output=PlannedFile(str(tmp_path / "wrong"), "parquet")
    )
    assert "has 2 rows, but its manifest says 9" in (merge_deletes(wrong).error or "")


# Each task of a conversion reads the equality deletes once.


@pytest.mark.parametrize(("keys", "tasks"), [(1, [2, 2, 2]), (30_000_000, [3, 3]), (900_000_000, [6])])
def test_a_task_looks_up_as_many_rows_as_it_reads_keys(keys: int, tasks: list[int]) -> None:
    delete = data_file("d", 1000, records=keys, content=FileContent.EQUALITY_DELETES, equality_ids=(1,))
    entry = ManifestEntry(EntryStatus.ADDED, HEAD, 60, 60, delete)
    files = [
        ReachedFile(live_file(data_file(f"f{n}", 1000, records=10_000_000)).entry, "m", 0, (entry,)) for n in range(6)
    ]
    assert [len(portion) for portion in _portions(files)] == tasks
