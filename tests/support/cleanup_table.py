"""A table that Iceberg-Java makes and we clean, which remembers what its snapshots held.

Nothing here asks our own code what a table needs: rows are read and references followed by Iceberg-Java.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from icekeeper.metadata.document import MAIN
from icekeeper.model import FileContent
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.storage.paths import normalise
from support.cleanup_histories import CleanupHistory
from support.counted_steps import counted_steps
from support.java_writer import JavaTable, JavaTables
from support.outcomes import outcome_of
from support.shared_table import SharedTable

_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {"id": 2, "name": "part", "type": "string", "required": False},
    ],
}
_EAGER: dict[str, Any] = {"min_input_files": "2", "min_manifests_to_rewrite": "2"}
_LATER_MS = 100 * 3_600_000
_METADATA = ".metadata.json"


class Killed(BaseException):
    """The process ends here, whatever it was about to tidy up."""


class CleanupTable:
    """A table being made and cleaned; ``trace`` tells what every step came to."""

    def __init__(self, history: CleanupHistory, tables: JavaTables, folder: Path) -> None:
        properties = {
            "format-version": str(history.format_version),
            "commit.manifest-merge.enabled": str(history.merges_manifests).lower(),
            "commit.manifest.min-count-to-merge": "3",
        }
        self.folder = folder / "table"
        self.java: JavaTable = tables.create(_SCHEMA, {"spec-id": 0, "fields": []}, properties, self.folder)
        self.table = SharedTable(self.java, folder)
        self.trace: list[str] = []
        self.pinned: set[int] = set()
        self.aging: set[str] = set()
        """Refs that are too old a millisecond after their snapshot."""
        self.staged: set[str] = set()
        """Files that a load still waits for."""
        self.held: dict[int, list[str]] = {}
        self.made: dict[str, Any] = {}
        self.format_version = history.format_version
        self._names = 0

    def remember(self) -> None:
        """Read every snapshot that is new."""
        for snapshot_id in self.snapshots - self.held.keys():
            self.held[snapshot_id] = self._rows(snapshot_id)

    # -- what is there

    @property
    def snapshots(self) -> set[int]:
        return {snapshot.snapshotId() for snapshot in self.java.table.snapshots()}

    @property
    def refs(self) -> dict[str, int]:
        return {name: ref.snapshotId() for name, ref in dict(self.java.table.refs()).items()}

    def changed_snapshots(self) -> dict[int, tuple[list[str], list[str]]]:
        """Retained ones that read otherwise than when they were new: before and now."""
        found = {i: (self.held[i], self._rows(i)) for i in self.snapshots & self.held.keys()}
        return {i: rows for i, rows in found.items() if rows[0] != rows[1]}

    def _rows(self, snapshot_id: int) -> list[str]:
        return sorted(json.dumps(row) for row in json.loads(self.java.rows_of(snapshot_id)))

    @property
    def on_disk(self) -> set[str]:
        return {str(path) for path in self.folder.rglob("*") if path.is_file()}

    @property
    def reachable(self) -> set[str]:
        return {normalise(path) for path in self.java.reachable()}

    def left_over(self) -> set[str]:
        """What lies there and nothing needs; metadata files that some catalog may know (rule 97) apart."""
        oldest_ms = min(snapshot.timestampMillis() for snapshot in self.java.table.snapshots())
        found = self.on_disk - self.reachable - self.staged
        return {p for p in found if not (p.endswith(_METADATA) and Path(p).stat().st_mtime * 1000 >= oldest_ms)}

    # -- cleaning

    def expire(self, **settings: str) -> OperationOutcome:
        return self.ours(Operation.EXPIRE_SNAPSHOTS, **settings)

    def sweep(self) -> OperationOutcome:
        self.table.late_ms = _LATER_MS
        try:
            return self.ours(Operation.REMOVE_ORPHANS)
        finally:
            self.table.late_ms = 0

    def ours(self, operation: Operation, **settings: Any) -> OperationOutcome:
        """One operation of ours, which must not fail."""
        outcome = outcome_of(self.table.maintain(operations=operation.value, **_EAGER, **settings), operation)
        assert outcome.status in (Status.SUCCEEDED, Status.SKIPPED), outcome
        self.trace.append(f"  {outcome.summary}")
        return outcome

    def killed_at(self, step: int, work: Callable[[], object]) -> None:
        """Do work in a process that ends at its n-th step outwards."""
        with counted_steps(self.table.catalog, step, Killed) as steps, suppress(Killed):
            work()
        self.trace.append(f"  killed at {steps.where}" if steps.where else "  done before the end came")

    # -- choices

    def new_file(self, chance: random.Random) -> Any:
        rows = [self.new_row(chance) for _ in range(chance.randint(1, 3))]
        if self.java.spec["fields"]:
            rows = [{**row, "2": rows[0]["2"]} for row in rows]
        partition = self.java.partitions(self.spec_id, rows)[0]
        made = self.java.data_file(rows, self.spec_id, partition, "parquet")
        self.made[str(made.location())] = made
        return made

    def new_row(self, chance: random.Random) -> dict[str, Any]:
        return {"1": chance.randrange(20), "2": chance.choice("abc")}

    @property
    def spec_id(self) -> int:
        return int(self.java.spec["spec-id"])

    @property
    def branches(self) -> list[str]:
        return sorted(n for n, ref in dict(self.java.table.refs()).items() if ref.isBranch() and n != MAIN)

    def some_snapshot(self, chance: random.Random) -> int:
        there = self.snapshots
        return chance.choice([i for i in self.held if i in there])  # as they were made: ids are random

    def live_file(self, chance: random.Random) -> tuple[str, int, tuple[Any, ...]] | None:
        """A data file of the current snapshot: path, spec, partition."""
        reader = self.table.reader
        head = reader.metadata.current_snapshot
        assert head is not None
        found = [
            (entry.file.file_path, manifest.partition_spec_id, entry.file.partition)
            for manifest, entries in reader.entries(reader.manifests(head))
            for entry in entries
            if entry.is_live and entry.file.content is FileContent.DATA
        ]
        return chance.choice(sorted(found)) if found else None

    def new_name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"
