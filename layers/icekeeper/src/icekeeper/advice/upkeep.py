"""Advice on what a table's settings cost its upkeep: deletes, metadata log, statistics, formats (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from icekeeper.advice.sql import set_properties
from icekeeper.advice.summary import Advice, TableSummary
from icekeeper.text import counted, size_text

__all__ = ["delete_advice", "format_advice", "metadata_advice", "statistics_advice"]

# Debt that came back after so many passes is how the table is written, not a chance.
RETURNING_PASSES = 3
# So few deleting commits a pass cost less rewritten at once than read by every query and rewritten by the pass.
RARE_COMMITS = 2
# A metadata document is read and written by every commit; with its log of 500 entries it passes 100 KB.
LONGEST_LOG, USUAL_LOG = 500, 100
# Below, planners need no statistics; from a fifth of changed rows on they mislead.
ROWS_WORTH_STATISTICS, STALE_SHARE = 1_000_000, 0.2
AVRO_SHARE = 0.5


def delete_advice(table: TableSummary) -> Iterator[Advice]:
    """Copy-on-write, or deletion vectors, where position deletes return after every pass."""
    found = table.deletes
    if found.passes < RETURNING_PASSES or not found.came_back or found.equalities or not found.positions:
        return
    commits = found.commits / found.passes
    numbers = {
        "passes": found.passes,
        "deleting_commits": found.commits,
        "deleted_rows": found.positions,
        "bytes_rewritten": found.bytes_rewritten,
    }
    message = (
        f"{counted(found.passes, 'pass', 'passes')} applied the deletes of {counted(found.commits, 'commit')} and "
        f"rewrote {size_text(found.bytes_rewritten)}, and deletes came back each time"
    )
    if commits <= RARE_COMMITS:
        modes = {f"write.{kind}.mode": "copy-on-write" for kind in ("delete", "update", "merge")}
        yield Advice(
            "copy_on_write",
            message,
            numbers,
            "the same bytes are rewritten once, by the writer, and readers apply no deletes meanwhile",
            set_properties(table.table, modes),
        )
    elif table.format_version == 2:
        yield Advice(
            "deletion_vectors",
            message,
            numbers,
            "one deletion vector a data file instead of ever more delete files; every reader must know format 3",
            set_properties(table.table, {"format-version": "3"}),
        )


def metadata_advice(table: TableSummary) -> Iterator[Advice]:
    """A metadata log that leaves files behind, or that is so long that every commit carries it."""
    numbers = {"metadata_log": table.metadata_log, "limit": table.metadata_log_limit}
    if table.metadata_log >= table.metadata_log_limit and not table.drops_old_metadata:
        yield Advice(
            "metadata_log",
            f"the metadata log is full with {table.metadata_log} files, and every commit leaves one more behind",
            numbers,
            "one metadata file less in the store with every commit",
            set_properties(table.table, {"write.metadata.delete-after-commit.enabled": "true"}),
        )
    elif table.metadata_log > LONGEST_LOG:
        yield Advice(
            "metadata_log",
            f"the metadata log names {table.metadata_log} files, which every commit reads and writes",
            numbers,
            f"metadata documents with {USUAL_LOG} entries instead",
            set_properties(table.table, {"write.metadata.previous-versions-max": str(USUAL_LOG)}),
        )


def statistics_advice(table: TableSummary) -> Iterator[Advice]:
    """Statistics where planners miss them, or are misled by old ones."""
    found = table.statistics
    if table.records < ROWS_WORTH_STATISTICS or (found.exist and found.changed_share < STALE_SHARE):
        return
    said = "it has no statistics of its columns"
    if found.exist:
        said = f"{found.changed_share * 100:.0f} % of its rows changed since statistics were computed"
    yield Advice(
        "statistics",
        f"the table has {table.records} rows, and {said}",
        {"records": table.records, "changed_share": round(found.changed_share, 2)},
        "planners that choose joins by the number of distinct values",
        shlex.join(("icekeeper", "maintain", table.table, "--operations", "compute_statistics")),
    )


def format_advice(table: TableSummary) -> Iterator[Advice]:
    """A newer format version, or columnar files."""
    if table.format_version == 1 and table.files:
        yield Advice(
            "format_version",
            f"the table is of format version 1, with {counted(table.files, 'data file')}",
            {"format_version": 1, "files": table.files},
            "sequence numbers, row-level deletes and manifests that are inherited; no file is rewritten",
            set_properties(table.table, {"format-version": "2"}),
        )
    rows = table.bytes_by_format.get("AVRO", 0)
    if table.size >= table.target_bytes and rows >= AVRO_SHARE * table.size:
        yield Advice(
            "file_format",
            f"{size_text(rows)} of {size_text(table.size)} are Avro files, which have no bounds and no columns",
            {"avro_bytes": rows, "bytes": table.size},
            "queries read the columns that they need and skip files by bounds; passes merge into Parquet already",
            set_properties(table.table, {"write.format.default": "parquet"}),
        )
