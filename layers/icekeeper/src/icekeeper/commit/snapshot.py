"""Builds a ``replace`` or ``delete`` snapshot on a head: manifests, manifest list, summary and row ids.

This happens once per commit attempt: ids, sequence numbers, row ids and carried-over manifests all depend on the head.
Source: specification, "Optimistic Concurrency", "Sequence Numbers", "Row Lineage".
"""

from __future__ import annotations

import secrets
import uuid
from collections import Counter
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
from icekeeper.commit.manifest_lanes import ManifestLanes, bytes_per_entry
from icekeeper.errors import PlanStale
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.manifest_write import ManifestBuilder, encode_manifest_list
from icekeeper.metadata.overlap_depth import DEPTH_KEY
from icekeeper.metadata.table_reader import TableReader
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

# Specification, "Snapshots", ``operation``: ``replace`` keeps all rows, ``delete`` only removes rows
# (platform: spark-streams-skip-replace).
REPLACE, DELETE, OVERWRITE = "replace", "delete", "overwrite"
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


@dataclass(frozen=True, slots=True)
class MendedEntry:
    """What replaces an entry of a manifest."""

    becomes: tuple[int, ManifestEntry] | None
    """The spec id and the entry in its place; ``None``: the entry goes."""
    leaves_deleted: bool = False
    """Whether an entry that goes is recorded as DELETED; never for a file that stays live by another entry, because
    changelog readers would report its rows as deleted."""


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

    def mend_entries(
        self,
        mended: Mapping[tuple[str, int], MendedEntry],
        manifests: Sequence[ManifestFile],
        affected: Iterable[str],
        operation: str,
        more: Sequence[Mapping[str, Any]] = (),
    ) -> PreparedCommit:
        """Write the affected manifests anew with some entries mended; ``manifests``: the head's manifests.

        ``mended``: the path of a manifest and the place of an entry in it, counted from 0 over entries of every status.
        All other live entries keep their snapshot ids, sequence numbers and row ids as they are read: a row id that an
        entry inherits depends on the row counts before it, and must not follow a mended count
        (rule: mends-leave-other-entries).
        ``more``: further updates of the same commit, such as a tag that keeps the old head.

        Raises:
            MetadataUnreadable: an affected manifest cannot be read.
        """
        affected, changed = set(affected), ChangedFiles()
        carried = [m for m in manifests if m.manifest_path not in affected and m.may_have_live_files]
        old = [m for m in manifests if m.manifest_path in affected]
        with self._discarding():
            # Counts in the manifest list may be the damage, so none of them decides the size of the new manifests.
            lanes = ManifestLanes(self.metadata, Counter(), bytes_per_entry(()), self._store_manifest)
            for manifest, found in self.reader.entries(old):
                spec_id = manifest.partition_spec_id
                for place, entry in enumerate(found):
                    if entry.is_live:
                        mend = mended.get((manifest.manifest_path, place))
                        for spec, written in self._mended(spec_id, entry, mend, changed):
                            lanes.add(spec, manifest.content, written)
            written_manifests = lanes.written()
            extra = self._extra(written_manifests, carried, old)
            prepared = self._prepare(operation, [*written_manifests, *carried], changed, extra)
        return replace(prepared, updates=[*more, *prepared.updates])

    def _mended(
        self, spec_id: int, entry: ManifestEntry, mend: MendedEntry | None, changed: ChangedFiles
    ) -> Iterator[tuple[int, ManifestEntry]]:
        """What is written for a live entry, with its spec."""
        if mend is None:
            yield spec_id, replace(entry, status=EntryStatus.EXISTING)
        elif mend.becomes is None:
            changed.count(spec_id, entry.file, is_added=False)
            if mend.leaves_deleted:
                yield spec_id, replace(entry, status=EntryStatus.DELETED, snapshot_id=self.snapshot_id)
        else:
            (new_spec, new), old = mend.becomes, entry.file
            if (old.key, old.content_bytes, old.record_count) != (
                new.file.key,
                new.file.content_bytes,
                new.file.record_count,
            ):
                changed.count(spec_id, old, is_added=False)
                changed.count(new_spec, new.file, is_added=True)
            if new.status is EntryStatus.ADDED:
                new = replace(new, snapshot_id=self.snapshot_id)
            yield new_spec, new

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
        self, operation: str, manifests: Sequence[ManifestFile], changed: ChangedFiles, extra: Mapping[str, str]
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
