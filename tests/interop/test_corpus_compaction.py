"""Tables that other engines wrote, every file rewritten: deletes, format v3, clustering and row lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.rows.arrow_schema import leaf_columns
from support.corpus import (
    checks,
    corpus_table,
    expected,
    row_lineage,
    table_digest,
)
from support.corpus_cases import (
    IN_PROCESS,
    MANY_ROWS,
    agreeing,
    answer,
    corpus_where,
    has_deletes,
    idle_afterwards,
    is_v3,
    no_crash,
)
from support.iceberg_java import IcebergJava
from support.maintained_table import MaintainedTable, outcome_of, registered_table
from support.readers import canonical

# A reader that cannot apply equality deletes reads the table once they have been applied.
READERS_WITHOUT_DELETES = ("pyiceberg",)


def java_leaves(name: str, kind: str) -> int:
    """Delete files of a kind that Iceberg-Java's own rewrite of every file leaves; a run that failed tells nothing."""
    result = (expected(name)["java_maintenance"] or {}).get("rewrite_data_files_all", {})
    return int(result.get("live", {}).get(kind, [0])[0])


@pytest.mark.parametrize("name", corpus_where(has_deletes))
def test_deletes_are_applied_for_good(name: str, tmp_path: Path) -> None:
    """Rewriting every file keeps the rows that every reader shows, and leaves no delete file that Java would not."""
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    problems = table.problems()

    outcome = table.maintain(rewrite_all="true")

    no_crash(outcome)
    assert table.problems() <= problems
    for engine in {*agreeing(name), *READERS_WITHOUT_DELETES}:
        assert table_digest(found, IN_PROCESS[engine](table.metadata_location, None)) == answer(name), engine
    if checks(name)["compact"]:
        assert outcome_of(outcome, Operation.COMPACT).status is Status.SUCCEEDED, outcome.summary
        left = table.live_deletes()
        assert left["POSITION_DELETES"] <= java_leaves(name, "posdel")
        assert left["EQUALITY_DELETES"] <= java_leaves(name, "eqdel")
    idle_afterwards(table, outcome)


@pytest.mark.parametrize("name", corpus_where(has_deletes))
def test_deletes_are_left_alone_when_told_so(name: str, tmp_path: Path) -> None:
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    live = table.live_files()
    outcome = table.maintain(rewrite_all="true", apply_deletes="false", operations="compact,expire_snapshots")
    compacted = outcome_of(outcome, Operation.COMPACT)
    assert (compacted.status, compacted.reason) == (
        Status.SKIPPED,
        "compaction skipped: delete manifests present and apply_deletes is disabled",
    )
    assert table.live_files() == live


@pytest.mark.parametrize("name", corpus_where(lambda name: is_v3(name) and not has_deletes(name)))
def test_v3_tables_read_the_same(name: str, tmp_path: Path) -> None:
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    outcome = table.maintain(rewrite_all="true")
    no_crash(outcome)
    compacted = outcome_of(outcome, Operation.COMPACT)
    assert compacted.status is Status.SUCCEEDED, outcome.summary
    for engine in agreeing(name):
        assert table_digest(found, IN_PROCESS[engine](table.metadata_location, None)) == answer(name), engine
    assert not table.problems()


def orderable(table: MaintainedTable) -> list[str]:
    """Columns that rows can be ordered by, outside lists and maps."""
    leaves = leaf_columns(table.reader.metadata.current_schema)
    return [leaf.name for leaf in leaves if not leaf.repeated and leaf.iceberg_type not in ("unknown", "variant")]


@pytest.mark.parametrize("strategy", ["sort", "zorder"])
@pytest.mark.parametrize("name", corpus_where(lambda n: checks(n)["compact"] and expected(n)["rows"] < MANY_ROWS))
def test_clustered_tables_read_the_same(name: str, strategy: str, tmp_path: Path) -> None:
    """By their first orderable columns; every file is rewritten, and again there is nothing to do."""
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    columns = orderable(table)[:2]
    order: dict[str, Any] = (
        {"sort_order": f'"{columns[0]}" desc'} if strategy == "sort" else {"zorder_columns": ",".join(columns)}
    )
    outcome = table.maintain(rewrite_all="true", operations="compact", strategy=strategy, **order)
    assert outcome_of(outcome, Operation.COMPACT).status is Status.SUCCEEDED, outcome.summary
    for engine in {*agreeing(name), *(READERS_WITHOUT_DELETES if has_deletes(name) else ())}:
        assert table_digest(found, IN_PROCESS[engine](table.metadata_location, None)) == answer(name), engine
    again = table.maintain(operations="compact", strategy=strategy, min_input_files="2", **order)
    assert outcome_of(again, Operation.COMPACT).reason == "no files eligible for compaction"


@pytest.mark.parametrize("name", corpus_where(lambda name: name in row_lineage()))
def test_row_lineage_is_what_the_corpus_says(name: str, tmp_path: Path, iceberg_java: IcebergJava) -> None:
    found = corpus_table(name, tmp_path)
    table = registered_table(found.metadata_path, tmp_path)
    outcome = table.maintain(rewrite_all="true", operations="compact")
    assert outcome_of(outcome, Operation.COMPACT).status is Status.SUCCEEDED, outcome.summary
    frame = iceberg_java.session.read.format("iceberg").load(table.metadata_location)
    told = row_lineage()[name]
    assert canonical(row.asDict() for row in frame.select(*told[0]).collect()) == canonical(told)
