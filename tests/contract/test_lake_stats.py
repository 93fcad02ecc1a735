"""What every store of lake stats does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import LakeStats
from support.state_stores import IDENTITY, OpenStore

LISTED = {
    "catalog": replace(IDENTITY, catalog="D"),
    "warehouse": replace(IDENTITY, warehouse="s3://other/"),
    "name": replace(IDENTITY, table=TableName(("ns",), "t")),
    "uuid": replace(IDENTITY, uuid="uuid-2"),
}
"""Health is told by catalog: what another one lists is another entry, also where it is the same table."""


def some_stats(identity: TableIdentity = IDENTITY, observed_ms: int = 1_767_225_600_000) -> LakeStats:
    return LakeStats(
        identity=identity,
        observed_ms=observed_ms,
        snapshot_id=2**63 - 1,
        counters={"lake_data_files": 15, "lake_bytes": 2**60 + 1, "lake_small_share": 0.1},
        warnings={"delete_debt": "deletes of 3 files wait to be applied — 40 % of its rows"},
        policy={"target_file_size_mb": {"source": "table property", "value": 128}},
    )


def test_nothing_is_known_at_first(open_store: OpenStore) -> None:
    stats = open_store().lake_stats
    assert stats.of_table(IDENTITY) is None
    assert list(stats.of_catalog(IDENTITY.catalog, IDENTITY.warehouse)) == []
    stats.forget(IDENTITY)


def test_what_was_seen_comes_back_as_it_was(open_store: OpenStore) -> None:
    open_store().lake_stats.record(some_stats())
    assert open_store().lake_stats.of_table(IDENTITY) == some_stats()
    assert list(open_store().lake_stats.of_catalog(IDENTITY.catalog, IDENTITY.warehouse)) == [some_stats()]


def test_what_is_seen_later_replaces_everything(open_store: OpenStore) -> None:
    """A warning that no longer holds must not stay."""
    stats = open_store().lake_stats
    stats.record(some_stats())
    empty = LakeStats(identity=IDENTITY, observed_ms=7, snapshot_id=None, counters={})
    stats.record(empty)
    assert stats.of_table(IDENTITY) == empty
    assert list(stats.of_catalog(IDENTITY.catalog, IDENTITY.warehouse)) == [empty]


def test_a_table_that_is_gone_is_forgotten(open_store: OpenStore) -> None:
    stats = open_store().lake_stats
    stats.record(some_stats())
    stats.forget(IDENTITY)
    assert stats.of_table(IDENTITY) is None
    assert list(stats.of_catalog(IDENTITY.catalog, IDENTITY.warehouse)) == []


@pytest.mark.parametrize("other", LISTED.values(), ids=LISTED)
def test_each_entry_of_a_catalog_has_its_own(open_store: OpenStore, other: TableIdentity) -> None:
    stats = open_store().lake_stats
    stats.record(some_stats())
    assert stats.of_table(other) is None
    stats.forget(other)
    assert stats.of_table(IDENTITY) == some_stats()
    stats.record(some_stats(other, observed_ms=9))
    assert stats.of_table(IDENTITY) == some_stats()
    assert stats.of_table(other) == some_stats(other, observed_ms=9)


def test_a_catalog_of_many_tables_comes_by_name(open_store: OpenStore) -> None:
    """More than the megabyte that DynamoDB answers at once."""
    stats = open_store().lake_stats
    names = [f"t{number:02d}" for number in range(24)] + ["t", "t02-b", "t02_b", "tä"]
    recorded = [
        replace(some_stats(replace(IDENTITY, table=TableName(("ns",), name))), policy={"where": "x" * 50_000})
        for name in names
    ]
    for each in reversed(recorded):
        stats.record(each)
    stats.record(some_stats(replace(IDENTITY, catalog="D")))
    stats.record(some_stats(replace(IDENTITY, warehouse="s3://other/")))
    found = list(open_store().lake_stats.of_catalog(IDENTITY.catalog, IDENTITY.warehouse))
    assert found == sorted(recorded, key=lambda each: str(each.identity.table))
