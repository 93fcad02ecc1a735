"""A table that changes commit by commit: live files as planners see them, summaries as detection sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import Snapshot, TableMetadata, table_digest
from icekeeper.model import LiveEntry, Nothing, PartitionValue
from icekeeper.operations.compaction.plan.candidates import TableState
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan, plan_compaction
from icekeeper.policy import Policy, ResolvedPolicy
from icekeeper.state.store import IdleSince, LastSeen
from support.plans import HEAD, HEAD_MS, data_file, live_file, manifest, table
from support.tables import snapshot


@dataclass
class GrowingTable:
    """Partitioned by one text column; every commit has the counters that Java writes."""

    files: list[LiveEntry] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    version: int = 2
    omitted: frozenset[str] = frozenset()
    """Counters that its writer leaves out."""

    @property
    def metadata(self) -> TableMetadata:
        found = table(self.version)
        head = self.snapshots[-1]["snapshot-id"]
        spec = {"spec-id": 0, "fields": [{"field-id": 1000, "source-id": 1, "name": "p", "transform": "identity"}]}
        changed = {"snapshots": self.snapshots, "current-snapshot-id": head, "partition-specs": [spec]}
        return TableMetadata({**found.document, **changed})

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
        """Add files, given by size and partition, and take others out.  Rows of a rewrite are older than its files."""
        number = HEAD + len(self.snapshots)
        parent = self.snapshots[-1] if self.snapshots else None
        gone = {entry.entry.file.file_path for entry in removed}
        came = [
            live_file(
                data_file(f"s{number}-{i:03}", size, [p]),
                age=number - is_rewrite,
                file_age=number,
                snapshot_id=number,
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


def idle(
    found: GrowingTable, resolved: ResolvedPolicy, looked_ms: int = HEAD_MS + HOUR_MS, *, run_id: str | None = None
) -> LastSeen:
    """What a pass remembers that left nothing to do for any operation; one with ``run_id`` did something before."""
    head_id = found.head.snapshot_id
    digest = table_digest(found.metadata)
    record = IdleSince(snapshot_id=head_id, table_digest=digest, looked_ms=looked_ms, run_id=run_id)
    return LastSeen(
        snapshot_id=head_id,
        fingerprint=resolved.fingerprint(),
        finished_ms=looked_ms,
        idle=run_id is None,
        idle_since={operation.value: record for operation in resolved.policy.operations},
    )
