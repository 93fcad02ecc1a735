"""Which partitions are dropped, and which delete files go with them."""

from __future__ import annotations

from typing import Any

import pytest

from icekeeper.errors import OperationRefused
from icekeeper.metadata.delete_scope import DELETE_FILE_PATH_ID, partition_key
from icekeeper.model import DataFile, FileContent, Nothing, PartitionValue
from icekeeper.operations.old_partitions import ExpiryPlan, LivePartitions, goes_with, partitions_sharing_files
from support.plans import data_file, partitioned, spec, times

DAILY = times(partitioned(spec(0, ("ts", "day"))))
TODAY = 20000
DAY_MS = 86_400_000


def planned(
    days: list[PartitionValue], *, retention_days: int = 10, limit: int | None = None, younger: bool = False
) -> ExpiryPlan | Nothing:
    found = LivePartitions(DAILY, has_younger=younger)
    for day in days:
        found.add(0, (day,))
    return found.plan((TODAY - retention_days) * DAY_MS, limit, 24 * retention_days)


def keys(*days: PartitionValue) -> frozenset[Any]:
    return frozenset(partition_key(0, (day,)) for day in days)


def test_a_partition_goes_when_its_end_is_older_than_the_retention() -> None:
    """A day that ended exactly as long ago stays."""
    assert planned([TODAY, TODAY - 11, TODAY - 12]) == ExpiryPlan(keys(TODAY - 12), 0)
    assert planned([TODAY, TODAY - 11]) == Nothing("no partitions to expire")
    assert planned([]) == Nothing("no partitions to expire")
    assert planned([None]) == Nothing("no partitions to expire")


def test_the_oldest_go_first() -> None:
    assert planned([TODAY, 5, 3, 4], limit=2) == ExpiryPlan(keys(3, 4), 0)


@pytest.mark.parametrize("days", [[3], [3, 4, None]])
@pytest.mark.parametrize("limit", [None, 1])
def test_a_plan_that_would_empty_the_table_is_refused(days: list[PartitionValue], limit: int | None) -> None:
    """Neither null partitions nor a limit make up for a clock that is wrong."""
    with pytest.raises(OperationRefused, match="every partition of the table is past partition_retention_hours 240"):
        planned(days, limit=limit)
    assert planned(days, younger=True, limit=9) == ExpiryPlan(keys(*(day for day in days if day)), 0)


def delete(content: FileContent, day: int, **more: Any) -> DataFile:
    return DataFile(
        content=content,
        file_path="d",
        file_format="PARQUET",
        partition=(day,),
        record_count=1,
        file_size_in_bytes=1,
        **more,
    )


def test_delete_files_go_with_all_that_they_could_apply_to() -> None:
    """By sequence number, partition and name alike (rule 107)."""
    gone = {"partitions": keys(3), "dropped": frozenset({data_file("a", 1).file_path})}

    def goes(file: DataFile, spec_id: int = 0, is_global: bool = False) -> bool:
        return goes_with(file, spec_id, is_global=is_global, **gone)

    for content in (FileContent.POSITION_DELETES, FileContent.EQUALITY_DELETES):
        assert goes(delete(content, 3))
        assert not goes(delete(content, 4))
        assert not goes(delete(content, 3), spec_id=1)
    assert not goes(delete(FileContent.EQUALITY_DELETES, 3), is_global=True)
    assert goes(delete(FileContent.POSITION_DELETES, 4, referenced_data_file="a"))
    assert not goes(delete(FileContent.POSITION_DELETES, 3, referenced_data_file="b"))
    for path, is_gone in (("a", True), ("b", False)):
        named = {DELETE_FILE_PATH_ID: path.encode()}
        for day in (3, 4):
            found = goes(delete(FileContent.POSITION_DELETES, day, lower_bounds=named, upper_bounds=named))
            assert found is is_gone, (path, day)


def test_partitions_that_share_a_file_stay() -> None:
    """The file is listed twice, and goes by its path: what stays would lose it, too."""
    old, older, oldest = ((0, (day,)) for day in (1, 2, 3))
    expired = [(old, "a"), (old, "b"), (older, "c"), (older, "c"), (oldest, "d")]
    assert partitions_sharing_files(expired, [hash("e")]) == frozenset()
    assert partitions_sharing_files(expired, [hash("b"), hash("e")]) == {old}
    assert partitions_sharing_files([*expired, (oldest, "a")], []) == {old, oldest}
