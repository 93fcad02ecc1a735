"""A simulated table without data: live files and snapshots that commits and compaction plans change."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.commit.snapshot import RECIPE_KEY
from icekeeper.metadata.delete_scope import DeleteIndex, DeleteIndexBuilder
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import EntryStatus, FileContent, LiveEntry, ManifestEntry, Nothing, PartitionValue
from icekeeper.operations.compaction.plan.bins import FileGroup
from icekeeper.operations.compaction.plan.candidates import TableState
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan, plan_compaction
from icekeeper.policy import Policy
from support.plans import data_file, live_file, manifest
from support.tables import new_document, snapshot

MB = 1024 * 1024
ROW_BYTES = 100
_DELETED_ROW_BYTES = 20


class Arrival(NamedTuple):
    """A data file that a writer or a rewrite adds."""

    partition: PartitionValue
    size: int
    bounds: tuple[bytes, bytes] | None = None
    """Lower and upper bound of the first column."""


@dataclass
class PaperTable:
    """The live files of a table with one partition field, and counters of its changes."""

    policy: Policy
    document: dict[str, Any] = field(default_factory=lambda: new_document("s3://b/t", 2))
    """The metadata without snapshots and refs, which never changes."""
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, LiveEntry] = field(default_factory=dict)
    deletes: list[ManifestEntry] = field(default_factory=list)
    """Equality deletes that apply to the whole table, and position deletes that apply to one file each."""
    manifests: dict[int, set[str]] = field(default_factory=dict)
    """Sequence number of the commit that wrote a data manifest → paths of its live files."""
    clustered_by: set[int] = field(default_factory=set)
    """Ids of the snapshots of sorting rewrites."""
    dead_rows: dict[str, float] = field(default_factory=dict)
    """Path → number of rows that equality deletes have removed from the file."""
    sequence: int = 0
    written: int = 0
    rewritten: int = 0
    newest_ms: dict[PartitionValue, int] = field(default_factory=dict)
    """Partition → time of its newest file."""
    _manifest_of: dict[str, int] = field(default_factory=dict)
    settled: int = 0
    """The number of files that no plan will rewrite, which :meth:`settle` counts and drops."""
    settled_small: int = 0
    settled_bytes: int = 0

    @property
    def data_files(self) -> int:
        return self.settled + len(self.files)

    @property
    def small(self) -> int:
        """The number of small files."""
        limit = self.policy.min_file_size_bytes
        return self.settled_small + sum(live.entry.file.file_size_in_bytes < limit for live in self.files.values())

    @property
    def metadata(self) -> TableMetadata:
        if not self.snapshots:
            return TableMetadata(self.document)
        head = self.snapshots[-1]["snapshot-id"]
        refs = {"main": {"snapshot-id": head, "type": "branch"}}
        ahead = {"current-snapshot-id": head, "last-sequence-number": self.sequence, "refs": refs}
        return TableMetadata(self.document | {"snapshots": self.snapshots} | ahead)

    def write(self, at_ms: int, arrivals: Iterable[Arrival], *, deleted_rows: int = 0) -> None:
        """Commit a writer's new files, with an equality delete of so many rows spread over all older files."""
        arrived = list(arrivals)
        deletes = {"added-delete-files": "1", "added-equality-deletes": str(deleted_rows)} if deleted_rows else {}
        self.commit(at_ms, arrived, {"operation": "overwrite" if deleted_rows else "append", **deletes})
        self.written += sum(arrival.size for arrival in arrived)
        for arrival in arrived:
            self.newest_ms[arrival.partition] = at_ms
        if deleted_rows:
            self._delete(deleted_rows)
            self._count_totals()

    def commit(
        self, at_ms: int, added: Iterable[Arrival], summary: Mapping[str, str], *, planned_at: int | None = None
    ) -> None:
        """Add files in a new snapshot; files of a rewrite get the data sequence number of its plan."""
        self.sequence += 1
        size = count = 0
        for count, arrival in enumerate(added, start=1):
            path = f"{self.sequence}-{count}"
            low, high = arrival.bounds or (None, None)
            bounds: dict[str, Any] = {} if low is None else {"lower_bounds": {1: low}, "upper_bounds": {1: high}}
            rows = max(1, arrival.size // ROW_BYTES)
            file = data_file(path, arrival.size, (arrival.partition,), records=rows, **bounds)
            live = live_file(file, age=self.sequence, snapshot_id=self.sequence)
            entry = replace(live.entry, sequence_number=planned_at or self.sequence)
            self.files[path] = live._replace(entry=entry)
            self.manifests.setdefault(self.sequence, set()).add(path)
            self._manifest_of[path] = self.sequence
            size += arrival.size
        raw = snapshot(self.sequence, format_version=2, sequence_number=self.sequence, timestamp_ms=at_ms)
        raw |= {"summary": {"added-files-size": str(size), "added-data-files": str(count), **summary}}
        if self.snapshots:
            raw["parent-snapshot-id"] = self.snapshots[-1]["snapshot-id"]
        self.snapshots = [*self.snapshots, raw]
        self._count_totals()

    def plan(self, now_ms: int, **clustering: Any) -> CompactionPlan | Nothing:
        """Plan compaction."""
        metadata = self.metadata
        head = metadata.snapshots[self.sequence] if self.snapshots else None
        live = self.files.values()
        state = TableState(metadata, head, [manifest()], live, self._index())
        return plan_compaction(state, self.policy, now_ms=now_ms, **clustering)

    def carry_out(self, plan: CompactionPlan, now_ms: int) -> None:
        """Apply a plan, with outputs of equal sizes."""
        outputs = [
            out
            for group in plan.groups
            for out in _outputs(group, self.files, sum(self.dead_rows.pop(c.file_path, 0.0) for c in group.files))
        ]
        removed = sum(group.total_bytes for group in plan.groups)
        self.rewritten += removed
        needs = dict(plan.delete_needs)
        for candidate in (c for group in plan.groups for c in group.files):
            self._remove(candidate.file_path)
            for entry in candidate.deletes:
                needs[entry.file.key] -= 1
        before = len(self.deletes)
        self.deletes = [entry for entry in self.deletes if needs.get(entry.file.key, 0) > 0]
        counters = {
            "deleted-data-files": len(plan.input_files),
            "removed-files-size": removed,
            "removed-delete-files": before - len(self.deletes),
        }
        recipe = {} if plan.recipe is None else {RECIPE_KEY: plan.recipe.text}
        ours = {"operation": "replace", RUN_ID_KEY: "r", **recipe, **{k: str(n) for k, n in counters.items() if n}}
        self.commit(now_ms, outputs, ours, planned_at=plan.sequence_number)

    def convert(self, now_ms: int) -> bool:
        """Convert equality deletes, if any, into a vector for each data file with deleted rows."""
        if all(entry.file.content is not FileContent.EQUALITY_DELETES for entry in self.deletes):
            return False
        self.commit(now_ms, (), {"operation": "delete", RUN_ID_KEY: "r"})
        self.deletes = []
        for path, live in self.files.items():
            if (rows := int(self.dead_rows.get(path, 0.0))) > 0:
                file = data_file(f"v{self.sequence}-{path}", rows, live.entry.file.partition, records=rows)
                file = replace(
                    file,
                    content=FileContent.POSITION_DELETES,
                    file_format="PUFFIN",
                    referenced_data_file=path,
                    content_offset=4,
                    content_size_in_bytes=rows,
                )
                self.deletes.append(ManifestEntry(EntryStatus.ADDED, self.sequence, self.sequence, self.sequence, file))
        self._count_totals()
        return True

    @property
    def dead_share(self) -> float:
        """The share of deleted rows in the live files."""
        rows = sum(live.entry.file.record_count for live in self.files.values())
        return sum(self.dead_rows.get(path, 0.0) for path in self.files) / max(1, rows)

    def forget_snapshots(self, before_ms: int) -> None:
        """Expire older snapshots except the last five."""
        old = [raw for raw in self.snapshots[:-5] if raw["timestamp-ms"] < before_ms]
        self.snapshots = self.snapshots[len(old) :]

    def settle(self, at_rest_since_ms: int) -> None:
        """Drop large files, and files of partitions without a newer file; call it only without deletes."""
        limit = self.policy.min_file_size_bytes
        for path, live in list(self.files.items()):
            file = live.entry.file
            if file.file_size_in_bytes >= limit or self.newest_ms.get(file.partition[0], 0) < at_rest_since_ms:
                self.settled += 1
                self.settled_small += file.file_size_in_bytes < limit
                self.settled_bytes += file.file_size_in_bytes
                self._remove(path)

    def _remove(self, path: str) -> None:
        del self.files[path]
        number = self._manifest_of.pop(path)
        self.manifests[number].remove(path)
        if not self.manifests[number]:
            del self.manifests[number]

    def _delete(self, rows: int) -> None:
        """Add an equality delete file with the sequence number of the commit that upserts the rows."""
        file = data_file(f"d{self.sequence}", rows * _DELETED_ROW_BYTES, (), records=rows)
        file = replace(file, content=FileContent.EQUALITY_DELETES, equality_ids=(1,))
        self.deletes.append(ManifestEntry(EntryStatus.ADDED, self.sequence, self.sequence, self.sequence, file))
        older = [live.entry.file for live in self.files.values() if live.entry.sequence_number != self.sequence]
        total = sum(item.record_count for item in older)
        for item in older:
            dead = self.dead_rows.get(item.file_path, 0.0) + rows * item.record_count / total
            self.dead_rows[item.file_path] = min(dead, item.record_count)

    def _index(self) -> DeleteIndex:
        builder = DeleteIndexBuilder()
        for entry in self.deletes:
            builder.add(0, entry, is_unpartitioned=True)
        return builder.build()

    def _count_totals(self) -> None:
        """Write the totals into the head's summary."""
        size = self.settled_bytes + sum(live.entry.file.file_size_in_bytes for live in self.files.values())
        kinds = Counter[FileContent]()
        for entry in self.deletes:
            kinds[entry.file.content] += entry.file.record_count
        totals = {
            "total-data-files": self.data_files,
            "total-files-size": size,
            "total-delete-files": len(self.deletes),
            "total-equality-deletes": kinds[FileContent.EQUALITY_DELETES],
            "total-position-deletes": kinds[FileContent.POSITION_DELETES],
            "manifests-created": 1,
            "manifests-kept": max(0, len(self.manifests) - 1),
            "total-records": size // ROW_BYTES,
        }
        head = self.snapshots[-1]
        head["summary"] = {**head["summary"], **{key: str(number) for key, number in totals.items()}}


def _outputs(group: FileGroup, files: Mapping[str, LiveEntry], dead_rows: float) -> Iterator[Arrival]:
    size = max(1, (group.total_bytes - int(dead_rows * ROW_BYTES)) // group.output_count)
    ends = sorted(
        struct.unpack("<q", bound[1])[0]
        for file in (files[c.file_path].entry.file for c in group.files)
        for bound in (file.lower_bounds, file.upper_bounds)
        if bound
    )
    for number in range(group.output_count):
        bounds = None
        if ends:
            # Sorted outputs divide the range of values.
            low, high = (ends[n * (len(ends) - 1) // group.output_count] for n in (number, number + 1))
            bounds = struct.pack("<q", low), struct.pack("<q", high)
        yield Arrival(group.partition[0], size, bounds)
