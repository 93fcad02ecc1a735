"""What every quarantine ledger does; parametrised over all stores."""

from __future__ import annotations

import pytest

from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import Sighting
from support.state_stores import COPY, IDENTITY, OTHERS, SPELLINGS, OpenStore


def test_an_empty_ledger_knows_nothing(open_store: OpenStore) -> None:
    ledger = open_store().quarantine
    assert ledger.counts(IDENTITY, "run-1", ["a"]) == {}
    assert list(ledger.sightings(IDENTITY)) == []
    ledger.forget(IDENTITY, ["a"])
    ledger.forget_unseen(IDENTITY, "run-1")


def test_each_run_counts_once(open_store: OpenStore) -> None:
    ledger = open_store().quarantine
    ledger.see(IDENTITY, "run-1", ["a", "b"], now_ms=10)
    ledger.see(IDENTITY, "run-1", ["a"], now_ms=11)
    ledger.see(IDENTITY, "run-2", ["a"], now_ms=20)
    assert list(open_store().quarantine.sightings(IDENTITY)) == [
        Sighting("a", 2, 10, "run-2"),
        Sighting("b", 1, 10, "run-1"),
    ]


def test_a_run_asks_for_the_sightings_of_others(open_store: OpenStore) -> None:
    """So that a run which is repeated after a crash gets the same answer."""
    ledger = open_store().quarantine
    ledger.see(IDENTITY, "run-1", ["a", "b"], now_ms=10)
    before = ledger.counts(IDENTITY, "run-2", ["a", "b", "c"])
    ledger.see(IDENTITY, "run-2", ["a", "b", "c"], now_ms=20)
    assert before == {"a": 1, "b": 1}
    assert ledger.counts(IDENTITY, "run-2", ["a", "b", "c"]) == {"a": 1, "b": 1, "c": 0}
    assert ledger.counts(IDENTITY, "run-3", ["a", "c"]) == {"a": 2, "c": 1}


def test_what_a_run_did_not_see_is_forgotten(open_store: OpenStore) -> None:
    ledger = open_store().quarantine
    ledger.see(IDENTITY, "run-1", ["a", "b"], now_ms=10)
    ledger.see(IDENTITY, "run-2", ["b"], now_ms=20)
    ledger.forget_unseen(IDENTITY, "run-2")
    assert [entry.path for entry in ledger.sightings(IDENTITY)] == ["b"]


def test_what_was_deleted_is_forgotten(open_store: OpenStore) -> None:
    ledger = open_store().quarantine
    ledger.see(IDENTITY, "run-1", ["a", "b", "ü"], now_ms=10)
    ledger.forget(IDENTITY, ["b", "ü", "never seen"])
    assert [entry.path for entry in ledger.sightings(IDENTITY)] == ["a"]


def test_many_paths_are_taken_in_batches(open_store: OpenStore) -> None:
    count = 230  # DynamoDB reads a hundred and writes 25 at a time
    paths = [f"s3://bucket/t/data/{number:06d}" for number in range(count)]
    ledger = open_store().quarantine
    ledger.see(IDENTITY, "run-1", iter(paths), now_ms=10)
    assert len(ledger.counts(IDENTITY, "run-2", iter(paths))) == count
    ledger.forget(IDENTITY, iter(paths[1:]))
    assert [entry.path for entry in ledger.sightings(IDENTITY)] == paths[:1]


@pytest.mark.parametrize("other", [*OTHERS.values(), COPY], ids=[*OTHERS, "copy"])
def test_tables_and_copies_share_nothing(open_store: OpenStore, other: TableIdentity) -> None:
    ledger = open_store().quarantine
    ledger.see(IDENTITY, "run-1", ["a"], now_ms=10)
    assert ledger.counts(other, "run-2", ["a"]) == {}
    ledger.forget(other, ["a"])
    ledger.forget_unseen(other, "run-2")
    assert list(ledger.sightings(other)) == []
    assert [entry.path for entry in ledger.sightings(IDENTITY)] == ["a"]


@pytest.mark.parametrize("called", SPELLINGS.values(), ids=SPELLINGS)
def test_a_table_is_the_same_whatever_it_is_called(open_store: OpenStore, called: TableIdentity) -> None:
    ledger = open_store().quarantine
    ledger.see(IDENTITY, "run-1", ["a", "b"], now_ms=10)
    ledger.see(called, "run-2", ["a"], now_ms=20)
    ledger.forget_unseen(called, "run-2")
    assert list(ledger.sightings(IDENTITY)) == [Sighting("a", 2, 10, "run-2")]
    assert ledger.counts(called, "run-3", ["a", "b"]) == {"a": 2}
