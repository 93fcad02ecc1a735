"""What every state store does about deletions that a run set out to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.pending_deletions import PendingDeletionStore
from icekeeper.state.sqlite import SqliteStateStore

IDENTITY = TableIdentity("C", "s3://bucket/", TableName(("ns", "sub"), "t"), "uuid-1")
OTHERS = (
    replace(IDENTITY, catalog="D"),
    replace(IDENTITY, warehouse="s3://other/"),
    replace(IDENTITY, table=TableName(("ns",), "t")),
    replace(IDENTITY, uuid="uuid-2"),
)
Opener = Callable[[], PendingDeletionStore]


@pytest.fixture(params=["sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same store anew, as another process would."""
    stores: dict[str, Opener] = {"sqlite": lambda: SqliteStateStore(tmp_path / "state.db").pending_deletions}
    return stores[request.param]


def paths_of(store: PendingDeletionStore, name: str) -> list[str]:
    return list(chain.from_iterable(store.paths(IDENTITY, name)))


def test_an_empty_store_expects_nothing(open_store: Opener) -> None:
    assert open_store().lists(IDENTITY) == ()
    assert paths_of(open_store(), "a") == []
    open_store().forget(IDENTITY, "a")


def test_lists_are_kept_until_they_are_forgotten(open_store: Opener) -> None:
    odd = ["s3://b/t/a b", "s3://b/t/a%20b", "s3://b/t/ü\n,", "file:/x"]
    open_store().expect(IDENTITY, "run-2", odd)
    open_store().expect(IDENTITY, "run-1", ["s3://b/t/1"])
    assert open_store().lists(IDENTITY) == ("run-1", "run-2")
    assert paths_of(open_store(), "run-2") == odd
    open_store().forget(IDENTITY, "run-2")
    assert open_store().lists(IDENTITY) == ("run-1",)
    assert paths_of(open_store(), "run-2") == []


def test_an_expectation_replaces_the_one_of_its_name(open_store: Opener) -> None:
    many = [f"s3://b/t/{number}" for number in range(2500)]
    open_store().expect(IDENTITY, "a", iter(many))
    assert paths_of(open_store(), "a") == many
    assert max(map(len, open_store().paths(IDENTITY, "a"))) < len(many), "some at a time"
    open_store().expect(IDENTITY, "a", many[-2:])
    assert paths_of(open_store(), "a") == many[-2:]
    open_store().expect(IDENTITY, "a", [])
    assert open_store().lists(IDENTITY) == ()


def test_tables_do_not_share_lists(open_store: Opener) -> None:
    open_store().expect(IDENTITY, "a", ["s3://b/t/1"])
    for other in OTHERS:
        assert open_store().lists(other) == ()
        open_store().forget(other, "a")
    assert paths_of(open_store(), "a") == ["s3://b/t/1"]


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        SqliteStateStore(tmp_path / "file" / "state.db").pending_deletions.expect(IDENTITY, "a", ["x"])
