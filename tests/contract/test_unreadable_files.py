"""What every store of files that passes could not read does (rule 216)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import RETRY_MS, UnreadableFile
from support.state_stores import COPY, IDENTITY, OTHERS, SPELLINGS, WITHOUT_UUID, OpenStore

GONE = UnreadableFile(path="s3://b/t/data/ä.parquet", why="it does not exist", schema_digest="d1", tried_ms=2**42)
TORN = UnreadableFile(path="s3://b/t/data/b.parquet", why="it is damaged", schema_digest="d2", tried_ms=7)


def test_nothing_is_known_at_first(open_store: OpenStore) -> None:
    assert open_store().unreadable_files.of_table(IDENTITY) == {}
    assert open_store().glance(IDENTITY, now_ms=0).unreadable == {}
    open_store().unreadable_files.forget(IDENTITY, [GONE.path])


@pytest.mark.parametrize("identity", [IDENTITY, WITHOUT_UUID], ids=["with a UUID", "without one"])
def test_what_was_recorded_comes_back_by_path(open_store: OpenStore, identity: TableIdentity) -> None:
    open_store().unreadable_files.record(identity, [GONE, TORN])
    found = open_store().unreadable_files.of_table(identity)
    assert list(found.items()) == [(TORN.path, TORN), (GONE.path, GONE)]
    assert open_store().glance(identity, now_ms=0).unreadable == found


def test_a_later_record_replaces_the_one_before_and_leaves_the_others(open_store: OpenStore) -> None:
    store = open_store().unreadable_files
    store.record(IDENTITY, [GONE, TORN])
    again = replace(TORN, why="it is gone", schema_digest="d3", tried_ms=8)
    store.record(IDENTITY, [again])
    assert store.of_table(IDENTITY) == {GONE.path: GONE, TORN.path: again}


def test_files_are_forgotten_one_by_one(open_store: OpenStore) -> None:
    store = open_store().unreadable_files
    store.record(IDENTITY, [GONE, TORN])
    store.forget(IDENTITY, [GONE.path, "never known"])
    assert store.of_table(IDENTITY) == {TORN.path: TORN}


@pytest.mark.parametrize("name", SPELLINGS)
def test_it_is_the_same_table_by_any_name(open_store: OpenStore, name: str) -> None:
    open_store().unreadable_files.record(IDENTITY, [GONE])
    assert open_store().unreadable_files.of_table(SPELLINGS[name]) == {GONE.path: GONE}
    open_store().unreadable_files.forget(SPELLINGS[name], [GONE.path])
    assert open_store().unreadable_files.of_table(IDENTITY) == {}


@pytest.mark.parametrize("other", [COPY, *OTHERS.values()])
def test_copies_and_other_tables_have_files_of_their_own(open_store: OpenStore, other: TableIdentity) -> None:
    open_store().unreadable_files.record(IDENTITY, [GONE])
    assert open_store().unreadable_files.of_table(other) == {}
    assert open_store().glance(other, now_ms=0).unreadable == {}


def test_many_are_written_in_batches(open_store: OpenStore) -> None:
    """DynamoDB takes 25 at a time."""
    files = [replace(TORN, path=f"s3://b/t/{number:03d}") for number in range(60)]
    open_store().unreadable_files.record(IDENTITY, files)
    assert list(open_store().unreadable_files.of_table(IDENTITY).values()) == files
    open_store().unreadable_files.forget(IDENTITY, [one.path for one in files[1:]])
    assert list(open_store().unreadable_files.of_table(IDENTITY)) == ["s3://b/t/000"]


@pytest.mark.parametrize(
    ("digest", "later_ms", "waits"),
    [("d2", 0, True), ("d2", RETRY_MS - 1, True), ("d2", RETRY_MS, False), ("d1", 0, False), ("d2", -1, False)],
)
def test_a_file_waits_for_a_week_or_until_it_would_be_read_otherwise(
    digest: str, later_ms: int, *, waits: bool
) -> None:
    """Nor does one wait that was recorded by a clock that was ahead."""
    assert TORN.waits(digest, TORN.tried_ms + later_ms) is waits
