"""What every state store does about deletions that a run set out to do."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from icekeeper.errors import StorageError
from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import PendingDeletionStore
from support.state_stores import COPY, IDENTITY, OTHERS, SPELLINGS, OpenStore


def paths_of(store: PendingDeletionStore, name: str, identity: TableIdentity = IDENTITY) -> list[str]:
    return list(chain.from_iterable(store.paths(identity, name)))


def test_an_empty_store_expects_nothing(open_store: OpenStore) -> None:
    assert open_store().pending_deletions.lists(IDENTITY) == ()
    assert paths_of(open_store().pending_deletions, "a") == []
    open_store().pending_deletions.forget(IDENTITY, "a")


def test_lists_are_kept_until_they_are_forgotten(open_store: OpenStore) -> None:
    odd = ["s3://b/t/a b", "s3://b/t/a%20b", "s3://b/t/ü\n,", "file:/x"]
    open_store().pending_deletions.expect(IDENTITY, "run-2", odd)
    open_store().pending_deletions.expect(IDENTITY, "run-1", ["s3://b/t/1"])
    assert open_store().pending_deletions.lists(IDENTITY) == ("run-1", "run-2")
    assert paths_of(open_store().pending_deletions, "run-2") == odd
    open_store().pending_deletions.forget(IDENTITY, "run-2")
    assert open_store().pending_deletions.lists(IDENTITY) == ("run-1",)
    assert paths_of(open_store().pending_deletions, "run-2") == []


def test_an_expectation_replaces_the_one_of_its_name(open_store: OpenStore) -> None:
    many = [f"s3://b/t/{number}" for number in range(2500)]
    open_store().pending_deletions.expect(IDENTITY, "a", iter(many))
    assert paths_of(open_store().pending_deletions, "a") == many
    assert max(map(len, open_store().pending_deletions.paths(IDENTITY, "a"))) < len(many), "some at a time"
    open_store().pending_deletions.expect(IDENTITY, "a", many[-2:])
    assert paths_of(open_store().pending_deletions, "a") == many[-2:]
    open_store().pending_deletions.expect(IDENTITY, "a", [])
    assert open_store().pending_deletions.lists(IDENTITY) == ()


def test_tables_and_copies_do_not_share_lists(open_store: OpenStore) -> None:
    open_store().pending_deletions.expect(IDENTITY, "a", ["s3://b/t/1"])
    for other in (*OTHERS.values(), COPY):
        assert open_store().pending_deletions.lists(other) == ()
        open_store().pending_deletions.forget(other, "a")
    assert paths_of(open_store().pending_deletions, "a") == ["s3://b/t/1"]


@pytest.mark.parametrize("called", SPELLINGS.values(), ids=SPELLINGS)
def test_a_table_is_the_same_whatever_it_is_called(open_store: OpenStore, called: TableIdentity) -> None:
    store = open_store().pending_deletions
    store.expect(IDENTITY, "a", ["s3://b/t/1"])
    assert (store.lists(called), paths_of(store, "a", called)) == (("a",), ["s3://b/t/1"])
    store.expect(called, "a", ["s3://b/t/2"])
    assert paths_of(store, "a") == ["s3://b/t/2"]
    store.forget(called, "a")
    assert store.lists(IDENTITY) == ()


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        SqliteStateStore(tmp_path / "file" / "state.db").pending_deletions.expect(IDENTITY, "a", ["x"])
