"""Sort and z-order over real tables, once and repeatedly as new data arrives."""

from __future__ import annotations

import random
import re
import shutil
import struct
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType
from pyspark.sql import SparkSession

from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.errors import PolicyError
from icekeeper.health.examine import lake_counters
from icekeeper.operations.compaction import run_groups as dispatch
from icekeeper.operations.compaction.plan import plan_clustering
from icekeeper.operations.compaction.work import exchange
from icekeeper.operations.compaction.work import sort_files as cluster_work
from icekeeper.policy import Operation
from icekeeper.report.activity import REWRITING
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.storage.paths import normalise
from support.clustered_tables import (
    BY_ID,
    NOTHING_ELIGIBLE,
    both_read,
    bounds,
    by_lower,
    column,
    compacted,
    fill,
    limit_memory,
)
from support.deletes import commit_deletes, create_by_region, equality_delete, position_delete
from support.maintained_table import MaintainedTable, maintained_table, new_table, outcome_of
from support.readers import canonical, duckdb_rows

# Sort and z-order over real tables: rows are in order, readers can skip files, and nothing is sorted twice.


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch)


@pytest.fixture(params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "local":
        return LocalEngine(1)
    session: SparkSession = request.getfixturevalue("spark_session")
    return SparkEngine(session.sparkContext)


def test_a_group_for_one_worker_is_sorted_into_files_that_do_not_overlap(table: MaintainedTable) -> None:
    """Each file is sorted, files do not overlap, no row is lost, and a second pass has nothing to do."""
    fill(table, 6, 8_000)
    before = both_read(table)
    compacted(table, target_file_size_mb="0.02", **BY_ID)
    files = by_lower(table.data_files())
    assert len(files) > 1
    assert [i for file in files for i in column(file)] == sorted(table.ids())
    assert both_read(table) == before
    assert compacted(table, target_file_size_mb="0.02", **BY_ID).reason == NOTHING_ELIGIBLE
    assert table.verify().problems == ()


@pytest.mark.usefixtures("little_memory")
def test_a_group_for_many_workers_is_sorted_alike(table: MaintainedTable, engine: Engine) -> None:
    """Every engine splits rows by sampled bounds and exchanges them; the result equals that of a single worker."""
    fill(table, 6, 8_000)
    before = both_read(table)
    descending = {"strategy": "sort", "sort_order": "id desc", "target_file_size_mb": "0.02"}
    outcome = compacted(table, engine=engine, **descending)
    files = list(reversed(by_lower(table.data_files())))
    assert len(files) >= 6  # of at least two lanes
    assert [i for file in files for i in column(file)] == sorted(table.ids(), reverse=True)
    assert both_read(table) == before
    assert outcome.metrics["compact.files_written"] == len(files)
    assert compacted(table, **descending).reason == NOTHING_ELIGIBLE


@pytest.mark.usefixtures("little_memory")
def test_rows_of_a_single_key_keep_their_order_and_become_several_files(table: MaintainedTable) -> None:
    """A sort by a column with a single value keeps the order of rows, even if no worker can hold them all."""
    for n in range(6):
        table.append(*range(n * 20_000, (n + 1) * 20_000))
    compacted(table, strategy="sort", sort_order="part", target_file_size_mb="0.05")
    files = by_lower(table.data_files())
    assert len(files) > 2
    assert [i for file in files for i in column(file)] == list(range(120_000))


# A group whose rows do not fit on the workers' disks is sorted in several exchanges, each of a part of the lanes.


def divided(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Divide the lanes of each group among ``count`` exchanges."""

    def exchanges(needs: exchange.DiskNeeds, slots: int, room_bytes: float) -> list[range]:
        ends = [needs.lanes * n // count for n in range(count + 1)]
        assert len(set(ends)) == count + 1, "each has a lane"
        return [range(start, end) for start, end in pairwise(ends)]

    monkeypatch.setattr(exchange.DiskNeeds, "exchanges", exchanges)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("strategy", ["sort", "zorder"])
def test_a_group_that_overflows_the_disk_is_sorted_in_several_exchanges(
    table: MaintainedTable, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files over the whole range are read by each exchange; ``tests/nightly/test_cluster.py`` does it on Spark."""
    divided(monkeypatch, 4)
    fill(table, 8, 8_000)
    before, size = both_read(table), sum(file.file_size_in_bytes for file in table.data_files())
    settings = {"strategy": strategy, "sort_order": "id", "target_file_size_mb": "0.01", "proof": "full"}
    seen: list[tuple[str, int, int]] = []
    outcome = compacted(table, progress=lambda *call: seen.append(call), **settings)
    rewritten = [done for what, done, total in seen if (what, total) == (REWRITING, size)]
    assert (rewritten[0], rewritten[-1], rewritten) == (0, size, sorted(rewritten))
    assert len({*rewritten}) > 17, "each sample, split and lane moves it"
    assert 0 < sorted({*rewritten})[1] <= 0.05 * size, "sampling does"
    files = by_lower(table.data_files())
    assert len(files) > 15
    assert all(low[1] <= high[0] for low, high in pairwise(bounds(file, 1) for file in files))
    if strategy == "sort":
        assert [i for file in files for i in column(file)] == sorted(table.ids())
    assert both_read(table) == before
    assert outcome.metrics["compact.bytes_read_again"] == 3 * size
    assert compacted(table, **settings).reason == NOTHING_ELIGIBLE


@pytest.mark.usefixtures("little_memory")
def test_exchanges_skip_files_without_rows_for_them(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that follow each other in the key are read again only at the ends of an exchange."""
    divided(monkeypatch, 3)
    for n in range(9):
        table.append(*range(n * 16_000, (n + 1) * 16_000))
    size = sum(file.file_size_in_bytes for file in table.data_files())
    outcome = compacted(table, target_file_size_mb="0.02", **BY_ID)
    assert [i for file in by_lower(table.data_files()) for i in column(file)] == list(range(9 * 16_000))
    assert outcome.metrics["compact.bytes_read_again"] == pytest.approx(7 / 9 * size, rel=0.2)


@pytest.mark.usefixtures("little_memory")
def test_rows_of_a_frequent_key_are_divided_among_exchanges(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of 60 % of the rows is cut by the number of the row, and its rows keep their order.

    Slices of twelve files come in the order of their names: those of the eleventh before those of the third.
    """
    divided(monkeypatch, 4)
    for n in range(12):
        ids = range(n * 10_000, (n + 1) * 10_000)
        keys = ["often" if i % 5 < 3 else f"{i % 7}{'z' if i % 2 else 'a'}" for i in ids]
        table.table.append(pa.table({"id": list(ids), "part": keys}))
    rows = [(row["part"], row["id"]) for row in duckdb_rows(table.metadata_location)]
    compacted(table, strategy="sort", sort_order="part", target_file_size_mb="0.01")
    names = {normalise(file.file_path).rpartition("/")[2]: file for file in table.data_files()}
    found = [
        pair
        for name in sorted(names)
        for pair in zip(column(names[name], "part"), column(names[name], "id"), strict=True)
    ]
    assert found == sorted(rows)


@pytest.mark.usefixtures("little_memory")
def test_a_group_for_which_four_exchanges_are_too_few_is_refused(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(table, 6, 8_000)
    before = table.files()
    monkeypatch.setattr(exchange.DISK, "_free_bytes", 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=20_000))
    outcome = table.run(Operation.COMPACT, min_input_files="5", target_file_size_mb="0.02", **BY_ID)
    assert outcome.status is Status.FAILED
    assert re.fullmatch(
        r"1 bin\(s\) failed: 6 files \([\d.]+ KB\) cannot be sorted together: even in 4 exchanges each would keep "
        r"about [\d.]+ KB on disk, and the workers may use 14 KB, 70% of the free disk; use more workers or workers "
        r"with larger disks, or lower max_file_group_size_mb",
        outcome.reason or "",
    )
    assert table.files() == before


@pytest.mark.parametrize("memory", ["enough", "little"])
def test_outputs_are_of_the_target_size(table: MaintainedTable, memory: str, request: pytest.FixtureRequest) -> None:
    """They are within a quarter of it, although sorted rows compress to less than half of the input size."""
    if memory == "little":
        request.getfixturevalue("little_memory")
    rng = random.Random(3)
    for _ in range(8):
        table.append(*(rng.randrange(60_000) for _ in range(20_000)))
    before = sum(file.file_size_in_bytes for file in table.data_files())
    compacted(table, target_file_size_mb="0.035", **BY_ID)
    sizes = [file.file_size_in_bytes / (0.035 * 2**20) for file in table.data_files()]
    assert sum(sizes) * 0.035 * 2**20 < before / 2
    assert len(sizes) > 4
    assert min(sizes) > 0.75
    assert max(sizes) < 1.25


@pytest.mark.usefixtures("little_memory")
def test_a_range_beyond_the_memory_is_sorted_in_pieces(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range that exceeds the memory becomes several files, each sorted, which overlap."""
    monkeypatch.setattr(cluster_work, "PIECE_BYTES", 16 * 1024)
    fill(table, 6, 5_000)
    ids = table.ids()
    compacted(table, **BY_ID)
    files = table.data_files()
    assert len(files) > 6
    assert all(column(file) == sorted(column(file)) for file in files)
    assert table.readers_agree() == ids


# -- deletes and failures


@pytest.mark.parametrize("memory", ["enough", "little"])
def test_deletes_are_applied_while_rows_are_sorted(tmp_path: Path, memory: str, request: pytest.FixtureRequest) -> None:
    """Position and equality deletes of a v2 table; each split worker reads only the deletes of its inputs."""
    if memory == "little":
        request.getfixturevalue("little_memory")
        request.getfixturevalue("monkeypatch").setattr(exchange, "RANGE_BYTES", 1)
        request.getfixturevalue("monkeypatch").setattr(exchange, "_SPLIT_BYTES", 1)
    with maintained_table(tmp_path) as table:
        create_by_region(table, 3)
        path = next(t.file.file_path for t in table.table.scan("id = 103 and region = 'us'").plan_files())
        commit_deletes(table, [position_delete(path, 3, "us"), equality_delete(205, "us"), equality_delete(51, "eu")])
        before = canonical(duckdb_rows(table.loaded.metadata_location))
        assert len(before) == 57
        outcome = outcome_of(
            table.maintain(operations="compact", strategy="sort", sort_order="id desc"), Operation.COMPACT
        )
        assert outcome.status is Status.SUCCEEDED, outcome
        assert outcome.metrics["compact.rows_deleted"] == 3
        assert outcome.metrics["compact.delete_files_removed"] == 3
        assert canonical(duckdb_rows(table.loaded.metadata_location)) == before


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(("engine", "gone"), [("local", False), ("spark", False), ("local", True)], indirect=["engine"])
def test_an_unreadable_input_is_left_out_of_a_sort_by_all_workers(
    table: MaintainedTable, engine: Engine, *, gone: bool
) -> None:
    """The sample finds a missing file; a split finds damage in another column, and then the lanes' files are removed
    (rule: leave-out-unreadable-files)."""
    fill(table, 6, 8_000)
    victim = Path(normalise(table.data_files()[3].file_path))
    chunk = pq.ParquetFile(victim).metadata.row_group(0).column(1)  # not the sampled column
    data = bytearray(victim.read_bytes())
    start = chunk.dictionary_page_offset
    data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    victim.unlink() if gone else victim.write_bytes(data)
    before, paths = table.unreferenced(), {file.file_path for file in table.data_files()}
    outcome = table.run(Operation.COMPACT, engine=engine, min_input_files="5", target_file_size_mb="0.04", **BY_ID)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["compact.files_merged"] == 5
    assert f"{victim.name} {'does not exist' if gone else 'cannot be read: '}" in outcome.summary
    left = [file for file in table.data_files() if file.file_path in paths]
    assert [normalise(file.file_path) for file in left] == [str(victim)]
    assert table.unreferenced() == before


def test_the_snapshot_records_the_recipe(table: MaintainedTable) -> None:
    """So it survives the loss of the state.  A dry run or an invalid call records nothing."""
    fill(table, 5, 100)
    with pytest.raises(PolicyError, match="strategy sort needs an order and the table has none; set sort_order"):
        table.maintain("compact", strategy="sort")
    assert len(table.data_files()) == 5
    outcome = compacted(table, dry_run=True, **BY_ID)
    assert outcome.summary == "would compact 5 files into 1 (across 1 bins)"
    assert compacted(table, **BY_ID).metrics["compact.files_merged"] == 5
    assert table.metadata.current_snapshot is not None
    assert (
        table.metadata.current_snapshot.summary["icekeeper.recipe"]
        == "sort(1 identity asc nulls-first) target=268435456"
    )
    table.state.path.unlink()
    assert compacted(table, **BY_ID, min_input_files="2").reason == NOTHING_ELIGIBLE


@pytest.mark.usefixtures("little_memory")
def test_a_group_larger_than_expected_is_sorted_by_all_workers(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The single worker stops before its memory is full."""
    monkeypatch.setattr(cluster_work, "PIECE_BYTES", 512 * 1024)
    monkeypatch.setattr(dispatch, "fits_one_worker", lambda *_: True)
    fill(table, 6, 20_000)
    ids = table.ids()
    compacted(table, target_file_size_mb="0.1", **BY_ID)
    assert [i for file in by_lower(table.data_files()) for i in column(file)] == ids
    assert table.verify().problems == ()


def test_merges_of_sorted_files_converge_at_any_compression_ratio(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small sorted files are merged once; tiny files, whose size is mostly overhead, are the worst case."""
    monkeypatch.setattr(exchange, "RANGE_BYTES", 2048)
    monkeypatch.setattr(exchange, "_SPLIT_BYTES", 2048)
    rng = random.Random(11)
    for _ in range(6):
        table.append(*(rng.randrange(10**6) for _ in range(rng.randrange(1, 400))))
        counts = [len(table.data_files())]
        while compacted(table, target_file_size_mb="0.003", min_input_files="2", **BY_ID).reason is None:
            counts.append(len(table.data_files()))
            assert len(counts) < 6
        assert counts[1:] == sorted(set(counts[1:]), reverse=True)


# Clustering again: the record of clustered files, and the table's own sort order.


def test_new_files_are_clustered_without_the_old_files(table: MaintainedTable) -> None:
    """Five new files are sorted together; files sorted before are kept."""
    fill(table, 5, 20_000)
    compacted(table, target_file_size_mb="0.1", **BY_ID)
    old = {file.file_path for file in table.data_files()}
    fill(table, 4, 10_000, seed=1)
    assert compacted(table, target_file_size_mb="0.3", **BY_ID).status is Status.SUCCEEDED  # the target changed
    assert not old & {file.file_path for file in table.data_files()}
    old = {file.file_path for file in table.data_files()}
    fill(table, 4, 100, seed=2)
    assert compacted(table, target_file_size_mb="0.3", **BY_ID).reason == NOTHING_ELIGIBLE
    fill(table, 1, 100, seed=3)
    assert compacted(table, target_file_size_mb="0.3", **BY_ID).metrics["compact.files_merged"] == 5
    now = {file.file_path for file in table.data_files()}
    assert old < now
    assert len(now - old) == 1


def test_clustered_files_are_recognised_after_their_snapshot_expires(table: MaintainedTable) -> None:
    """Entries keep the id of the snapshot that added them, and the state store keeps the recipe."""
    fill(table, 5, 100)
    compacted(table, target_file_size_mb="0.001", **BY_ID)
    clustered = len(table.data_files())
    assert clustered > 2
    table.append(1)
    assert table.run(Operation.EXPIRE_SNAPSHOTS).status is Status.SUCCEEDED
    assert len(table.metadata.snapshots) == 1
    settings = {"target_file_size_mb": "0.001", "min_input_files": "2", **BY_ID}
    assert compacted(table, **settings).reason == NOTHING_ELIGIBLE
    table.state.path.unlink()
    assert compacted(table, **settings).metrics["compact.files_merged"] == clustered + 1


def test_a_change_of_the_recipe_clusters_again_also_back_to_the_first(table: MaintainedTable) -> None:
    """A file counts as clustered by the recipe that wrote it, not by an earlier recipe of its rows."""
    fill(table, 5, 1000)
    settings = {"target_file_size_mb": "0.001"}
    for order in ("id", "id desc", "id"):
        outcome = compacted(table, strategy="sort", sort_order=order, **settings)
        assert outcome.status is Status.SUCCEEDED
        assert compacted(table, strategy="sort", sort_order=order, **settings).reason == NOTHING_ELIGIBLE
    assert compacted(table, strategy="binpack", **settings).reason == NOTHING_ELIGIBLE


# -- the table's own sort order


def ordered_table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """A table with a sort order by PyIceberg: bucket(8, id) descending nulls last, then id."""
    table = new_table(local_catalog, tmp_path)
    with table.table.update_sort_order() as update:
        update.desc("id", BucketTransform(8), NullOrder.NULLS_LAST).asc("id", IdentityTransform())
    return table


def test_auto_sorts_by_the_tables_order_and_sets_its_id_in_the_entries(
    local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    """Entries have ``sort_order_id`` only if the whole file is sorted by that order."""
    table = ordered_table(local_catalog, tmp_path)
    fill(table, 5, 200)
    order_id = table.table.sort_order().order_id
    compacted(table)
    (file,) = table.data_files()
    assert file.sort_order_id == order_id > 0
    bucket = BucketTransform[int](8).transform(LongType())
    assert column(file) == sorted(table.ids(), key=lambda i: (-(bucket(i) or 0), i))
    assert compacted(table).reason == NOTHING_ELIGIBLE
    with table.table.update_schema() as update:
        update.rename_column("id", "number")
    assert compacted(table, min_input_files="2").reason == NOTHING_ELIGIBLE, "orders go by field id"
    with table.table.update_schema() as update:
        update.rename_column("number", "id")
    others: list[dict[str, Any]] = [{"strategy": "binpack"}, BY_ID, {"strategy": "zorder", "sort_order": "id"}]
    for seed, settings in enumerate(others):
        fill(table, 1, 200, seed=seed)
        compacted(table, rewrite_all="true", **settings)
        assert [file.sort_order_id for file in table.data_files()] == [None], settings


@pytest.mark.usefixtures("little_memory")
def test_files_along_a_curve_do_not_overlap(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """The bounds of skewed columns do not overlap when several workers share the sort."""
    arrow = pa.schema([("id", pa.int64()), ("other", pa.int64())])
    table = new_table(local_catalog, tmp_path, schema=arrow)
    rng = random.Random(5)
    for _ in range(6):
        values = [[int(10 ** (12 * rng.random() ** 3)) + rng.randrange(10**6) for _ in range(3_000)] for _ in range(2)]
        table.table.append(pa.table({"id": values[0], "other": values[1]}, schema=arrow))
    before = both_read(table)
    settings = {"strategy": "zorder", "sort_order": "id,other", "target_file_size_mb": "0.008"}
    compacted(table, **settings)
    assert len(table.data_files()) > 8
    boxes = [(bounds(file, 1), bounds(file, 2)) for file in table.data_files()]
    for left, right in combinations(boxes, 2):
        assert any(a[1] < b[0] or b[1] < a[0] for a, b in zip(left, right, strict=True))
    assert both_read(table) == before
    assert compacted(table, **settings).reason == NOTHING_ELIGIBLE


# Sorted runs of several rounds over the same keys: merged once, and recognised without the state.

FACTOR, LIMIT = 3, 2
SETTINGS = {"strategy": "sort", "sort_order": "id", "target_file_size_mb": "0.01", "min_input_files": "5"}


@pytest.fixture
def low_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two runs over a value and three of a tier, so that a few rounds suffice."""
    monkeypatch.setattr(plan_clustering, "MAX_CLUSTERING_DEPTH", LIMIT)
    monkeypatch.setattr(plan_clustering, "TIER_FACTOR", FACTOR)


def run(table: MaintainedTable, **more: object) -> OperationOutcome:
    return table.run(Operation.COMPACT, **(SETTINGS | more))


def opened(table: MaintainedTable) -> int:
    """The most files that any of a few lookups by id opens, by the bounds in the entries."""
    limits: list[tuple[int, int]] = []
    for file in table.data_files():
        low, high = ((bounds or {})[1] for bounds in (file.lower_bounds, file.upper_bounds))
        limits.append((struct.unpack("<q", low)[0], struct.unpack("<q", high)[0]))
    return max(sum(low <= key <= high for low, high in limits) for key in range(50_000, 10**6, 90_001))


@pytest.mark.usefixtures("low_depth")
def test_rounds_over_the_same_keys_are_sorted_together_again(table: MaintainedTable) -> None:
    """Otherwise a lookup would open another file after each round."""
    rng = random.Random(1)
    depths = []
    for number in range(4):
        table.append(*(rng.randrange(10**6) for _ in range(4_000)))
        if number == 2:
            table.state.path.unlink()  # the table itself shows which files are a run
        outcome = run(table)
        assert outcome.reason is None, outcome
        depths.append(opened(table))
        assert run(table).reason == NOTHING_ELIGIBLE
    assert depths == [1, 2, 1, 2]
    assert table.readers_agree() == table.ids()
    assert table.verify().problems == ()


@pytest.mark.usefixtures("low_depth")
def test_metrics_state_the_depth_before_and_after(table: MaintainedTable) -> None:
    rng = random.Random(2)
    for _ in range(3):
        table.append(*(rng.randrange(10**6) for _ in range(4_000)))
    planned = run(table, dry_run=True).metrics
    done = run(table).metrics
    assert planned["compact.depth_before"] == done["compact.depth_before"] == pytest.approx(3.0, abs=0.01)
    assert "compact.depth_after" not in planned
    assert done["compact.depth_after"] == pytest.approx(1.0, abs=0.05)
    head = table.metadata.current_snapshot
    assert head is not None
    counters = lake_counters(table.metadata, head, now_ms=0)
    assert counters["lake_clustering_depth"] == done["compact.depth_after"]
    assert "compact.depth_before" not in table.run(Operation.COMPACT, strategy="binpack", rewrite_all="true").metrics
