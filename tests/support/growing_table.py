"""A table that changes commit by commit, with live files for planners and summaries for detection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import LiveEntry, Nothing, PartitionValue
from icekeeper.operations.compaction.plan.candidates import TableState
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan, plan_compaction
from icekeeper.policy import Policy, ResolvedPolicy
from icekeeper.state.store import LastSeen, SeenTable
from support.plans import HEAD, HEAD_MS, data_file, live_file, manifest, table
from support.tables import snapshot


@dataclass
class GrowingTable:
    """A table partitioned by a string column; every commit has the counters that Java writes."""

    files: list[LiveEntry] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    version: int = 2
    omitted: frozenset[str] = frozenset()
    """Counters that the writer omits."""
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def metadata(self) -> TableMetadata:
        found = table(self.version)
        head = self.snapshots[-1]["snapshot-id"]
        spec = {"spec-id": 0, "fields": [{"field-id": 1000, "source-id": 1, "name": "p", "transform": "identity"}]}
        changed = {"snapshots": self.snapshots, "current-snapshot-id": head, "partition-specs": [spec]}
        properties = {**(found.document.get("properties") or {}), **self.properties}
        return TableMetadata({**found.document, **changed, "properties": properties})

    @property
    def head(self) -> Snapshot:
        return Snapshot(self.snapshots[-1])

    def commit(
        self,
        added: Sequence[tuple[int, PartitionValue]] = (),
        removed: Sequence[LiveEntry] = (),
        *,
        time_ms: int | None = None,
        more: Mapping[str, str] | None = None,
        is_rewrite: bool = False,
    ) -> None:
        """Add files, given by size and partition, and remove others.  Rows of a rewrite are older than its files."""
        number = HEAD + len(self.snapshots)
        parent = self.snapshots[-1] if self.snapshots else None
        gone = {entry.entry.file.file_path for entry in removed}
        came = [
            live_file(
                data_file(f"s{number}-{i:03}", size, [p]), age=number - is_rewrite, file_age=number, snapshot_id=number
            )
            for i, (size, p) in enumerate(added)
        ]
        self.files = [f for f in self.files if f.entry.file.file_path not in gone] + came
        changed = [entry.entry.file.partition for entry in [*came, *removed]]
        summary = {
            "operation": "replace" if is_rewrite else "overwrite" if removed else "append",
            "total-data-files": str(len(self.files)),
            "total-delete-files": "0",
            "total-files-size": str(sum(f.entry.file.file_size_in_bytes for f in self.files)),
            "added-data-files": str(len(came)),
            "deleted-data-files": str(len(removed)),
            "added-files-size": str(sum(f.entry.file.file_size_in_bytes for f in came)),
            "removed-files-size": str(sum(f.entry.file.file_size_in_bytes for f in removed)),
            "changed-partition-count": str(len(set(changed))),
            **(more or {}),
        }
        kept = {key: value for key, value in summary.items() if value != "0" or key.startswith("total-")}
        self.snapshots.append(
            snapshot(
                number,
                format_version=self.version,
                sequence_number=number,
                timestamp_ms=HEAD_MS if time_ms is None else time_ms,
                parent_id=None if parent is None else parent["snapshot-id"],
                summary={key: value for key, value in kept.items() if key not in self.omitted},
            )
        )

    def plan(self, policy: Policy, *, now_ms: int, **clustering: Any) -> CompactionPlan | Nothing:
        state = TableState(self.metadata, self.head, [manifest()], list(self.files))
        return plan_compaction(state, policy, now_ms=now_ms, **clustering)


def idle(found: GrowingTable, resolved: ResolvedPolicy, looked_ms: int = HEAD_MS + HOUR_MS) -> SeenTable:
    """The record of a pass that left no work."""
    last = LastSeen(snapshot_id=found.head.snapshot_id, looked_ms=looked_ms, finished_ms=looked_ms, is_done=True)
    return SeenTable(passes={resolved.digest_over(found.metadata): last})
