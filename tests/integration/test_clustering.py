"""Sort and z-order over real tables: rows in order, files that can be skipped, and nothing sorted twice."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
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
from icekeeper.engines.local import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.errors import PolicyError
from icekeeper.model import DataFile
from icekeeper.operations.compaction import dispatch
from icekeeper.operations.compaction.clustering import exchange
from icekeeper.operations.compaction.clustering import work as cluster_work
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.storage.paths import normalise
from support.deletes import commit_deletes, create_by_region, equality_delete, position_delete
from support.maintained_table import MaintainedTable, maintained_table, new_table
from support.outcomes import outcome_of
from support.readers import canonical, duckdb_rows, pyiceberg_rows

BY_ID = {"strategy": "sort", "sort_order": "id"}
NOTHING_ELIGIBLE = "no files eligible for compaction"


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    return new_table(local_catalog, tmp_path)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may hold 64 KB: every group is split among workers."""
    monkeypatch.setattr(exchange, "RANGE_BYTES", 64 * 1024)
    monkeypatch.setattr(exchange, "_SPLIT_BYTES", 128 * 1024)
    monkeypatch.setattr(cluster_work, "RUN_BYTES", 32 * 1024)


@pytest.fixture(params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "local":
        return LocalEngine(1)
    session: SparkSession = request.getfixturevalue("spark_session")
    return SparkEngine(session.sparkContext)


def fill(table: MaintainedTable, files: int, rows: int, *, seed: int = 0) -> None:
    """Files of random ids, each all over the range."""
    rng = random.Random(seed)
    for _ in range(files):
        table.append(*(rng.randrange(10**9) for _ in range(rows)))


def compacted(table: MaintainedTable, **more: Any) -> OperationOutcome:
    outcome = table.run(Operation.COMPACT, **{"min_input_files": "5", **more})
    assert outcome.status in (Status.SUCCEEDED, Status.SKIPPED), outcome
    return outcome


def rows_of(file: DataFile) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(normalise(file.file_path)).to_pylist()
    return rows


def column(file: DataFile, name: str = "id") -> list[Any]:
    return [row[name] for row in rows_of(file)]


def bounds(file: DataFile, field_id: int) -> tuple[int, int]:
    """Written bounds of a long column."""
    assert file.lower_bounds is not None
    assert file.upper_bounds is not None
    low, high = struct.unpack("<q", file.lower_bounds[field_id]), struct.unpack("<q", file.upper_bounds[field_id])
    return low[0], high[0]


def by_lower(files: Sequence[DataFile]) -> list[DataFile]:
    return sorted(files, key=lambda file: bounds(file, 1))


def both_read(table: MaintainedTable) -> Counter[tuple[Any, ...]]:
    """Rows without nested values or floats, of which there are many."""
    location = table.loaded.metadata_location
    read = pyiceberg_rows(location), duckdb_rows(location)
    by_pyiceberg, by_duckdb = (Counter(tuple(sorted(row.items())) for row in rows) for rows in read)
    assert by_duckdb == by_pyiceberg
    return by_pyiceberg


def test_a_group_for_one_worker_is_sorted_into_files_that_do_not_overlap(
    table: MaintainedTable, engine: Engine
) -> None:
    """Every file is sorted, the files follow one another, no row is lost, and a second pass has nothing to do."""
    fill(table, 6, 20_000)
    before = both_read(table)
    compacted(table, engine=engine, target_file_size_mb="0.2", **BY_ID)
    files = by_lower(table.data_files())
    assert len(files) > 1
    assert [i for file in files for i in column(file)] == sorted(table.ids())
    assert both_read(table) == before
    assert compacted(table, target_file_size_mb="0.2", **BY_ID).reason == NOTHING_ELIGIBLE
    assert table.verify().problems == ()


@pytest.mark.usefixtures("little_memory")
def test_a_group_for_many_workers_is_sorted_just_so(table: MaintainedTable, engine: Engine) -> None:
    """Split by sampled bounds and exchanged, rows come out as from one worker, whichever engine does it."""
    fill(table, 6, 20_000)
    before = both_read(table)
    outcome = compacted(table, engine=engine, target_file_size_mb="0.05", strategy="sort", sort_order="id desc")
    files = list(reversed(by_lower(table.data_files())))
    assert len(files) >= 6  # of two lanes at least
    assert [i for file in files for i in column(file)] == sorted(table.ids(), reverse=True)
    assert both_read(table) == before
    assert outcome.metrics["compact.files_written"] == len(files)
    again = compacted(table, target_file_size_mb="0.05", strategy="sort", sort_order="id desc")
    assert again.reason == NOTHING_ELIGIBLE


@pytest.mark.usefixtures("little_memory")
def test_rows_of_one_key_stay_in_their_order_and_become_several_files(table: MaintainedTable) -> None:
    """A sort by a column that holds one value keeps the order of rows, also when no worker may hold them all."""
    for n in range(6):
        table.append(*range(n * 20_000, (n + 1) * 20_000))
    compacted(table, strategy="sort", sort_order="part", target_file_size_mb="0.1")
    files = by_lower(table.data_files())
    assert len(files) > 2
    assert [i for file in files for i in column(file)] == list(range(120_000))


@pytest.mark.parametrize("memory", ["enough", "little"])
def test_outputs_are_of_the_target_size(table: MaintainedTable, memory: str, request: pytest.FixtureRequest) -> None:
    """Within a quarter, although sorted rows compress to less than half of what the inputs took."""
    if memory == "little":
        request.getfixturevalue("little_memory")
    rng = random.Random(3)
    for _ in range(12):
        table.append(*(rng.randrange(60_000) for _ in range(20_000)))
    before = sum(file.file_size_in_bytes for file in table.data_files())
    compacted(table, target_file_size_mb="0.05", **BY_ID)
    sizes = [file.file_size_in_bytes / (0.05 * 2**20) for file in table.data_files()]
    assert sum(sizes) * 0.05 * 2**20 < before / 2
    assert len(sizes) > 4
    assert min(sizes) > 0.75
    assert max(sizes) < 1.25


@pytest.mark.usefixtures("little_memory")
def test_a_misled_worker_sorts_in_pieces_and_each_file_is_sorted(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows in a range than may be held at once become files of their own: in order within, but overlapping."""
    monkeypatch.setattr(cluster_work, "PIECE_BYTES", 16 * 1024)
    fill(table, 6, 5_000)
    ids = table.ids()
    compacted(table, **BY_ID)
    files = table.data_files()
    assert len(files) > 6
    assert all(column(file) == sorted(column(file)) for file in files)
    assert table.readers_agree() == ids


# -- increments, and what is remembered


def test_new_files_are_clustered_without_the_old_ones(table: MaintainedTable) -> None:
    """Five new files are sorted among themselves; what was sorted before keeps its files."""
    fill(table, 5, 20_000)
    compacted(table, target_file_size_mb="0.1", **BY_ID)
    old = {file.file_path for file in table.data_files()}
    fill(table, 4, 10_000, seed=1)
    assert compacted(table, target_file_size_mb="0.3", **BY_ID).status is Status.SUCCEEDED  # another target: all anew
    assert not old & {file.file_path for file in table.data_files()}
    old = {file.file_path for file in table.data_files()}
    fill(table, 4, 100, seed=2)
    assert compacted(table, target_file_size_mb="0.3", **BY_ID).reason == NOTHING_ELIGIBLE
    fill(table, 1, 100, seed=3)
    assert compacted(table, target_file_size_mb="0.3", **BY_ID).metrics["compact.files_merged"] == 5
    now = {file.file_path for file in table.data_files()}
    assert old < now
    assert len(now - old) == 1


def test_small_increments_are_merged_in_the_end(table: MaintainedTable) -> None:
    """Every three of them become one, and so do three of those: files never pile up, and each pass settles."""
    for n in range(7):
        fill(table, 3, 10, seed=n)
        compacted(table, min_input_files="3", **BY_ID)
        assert compacted(table, min_input_files="3", **BY_ID).reason == NOTHING_ELIGIBLE
        assert len(table.data_files()) < 3
    assert len(table.ids()) == 7 * 30


def test_what_was_clustered_is_known_when_the_state_is_lost(table: MaintainedTable) -> None:
    """The snapshot itself names its recipe."""
    fill(table, 5, 100)
    compacted(table, **BY_ID)
    assert table.metadata.current_snapshot is not None
    assert (
        table.metadata.current_snapshot.summary["icekeeper.recipe"]
        == "sort(1 identity asc nulls-first) target=268435456"
    )
    table.state.path.unlink()
    assert compacted(table, **BY_ID, min_input_files="2").reason == NOTHING_ELIGIBLE


def test_what_was_clustered_is_known_when_its_snapshot_is_expired(table: MaintainedTable) -> None:
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


def test_another_recipe_clusters_anew_and_going_back_does_too(table: MaintainedTable) -> None:
    """A file is known under the recipe that wrote it, not under one that wrote its rows before."""
    fill(table, 5, 1000)
    settings = {"target_file_size_mb": "0.001"}
    for order in ("id", "id desc", "id"):
        outcome = compacted(table, strategy="sort", sort_order=order, **settings)
        assert outcome.status is Status.SUCCEEDED
        assert compacted(table, strategy="sort", sort_order=order, **settings).reason == NOTHING_ELIGIBLE
    assert compacted(table, strategy="binpack", **settings).reason == NOTHING_ELIGIBLE


def test_a_dry_run_remembers_nothing(table: MaintainedTable) -> None:
    fill(table, 5, 100)
    outcome = compacted(table, dry_run=True, **BY_ID)
    assert outcome.summary == "would compact 5 files into 1 (across 1 bins)"
    assert compacted(table, **BY_ID).metrics["compact.files_merged"] == 5


# -- the table's own sort order


def ordered_table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """With a sort order written by PyIceberg: bucket(8, id) descending nulls last, then id."""
    table = new_table(local_catalog, tmp_path)
    with table.table.update_sort_order() as update:
        update.desc("id", BucketTransform(8), NullOrder.NULLS_LAST).asc("id", IdentityTransform())
    return table


def test_auto_sorts_by_the_tables_order_and_says_so_in_the_entries(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """``sort_order_id`` names the order that was applied to the whole file."""
    table = ordered_table(local_catalog, tmp_path)
    fill(table, 5, 200)
    order_id = table.table.sort_order().order_id
    compacted(table)
    (file,) = table.data_files()
    assert file.sort_order_id == order_id > 0
    bucket = BucketTransform[int](8).transform(LongType())
    assert column(file) == sorted(table.ids(), key=lambda i: (-(bucket(i) or 0), i))
    assert compacted(table).reason == NOTHING_ELIGIBLE


@pytest.mark.parametrize(
    "settings",
    [{"strategy": "binpack"}, BY_ID, {"strategy": "zorder", "zorder_columns": "id"}],
    ids=["binpack", "custom order", "zorder"],
)
def test_no_other_layout_claims_the_tables_order(
    local_catalog: SqlCatalog, tmp_path: Path, settings: dict[str, str]
) -> None:
    table = ordered_table(local_catalog, tmp_path)
    fill(table, 5, 200)
    compacted(table, **settings)
    assert [file.sort_order_id for file in table.data_files()] == [None]


def test_a_renamed_column_keeps_the_order(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """Orders go by field id: nothing is sorted again, and new files are sorted by the renamed column."""
    table = ordered_table(local_catalog, tmp_path)
    fill(table, 5, 200)
    compacted(table)
    with table.table.update_schema() as update:
        update.rename_column("id", "number")
    assert compacted(table, min_input_files="2").reason == NOTHING_ELIGIBLE


# -- z-order


@pytest.mark.usefixtures("little_memory")
def test_z_order_lets_ranges_on_either_column_skip_most_files(
    local_catalog: SqlCatalog, tmp_path: Path, engine: Engine
) -> None:
    """On skewed columns, by the bounds in the entries: a narrow range touches a third of the files, not all."""
    arrow = pa.schema([("id", pa.int64()), ("other", pa.int64())])
    table = new_table(local_catalog, tmp_path)
    local_catalog.drop_table("ns.t")
    made = local_catalog.create_table("ns.t", arrow)
    rng = random.Random(5)
    for _ in range(6):
        values = [[int(10 ** (12 * rng.random() ** 3)) for _ in range(8_000)] for _ in range(2)]
        made.append(pa.table({"id": values[0], "other": values[1]}, schema=arrow))
    before = both_read(table)
    ids = sorted(row["id"] for row in pyiceberg_rows(table.loaded.metadata_location))
    ranges = [(ids[i], ids[i + 2_000]) for i in range(0, 46_000, 2_000)]

    def share(field_id: int) -> float:
        limits = [bounds(file, field_id) for file in table.data_files()]
        hits: list[float] = [sum(low <= b and a <= high for a, b in limits) / len(limits) for low, high in ranges]
        return sum(hits) / len(hits)

    assert min(share(1), share(2)) == 1.0
    settings = {"strategy": "zorder", "zorder_columns": "id,other", "target_file_size_mb": "0.008"}
    compacted(table, engine=engine, **settings)
    assert len(table.data_files()) > 20
    assert max(share(1), share(2)) < 0.4
    assert both_read(table) == before
    assert compacted(table, **settings).reason == NOTHING_ELIGIBLE


# -- deletes and failures


@pytest.mark.parametrize("memory", ["enough", "little"])
def test_deletes_are_applied_while_rows_are_sorted(tmp_path: Path, memory: str, request: pytest.FixtureRequest) -> None:
    """Position and equality deletes of a v2 table; split workers read only the deletes of their own inputs."""
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
def test_an_input_that_cannot_be_read_fails_its_group_and_leaves_nothing(
    table: MaintainedTable, engine: Engine
) -> None:
    """The sample reads another file first; the split that meets the damage is reported, what lanes wrote is removed."""
    fill(table, 6, 20_000)
    victim = Path(normalise(table.data_files()[3].file_path))
    chunk = pq.ParquetFile(victim).metadata.row_group(0).column(1)  # not the one that is sampled
    data = bytearray(victim.read_bytes())
    start = chunk.dictionary_page_offset
    data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    victim.write_bytes(data)
    before = table.unreferenced()
    outcome = table.run(Operation.COMPACT, engine=engine, min_input_files="5", target_file_size_mb="0.1", **BY_ID)
    assert outcome.status is Status.FAILED
    assert outcome.reason is not None
    assert victim.name in outcome.reason
    assert table.unreferenced() == before


def test_a_sort_without_an_order_is_bad_usage_with_what_to_do(table: MaintainedTable) -> None:
    """Before anything runs."""
    fill(table, 5, 10)
    with pytest.raises(PolicyError, match="strategy sort needs an order and the table has none; set sort_order"):
        table.maintain("compact", strategy="sort")
    assert len(table.data_files()) == 5


@pytest.mark.usefixtures("little_memory")
def test_a_group_that_is_larger_than_it_looked_is_handed_to_all_workers(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that was to sort it alone stops before its memory is full."""
    monkeypatch.setattr(cluster_work, "PIECE_BYTES", 512 * 1024)
    monkeypatch.setattr(dispatch, "fits_one_worker", lambda task: True)
    fill(table, 6, 20_000)
    ids = table.ids()
    compacted(table, target_file_size_mb="0.1", **BY_ID)
    assert [i for file in by_lower(table.data_files()) for i in column(file)] == ids
    assert table.verify().problems == ()


@pytest.mark.parametrize("memory", ["enough", "little"])
def test_sorted_files_become_fewer_whatever_their_rows_compress_to(
    table: MaintainedTable, memory: str, request: pytest.FixtureRequest
) -> None:
    """Small sorted files are merged once: tiny files, whose size is mostly overhead, are the worst case."""
    if memory == "little":
        monkeypatch = request.getfixturevalue("monkeypatch")
        monkeypatch.setattr(exchange, "RANGE_BYTES", 2048)
        monkeypatch.setattr(exchange, "_SPLIT_BYTES", 2048)
    rng = random.Random(11)
    for _ in range(8):
        table.append(*(rng.randrange(10**6) for _ in range(rng.randrange(1, 400))))
        counts = [len(table.data_files())]
        while compacted(table, target_file_size_mb="0.003", min_input_files="2", **BY_ID).reason is None:
            counts.append(len(table.data_files()))
            assert len(counts) < 6
        assert counts[1:] == sorted(set(counts[1:]), reverse=True)
