"""Variants whose rows are decoded, for deletes, another order or another partition: nothing of them changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from icekeeper.operations.compaction.work import exchange
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.clustered_tables import limit_memory
from support.deletes import equality_delete
from support.maintained_table import MaintainedTable, maintained_table
from support.v3 import commit_keys, data_files, delete_positions
from support.variants import BUCKETS, Kept, annotated, append, delete_as_v2, partition_by, variant_table

STORAGES = [("plain", "arrow"), ("shredded", "duckdb"), ("types", "arrow")]
ORDERS: Mapping[str, dict[str, str]] = {
    "as they are": {"min_row_group_copy_bytes": "none"},
    "sorted": {"strategy": "sort", "sort_order": "id desc"},
    "by z-order": {"strategy": "zorder", "sort_order": "id, region"},
}


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Files of ten rows in us and eu: one without variants, and two of each storage; v2 has deleted two rows in us."""
    with maintained_table(tmp_path) as made:
        variant_table(made, delete_as_v2)
        for region, start in (("us", 100), ("eu", 200)):
            for number, (how, writer) in enumerate(STORAGES):
                for first in (start + 20 * number, start + 10 + 20 * number):
                    append(made, range(first, first + 10), region, how, writer)
        yield made


def delete_rows(table: MaintainedTable) -> None:
    """Delete 14 rows by vectors, and three more by their ids."""
    paths = sorted(file.file_path for file in data_files(table) if "region=us" in file.file_path)
    delete_positions(table, {path: range(2 + number) for number, path in enumerate(paths[1:5])})
    commit_keys(table, [equality_delete(row_id, "us") for row_id in (3, 109, 149)])


@pytest.mark.parametrize("order", [*ORDERS, "sorted by several workers"])
def test_deletes_and_orders_keep_variants(order: str, table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    if order not in ORDERS:
        limit_memory(monkeypatch)
        monkeypatch.setattr(exchange, "RANGE_BYTES", 1)
        monkeypatch.setattr(exchange, "_SPLIT_BYTES", 1)
    delete_rows(table)
    before = Kept.of(table)
    outcome = table.run(Operation.COMPACT, **ORDERS.get(order, ORDERS["sorted"]), proof="full")
    assert (outcome.status, outcome.metrics["compact.rows_deleted"]) == (Status.SUCCEEDED, 19), outcome
    assert outcome.metrics["compact.bytes_copied"] == 0
    assert Kept.of(table) == before
    assert {tuple(sorted(annotated(file.file_path))) for file in data_files(table)} == {("l", "s", "v")}
    assert (table.live_deletes(), table.problems(), table.unreferenced()) == ({}, {}, set())


@pytest.mark.parametrize(
    ("fields", "partitions"), [([], {(): 3}), ([BUCKETS], {(0,): 6, (1,): 6})], ids=["into one", "divided"]
)
def test_rows_that_change_their_partition_keep_variants(
    fields: list[dict[str, Any]], partitions: dict[tuple[int, ...], int], table: MaintainedTable
) -> None:
    for number, (how, writer) in enumerate(STORAGES if fields else ()):  # three files are divided between two
        for region, start in (("us", 300), ("eu", 400)):
            append(table, range(start + 10 * number, start + 10 + 10 * number), region, how, writer)
    delete_positions(table, {data_files(table)[0].file_path: range(3)})
    before = Kept.of(table)
    partition_by(table, fields)
    outcome = table.run(Operation.COMPACT, proof="full")
    assert outcome.status is Status.SUCCEEDED, outcome
    assert Counter(file.partition for file in table.data_files()) == partitions
    assert Kept.of(table) == before
    assert (table.problems(), table.unreferenced()) == ({}, set())


def test_a_pass_with_all_operations_keeps_variants(table: MaintainedTable) -> None:
    """Compaction leaves us with its deletes, so position deletes are merged there, and keys become vectors."""
    delete_rows(table)
    orphan = table.plant("data/region=us/orphan.parquet")
    before = Kept.of(table)
    chosen = ("compact", "rewrite_position_deletes", "expire_snapshots", "remove_orphans", "rewrite_manifests")
    outcome = table.maintain(",".join(chosen), where="region = 'eu'", convert_equality_deletes="true")
    assert outcome.status == "succeeded", outcome
    assert [part.status for part in outcome.operations] == [Status.SUCCEEDED] * len(chosen), outcome
    assert table.live_deletes() == {"POSITION_DELETES": 6}
    assert not Path(orphan).exists()
    assert Kept.of(table) == before
    assert (table.problems(), table.unreferenced()) == ({}, set())
