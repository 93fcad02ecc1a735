"""Which statistics are stale, and the least that must be read for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from icekeeper.errors import PolicyError
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.puffin import THETA_SKETCH
from icekeeper.model import DataFile, FileContent, Nothing
from icekeeper.operations.statistics.plan_statistics import (
    NO_COLUMNS,
    NO_SNAPSHOT,
    TYPE_KEY,
    UP_TO_DATE,
    Reading,
    RowFile,
    StatisticsColumns,
    StatisticsPlan,
    plan_statistics,
    statistics_columns,
)
from support.tables import new_document, snapshot

TYPES = {1: "long", 2: "string"}


def row_file(path: str) -> RowFile:
    file = DataFile(
        content=FileContent.DATA,
        file_path=path,
        file_format="PARQUET",
        partition=(),
        record_count=1,
        file_size_in_bytes=1,
    )
    return RowFile(file, 0, 1)


EVERYTHING = (row_file("everything"),)


def blob(field_id: int, snapshot_id: int, kind: str | None = "long", type: str = THETA_SKETCH) -> dict[str, Any]:
    properties = {"ndv": "1"} | ({} if kind is None else {TYPE_KEY: kind})
    return {
        "type": type,
        "snapshot-id": snapshot_id,
        "sequence-number": snapshot_id,
        "fields": [field_id],
        "properties": properties,
    }


def file(snapshot_id: int, *blobs: dict[str, Any], path: str | None = None) -> dict[str, Any]:
    return {
        "snapshot-id": snapshot_id,
        "statistics-path": path or f"{snapshot_id}.stats",
        "file-size-in-bytes": 9,
        "file-footer-size-in-bytes": 5,
        "blob-metadata": list(blobs),
    }


def table(*operations: str, statistics: Sequence[dict[str, Any]] = (), **more: Any) -> TableMetadata:
    """Snapshots 1, 2, … of these operations, one after the other."""
    snapshots = [
        snapshot(i, format_version=2, sequence_number=i, parent_id=i - 1 or None, summary={"operation": operation})
        for i, operation in enumerate(operations, start=1)
    ]
    return TableMetadata(
        new_document(
            "s3://b/t",
            2,
            snapshots=snapshots,
            refs={"main": {"type": "branch", "snapshot-id": len(snapshots)}} if snapshots else {},
            statistics=list(statistics),
            **more,
        )
    )


def plan(
    metadata: TableMetadata, types: dict[int, str] | None = None, *, appends_are_plain: bool = True, **more: Any
) -> StatisticsPlan | Nothing:
    def appended(snapshots: Sequence[Snapshot]) -> Sequence[RowFile] | None:
        return [row_file(f"added by {s.snapshot_id}") for s in snapshots] if appends_are_plain else None

    chosen = StatisticsColumns({1: "long"} if types is None else types, 0)
    return plan_statistics(metadata, metadata.current_snapshot, chosen, lambda: EVERYTHING, appended, **more)


def made(answer: StatisticsPlan | Nothing) -> StatisticsPlan:
    assert isinstance(answer, StatisticsPlan)
    return answer


def read(answer: StatisticsPlan | Nothing) -> dict[tuple[int, ...], list[str]]:
    """Columns → the files that are read for them."""
    return {tuple(r.types): [f.file.file_path for f in r.files] for r in made(answer).readings}


def carried(answer: StatisticsPlan | Nothing) -> list[tuple[str, int, int]]:
    return [(s.path, s.blob.fields[0], s.blob.snapshot_id) for s in made(answer).carried]


def test_a_table_without_rows_has_none() -> None:
    assert plan(table()) == Nothing(NO_SNAPSHOT)


def test_without_columns_and_partitions_there_is_nothing_to_do() -> None:
    assert plan(table("append"), {}) == Nothing(NO_COLUMNS)


def test_all_is_read_the_first_time() -> None:
    answer = made(plan(table("append", "overwrite"), TYPES))
    assert (answer.snapshot_id, answer.sequence_number, answer.partitions, answer.blobs) == (2, 2, False, 2)
    assert answer.readings == (Reading(TYPES, EVERYTHING, {}),)
    assert answer.carried == ()


def test_what_the_head_has_is_up_to_date() -> None:
    metadata = table("append", statistics=[file(1, blob(1, 1))])
    assert plan(metadata) == Nothing(UP_TO_DATE)


def test_only_missing_columns_are_read_and_the_others_carried() -> None:
    """Also a sketch of a column that nobody asks for, and blobs of other kinds."""
    metadata = table("append", statistics=[file(1, blob(1, 1), blob(3, 1), blob(1, 1, None, "presto-sum"))])
    answer = plan(metadata, TYPES)
    assert read(answer) == {(2,): ["everything"]}
    assert carried(answer) == [("1.stats", 1, 1), ("1.stats", 3, 1), ("1.stats", 1, 1)]


def test_rewrites_keep_rows_so_sketches_are_carried() -> None:
    """They keep the snapshot that they were computed from."""
    metadata = table("append", "replace", "replace", statistics=[file(1, blob(1, 1))])
    answer = plan(metadata)
    assert (read(answer), carried(answer)) == ({}, [("1.stats", 1, 1)])


@pytest.mark.parametrize("operation", ["overwrite", "delete", "", "unheard of"])
def test_after_anything_else_all_is_read(operation: str) -> None:
    metadata = table("append", operation, "append", statistics=[file(1, blob(1, 1))])
    answer = plan(metadata)
    assert (read(answer), carried(answer)) == ({(1,): ["everything"]}, [])
    assert made(answer).readings[0].base == {}


def test_after_appends_only_their_files_are_read() -> None:
    metadata = table("append", "append", "replace", "append", statistics=[file(1, blob(1, 1))])
    answer = made(plan(metadata))
    assert read(answer) == {(1,): ["added by 4", "added by 2"]}
    (base,) = answer.readings[0].base.values()
    assert (base.path, base.blob.snapshot_id, answer.carried) == ("1.stats", 1, ())


def test_an_append_that_did_more_makes_all_be_read() -> None:
    metadata = table("append", "append", statistics=[file(1, blob(1, 1))])
    assert read(plan(metadata, appends_are_plain=False)) == {(1,): ["everything"]}


@pytest.mark.parametrize("kind", [None, "int"], ids=["another writer", "promoted since"])
def test_a_sketch_of_other_bytes_is_not_continued(kind: str | None) -> None:
    metadata = table("append", "append", statistics=[file(1, blob(1, 1, kind))])
    assert read(plan(metadata)) == {(1,): ["everything"]}
    unchanged = table("append", "replace", statistics=[file(1, blob(1, 1, kind))])
    assert carried(plan(unchanged)) == [("1.stats", 1, 1)]


def test_columns_with_different_pasts_are_read_apart() -> None:
    metadata = table("append", "append", "append", statistics=[file(1, blob(1, 1)), file(2, blob(2, 2, "string"))])
    answer = plan(metadata, {**TYPES, 3: "date"})
    assert read(answer) == {(1,): ["added by 3", "added by 2"], (2,): ["added by 3"], (3,): ["everything"]}
    assert [f.file.file_path for f in made(answer).files] == ["added by 3", "added by 2", "everything"]


def test_ours_holds_where_it_is_registered_when_its_snapshot_has_expired() -> None:
    metadata = table("replace", "append", statistics=[file(2, blob(1, 77))])
    assert plan(metadata) == Nothing(UP_TO_DATE)
    assert read(plan(table("replace", "append", statistics=[file(1, blob(1, 77))]))) == {(1,): ["added by 2"]}
    foreign = table("replace", "append", statistics=[file(2, blob(1, 77, None))])
    assert read(plan(foreign)) == {(1,): ["everything"]}
    assert carried(plan(foreign)) == []


def test_what_others_registered_for_the_head_stays_there() -> None:
    """They know why, although rows changed since it was computed; but a column that is asked for is counted."""
    mixed = file(2, blob(1, 1, None), blob(9, 1, None))
    answer = plan(table("append", "overwrite", statistics=[mixed]))
    assert (read(answer), carried(answer)) == ({(1,): ["everything"]}, [("2.stats", 9, 1)])


def test_statistics_of_another_branch_do_not_count() -> None:
    metadata = table("append", statistics=[file(99, blob(1, 99))])
    assert read(plan(metadata)) == {(1,): ["everything"]}


def test_a_file_of_no_use_counts_as_not_there() -> None:
    metadata = table("append", statistics=[file(1, blob(1, 1))])
    assert read(plan(metadata, unreadable={"1.stats"})) == {(1,): ["everything"]}


def test_an_entry_that_cannot_be_understood_counts_as_not_there() -> None:
    broken = {"snapshot-id": 1, "statistics-path": "1.stats"}
    assert read(plan(table("append", statistics=[broken]))) == {(1,): ["everything"]}


PARTITIONED = [{"spec-id": 0, "fields": [{"field-id": 1000, "source-id": 1, "name": "p", "transform": "identity"}]}]


def test_a_partitioned_table_wants_its_partitions_counted_once() -> None:
    metadata = table("append", statistics=[file(1, blob(1, 1))], **{"partition-specs": PARTITIONED})
    answer = made(plan(metadata))
    assert (answer.partitions, answer.readings, answer.carried, answer.blobs) == (True, (), (), 0)
    counted = [{"snapshot-id": 1, "statistics-path": "p.parquet", "file-size-in-bytes": 1}]
    metadata = TableMetadata({**metadata.document, "partition-statistics": counted})
    assert plan(metadata) == Nothing(UP_TO_DATE)
    assert not made(plan(metadata, TYPES)).partitions


SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "at.home", "required": False, "type": "timestamp_ns"},
        {"id": 3, "name": "tags", "required": False, "type": {"type": "list", "element": "string"}},
        {"id": 5, "name": "shape", "required": False, "type": "geometry"},
        {
            "id": 6,
            "name": "point",
            "required": False,
            "type": {"type": "struct", "fields": [{"id": 7, "name": "x", "required": True, "type": "decimal(9, 2)"}]},
        },
    ],
}


def test_columns_are_the_primitive_ones_of_the_top() -> None:
    metadata = table(schemas=[SCHEMA])
    assert statistics_columns(metadata, ()) == StatisticsColumns({1: "long", 2: "timestamp_ns"}, 3)
    assert statistics_columns(metadata, ("point.x", "id")) == StatisticsColumns({7: "decimal(9, 2)", 1: "long"}, 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "ids",
            "policy key statistics_columns names 'ids', which is no column of this table; columns are: id, at.home, "
            "tags, shape, point, point.x",
        ),
        (
            "tags",
            "policy key statistics_columns names 'tags', which is of type list: no statistics are kept of that",
        ),
        (
            "shape",
            "policy key statistics_columns names 'shape', which is of type geometry: no statistics are kept of that",
        ),
    ],
)
def test_a_column_that_does_not_fit_is_bad_usage(name: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        statistics_columns(table(schemas=[SCHEMA]), (name,))
    assert str(caught.value) == message
