"""Tables that other engines wrote go through passes: rows unchanged, nothing needed lost, refusals with reasons."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from icekeeper.demo.measure import read_checksum, read_checksums
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassStatus, Status
from support.corpus import (
    checks,
    corpus_params,
    corpus_table,
    expected,
    table_digest,
)
from support.corpus_cases import (
    IN_PROCESS,
    MANY_ROWS,
    TWO_HEADS,
    agreeing,
    answer,
    assert_done,
    corpus_where,
    idle_afterwards,
    no_crash,
    read_by_java,
)
from support.iceberg_java import IcebergJava
from support.maintained_table import KEEPING_SNAPSHOTS, outcome_of, registered_table
from support.readers import canonical, duckdb_rows, pyiceberg_rows

# Live data files per partition spec and partition, from PyIceberg's scan plan (for dk_legacy_v1 from its manifests).
FILES_PER_PARTITION = {
    "li_w_streams_default_value": (2,),
    "li_partition_evolution": (1, 1, 1, 1, 1, 1, 1),
    "tr_conflict_truncate": (1, 1),
    "tr_timetravel": (3,),
    "dk_name_mapping_t1": (1,),
    "dk_merch_v1": (2,),
    "dk_legacy_v1": (1, 1),
    "dk_lineitem_gz": (1,),
    "dk_struct_filter": (1,),
    "li_bucket_partitioning": (1,),
    "li_identity_partitioning": (1,),
    "li_w_clean_expired_metadata": (1, 1, 1),
    "im_resolution_test": (8, 6, 6),
    "li_partitioning_with_null_value": (1, 1, 1, 1),
    "im_legacy_partition_schema_evolution": (1, 1),
    "dk_column_mapping": (1,),
    "im_alltypes_part": (1,),
}

# Untouched: PyIceberg wants a schema id in the snapshot, or cannot parse inline manifests; DuckDB does not apply the
# name mapping to old snapshots.
SNAPSHOTS_UNREADABLE_BY = {
    "pyiceberg": {"dk_name_mapping_t1", "dk_legacy_v1"},
    "duckdb": {"dk_legacy_v1", "im_resolution_test", "im_legacy_partition_schema_evolution", "im_alltypes_part"},
}


def maintained(name: str) -> bool:
    return bool(checks(name)["append_only_full_pass"])


@pytest.mark.parametrize("rewrite_all", [False, True], ids=["small_files", "every_file"])
@pytest.mark.parametrize("name", corpus_params("append_only_full_pass"))
def test_a_full_pass_changes_no_row(name: str, rewrite_all: bool, tmp_path: Path) -> None:
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    problems = table.problems()
    checksum = None
    if expected(name)["rows"] > MANY_ROWS:
        checksum = read_checksum(found.metadata_path)

    outcome = table.maintain(rewrite_all=str(rewrite_all).lower())

    assert_done(name, outcome)
    compacted = outcome_of(outcome, Operation.COMPACT)
    groups = [files for files in FILES_PER_PARTITION[name] if rewrite_all or files >= 2]
    assert sum(FILES_PER_PARTITION[name]) == expected(name)["live"]["data"][0]
    if groups:
        files, bins = sum(groups), len(groups)
        assert compacted.summary == f"compacted {files} files into {bins} (across {bins} bins)"
    else:
        assert (compacted.status, compacted.reason) == (Status.SKIPPED, "no files eligible for compaction")
    if checksum is not None:
        assert read_checksum(table.metadata_location) == checksum
    else:
        for engine in agreeing(name):
            assert table_digest(found, IN_PROCESS[engine](table.metadata_location, None)) == answer(name), engine
    assert table.problems() <= problems
    if rewrite_all and name != TWO_HEADS:
        # Files of wrong size or manifests with wrong counts are gone, and their snapshots with them.
        assert not table.problems()
    idle_afterwards(table, outcome)


@pytest.mark.parametrize("name", corpus_params("append_only_full_pass"))
def test_every_snapshot_reads_as_before(name: str, tmp_path: Path) -> None:
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    many = expected(name)["rows"] > MANY_ROWS
    snapshots = [int(snapshot_id) for snapshot_id in expected(name)["snapshots"]]

    def answers() -> dict[tuple[str, int], object]:
        location = table.metadata_location
        if many:
            checksums = read_checksums([(location, i) for i in snapshots])
            return {("duckdb", i): checksum for i, checksum in zip(snapshots, checksums, strict=True)}
        return {
            (engine, i): table_digest(found, rows(location, i))
            for engine, rows in IN_PROCESS.items()
            if name not in SNAPSHOTS_UNREADABLE_BY[engine]
            for i in snapshots
        }

    before = answers()
    outcome = table.maintain(**KEEPING_SNAPSHOTS, rewrite_all="true")
    assert_done(name, outcome)
    assert outcome_of(outcome, Operation.COMPACT).status is Status.SUCCEEDED
    assert answers() == before
    assert set(snapshots) < table.reader.metadata.snapshots.keys()
    ours = [snapshot_id for operation in outcome.operations for snapshot_id in operation.snapshot_ids]
    for snapshot_id in [] if many else ours:
        for engine in agreeing(name):
            rows = IN_PROCESS[engine](table.metadata_location, snapshot_id)
            assert table_digest(found, rows) == answer(name), (engine, snapshot_id)


@pytest.mark.parametrize("name", corpus_where(lambda name: read_by_java(name) and maintained(name)))
def test_java_reads_every_snapshot(name: str, tmp_path: Path, iceberg_java: IcebergJava) -> None:
    """Those that were there as before, ours as the head, and the head still after expiry."""
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    theirs = [int(snapshot_id) for snapshot_id in expected(name)["snapshots"]]

    def answers(snapshots: list[int]) -> list[object]:
        location = table.metadata_location
        if expected(name)["rows"] <= MANY_ROWS:
            return [table_digest(found, iceberg_java.rows(location, snapshot_id)) for snapshot_id in snapshots]
        frames = [
            iceberg_java.session.read.format("iceberg").option("snapshot-id", str(snapshot_id)).load(location)
            for snapshot_id in snapshots
        ]
        return [frame.selectExpr("count(*)", "bit_xor(xxhash64(*))").collect() for frame in frames]

    before = answers(theirs)
    outcome = table.maintain(**KEEPING_SNAPSHOTS, rewrite_all="true")
    assert outcome_of(outcome, Operation.COMPACT).status is Status.SUCCEEDED, outcome.summary
    assert answers(theirs) == before
    ours = [snapshot_id for operation in outcome.operations for snapshot_id in operation.snapshot_ids]
    assert len(ours) == 2
    if expected(name)["rows"] > MANY_ROWS:
        assert answers(ours) == before * 2  # this table had one snapshot
        return
    assert answers(ours) == [answer(name)] * 2
    table.maintain()
    assert table_digest(found, iceberg_java.rows(table.metadata_location)) == answer(name)


@pytest.mark.parametrize("name", corpus_where(lambda name: name == "tr_materialized_view"))
def test_lost_statistics_files_do_not_stop_a_pass(name: str, tmp_path: Path) -> None:
    """Trino removed them; with their snapshots the references go."""
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    assert {kind for kind, _ in table.problems()} == {"missing_file"}
    outcome = table.maintain(rewrite_all="true")
    assert outcome.status is PassStatus.SUCCEEDED
    assert outcome_of(outcome, Operation.COMPACT).summary == "compacted 1 files into 1 (across 1 bins)"
    assert not table.problems()
    for engine in agreeing(name):
        assert table_digest(found, IN_PROCESS[engine](table.metadata_location, None)) == answer(name), engine
    idle_afterwards(table, outcome)


@pytest.mark.parametrize("name", corpus_where(lambda name: name == "dk_bigquery"))
def test_a_table_that_no_reader_takes_becomes_readable(name: str, tmp_path: Path) -> None:
    """BigQuery's manifests make every field nullable and leave out the ids; ours do not."""
    found = corpus_table(name, tmp_path)
    rows = pq.read_table(next(found.folder.glob("data/*.parquet"))).to_pylist()
    table = registered_table(found.metadata_path, tmp_path)
    outcome = table.maintain(rewrite_all="true")
    no_crash(outcome)
    assert outcome_of(outcome, Operation.COMPACT).summary == "compacted 1 files into 1 (across 1 bins)"
    # Beside the metadata lies a file named like metadata that is none.
    assert "cannot be parsed, and stay(s)" in outcome_of(outcome, Operation.REMOVE_ORPHANS).summary
    assert canonical(pyiceberg_rows(table.metadata_location)) == canonical(rows)
    assert canonical(duckdb_rows(table.metadata_location)) == canonical(rows)
    assert not table.problems()
