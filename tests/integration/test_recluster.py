"""Sorted runs of several rounds over the same keys, on a real table: merged again, once, and known without memory."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.health.examine import lake_counters
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome
from support.clustered_tables import NOTHING_ELIGIBLE
from support.maintained_table import MaintainedTable, new_table

SETTINGS = {
    "strategy": "sort",
    "sort_order": "id",
    "target_file_size_mb": "0.01",
    "min_input_files": "5",
    "max_clustering_depth": "2",
    "clustering_tier_factor": "3",
}


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    return new_table(local_catalog, tmp_path)


def run(table: MaintainedTable, **more: object) -> OperationOutcome:
    return table.run(Operation.COMPACT, **(SETTINGS | more))


def opened(table: MaintainedTable) -> int:
    """Files that a lookup of one id opens, by the bounds in the entries; the worst of a few."""
    limits: list[tuple[int, int]] = []
    for file in table.data_files():
        low, high = ((bounds or {})[1] for bounds in (file.lower_bounds, file.upper_bounds))
        limits.append((struct.unpack("<q", low)[0], struct.unpack("<q", high)[0]))
    return max(sum(low <= key <= high for low, high in limits) for key in range(50_000, 10**6, 90_001))


def test_rounds_over_the_same_keys_are_sorted_together_again(table: MaintainedTable) -> None:
    """A lookup opened 1, 2, 3, 4, then 5 files, one more after each round."""
    rng = random.Random(1)
    depths = []
    for number in range(4):
        table.append(*(rng.randrange(10**6) for _ in range(4_000)))
        if number == 2:
            table.state.path.unlink()  # which files are a run stands in the table
        outcome = run(table)
        assert outcome.reason is None, outcome
        depths.append(opened(table))
        assert run(table).reason == NOTHING_ELIGIBLE
    assert depths == [1, 2, 1, 2]
    assert table.readers_agree() == table.ids()
    assert table.verify().problems == ()


def test_the_depth_before_and_after_is_told(table: MaintainedTable) -> None:
    rng = random.Random(2)
    for _ in range(3):
        table.append(*(rng.randrange(10**6) for _ in range(4_000)))
    planned = run(table, dry_run=True).metrics
    done = run(table).metrics
    assert planned["compact.depth_before"] == done["compact.depth_before"] == pytest.approx(3.0, abs=0.01)
    assert planned["compact.depth_after"] == 1.0
    assert done["compact.depth_after"] == pytest.approx(1.0, abs=0.05)
    head = table.metadata.current_snapshot
    assert head is not None
    counters = lake_counters(table.metadata, head, now_ms=0)
    assert counters["lake_clustering_depth"] == done["compact.depth_after"]
    assert "compact.depth_before" not in table.run(Operation.COMPACT, strategy="binpack", rewrite_all="true").metrics
