"""Compaction, cleaning and dry runs of tables with random histories."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, note, settings
from hypothesis import strategies as st

from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from support.deletes import commit_deletes, create_by_region, equality_delete, position_delete, rows_of
from support.duckdb_session import DuckDB
from support.examples import NIGHTLY, examples
from support.java_table import SharedTable
from support.java_writer import BY_REGION, ID_AND_REGION, JavaTables
from support.maintained_table import MaintainedTable, assert_agree, dry_run, local_path, maintained_table, outcome_of
from support.model.actions import Step, Verb
from support.model.cleanup import random_cleanup, run_cleanup
from support.model.java_histories import History, HistoryRun, histories, policies
from support.model.oracle import named
from support.readers import CanonicalRows, canonical
from support.scripted_catalog import nothing

# Expiry and orphan removal of tables with random histories: branches, tags, rewrites, rollbacks, crashes.
#
# Iceberg-Java reads every retained snapshot and lists the reachable files.  Every run checks the same twelve cases;
# ``make nightly`` checks two thousand new cases.


@settings(
    derandomize=not NIGHTLY,
    database=None,
    max_examples=examples(12),
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # a history is a number: there is nothing to shrink
)
@given(seed=st.integers(0, 2**63))  # when hypothesis draws every step, histories are short and hardly differ
def test_retained_snapshots_read_as_before_and_no_other_file_is_left(
    seed: int, java_tables: JavaTables, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every retained snapshot and ref is read; every reachable file is kept, every unreachable file is deleted."""
    judge = java_tables.create(ID_AND_REGION, BY_REGION, {}, tmp_path_factory.mktemp("judge"))
    run_cleanup(random_cleanup(seed), judge)


# Compaction of tables with random histories, written by Iceberg-Java, against an oracle that applies deletes naively.
#
# Every run checks the same twenty cases; ``make nightly`` checks two thousand new cases.

# Small limits per pass need several passes, and a file without deletes may move to the current spec only after the
# pass that applied the deletes.
MOST_PASSES = 15


def difference(found: CanonicalRows, expected: Counter[Any]) -> dict[str, list[Any]]:
    """Extra rows and missing rows."""
    both = {"too many": Counter(found) - expected, "missing": expected - Counter(found)}
    return {what: list(rows.elements()) for what, rows in both.items() if rows}


class Case:
    """A table with its history, read by independent engines."""

    def __init__(self, history: History, tables: JavaTables, duckdb: DuckDB, folder: Path) -> None:
        self.history = history
        self.run = HistoryRun(history, tables, folder / "table")
        self.table = SharedTable(self.run.java, folder)
        self._duckdb = duckdb

    def check(self) -> None:
        """Java and DuckDB read the oracle's rows, and verification finds no problem."""
        expected = Counter(canonical(self.run.expected))
        if self._java_can_read():
            assert difference(self.java_rows(), expected) == {}, "Java"
        if self._duckdb_can_read():
            assert difference(canonical(self._duckdb.rows(self.table.metadata_location)), expected) == {}, "DuckDB"
        assert not self.table.problems()

    def _java_can_read(self) -> bool:
        """Java 1.10 fails on equality deletes by a dropped column (platform: java-cannot-read)."""
        columns = {field["id"] for field in self.run.java.schema["fields"]}
        return self.table.live_keys() <= columns

    def _duckdb_can_read(self) -> bool:
        """DuckDB 1.5 applies equality deletes to every partition, reads only Parquet and lacks timestamptz_ns.  It
        fails on manifest lists that predate the upgrade of a v1 table, and on manifests with two types for a partition
        field, which a void field of a v1 table has (platform: duckdb-deletes-every-partition)."""
        if "timestamptz_ns" in local_path(self.table.metadata_location).read_text():  # old schemas count, too
            return False
        if self.history.format_version == 1 and (self.history.upgrades or self._has_void_fields()):
            return False
        deletes, files = self.table.live_deletes(), self.table.live_files()
        return not deletes["EQUALITY_DELETES"] and not any(path.endswith((".orc", ".avro")) for path in files)

    def _has_void_fields(self) -> bool:
        return '"transform":"void"' in local_path(self.table.metadata_location).read_text().replace(" ", "")

    def java_rows(self) -> CanonicalRows:
        schema = self.run.java.schema
        return canonical(named(schema, row, {}) for row in self.run.java.rows())

    def lineage(self) -> CanonicalRows | None:
        """Rows with their ids and last updated sequence numbers, where Java reads them.

        Java's reader gives every row of an Avro or ORC file the id of the file's first row; rows of a table that was
        upgraded to v3 get their ids with the next commit.
        """
        if self.run.format_version < 3 or self.history.upgrades or self.history.file_formats != ("parquet",):
            return None
        return canonical(self.run.java.rows(lineage=True)) if self._java_can_read() else None

    def run_operation(self, operation: Operation, **settings: Any) -> OperationOutcome:
        outcome = outcome_of(self.table.maintain(operations=operation.value, **settings), operation)
        overtaken = "overtaken by other commits" in (outcome.reason or "") and self.history.meanwhile
        assert outcome.status in (Status.SUCCEEDED, Status.SKIPPED) or overtaken, outcome
        return outcome


@settings(
    derandomize=not NIGHTLY,
    database=None,
    max_examples=examples(20),
    suppress_health_check=list(HealthCheck),
    # A failing history prints all its steps; shrinking it takes minutes.
    phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if NIGHTLY else [])],
)
# Found by a nightly run: a promotion widens a stored decimal partition, and a newer delete missed the older file.
@example(
    history=History(
        format_version=2,
        column_types=("int", "boolean", "float", "decimal(9, 2)"),
        file_formats=("parquet",),
        one_row_a_group=False,
        seed=1,
        steps=(Step(Verb.APPEND, 0), Step(Verb.EVOLVE, 0), Step(Verb.KEYS, 0)),
        meanwhile=(),
    ),
    policy={"strategy": "binpack", "rewrite_all": "true", "min_input_files": "2", "output_spec": "current"},
    first="",
)
@given(history=histories(), policy=policies(), first=st.sampled_from(("", "merge", "convert", "convert meanwhile")))
def test_compaction_keeps_the_rows_that_naively_applied_deletes_leave(
    history: History,
    policy: dict[str, str],
    first: str,
    java_tables: JavaTables,
    duckdb: DuckDB,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """This holds for any table, policy and concurrent commits; repeated compaction ends.

    Before, position deletes may be merged or equality deletes converted, also while other writers commit.
    """
    folder = tmp_path_factory.mktemp("history")
    case = Case(history, java_tables, duckdb, folder)
    note("\n".join(["", *case.run.trace]))
    case.check()
    policy = case.run.fitted(policy)
    if first == "merge":
        case.run_operation(Operation.REWRITE_POSITION_DELETES, min_input_files="2")
        case.check()
    lineage = case.lineage()

    def commit_concurrently() -> None:
        nonlocal lineage
        case.table.engine.during = nothing  # no writer interrupts the next part of the pass
        before = len(case.run.trace)
        for step in history.meanwhile:
            case.run.take(step)
        note("\n".join(["meanwhile", *case.run.trace[before:]]))
        lineage = case.lineage()

    case.table.engine.during = commit_concurrently
    if first.startswith("convert"):
        if first == "convert":
            case.table.engine.during = nothing
        case.run_operation(Operation.REWRITE_POSITION_DELETES, convert_equality_deletes="true", min_input_files="2")
        case.check()
        if first == "convert":
            case.table.engine.during = commit_concurrently
    case.run_operation(Operation.COMPACT, **policy)
    case.table.engine.during = nothing
    case.check()
    for passes in itertools.count():
        if case.run_operation(Operation.COMPACT, **policy | {"rewrite_all": "false"}).status is Status.SKIPPED:
            break
        case.check()
        assert passes < MOST_PASSES
    if policy["rewrite_all"] == "true" and "max_files_to_rewrite" not in policy:
        case.run_operation(Operation.COMPACT, **policy)
        case.check()
        assert not case.table.live_deletes()
    after = case.lineage()
    if lineage is not None and after is not None:
        assert difference(after, Counter(lineage)) == {}, "lineage"
    shutil.rmtree(folder)


# For any table, a dry run over several operations reports the figures of the pass right after it.

REGIONS = ("us", "eu")


@dataclass(frozen=True)
class Write:
    """A commit of a writer that adds or deletes rows."""

    kind: str
    region: str
    rows: int


writes = st.builds(
    Write,
    kind=st.sampled_from(["append", "append", "append", "position", "equality"]),
    region=st.sampled_from(REGIONS),
    rows=st.integers(1, 4),
)
settings_of_passes = st.fixed_dictionaries(
    {
        "min_input_files": st.sampled_from(["2", "3", "5"]),
        "max_snapshots_to_keep": st.sampled_from(["1", "2", "4"]),
        "min_manifests_to_rewrite": st.sampled_from(["2", "3"]),
        "partial_progress": st.sampled_from(["0", "1"]),
        "apply_deletes": st.sampled_from(["true", "true", "false"]),
    }
)
operations = st.sampled_from(
    ["all", "all,compute_statistics", "compact,rewrite_manifests", "compact,rewrite_position_deletes,expire_snapshots"]
)


def write(made: MaintainedTable, number: int, change: Write, deleted: Counter[str]) -> None:
    """``deleted``: how many rows of each file are deleted by position; writers delete no row twice."""
    files = [entry.file for entry in made.entries() if entry.file.partition == (change.region,)]
    data = sorted((file.file_path, file.record_count) for file in files if file.content == 0)
    if change.kind == "append" or not data:
        made.table.append(rows_of(number * 10, change.rows, change.region))
    elif change.kind == "position":
        path, rows = data[-1]
        if deleted[path] < rows:
            commit_deletes(made, [position_delete(path, deleted[path], change.region)])
            deleted[path] += 1
    else:
        commit_deletes(made, [equality_delete(number, change.region)])


@settings(max_examples=examples(5), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(history=st.lists(writes, min_size=2, max_size=7), policy=settings_of_passes, asked=operations)
def test_the_pass_does_what_the_dry_run_listed(history: list[Write], policy: dict[str, Any], asked: str) -> None:
    with tempfile.TemporaryDirectory() as folder, maintained_table(Path(folder)) as made:
        create_by_region(made, 1)
        deleted = Counter[str]()
        for number, change in enumerate(history, 2):
            write(made, number, change, deleted)
        listed = dry_run(made, asked, **policy)
        assert_agree(listed, made.maintain(asked, **policy))
        made.assert_sound()
