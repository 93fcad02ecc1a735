"""Which metadata files beside a table's own show that its catalog entry is not the newest one."""

from __future__ import annotations

from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.neighbours import StrayMetadata, is_past, refuse_other_head
from icekeeper.errors import OperationRefused
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName

FOLDER = "s3://b/t/metadata"
HOUR_MS = 3_600_000


def path(number: int, name: str = "x") -> str:
    return f"{FOLDER}/{number:05d}-{name}.metadata.json"


def document(number: int, log: list[str], snapshots: list[int]) -> TableMetadata:
    """A state of the table; state ``n`` was made at hour ``n``."""
    raw: dict[str, Any] = {
        "format-version": 2,
        "location": "s3://b/t",
        "table-uuid": "u",
        "last-updated-ms": number * HOUR_MS,
        "metadata-log": [
            {"metadata-file": file, "timestamp-ms": (number - len(log) + place) * HOUR_MS}
            for place, file in enumerate(log)
        ],
        "snapshots": [{"snapshot-id": i, "timestamp-ms": i * HOUR_MS, "sequence-number": i} for i in snapshots],
    }
    return TableMetadata(raw)


def table(number: int = 5, log: list[int] | None = None, snapshots: list[int] | None = None) -> LoadedTable:
    known = [path(i) for i in (range(number) if log is None else log)]
    metadata = document(number, known, [1, 2, 3, 4, 5] if snapshots is None else snapshots)
    return LoadedTable(TableName(("ns",), "t"), metadata, path(number), "token", {})


def stray(number: int, log: list[str], snapshots: list[int], name: str = "x") -> StrayMetadata:
    return StrayMetadata(path(number, name), document(number, log, snapshots))


def test_one_file_that_follows_on_the_entry_is_spared() -> None:
    crashed = stray(6, [path(i) for i in range(6)], [1, 2, 3, 4, 5, 6])
    assert refuse_other_head(table(), [crashed]) == [crashed]


def test_swaps_that_crashed_one_after_the_other_are_spared() -> None:
    """Each began where the entry was."""
    crashed = [stray(6, [path(5)], [5, 6], name) for name in ("a", "b", "c")]
    assert refuse_other_head(table(), crashed) == crashed


@pytest.mark.parametrize("log", [[path(5), path(6)], [path(6)], [path(7, "other")]])
def test_a_file_that_follows_on_another_unknown_one_is_another_head(log: list[str]) -> None:
    with pytest.raises(OperationRefused, match=r"00007-x.*metadata of ns\.t that follows on metadata which its"):
        refuse_other_head(table(), [stray(7, log, [5, 6, 7])])


def test_a_head_that_went_its_own_way_is_seen_beside_commits_of_the_entry() -> None:
    """The entry, which was stale at 5, has been moved on by maintenance since."""
    with pytest.raises(OperationRefused):
        refuse_other_head(table(8), [stray(7, [path(5), path(6, "theirs")], [5, 61, 71], "theirs")])


def test_a_swap_that_lost_against_later_commits_needs_nothing() -> None:
    """What a crash left behind goes once the table has moved on."""
    lost = stray(6, [path(5)], [5, 61], "lost")
    assert refuse_other_head(table(8), [lost]) == []


def test_what_shows_no_more_than_the_table_knows_is_nothing_to_care_about() -> None:
    assert refuse_other_head(table(), [stray(4, [path(3)], [1, 2, 3, 4], "again")]) == []


def test_what_lost_a_swap_before_the_log_begins_is_past() -> None:
    entry = table(6, log=[3, 4, 5])
    assert refuse_other_head(entry, [stray(3, [path(2)], [2, 31], "lost")]) == []


def test_a_head_that_shows_less_but_follows_on_another_unknown_one_is_another_head() -> None:
    """It has only set properties: expiry would take all that it has."""
    with pytest.raises(OperationRefused):
        refuse_other_head(table(8), [stray(5, [path(3), path(4, "theirs")], [1, 2, 3], "theirs")])


def test_what_a_catalog_left_out_of_its_log_is_the_tables_own_past() -> None:
    """Its snapshots have expired, so the table does not know them any more."""
    own_past = stray(3, [path(2)], [1, 2, 3])
    entry = table(6, log=[0, 1, 4, 5], snapshots=[6])
    assert refuse_other_head(entry, [own_past]) == []


def test_numbers_that_begin_anew_tell_the_past_too() -> None:
    """Of a table that another catalog has taken over, which names its files otherwise."""
    taken_over = [f"{FOLDER}/v{number}.metadata.json" for number in (4, 6, 8)]
    metadata = document(9, taken_over, [9])
    entry = LoadedTable(TableName(("ns",), "t"), metadata, path(0), "token", {})
    omitted = StrayMetadata(f"{FOLDER}/v7.metadata.json", document(7, [f"{FOLDER}/v5.metadata.json"], [7]))
    assert refuse_other_head(entry, [omitted]) == []


@pytest.mark.parametrize(
    ("number", "modified_hour", "past"),
    [(1, 1, True), (1, 9, False), (1, None, False), (3, 1, False), (6, 1, False), (4, 4, False)],
    ids=["old", "young", "of unknown age", "in the log", "newer", "beside the log"],
)
def test_only_what_is_older_than_the_whole_log_is_surely_past(
    number: int, modified_hour: int | None, *, past: bool
) -> None:
    entry = table(5, log=[3, 4])
    modified_ms = None if modified_hour is None else modified_hour * HOUR_MS
    assert is_past(entry, path(number), modified_ms) is past


def test_without_a_number_in_its_name_the_age_decides() -> None:
    entry = table(5, log=[3, 4])
    assert is_past(entry, f"{FOLDER}/0b9e3b1c.gz.metadata.json", 1 * HOUR_MS)
    assert not is_past(entry, f"{FOLDER}/{'0b9e3b1c-x'}.gz.metadata.json", 4 * HOUR_MS)


def test_a_head_that_diverged_before_the_log_begins_and_goes_on_is_another_head() -> None:
    """Its numbers are smaller than all that the log still knows, but it was moved since."""
    entry = table(200, log=list(range(100, 200)), snapshots=[200])
    theirs = document(201, [path(51, "theirs")], [1, 51])
    with pytest.raises(OperationRefused, match="00052-theirs"):
        refuse_other_head(entry, [StrayMetadata(path(52, "theirs"), theirs)])


def test_a_head_that_diverged_just_before_the_log_begins_is_another_head() -> None:
    """Its base has fallen off the log; what lost a swap there would be as old as the log's beginning."""
    entry = table(200, log=list(range(100, 200)), snapshots=[200])
    theirs = document(201, [path(99, "theirs")], [1, 51])
    with pytest.raises(OperationRefused, match="00100-theirs"):
        refuse_other_head(entry, [StrayMetadata(path(100, "theirs"), theirs)])


def test_writers_whose_clocks_differ_a_little_make_no_other_head() -> None:
    """Iceberg allows a minute between one state and the next."""
    entry = table(200, log=list(range(100, 200)), snapshots=[200])
    lost = TableMetadata({**document(100, [path(99)], [99]).document, "last-updated-ms": 100 * HOUR_MS + 59_000})
    assert refuse_other_head(entry, [StrayMetadata(path(100, "lost"), lost)]) == []
