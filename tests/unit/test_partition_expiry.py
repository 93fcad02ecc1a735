"""Which partitions are dropped; no other row is dropped."""

from __future__ import annotations

import math
from typing import Any

import pytest

from icekeeper.errors import OperationRefused
from icekeeper.metadata.delete_scope import DELETE_FILE_PATH_ID, PartitionKey, partition_key
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile, FileContent, Nothing, PartitionValue
from icekeeper.operations.compaction.plan.where import whole_partitions
from icekeeper.operations.old_partitions import LivePartitions, chosen_partitions, goes_with, partitions_sharing_files
from support.plans import data_file, partitioned, partitioned_by, spec, times

# Which partitions are dropped, and which delete files with them.

DAILY = times(partitioned(spec(0, ("ts", "day"))))
TODAY = 20000
DAY_MS = 86_400_000


def planned(
    days: list[PartitionValue], *, retention_days: int = 10, younger: bool = False
) -> tuple[frozenset[PartitionKey], int] | Nothing:
    """The partitions that expire, and the number of unparsed partitions."""
    found = LivePartitions(DAILY, has_younger=younger)
    for day in days:
        found.add(0, (day,))
    plan = found.plan((TODAY - retention_days) * DAY_MS, 24 * retention_days)
    return plan if isinstance(plan, Nothing) else (plan, len(found.unparsed))


def keys(*days: PartitionValue) -> frozenset[Any]:
    return frozenset(partition_key(0, (day,)) for day in days)


def test_a_partition_expires_when_its_end_is_older_than_the_retention() -> None:
    """A day that ended exactly one retention ago is kept."""
    assert planned([TODAY, TODAY - 11, TODAY - 12]) == (keys(TODAY - 12), 0)
    assert planned([TODAY, TODAY - 11]) == Nothing("no partitions to expire")
    assert planned([]) == Nothing("no partitions to expire")
    assert planned([None]) == Nothing("no partitions to expire")


@pytest.mark.parametrize("days", [[3], [3, 4, None]])
def test_a_plan_that_would_empty_the_table_is_refused(days: list[PartitionValue]) -> None:
    """Null partitions do not compensate for a wrong clock."""
    with pytest.raises(OperationRefused, match="every partition of the table is past partition_retention_hours 240"):
        planned(days)
    assert planned(days, younger=True) == (keys(*(day for day in days if day)), 0)


def delete(content: FileContent, day: int, **more: Any) -> DataFile:
    return data_file("d", 1, (day,), records=1, content=content, **more)


def test_delete_files_are_dropped_with_all_data_files_that_they_could_apply_to() -> None:
    """Sequence number, partition and file name all count (rule: drop-only-fully-matched-partitions)."""
    gone = {"partitions": keys(3), "dropped": frozenset({data_file("a", 1).file_path})}

    def is_dropped(file: DataFile, spec_id: int = 0, is_global: bool = False) -> bool:
        return goes_with(file, spec_id, is_global=is_global, **gone)

    for content in (FileContent.POSITION_DELETES, FileContent.EQUALITY_DELETES):
        assert is_dropped(delete(content, 3))
        assert not is_dropped(delete(content, 4))
        assert not is_dropped(delete(content, 3), spec_id=1)
    assert not is_dropped(delete(FileContent.EQUALITY_DELETES, 3), is_global=True)
    assert is_dropped(delete(FileContent.POSITION_DELETES, 4, referenced_data_file="a"))
    assert not is_dropped(delete(FileContent.POSITION_DELETES, 3, referenced_data_file="b"))
    for path, is_gone in (("a", True), ("b", False)):
        named = {DELETE_FILE_PATH_ID: path.encode()}
        for day in (3, 4):
            found = is_dropped(delete(FileContent.POSITION_DELETES, day, lower_bounds=named, upper_bounds=named))
            assert found is is_gone, (path, day)


def test_partitions_that_share_a_file_are_kept() -> None:
    """The file is listed twice and dropped by its path, so a kept partition would lose it, too."""
    old, older, oldest = ((0, (day,)) for day in (1, 2, 3))
    expired = [(old, "a"), (old, "b"), (older, "c"), (older, "c"), (oldest, "d")]
    assert partitions_sharing_files(expired, [hash("e")]) == frozenset()
    assert partitions_sharing_files(expired, [hash("b"), hash("e")]) == {old}
    assert partitions_sharing_files([*expired, (oldest, "a")], []) == {old, oldest}


# Only partitions all of whose rows match a filter are dropped, also with null values.

COLUMNS = {1: "long", 2: "string", 3: "double", 5: "timestamp", 6: "date"}
MAY_1 = 19844  # days from 1970 to 2024-05-01
MAY_1_MS = MAY_1 * 86_400_000


def table(*fields: tuple[int, str]) -> TableMetadata:
    return partitioned_by(COLUMNS, *fields)


@pytest.mark.parametrize(
    ("fields", "partition", "where", "matches"),
    [
        ([(2, "identity")], ("us",), "c2 = 'us'", True),
        ([(2, "identity")], ("eu",), "c2 = 'us'", False),
        ([(2, "identity")], ("us",), "c2 = 'us' and c1 = 5", False),
        ([(2, "identity")], ("us",), "c2 = 'us' or c1 = 5", True),
        ([(2, "identity")], (None,), "c2 != 'us'", False),
        ([(2, "identity")], (None,), "c2 < 'us' or c1 = 5", False),
        ([(2, "identity")], (None,), "c1 = 5", False),
        ([(3, "identity")], (math.nan,), "c3 < 5 or c1 = 5", False),
        ([(3, "identity")], (4.0,), "c3 < 5 or c1 = 5", True),
        ([(5, "day")], (MAY_1,), "c5 < '2024-05-02T00:00:00'", True),
        ([(5, "day")], (MAY_1,), "c5 < '2024-05-01T23:59:59'", False),
        ([(5, "day")], (MAY_1,), "c5 >= '2024-05-01T00:00:00'", True),
        ([(5, "day")], (MAY_1,), "c5 > '2024-05-01T00:00:00'", False),
        ([(5, "day")], (MAY_1 - 1,), "c5 < current_date", True),
        ([(5, "day")], (MAY_1,), "c5 < current_date", False),
        ([(5, "day")], (MAY_1 - 1,), "c5 < now() - interval '1 hour'", False),
        ([(5, "day")], (MAY_1 - 2,), "c5 < now() - interval '1 day'", True),
        ([(6, "month")], (652,), "c6 < '2024-06-01'", True),
        ([(6, "month")], (652,), "c6 <= '2024-05-30'", False),
        ([(2, "truncate[2]")], ("us",), "c2 >= 'us'", True),
        ([(2, "truncate[2]")], ("us",), "c2 >= 'um'", True),
        ([(2, "truncate[2]")], ("us",), "c2 = 'us'", False),
        ([(1, "bucket[4]")], (1,), "c1 = 5", False),
        ([(2, "identity"), (2, "void")], ("us", None), "c2 = 'us'", True),
        ([(2, "identity")], (None,), "c2 is null", True),
        ([(2, "identity")], ("us",), "c2 is null", False),
        ([(1, "bucket[4]")], (None,), "c1 is null", True),
        ([(5, "day")], (None,), "c5 is null", True),
        ([(3, "identity")], (math.nan,), "isnan(c3)", True),
        ([(1, "bucket[4]")], (1,), "bucket(4, c1) = 1", True),
        ([(1, "bucket[4]")], (2,), "bucket(4, c1) = 1", False),
        ([(1, "bucket[4]")], (None,), "bucket(4, c1) = 1", False),
        ([(1, "bucket[8]")], (1,), "bucket(4, c1) = 1", False),
        ([(2, "truncate[2]")], ("us",), "truncate(2, c2) = 'us'", True),
        ([(2, "truncate[2]")], ("us",), "c2 like 'us%'", True),
        ([(2, "truncate[2]")], ("us",), "c2 like 'u%'", True),
        ([(2, "truncate[2]")], ("us",), "c2 like 'usa%'", False),
        ([(2, "truncate[2]")], ("u",), "c2 = 'u'", True),
        ([(1, "truncate[10]")], (20,), "truncate(10, c1) = 20", True),
        ([(1, "truncate[10]")], (20,), "c1 between 20 and 29", True),
        ([(1, "truncate[10]")], (20,), "c1 between 20 and 28", False),
        ([(1, "truncate[10]")], (20,), "truncate(20, c1) = 20", True),
        ([(1, "identity")], (2,), "c1 = 1.5", False),
        ([(5, "day")], (MAY_1,), "days(c5) = date '2024-05-01'", True),
        ([], (), "c2 = 'us'", False),
    ],
)
def test_a_partition_matches_only_if_each_of_its_rows_matches(
    fields: list[tuple[int, str]], partition: tuple[PartitionValue, ...], where: str, matches: bool
) -> None:
    """Dropped rows cannot be restored (rule: drop-only-fully-matched-partitions)."""
    assert whole_partitions(where, table(*fields), MAY_1_MS)(0, partition) is matches


def test_partitions_by_a_dropped_column_are_never_dropped_whole() -> None:
    """The meaning of its values is unknown, even if the values of the other column match."""
    assert not whole_partitions("c2 = 'us'", table((2, "identity"), (9, "identity")), MAY_1_MS)(0, ("us", 7))


def test_a_filter_drops_the_last_partition_only_if_it_is_the_only_partition() -> None:
    """Neither a mistake in a filter nor a wrong clock empties a table (rule: drop-only-fully-matched-partitions)."""

    def plan(*values: str, where: str = "c2 != 'keep'") -> frozenset[PartitionKey] | Nothing:
        live = ((0, (value,)) for value in values)
        return chosen_partitions(live, lambda spec_id, partition: partition[0] != "keep", where)

    last = plan("a")
    assert last == frozenset({partition_key(0, ("a",))})
    with pytest.raises(
        OperationRefused, match=r"the last partition of the table matches where .* depends on the current time"
    ):
        plan("a", where="c2 != 'keep' and c5 < now()")
    with pytest.raises(OperationRefused, match="every partition of the table matches where"):
        plan("a", "b")
    assert plan("a", "b", "keep") == frozenset({partition_key(0, ("a",)), partition_key(0, ("b",))})
