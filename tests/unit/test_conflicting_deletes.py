"""Which deletes of another commit keep a rewritten group from being committed (rule 61), by manifests alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from icekeeper.model import (
    DataFile,
    EntryStatus,
    PartitionValue,
)
from support.plans import data_file
from support.rebased_claims import (
    H_SEQUENCE,
    PATH_COLUMN,
    S_SEQUENCE,
    Lake,
    claim,
    decide,
    equality_delete,
    lake_with,
    position_delete,
)


def test_a_delete_that_was_added_again_is_not_the_one_that_was_applied() -> None:
    """It reaches younger data files, too."""
    lake = lake_with("a")
    key = ("delete.parquet", None)
    lake.add("m-deletes", [equality_delete((1,))], sequence=H_SEQUENCE)
    result = decide(lake, replace(claim("a"), deletes={key: 1}), needs={key: 1})
    assert dict(result.dropped) == {0: "a delete that was applied is no longer in the table"}
    assert not result.unneeded_deletes


@pytest.mark.parametrize("sequence", [S_SEQUENCE, H_SEQUENCE])
def test_deletes_stay_when_files_came_that_are_as_old_as_they(sequence: int) -> None:
    """A path that was gone at planning may be back, and position deletes name it."""
    lake = lake_with("a")
    lake.add("m-deletes", [position_delete()])
    lake.add("m-back", [data_file("back", 10)], sequence=sequence, status=EntryStatus.ADDED)
    found = decide(lake, claim("a"), needs={("delete.parquet", None): 0}, planning_manifests=("m-planned", "m-deletes"))
    assert len(found.unneeded_deletes) == (sequence == H_SEQUENCE)


def bounds(low: str, high: str) -> dict[str, Any]:
    return {"lower_bounds": {PATH_COLUMN: low.encode()}, "upper_bounds": {PATH_COLUMN: high.encode()}}


@pytest.mark.parametrize(
    ("delete", "is_hit"),
    [
        (position_delete(), True),
        (position_delete(**bounds("a", "a")), True),
        (position_delete(**bounds("0", "z")), True),
        (position_delete(**bounds("c", "z")), False),
        (position_delete(lower_bounds={PATH_COLUMN: b"a"}), True),
        (position_delete(referenced_data_file="a"), True),
        (position_delete(referenced_data_file="elsewhere", **bounds("0", "z")), False),
        (equality_delete((1,)), False),
        (equality_delete((1, 5)), False),
        (equality_delete((4,)), True),
        (equality_delete((1, 9)), True),
    ],
)
def test_which_new_delete_keeps_a_group_from_being_committed(delete: DataFile, is_hit: bool) -> None:
    lake = lake_with("a", "b")
    lake.add("m-deletes", [delete], sequence=H_SEQUENCE)
    assert bool(decide(lake, claim("a", "b")).dropped) is is_hit


@pytest.mark.parametrize(
    ("spec_id", "group", "delete", "is_hit"),
    [
        (1, (1.5,), (1.5,), True),
        (1, (1.5,), (2.5,), False),
        (1, (None,), (None,), True),
        (1, (None,), (1.5,), False),
        # NaN equals NaN, though not in Python once it came out of two files.
        (1, (math.nan,), (math.nan,), True),
        # Decimals are stored as wide as their type was: 0x0005 and 0x00000005 are one value, -5 too.
        (2, (None, b"\x00\x05"), (None, b"\x00\x00\x00\x05"), True),
        (2, (None, b"\xff\xfb"), (None, b"\xff\xff\xff\xfb"), True),
        (2, (None, b"\x00\x05"), (None, b"\x00\x00\x00\x06"), False),
    ],
)
def test_position_deletes_hit_within_their_partition(
    spec_id: int, group: tuple[PartitionValue, ...], delete: tuple[PartitionValue, ...], is_hit: bool
) -> None:
    lake = Lake()
    lake.add("m-planned", [data_file("a", 10, group)], spec_id=spec_id)
    lake.add("m-deletes", [position_delete(delete)], spec_id=spec_id, sequence=H_SEQUENCE)
    assert bool(decide(lake, claim("a", spec_id=spec_id, partition=group)).dropped) is is_hit


@pytest.mark.parametrize("path", ["a", "elsewhere"])
@pytest.mark.parametrize("by_bounds", [True, False])
def test_a_position_delete_that_names_an_input_hits_from_any_partition(path: str, by_bounds: bool) -> None:
    lake = Lake()
    lake.add("m-planned", [data_file("a", 10, (1.5,))], spec_id=1)
    name = bounds(path, path) if by_bounds else {"referenced_data_file": path}
    lake.add("m-deletes", [position_delete((None, None), **name)], spec_id=2, sequence=H_SEQUENCE)
    assert bool(decide(lake, claim("a", spec_id=1, partition=(1.5,))).dropped) is (path == "a")


@pytest.mark.parametrize("applied", [None, ("puffin-1", 4)], ids=["first", "replaces_the_one_applied"])
def test_a_deletion_vector_hits_the_group_of_its_file(applied: tuple[str, int] | None) -> None:
    """Whatever its partition says; one that takes the place of the vector applied at planning does, too."""
    lake = lake_with("a", "b")
    vector = replace(position_delete(), file_format="PUFFIN", referenced_data_file="b", content_offset=40)
    if applied is not None:
        old = replace(vector, file_path=applied[0], content_offset=applied[1])
        lake.add("m-replaced", [old], sequence=S_SEQUENCE, status=EntryStatus.DELETED)
    lake.add("m-deletes", [vector], sequence=H_SEQUENCE, status=EntryStatus.ADDED)
    deletes: dict[tuple[str, int | None], int] = {} if applied is None else {applied: 1}
    claims = [replace(claim("a", "b"), deletes=deletes), claim("a", group_id=1)]
    result = decide(lake, *claims)
    assert dict(result.dropped) == {0: "rows of an input file were deleted by another commit"}
    assert result.kept == {1}


def test_deletes_as_old_as_the_plan_were_there_when_it_was_made() -> None:
    lake = lake_with("a")
    lake.add("m-deletes", [position_delete()], sequence=S_SEQUENCE)
    assert decide(lake, claim("a")).kept == {0}


@pytest.mark.parametrize(("spec_id", "partition"), [(0, ()), (3, (None, None))])
def test_equality_deletes_without_a_partition_are_global(spec_id: int, partition: tuple[PartitionValue, ...]) -> None:
    """Also those of a spec whose every field is void (rule 7)."""
    lake = Lake()
    lake.add("m-planned", [data_file("a", 10, (1.5,))], spec_id=1)
    lake.add("m-deletes", [equality_delete((9,), partition)], spec_id=spec_id, sequence=H_SEQUENCE)
    assert decide(lake, claim("a", spec_id=1, partition=(1.5,))).dropped


def test_equality_deletes_of_another_partition_concern_nobody_here() -> None:
    lake = Lake()
    lake.add("m-planned", [data_file("a", 10, (1.5,))], spec_id=1)
    lake.add("m-deletes", [equality_delete((9,), (2.5,))], spec_id=1, sequence=H_SEQUENCE)
    assert decide(lake, claim("a", spec_id=1, partition=(1.5,))).kept == {0}


@pytest.mark.parametrize(
    ("spec_id", "partition"),
    [(1, (1.5,)), (2, (None, b"\x05"))],
    ids=["where the rows were", "where the rows went"],
)
def test_a_partitioned_equality_delete_drops_a_group_whose_rows_moved(
    spec_id: int, partition: tuple[PartitionValue, ...]
) -> None:
    """Under the old partition it would miss the moved rows, under the new one hit rows that it must not
    (rule 2).  A global one still reaches exactly what it reached."""
    moved = claim("a", spec_id=1, partition=(1.5,), to=(2, (None, b"\x05")))
    lake = Lake()
    lake.add("m-planned", [data_file("a", 10, (1.5,))], spec_id=1)
    lake.add("m-global", [equality_delete((1,))], spec_id=0, sequence=H_SEQUENCE)
    assert decide(lake, moved).kept == {0}
    lake.add("m-deletes", [equality_delete((1,), partition)], spec_id=spec_id, sequence=H_SEQUENCE)
    assert "a partition that the rows left or came to" in decide(lake, moved).dropped[0]
