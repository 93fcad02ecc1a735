"""How deep partitions overlap before a plan, as it expects to leave them, and as its outputs really lie."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from icekeeper.health.examine import DEPTH_COUNTER, lake_counters, lake_totals
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.overlap_depth import DEPTH_KEY
from icekeeper.model import DataFile, FileIdentity, TableName
from icekeeper.operations.compaction.candidates import Candidate
from icekeeper.operations.compaction.clustering.plan_clustering import ClusteringDepth, Layout
from icekeeper.operations.compaction.recipe import KeyColumn
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import LakeStats
from support.plans import data_file
from support.settings import MB

LONG = struct.Struct("<q")
BY_ID = Layout((KeyColumn(1), KeyColumn(2)), {1: "long", 2: "long"})
CURVE = Layout((KeyColumn(1), KeyColumn(2)), {1: "long", 2: "long"}, is_curve=True)


def file(path: str, *ranges: tuple[int, int]) -> DataFile:
    lower, upper = ({n: LONG.pack(r[side]) for n, r in enumerate(ranges, 1)} for side in (0, 1))
    return data_file(path, 10 * MB, lower_bounds=lower, upper_bounds=upper)


def depth(layout: Layout, *partitions: Sequence[DataFile]) -> ClusteringDepth:
    identity = FileIdentity(1, 1, 1, 1)
    return ClusteringDepth.of([[Candidate(f, 0, 1, "m", identity) for f in files] for files in partitions], layout)


SPREAD = [file(f"f{n}", (0, 100), (0, 100)) for n in range(4)]
ALL = [f.file_path for f in SPREAD]


def test_a_sort_order_is_measured_by_its_first_column() -> None:
    before = depth(BY_ID, SPREAD, [file("other", (0, 100), (0, 100))])
    assert before.now() == (4 * 4 + 1) / 5
    assert before.as_planned([(ALL, 4)]) == 1.0
    assert before.with_outputs([(ALL, [file(f"o{n}", (25 * n, 25 * n + 25), (0, 100)) for n in range(4)])]) == 1.0
    assert before.with_outputs([]) == before.now()


def test_a_curve_is_measured_by_all_of_its_columns() -> None:
    """Four files become two by two stretches: two files over any value of either column."""
    before = depth(CURVE, SPREAD)
    assert before.now() == 4.0
    assert before.as_planned([(ALL, 4)]) == 2.0
    quarters = [file(f"o{n}", (50 * (n % 2), 50 * (n % 2) + 50), (50 * (n // 2), 50 * (n // 2) + 50)) for n in range(4)]
    assert before.with_outputs([(ALL, quarters)]) == 2.0


def test_what_is_not_known_before_is_not_promised_after() -> None:
    unknown = [data_file("u", 10 * MB), *SPREAD[:1]]
    before = depth(BY_ID, unknown)
    assert before.now() == 2.0
    assert before.as_planned([(["u", "f0"], 2)]) == 2.0


def test_over_a_lake_the_deepest_table_counts() -> None:
    def stats(deep: float) -> LakeStats:
        identity = TableIdentity("C", "w", TableName(("ns",), "t"), "u")
        return LakeStats(
            identity=identity,
            observed_ms=1,
            snapshot_id=1,
            counters={"lake_clustering_depth": deep},
            warnings={},
            policy={},
        )

    assert lake_totals([stats(3.5), stats(2.0)])["lake_clustering_depth"] == 3.5


def depths_of(*depths: str | None) -> dict[str, int | float]:
    """The depth of a table with these snapshots; the head is the last but one, which follows those before it."""
    summaries: list[dict[str, str]] = [{} if depth is None else {DEPTH_KEY: depth} for depth in depths]
    raw = [
        {"snapshot-id": n, "timestamp-ms": n, "summary": summary, "parent-snapshot-id": n - 1 if n else None}
        for n, summary in enumerate(summaries)
    ]
    document = {"format-version": 2, "location": "s3://b/t", "snapshots": raw, "current-snapshot-id": len(raw) - 2}
    metadata = TableMetadata(document)
    counters = lake_counters(metadata, metadata.current_snapshot, now_ms=9)
    return {name: value for name, value in counters.items() if name == DEPTH_COUNTER}


def test_the_depth_is_that_of_the_newest_pass_that_left_one() -> None:
    assert depths_of("5.5", "2.5", None, None) == {DEPTH_COUNTER: 2.5}
    assert depths_of("5.5", "much", None, None) == {DEPTH_COUNTER: 5.5}
    assert depths_of(None, None, None) == {}
    assert depths_of(None, None, "3.5") == {}  # of a snapshot that the head does not follow
