"""Sort and z-order over real tables: rows in order, files that can be skipped, and nothing sorted twice."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.errors import PolicyError
from icekeeper.operations.compaction import run_groups as dispatch
from icekeeper.operations.compaction.clustering import exchange
from icekeeper.operations.compaction.clustering import work as cluster_work
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.paths import normalise
from support.clustered_tables import (
    BY_ID,
    NOTHING_ELIGIBLE,
    both_read,
    by_lower,
    column,
    compacted,
    fill,
    limit_memory,
)
from support.deletes import commit_deletes, create_by_region, equality_delete, position_delete
from support.maintained_table import MaintainedTable, maintained_table, new_table, outcome_of
from support.readers import canonical, duckdb_rows


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


def test_a_group_for_one_worker_is_sorted_into_files_that_do_not_overlap(
    table: MaintainedTable, engine: Engine
) -> None:
    """Every file is sorted, the files follow one another, no row is lost, and a second pass has nothing to do."""
    fill(table, 6, 20_000)
    before = both_read(table)
    compacted(table, engine=engine, target_file_size_mb="0.05", **BY_ID)
    files = by_lower(table.data_files())
    assert len(files) > 1
    assert [i for file in files for i in column(file)] == sorted(table.ids())
    assert both_read(table) == before
    assert compacted(table, target_file_size_mb="0.05", **BY_ID).reason == NOTHING_ELIGIBLE
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
    compacted(table, strategy="sort", sort_order="part", target_file_size_mb="0.05")
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
@pytest.mark.parametrize("gone", [False, True], ids=["damaged", "gone"])
def test_an_input_that_cannot_be_read_is_left_out_of_a_sort_of_all_workers(
    table: MaintainedTable, engine: Engine, *, gone: bool
) -> None:
    """A file that is gone is met by the sample, damage in another column by a split, after which what lanes wrote is
    removed (rule 186)."""
    fill(table, 6, 20_000)
    victim = Path(normalise(table.data_files()[3].file_path))
    chunk = pq.ParquetFile(victim).metadata.row_group(0).column(1)  # not the one that is sampled
    data = bytearray(victim.read_bytes())
    start = chunk.dictionary_page_offset
    data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    victim.unlink() if gone else victim.write_bytes(data)
    before, paths = table.unreferenced(), {file.file_path for file in table.data_files()}
    outcome = table.run(Operation.COMPACT, engine=engine, min_input_files="5", target_file_size_mb="0.1", **BY_ID)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["compact.files_merged"] == 5
    assert f"{victim.name} {'does not exist' if gone else 'cannot be read: '}" in outcome.summary
    left = [file for file in table.data_files() if file.file_path in paths]
    assert [normalise(file.file_path) for file in left] == [str(victim)]
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
