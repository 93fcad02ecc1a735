"""Builds a ``replace`` or ``delete`` snapshot on a head: manifests, manifest list, summary and row ids.

This happens once per commit attempt: ids, sequence numbers, row ids and carried-over manifests all depend on the head.
Source: specification, "Optimistic Concurrency", "Sequence Numbers", "Row Lineage".
"""

from __future__ import annotations

import math
import secrets
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from icekeeper.commit.attempt import (
    OPERATION_KEY,
    RUN_ID_KEY,
    PreparedCommit,
    assign_row_ids,
    shows_every_commit_since,
    shows_snapshot,
)
from icekeeper.errors import PlanStale
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.manifest_write import (
    ManifestAssembler,
    ManifestBuilder,
    encode_manifest_list,
    partition_types,
)
from icekeeper.metadata.overlap_depth import DEPTH_KEY
from icekeeper.metadata.table_reader import TableReader
from icekeeper.metadata.types import Section, section_of
from icekeeper.metadata.updates import ref_at, same_table
from icekeeper.metadata.writer_marks import carried_marks
from icekeeper.model import (
    DataFile,
    EntryStatus,
    FileContent,
    FileKey,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    PartitionValue,
)

_Kind = tuple[int, ManifestContent]
"""One spec and one content type per manifest."""
_Lane = tuple[bool, int, ManifestContent, Section]
"""Whether its entries are DELETED, spec, content type and section."""

# Specification, "Snapshots", ``operation``: ``replace`` keeps all rows, ``delete`` only removes rows
# (platform: spark-streams-skip-replace).
REPLACE, DELETE = "replace", "delete"
RECIPE_KEY = "icekeeper.recipe"


@dataclass(frozen=True, slots=True)
class FileReplacement:
    """Replace the live data and delete files in ``removed`` by those in ``added``; rows stay the same."""

    removed: frozenset[FileKey]
    added: tuple[tuple[int, DataFile], ...]
    """Spec id and file."""
    data_sequence_number: int | None
    """The planning snapshot's sequence number, for every added file, so that newer equality deletes still apply
    (rule: keep-planning-sequence-number).  ``None``: added files get the commit's number."""
    own_sequence_numbers: Mapping[FileKey, int | None] = field(default_factory=dict)
    """Added files with another data sequence number; ``None``: they get the commit's number."""
    staged: Sequence[str] = ()
    """Added files that only this attempt needs.  They are removed if it does not land."""
    recipe: str | None = None
    """The recipe by which the added files are clustered; it is recorded in the summary."""
    clustering_depth: float | None = None
    """How many of the plan's candidates a lookup opens on average after the commit; recorded in the summary."""
    noted: Mapping[str, str] = field(default_factory=dict)
    """More entries of the summary."""


@dataclass(slots=True)
class SnapshotWriter:
    """Writes the manifests and the manifest list of an attempt.

    The caller removes the files in ``staged`` if the attempt does not land.  If preparing the attempt fails, the
    writer removes them itself.
    """

    metadata: TableMetadata
    reader: TableReader
    write: Callable[[str, bytes], None]
    discard: Callable[[Sequence[str]], None]
    branch: str
    run_id: str
    now_ms: int
    operation: str | None = None
    """The name of the committing operation, for the summary."""
    staged: list[str] = field(default_factory=list)
    snapshot_id: int = field(default_factory=lambda: secrets.randbits(63) or 1)
    attempt_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def head(self) -> Snapshot:
        head = self.metadata.head(self.branch)
        if head is None:
            raise PlanStale(f"branch '{self.branch}' no longer has a snapshot")
        return head

    @property
    def sequence_number(self) -> int:
        """The attempt's sequence number: the table's last number plus 1, because branches share a sequence."""
        return 0 if self.metadata.format_version == 1 else self.metadata.last_sequence_number + 1

    def replace_files(
        self,
        replacement: FileReplacement,
        manifests: Sequence[ManifestFile],
        affected: Iterable[str],
        operation: str = REPLACE,
    ) -> PreparedCommit:
        """Swap files; ``manifests``: the head's manifests; ``affected``: the paths of manifests with removed files.

        DELETED entries are written to separate manifests, which every planner skips and the next commit drops.

        Raises:
            PlanStale: a removed file is in none of the affected manifests.
            MetadataUnreadable: an affected manifest cannot be read.
        """
        affected = set(affected)
        self.staged += replacement.staged
        carried = [m for m in manifests if m.manifest_path not in affected and m.may_have_live_files]
        old = [m for m in manifests if m.manifest_path in affected]
        with self._discarding():
            written, changed = self._rewritten(replacement, old)
            extra = self._extra(written, carried, old)
            extra.update(replacement.noted)
            if replacement.recipe is not None:
                extra[RECIPE_KEY] = replacement.recipe
            if replacement.clustering_depth is not None:
                extra[DEPTH_KEY] = f"{replacement.clustering_depth:g}"
            return self._prepare(operation, [*written, *carried], changed, extra)

    def _rewritten(
        self, replacement: FileReplacement, old: Sequence[ManifestFile]
    ) -> tuple[list[ManifestFile], ChangedFiles]:
        """Write the entries of the old manifests and of the added files into new manifests, one entry at a time."""
        changed, missing = ChangedFiles(), set(replacement.removed)
        entries = Counter((spec_id, _content_of(file)) for spec_id, file in replacement.added)
        for manifest in old:
            live = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
            entries[manifest.partition_spec_id, manifest.content] += live
        lanes = ManifestLanes(self.metadata, entries, bytes_per_entry(old), self._store_manifest)
        for spec_id, file in replacement.added:
            number = replacement.own_sequence_numbers.get(file.key, replacement.data_sequence_number)
            if self.metadata.format_version == 1:
                number = None
            entry = ManifestEntry(EntryStatus.ADDED, self.snapshot_id, number, None, file)
            lanes.add(spec_id, _content_of(file), entry)
            changed.count(spec_id, file, is_added=True)
        for manifest, found in self.reader.entries(old):
            spec_id = manifest.partition_spec_id
            for entry in found:
                if not entry.is_live:
                    continue
                if entry.file.key in replacement.removed:
                    missing.discard(entry.file.key)
                    changed.count(spec_id, entry.file, is_added=False)
                    entry = replace(entry, status=EntryStatus.DELETED, snapshot_id=self.snapshot_id)
                else:
                    entry = replace(entry, status=EntryStatus.EXISTING)
                lanes.add(spec_id, manifest.content, entry)
        if missing:
            raise PlanStale("a file to be replaced is no longer in the table; plan again")
        return lanes.written(), changed

    def drop_files(
        self, removed: Iterable[FileKey], manifests: Sequence[ManifestFile], affected: Iterable[str]
    ) -> PreparedCommit:
        """Remove files and their rows; parameters and errors as in :meth:`replace_files`."""
        return self.replace_files(FileReplacement(frozenset(removed), (), None), manifests, affected, DELETE)

    def replace_manifests(
        self, written: Sequence[ManifestFile], old: Sequence[ManifestFile], manifests: Sequence[ManifestFile]
    ) -> PreparedCommit:
        """Swap the manifests in ``old`` for those in ``written``, which have the same live entries.

        ``manifests`` are the head's.  The new manifests are stored already: nothing in them depends on the attempt.
        """
        gone = {manifest.manifest_path for manifest in old}
        carried = [m for m in manifests if m.manifest_path not in gone and m.may_have_live_files]
        new = [replace(m, sequence_number=self.sequence_number, added_snapshot_id=self.snapshot_id) for m in written]
        with self._discarding():
            extra = self._extra(new, carried, old)
            extra["entries-processed"] = str(sum(manifest.existing_files_count or 0 for manifest in written))
            return self._prepare(REPLACE, [*new, *carried], ChangedFiles(), extra)

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.discard(self.staged)
            raise

    def _extra(
        self, written: Sequence[ManifestFile], carried: Sequence[ManifestFile], old: Sequence[ManifestFile]
    ) -> dict[str, str]:
        """Summary entries: Java's manifest counters, the run and the operation."""
        return {
            RUN_ID_KEY: self.run_id,
            **({} if self.operation is None else {OPERATION_KEY: self.operation}),
            "manifests-created": str(len(written)),
            "manifests-kept": str(len(carried)),
            "manifests-replaced": str(len(old)),
        }

    def _prepare(
        self,
        operation: str,
        manifests: Sequence[ManifestFile],
        changed: ChangedFiles,
        extra: Mapping[str, str],
    ) -> PreparedCommit:
        """The commit of a snapshot with these manifests; ``changed`` and ``extra`` are for the summary."""
        head, version = self.head, self.metadata.format_version
        manifests = self._counted(manifests)
        summary = snapshot_summary(operation, head, changed, extra, counted_totals(manifests))
        lineage: dict[str, int] = {}
        if version >= 3:
            first_row_id = self.metadata.next_row_id
            manifests, next_row_id = assign_row_ids(manifests, first_row_id)
            lineage = {"first-row-id": first_row_id, "added-rows": next_row_id - first_row_id}
        path = f"{self.metadata.metadata_directory}/snap-{self.snapshot_id}-1-{self.attempt_id}.avro"
        data = encode_manifest_list(
            version,
            manifests,
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=head.snapshot_id,
            sequence_number=self.sequence_number,
            first_row_id=lineage.get("first-row-id"),
        )
        self._store(path, data)
        snapshot: dict[str, Any] = {
            "snapshot-id": self.snapshot_id,
            "parent-snapshot-id": head.snapshot_id,
            "timestamp-ms": max(self.now_ms, self.metadata.last_updated_ms, head.timestamp_ms),
            "manifest-list": path,
            "summary": summary,
            "schema-id": self.metadata.current_schema_id,
        }
        if version >= 2:
            snapshot["sequence-number"] = self.sequence_number
        snapshot.update(lineage)
        ref = self.metadata.refs[self.branch]
        keep = {
            "min-snapshots-to-keep": ref.min_snapshots_to_keep,
            "max-snapshot-age-ms": ref.max_snapshot_age_ms,
            "max-ref-age-ms": ref.max_ref_age_ms,
        }
        set_ref = {
            "action": "set-snapshot-ref",
            "ref-name": self.branch,
            "type": "branch",
            "snapshot-id": self.snapshot_id,
            **{key: value for key, value in keep.items() if value is not None},
        }
        return PreparedCommit(
            requirements=[*same_table(self.metadata), ref_at(self.branch, head.snapshot_id)],
            updates=[{"action": "add-snapshot", "snapshot": snapshot}, set_ref],
            landed=partial(shows_snapshot, self.snapshot_id),
            staged=tuple(self.staged),
            snapshot_id=self.snapshot_id,
            cannot_have_landed=partial(shows_every_commit_since, frozenset(self.metadata.snapshots)),
        )

    def _counted(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """The manifests, with counts that a v1 writer left out and that v2 manifest lists require."""
        unknown = [m for m in manifests if None in _counts(m)]
        if not unknown:
            return list(manifests)
        counted: dict[str, ManifestFile] = {}
        for manifest, entries in self.reader.entries(unknown):
            files = dict.fromkeys(EntryStatus, 0)
            rows = dict.fromkeys(EntryStatus, 0)
            for entry in entries:
                files[entry.status] += 1
                rows[entry.status] += entry.file.record_count
            counted[manifest.manifest_path] = replace(
                manifest,
                added_files_count=files[EntryStatus.ADDED],
                existing_files_count=files[EntryStatus.EXISTING],
                deleted_files_count=files[EntryStatus.DELETED],
                added_rows_count=rows[EntryStatus.ADDED],
                existing_rows_count=rows[EntryStatus.EXISTING],
                deleted_rows_count=rows[EntryStatus.DELETED],
            )
        return [counted.get(m.manifest_path, m) for m in manifests]

    def _store_manifest(self, builder: ManifestBuilder) -> ManifestFile:
        path = f"{self.metadata.metadata_directory}/{self.attempt_id}-m{len(self.staged)}.avro"
        encoded = builder.encoded(path, self.snapshot_id, self.sequence_number)
        self._store(path, encoded.data)
        return encoded.manifest

    def _store(self, path: str, data: bytes) -> None:
        self.staged.append(path)
        self.write(path, data)


def _content_of(file: DataFile) -> ManifestContent:
    return ManifestContent.DATA if file.content is FileContent.DATA else ManifestContent.DELETES


def _counts(manifest: ManifestFile) -> tuple[int | None, ...]:
    return (
        manifest.added_files_count,
        manifest.existing_files_count,
        manifest.deleted_files_count,
        manifest.added_rows_count,
        manifest.existing_rows_count,
        manifest.deleted_rows_count,
    )


# Snapshot summaries.

# Total, what adds to it, what subtracts from it, as in Java's SnapshotProducer.updateTotal.
_TOTALS = (
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)


class ChangedFiles:
    """Counts of the files that a snapshot adds and removes, for its summary."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.partitions: set[tuple[int, tuple[PartitionValue, ...]]] = set()

    def count(self, spec_id: int, file: DataFile, *, is_added: bool) -> None:
        """Count a file."""
        self.partitions.add((spec_id, file.partition))
        self._add("added-files-size" if is_added else "removed-files-size", file.content_bytes)
        if file.content is FileContent.DATA:
            self._add("added-data-files" if is_added else "deleted-data-files", 1)
            self._add("added-records" if is_added else "deleted-records", file.record_count)
            return
        kind = "position" if file.content is FileContent.POSITION_DELETES else "equality"
        verb = "added" if is_added else "removed"
        self._add(f"{verb}-delete-files", 1)
        self._add(f"{verb}-{kind}-deletes", file.record_count)
        self._add(f"{verb}-dvs", file.content_offset is not None)

    def _add(self, key: str, amount: int) -> None:
        self.counters[key] = self.counters.get(key, 0) + amount


def snapshot_summary(
    operation: str, parent: Snapshot, changed: ChangedFiles, extra: Mapping[str, str], counted: Mapping[str, int]
) -> dict[str, str]:
    """The summary of a ``replace`` or ``delete`` snapshot.

    As in Java, a total is left out if the parent has none or the result would be negative, because later snapshots
    would inherit a guess.  The marks of streaming writers are copied from the parent, so that they survive its expiry.
    ``counted`` has totals from the manifests, which take precedence.
    """
    counters, partitions = changed.counters, changed.partitions
    summary = {"operation": operation, **carried_marks(parent), **extra}
    summary.update({key: str(amount) for key, amount in counters.items() if amount})
    if partitions:
        summary["changed-partition-count"] = str(len(partitions))
    for total, plus, minus in _TOTALS:
        before = parent.summary.get(total)
        after = counters.get(plus, 0) - counters.get(minus, 0)
        if before is not None and before.isdecimal() and int(before) + after >= 0:
            summary[total] = str(int(before) + after)
    summary.update({total: str(amount) for total, amount in counted.items()})
    return summary


def counted_totals(manifests: Sequence[ManifestFile]) -> dict[str, int]:
    """The totals of a snapshot, summed over its manifests; empty if a v1 writer omitted counts."""
    totals = dict.fromkeys(("total-data-files", "total-delete-files", "total-records"), 0)
    for manifest in manifests:
        files = (manifest.added_files_count, manifest.existing_files_count)
        rows = (manifest.added_rows_count, manifest.existing_rows_count)
        if None in files or None in rows:
            return {}
        is_data = manifest.content is ManifestContent.DATA
        totals["total-data-files" if is_data else "total-delete-files"] += sum(count or 0 for count in files)
        totals["total-records"] += sum(count or 0 for count in rows) if is_data else 0
    return totals


# Sizes of manifests.

# Java's TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
MANIFEST_TARGET_BYTES = 8 * 1024 * 1024
_MOST_MANIFESTS = 10_000
_LARGEST_TARGET_BYTES = 128 * 1024 * 1024


def manifest_target_bytes(metadata: TableMetadata, total_bytes: float) -> int:
    """``commit.manifest.target-size-bytes``, within limits.

    Entries of ``total_bytes`` make at most 10,000 manifests, because every pass reads all of them.  A manifest has at
    most about 128 MB, because it is assembled in memory.
    """
    asked = metadata.property_int("commit.manifest.target-size-bytes", MANIFEST_TARGET_BYTES)
    return min(max(1, asked, math.ceil(total_bytes / _MOST_MANIFESTS)), _LARGEST_TARGET_BYTES)


def manifest_header_bytes(metadata: TableMetadata, spec_id: int, content: ManifestContent) -> int:
    """The bytes of a manifest before its first entry.

    Raises:
        TableUnsupported: manifests of that spec cannot be written.
    """
    return ManifestAssembler(metadata, spec_id, content).header_bytes


def bytes_per_entry(manifests: Iterable[ManifestFile]) -> float:
    """The observed size of one encoded entry, headers included; 1 kB if no entries are known."""
    manifests = list(manifests)
    entries = sum(
        (m.added_files_count or 0) + (m.existing_files_count or 0) + (m.deleted_files_count or 0) for m in manifests
    )
    return max(1.0, sum(m.manifest_length for m in manifests) / entries) if entries else 1024.0


class ManifestLanes:
    """Entries on their way into new manifests; each manifest is stored once it has the target size.

    Entries of different specs, contents or sections never share a manifest, nor do live and DELETED entries.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        entries: Mapping[_Kind, int],
        entry_bytes: float,
        store: Callable[[ManifestBuilder], ManifestFile],
    ) -> None:
        """``entries``: how many entries are expected; ``entry_bytes``: see :func:`bytes_per_entry`."""
        self._metadata, self._entries, self._entry_bytes, self._store = metadata, entries, entry_bytes, store
        self._types: dict[int, list[str]] = {}
        self._filling: dict[_Lane, tuple[ManifestBuilder, int]] = {}
        self._written: dict[_Lane, list[ManifestFile]] = defaultdict(list)

    def add(self, spec_id: int, content: ManifestContent, entry: ManifestEntry) -> None:
        """Raises TableUnsupported: the spec, a transform or a source column is unknown."""
        types = self._types.get(spec_id)
        if types is None:
            types = self._types[spec_id] = partition_types(self._metadata, spec_id)
        section = section_of(types, entry.file.partition) if "uuid" in types else ()
        lane = not entry.is_live, spec_id, content, section
        found = self._filling.get(lane)
        if found is None:
            found = self._filling[lane] = (
                ManifestBuilder(self._metadata, spec_id, content),
                self._most(spec_id, content),
            )
        builder, most = found
        builder.add(entry)
        if builder.count >= most:
            self._end(lane)

    def _most(self, spec_id: int, content: ManifestContent) -> int:
        """The entries of a full manifest."""
        total_bytes = self._entries[spec_id, content] * self._entry_bytes
        return max(1, int(manifest_target_bytes(self._metadata, total_bytes) / self._entry_bytes))

    def _end(self, lane: _Lane) -> None:
        builder, _ = self._filling.pop(lane)
        self._written[lane].append(self._store(builder))

    def written(self) -> list[ManifestFile]:
        """All manifests, once all entries are added: those of live entries first."""
        for lane in sorted(self._filling):
            self._end(lane)
        return [manifest for lane in sorted(self._written) for manifest in self._written[lane]]
