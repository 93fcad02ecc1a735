"""Checks that need nothing but the metadata document (pure).

These are the rules whose violation Iceberg-Java or DuckDB answers with an error (specification, "Table Metadata
Fields", "Snapshots") (rule 47, platform 21).
"""

from __future__ import annotations

from collections.abc import Iterator

from icekeeper.metadata.document import MAIN, TableMetadata
from icekeeper.verification.findings import Problem, ProblemKind

__all__ = ["document_problems"]


def document_problems(metadata: TableMetadata, location: str) -> Iterator[Problem]:
    """Refs to missing snapshots, sequence numbers above the table's, summaries of wrong types, a log out of order."""
    for name, ref in metadata.refs.items():
        if ref.snapshot_id not in metadata.snapshots:
            detail = f"ref '{name}' points at snapshot {ref.snapshot_id}, which is missing"
            yield Problem(ProblemKind.BROKEN_REF, location, detail)
    current = metadata.document.get("current-snapshot-id")
    main = metadata.refs.get(MAIN)
    if current is not None and int(current) != -1 and main is not None and main.snapshot_id != int(current):
        detail = f"current-snapshot-id is {current}, ref 'main' points at {main.snapshot_id}"
        yield Problem(ProblemKind.BROKEN_REF, location, detail)
    for snapshot in metadata.snapshots.values():
        if snapshot.sequence_number > metadata.last_sequence_number:
            detail = (
                f"snapshot {snapshot.snapshot_id} has sequence number {snapshot.sequence_number}, above "
                f"last-sequence-number {metadata.last_sequence_number}"
            )
            yield Problem(ProblemKind.SEQUENCE_NUMBER, location, detail)
        if any(not isinstance(value, str) for value in snapshot.summary.values()):
            detail = f"the summary of snapshot {snapshot.snapshot_id} holds values that are not strings"
            yield Problem(ProblemKind.SUMMARY, location, detail)
    log = [int(entry["timestamp-ms"]) for entry in metadata.document.get("snapshot-log") or ()]
    if log != sorted(log):
        yield Problem(ProblemKind.SEQUENCE_NUMBER, location, "snapshot-log is not in the order of time")
