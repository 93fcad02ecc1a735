"""Streaming writers continue beside our maintenance: change streams, and the mark of the last commit."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from icekeeper.machine.clock import HOUR_MS
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassStatus, Status
from support.duckdb_session import DuckDB
from support.java_table import SharedTable
from support.java_writer import JavaTable, JavaTables
from support.maintained_table import outcome_of
from support.model.oracle import named
from support.readers import canonical, pyiceberg_rows

# Change streams in Flink's upsert mode, written by Iceberg-Java's writers, with our compaction in between.

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {"id": 2, "name": "region", "type": "string", "required": True},
        {"id": 3, "name": "amount", "type": "int", "required": False},
    ],
}
BY_REGION = {"spec-id": 0, "fields": [{"name": "region", "transform": "identity", "source-id": 2, "field-id": 1000}]}
UNPARTITIONED: dict[str, Any] = {"spec-id": 0, "fields": []}
KEY = (1, 2)
"""Flink wants the columns of the partitioning among those of the key."""
KEYS = [(number, region) for number in range(12) for region in ("eu", "us")]
CHECKPOINTS = 10


class ChangeStream:
    """A sink in upsert mode: it deletes every key in its partition before it writes the key."""

    def __init__(self, java: JavaTable, format_version: int) -> None:
        self.java = java
        self.state: dict[tuple[int, str], int] = {}
        """What the table must hold."""
        self.format_version = format_version
        self._chance = random.Random(7)
        self._amounts = iter(range(10_000))

    def checkpoint(self) -> None:
        """Eight upserts, one of them of a row of the same checkpoint, and two deletions, in a single commit."""
        written = self._chance.sample(KEYS, 7)
        gone = self._chance.sample(sorted(set(KEYS) - set(written)), 2)
        written.append(written[0])
        amounts = [next(self._amounts) for _ in written]
        rows = [{"1": key[0], "2": key[1], "3": amount} for key, amount in zip(written, amounts, strict=True)]
        self.state |= dict(zip(written, amounts, strict=True))
        for key in gone:
            self.state.pop(key, None)
        files, deletes = [], []
        by_partition: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for row, partition in zip(rows, self.java.partitions(0, rows), strict=True):
            by_partition[partition].append(row)
        for partition, mine in by_partition.items():
            file = self.java.data_file(mine, 0, partition, "parquet")
            files.append(file)
            # Equality deletes do not apply to rows of their own commit: Flink deletes these by position.
            overwritten = [n for n, row in enumerate(mine) if row is rows[0]]
            if overwritten:
                deletes += self._positions(file.location(), overwritten, partition)
        # Flink writes a deletion's key to the partition of the deleted row; an unpartitioned table gets a single file.
        keys = [{"1": key[0], "2": key[1]} for key in (*written, *gone)]
        by_partition.clear()
        for row, partition in zip(keys, self.java.partitions(0, keys), strict=True):
            by_partition[partition].append(row)
        for partition, mine in by_partition.items():
            deletes.append(self.java.equality_deletes(mine, KEY, 0, partition, "parquet"))
        self.java.row_delta(files, deletes)

    def _positions(self, path: str, positions: list[int], partition: tuple[Any, ...]) -> list[Any]:
        if self.format_version > 2:
            return self.java.vectors({path: positions}, 0, partition)
        return [self.java.position_deletes({path: positions}, 0, partition, "parquet")]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [{"id": key[0], "region": key[1], "amount": amount} for key, amount in self.state.items()]


def compact(table: SharedTable, **settings: Any) -> None:
    outcome = outcome_of(table.maintain(operations="compact", **settings), Operation.COMPACT)
    assert outcome.status is Status.SUCCEEDED, outcome
    assert not table.problems()


@pytest.mark.parametrize(
    ("format_version", "spec"), [(2, BY_REGION), (3, UNPARTITIONED)], ids=["v2-partitioned", "v3-unpartitioned"]
)
def test_a_change_stream_continues_over_compactions(
    format_version: int, spec: dict[str, Any], java_tables: JavaTables, duckdb: DuckDB, tmp_path: Path
) -> None:
    """Deletes after a compaction apply to its outputs; applied deletes never apply to rows inserted again."""
    properties = {"format-version": str(format_version), "commit.manifest-merge.enabled": "false"}
    changes = ChangeStream(java_tables.create(SCHEMA, spec, properties, tmp_path / "table"), format_version)
    java, table = changes.java, SharedTable(changes.java, tmp_path)
    lineage = changes.format_version > 2

    def java_reads() -> Any:
        return canonical(named(java.schema, row, {}) for row in java.rows())

    for number in range(1, CHECKPOINTS + 1):
        changes.checkpoint()
        assert java_reads() == canonical(changes.rows)
        if number % 3 == 0:
            before = java.rows(lineage=True) if lineage else []
            # A pass over all files, and a pass during the next checkpoint.
            if number == 6:
                table.engine.during = changes.checkpoint
            compact(table, rewrite_all=str(number != 9).lower())
            table.engine.during = lambda: None
            assert java_reads() == canonical(changes.rows)
            assert canonical(duckdb.rows(table.metadata_location)) == canonical(changes.rows)
            if number == 6:
                assert table.live_deletes()["EQUALITY_DELETES"]
            else:
                assert not table.live_deletes()
                if lineage:
                    assert canonical(java.rows(lineage=True)) == canonical(before)
    compact(table, rewrite_all="true")
    assert not table.live_deletes()
    location = table.metadata_location
    expected = canonical(changes.rows)
    assert java_reads() == canonical(duckdb.rows(location)) == canonical(pyiceberg_rows(location)) == expected


# After our maintenance, a restarted streaming sink finds its last commit through Iceberg-Java.

MARKED_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
}
NONE_COMMITTED = -1


def checkpoint(java: JavaTable, job: str, operator: str, number: int) -> None:
    """Commit as Flink's ``IcebergFilesCommitter`` does."""
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
    """Two jobs, one with two operators, over compaction, rewritten manifests and expiry of all unneeded snapshots."""
    properties = {"format-version": "2", "commit.manifest-merge.enabled": "false"}
    java = java_tables.create(MARKED_SCHEMA, {"spec-id": 0, "fields": []}, properties, tmp_path / "table")
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
    # After the retention of all writers, only the carried mark is left.
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
