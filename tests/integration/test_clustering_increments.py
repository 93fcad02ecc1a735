"""Clustering again: what is remembered of files that are clustered, the table's own sort order, and z-order."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType
from pyspark.sql import SparkSession

from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.clustered_tables import BY_ID, NOTHING_ELIGIBLE, both_read, bounds, column, compacted, fill, limit_memory
from support.maintained_table import MaintainedTable, new_table
from support.readers import pyiceberg_rows


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    return new_table(local_catalog, tmp_path)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_memory(monkeypatch)


@pytest.fixture(params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "local":
        return LocalEngine(1)
    session: SparkSession = request.getfixturevalue("spark_session")
    return SparkEngine(session.sparkContext)


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
    """On skewed columns, by the bounds in the entries: a narrow range touches a quarter of the files, not all.

    No row lies within the bounds of two files.
    """
    arrow = pa.schema([("id", pa.int64()), ("other", pa.int64())])
    table = new_table(local_catalog, tmp_path)
    local_catalog.drop_table("ns.t")
    made = local_catalog.create_table("ns.t", arrow)
    rng = random.Random(5)
    for _ in range(6):
        values = [[int(10 ** (12 * rng.random() ** 3)) + rng.randrange(10**6) for _ in range(8_000)] for _ in range(2)]
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
    assert max(share(1), share(2)) < 0.3
    boxes = [(bounds(file, 1), bounds(file, 2)) for file in table.data_files()]
    for left, right in combinations(boxes, 2):
        assert any(a[1] < b[0] or b[1] < a[0] for a, b in zip(left, right, strict=True))
    assert both_read(table) == before
    assert compacted(table, **settings).reason == NOTHING_ELIGIBLE
