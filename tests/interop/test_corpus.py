"""Every operation keeps the rows of tables that other engines wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from icekeeper.demo.measure import read_checksums
from icekeeper.metadata.table_reader import reachable_files
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassOutcome, PassStatus, Status
from support.corpus import (
    RelocatedTable,
    checks,
    corpus_params,
    corpus_root,
    corpus_table,
    expected,
    row_lineage,
    table_digest,
)
from support.iceberg_java import IcebergJava
from support.maintained_table import KEEPING_SNAPSHOTS, MaintainedTable, local_path, outcome_of, registered_table
from support.readers import canonical, duckdb_rows, pyiceberg_rows, read_checksum

# Facts of the corpus about its tables: readers that agree, results of Iceberg-Java, passes that the tables allow.

MANY_ROWS = 20_000

Digest = tuple[int, str] | None
Rows = Callable[[str, int | None], list[dict[str, Any]]]
IN_PROCESS: dict[str, Rows] = {"pyiceberg": pyiceberg_rows, "duckdb": duckdb_rows}


def answer(name: str) -> Digest:
    return expected(name)["rows"], expected(name)["sha"]


def agreeing(name: str) -> list[str]:
    """The in-process readers that read the expected rows from the untouched table."""
    return [engine for engine in IN_PROCESS if any(agreed.startswith(engine) for agreed in expected(name)["agree"])]


def corpus_where(holds: Callable[[str], bool]) -> list[Any]:
    """Table names for ``parametrize``; without a corpus, a single parameter that skips."""
    return [name for name in corpus_params() if corpus_root() is None or holds(name)]


def has_deletes(name: str) -> bool:
    return not {"eqdel", "posdel", "dv"}.isdisjoint(expected(name)["live"])


def is_v3(name: str) -> bool:
    return bool(expected(name)["format_version"] == 3)


# Two writers continued from v4: the first to v7, the second later to v4.1, which is the newest in the corpus.
TWO_HEADS = "dk_name_mapping_t1"


def assert_done(name: str, outcome: PassOutcome) -> None:
    """Check that the pass succeeded; of a table with two heads it deletes no file, because the other may be in use."""
    if name != TWO_HEADS:
        assert outcome.status is PassStatus.SUCCEEDED, outcome.summary
        return
    refused = [part for part in outcome.operations if part.status is Status.REFUSED]
    assert refused
    for part in refused:
        assert part.operation in (Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS)
        assert "has a newer head of the table" in str(part.reason)
        assert part.files_deleted == ()
    no_crash(outcome)


def no_crash(outcome: PassOutcome) -> None:
    """Check that no operation failed, and that each operation that did not succeed gives a reason."""
    assert not [part for part in outcome.operations if part.status is Status.FAILED]
    assert all(part.reason for part in outcome.operations if part.status is not Status.SUCCEEDED)


def idle_afterwards(table: MaintainedTable, first: PassOutcome) -> None:
    """A second pass finds only leftovers of the first pass's last step: the snapshot that its manifests replaced, and
    old metadata files younger than that snapshot (rule: orphans-outlive-the-grace-period)."""
    second = table.maintain()
    superseded = outcome_of(first, Operation.REWRITE_MANIFESTS).status is Status.SUCCEEDED
    for part in second.operations:
        if part.operation is Operation.EXPIRE_SNAPSHOTS and superseded and part.status is Status.SUCCEEDED:
            assert part.metrics["expire_snapshots.snapshots_expired"] == 1
        elif part.operation is Operation.REMOVE_ORPHANS and part.status is Status.SUCCEEDED:
            assert all(superseded and path.endswith(".metadata.json") for path in part.files_deleted)
        else:
            assert part.status in (Status.SKIPPED, Status.REFUSED), part
    assert table.maintain().is_idle


# Files of other engines' tables that expiry and orphan removal delete, compared with Iceberg-Java.


def java_lists(name: str, check: str, key: str) -> bool:
    """Whether the corpus lists the files that Iceberg-Java's procedure removes."""
    procedure = {"expire": "expire_all_but_current", "orphans": "remove_orphan_files_dry"}[check]
    return checks(name)[check] == "known" and key in (expected(name)["java_maintenance"] or {}).get(procedure, {})


def files_in(found: RelocatedTable) -> set[str]:
    return {str(path.relative_to(found.folder)) for path in found.folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", corpus_where(lambda name: java_lists(name, "expire", "deleted")))
def test_expiry_deletes_the_files_that_java_deletes(name: str, tmp_path: Path) -> None:
    """All snapshots except the current snapshot expire."""
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    before = files_in(found)
    outcome = table.maintain(operations="expire_snapshots")
    no_crash(outcome)
    assert before - files_in(found) == set(expected(name)["java_maintenance"]["expire_all_but_current"]["deleted"])


@pytest.mark.parametrize("name", corpus_where(lambda name: checks(name)["expire"] == "java_refuses"))
def test_expiry_succeeds_on_legal_tables_on_which_java_fails(name: str, tmp_path: Path) -> None:
    """It keeps the files of the head, and deletes files that only expired snapshots have."""
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    live, snapshots = table.live_files(), len(table.reader.metadata.snapshots)

    def unreachable() -> set[Path]:
        needed = {local_path(path) for path in reachable_files(table.reader, table.metadata_location)}
        return {path for path in found.folder.rglob("*") if path.is_file()} - needed

    before = unreachable()
    outcome = outcome_of(table.maintain(operations="expire_snapshots"), Operation.EXPIRE_SNAPSHOTS)
    if snapshots == 1:
        assert outcome.reason == "no snapshots to expire"
    else:
        assert outcome.metrics["expire_snapshots.snapshots_expired"] == snapshots - 1
    assert len(table.reader.metadata.snapshots) == 1
    assert table.live_files() == live
    assert not {path for path in live if not local_path(path).exists()}
    assert unreachable() <= before


@pytest.mark.parametrize(
    "name", corpus_where(lambda name: java_lists(name, "orphans", "orphans") and name != TWO_HEADS)
)
def test_orphan_removal_finds_the_orphans_that_java_finds(name: str, tmp_path: Path) -> None:
    """Metadata files and files with names that no Iceberg writer uses are exceptions.

    The harness of the corpus read the table without a catalog, so Java lists the newest metadata file as an orphan.
    Other unlogged metadata files are kept while they are as young as a snapshot: some catalogs' logs omit them.
    """
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    before = files_in(found)
    outcome = table.maintain(operations="remove_orphans")
    no_crash(outcome)
    orphans = set(expected(name)["java_maintenance"]["remove_orphan_files_dry"]["orphans"])
    metadata = {path for path in orphans if path.endswith(".metadata.json")}
    strange = {path for path in orphans if path.endswith((".sql", ".md", "version-hint.txt", "DefaultValues.json"))}
    assert before - files_in(found) == orphans - metadata - strange
    kept, metrics = metadata - {expected(name)["metadata"]}, outcome_of(outcome, Operation.REMOVE_ORPHANS).metrics
    assert metrics["remove_orphans.files_protected"] == len(kept)
    assert metrics["remove_orphans.files_of_other_names"] == len(strange)


# A rewrite of every file of other engines' tables: deletes, format v3 and row lineage.

# Readers that cannot apply equality deletes read the table after compaction has applied them.
READERS_WITHOUT_DELETES = ("pyiceberg",)


def java_leaves(name: str, kind: str) -> int:
    """The number of delete files of a kind after Iceberg-Java's rewrite of every file; 0 for a run that failed."""
    result = (expected(name)["java_maintenance"] or {}).get("rewrite_data_files_all", {})
    return int(result.get("live", {}).get(kind, [0])[0])


@pytest.mark.parametrize("name", corpus_where(lambda name: has_deletes(name) or is_v3(name)))
def test_a_rewrite_applies_deletes_and_keeps_the_rows_of_v3_tables(name: str, tmp_path: Path) -> None:
    """Every reader finds the same rows, and at most as many delete files remain as after Java's rewrite."""
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    problems = table.problems()

    outcome = table.maintain(rewrite_all="true")

    no_crash(outcome)
    assert table.problems() <= problems
    for engine in {*agreeing(name), *(READERS_WITHOUT_DELETES if has_deletes(name) else ())}:
        assert table_digest(found, IN_PROCESS[engine](table.metadata_location, None)) == answer(name), engine
    if checks(name)["compact"] or not has_deletes(name):
        assert outcome_of(outcome, Operation.COMPACT).status is Status.SUCCEEDED, outcome.summary
        left = table.live_deletes()
        assert left["POSITION_DELETES"] <= java_leaves(name, "posdel")
        assert left["EQUALITY_DELETES"] <= java_leaves(name, "eqdel")
    idle_afterwards(table, outcome)


@pytest.mark.parametrize("name", corpus_where(lambda name: name in row_lineage()))
def test_a_rewrite_keeps_the_row_lineage_of_the_corpus(name: str, tmp_path: Path, iceberg_java: IcebergJava) -> None:
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    outcome = table.maintain(rewrite_all="true", operations="compact")
    assert outcome_of(outcome, Operation.COMPACT).status is Status.SUCCEEDED, outcome.summary
    frame = iceberg_java.session.read.format("iceberg").load(table.metadata_location)
    rows = row_lineage()[name]
    assert canonical(row.asDict() for row in frame.select(*rows[0]).collect()) == canonical(rows)


# Passes over other engines' tables: rows unchanged, no reachable file lost, refusals with reasons.

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

# This holds for the untouched tables: PyIceberg requires a schema id in the snapshot, and cannot parse inline
# manifests; DuckDB does not apply the name mapping to old snapshots.
SNAPSHOTS_UNREADABLE_BY = {
    "pyiceberg": {"dk_name_mapping_t1", "dk_legacy_v1"},
    "duckdb": {"dk_legacy_v1", "im_resolution_test", "im_legacy_partition_schema_evolution", "im_alltypes_part"},
}


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
        # The pass removes files of wrong size and manifests with wrong counts with their snapshots.
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


@pytest.mark.parametrize("name", corpus_where(lambda name: name == "tr_materialized_view"))
def test_lost_statistics_files_do_not_stop_a_pass(name: str, tmp_path: Path) -> None:
    """Trino deleted them; expiry removes the references with their snapshots."""
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
def test_a_table_that_no_reader_can_read_becomes_readable(name: str, tmp_path: Path) -> None:
    """BigQuery's manifests make every field nullable and omit field ids; Icekeeper's do not."""
    found = corpus_table(name, tmp_path)
    rows = pq.read_table(next(found.folder.glob("data/*.parquet"))).to_pylist()
    table = registered_table(found.metadata_path, tmp_path)
    outcome = table.maintain(rewrite_all="true")
    no_crash(outcome)
    assert outcome_of(outcome, Operation.COMPACT).summary == "compacted 1 files into 1 (across 1 bins)"
    # A file beside the metadata has the name of a metadata file but other content.
    assert "cannot be parsed and stay(s)" in outcome_of(outcome, Operation.REMOVE_ORPHANS).summary
    assert canonical(pyiceberg_rows(table.metadata_location)) == canonical(rows)
    assert canonical(duckdb_rows(table.metadata_location)) == canonical(rows)
    assert not table.problems()
