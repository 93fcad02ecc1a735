"""Why sorted files are sorted together: a lookup opens too many of them, or they are small."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from icekeeper.operations.compaction.candidates import TableState
from icekeeper.operations.compaction.plan_groups import Clustering, CompactionPlan, plan_compaction
from icekeeper.operations.compaction.preview import plan_document
from icekeeper.operations.compaction.recipe import choose_recipe
from support.plans import HEAD, HEAD_MS, MB, data_file, live_file, manifest, policy, table

TABLE = table()
BY_ID = {"strategy": "sort", "sort_order": "id", "target_file_size_mb": 10, "min_input_files": 5}


@pytest.mark.parametrize(("runs", "size", "reason"), [(5, 10.0, "depth"), (16, 0.1, "small")])
def test_sorted_files_are_sorted_again_for_depth_or_size(runs: int, size: float, reason: str) -> None:
    """Each file is a run of its own over the same keys."""
    settings = policy(**BY_ID)
    recipe = choose_recipe(TABLE, settings)
    assert recipe is not None
    low, high = {1: struct.pack("<q", 0)}, {1: struct.pack("<q", 300)}
    files = [
        live_file(
            replace(data_file(f"f{n}", int(size * MB)), lower_bounds=low, upper_bounds=high), age=n, snapshot_id=n
        )
        for n in range(1, runs + 1)
    ]
    plan = plan_compaction(
        TableState(TABLE, TABLE.snapshots[HEAD], [manifest()], files),
        settings,
        now_ms=HEAD_MS,
        clustering=Clustering(recipe, range(1, runs + 1)),
    )
    assert isinstance(plan, CompactionPlan)
    assert {tuple(group["reasons"]) for group in plan_document(plan, TABLE)["groups"]} == {(reason,)}
