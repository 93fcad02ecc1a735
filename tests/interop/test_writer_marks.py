"""A streaming sink that starts again after our maintenance finds its last commit, as Iceberg-Java reads the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from icekeeper.machine.clock import HOUR_MS
from icekeeper.report.outcome import PassStatus
from support.java_table import SharedTable
from support.java_writer import JavaTable, JavaTables

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
}
NONE_COMMITTED = -1


def checkpoint(java: JavaTable, job: str, operator: str, number: int) -> None:
    """What Flink's ``IcebergFilesCommitter`` commits."""
    commit = java.table.newAppend().appendFile(java.data_file([{"1": number}], 0, [], "parquet"))
    commit.set("flink.job-id", job).set("flink.operator-id", operator)
    commit.set("flink.max-committed-checkpoint-id", str(number)).commit()


def last_checkpoint(table: Any, job: str, operator: str) -> int:
    """``SinkUtil.getMaxCommittedCheckpointId`` of Iceberg-Java 1.10, on Java's own table."""
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        summary = snapshot.summary()
        if summary.get("flink.job-id") == job and summary.get("flink.operator-id") in (None, operator):
            value = summary.get("flink.max-committed-checkpoint-id")
            if value is not None:
                return int(value)
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)
    return NONE_COMMITTED


def test_sinks_find_their_last_checkpoint_after_a_pass(java_tables: JavaTables, tmp_path: Path) -> None:
    """Two jobs, one of them with two operators: compacted, manifests rewritten, all expired but what they need."""
    properties = {"format-version": "2", "commit.manifest-merge.enabled": "false"}
    java = java_tables.create(SCHEMA, {"spec-id": 0, "fields": []}, properties, tmp_path / "table")
    table = SharedTable(java, tmp_path)
    for number in (1, 2):
        checkpoint(java, "a", "left", 10 + number)
        checkpoint(java, "a", "right", 20 + number)
    checkpoint(java, "b", "only", 31)
    assert table.maintain(operations="compact,expire_snapshots,rewrite_manifests").status is PassStatus.SUCCEEDED
    sinks = (("a", "left"), ("a", "right"), ("b", "only"), ("c", "none"))
    java.table.refresh()
    assert [last_checkpoint(java.table, *sink) for sink in sinks] == [12, 22, 31, NONE_COMMITTED]
    head = java.table.currentSnapshot()
    assert (head.operation(), head.summary().get("flink.max-committed-checkpoint-id")) == ("replace", "31")
    # Once all are taken for dead, only what was carried is left.
    checkpoint(java, "b", "only", 32)
    table.late_ms = 12 * HOUR_MS
    table.maintain(operations="compact,expire_snapshots", writer_mark_retention_hours="6")
    java.table.refresh()
    assert [last_checkpoint(java.table, *sink) for sink in sinks] == [
        NONE_COMMITTED,
        NONE_COMMITTED,
        32,
        NONE_COMMITTED,
    ]
    assert len(list(java.table.snapshots())) == 1
