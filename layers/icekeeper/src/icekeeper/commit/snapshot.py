"""Builds a ``replace`` or ``delete`` snapshot on a head: manifests, manifest list, summary, requirements, updates.

Called once per commit attempt, because ids, sequence numbers, row ids and carried-over manifests all depend on the
head (specification, "Optimistic Concurrency", "Sequence Numbers", "Row Lineage").
"""

from __future__ import annotations

import secrets
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.history import OPERATION_KEY, RUN_ID_KEY, shows_every_commit_since, shows_snapshot
from icekeeper.commit.manifest_size import bytes_per_entry, portions
from icekeeper.commit.row_ids import assign_row_ids
from icekeeper.commit.summary import counted_totals, snapshot_summary
from icekeeper.errors import PlanStale
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.manifest_write import NewSnapshot, encode_manifest, encode_manifest_list
from icekeeper.metadata.overlap_depth import DEPTH_KEY
from icekeeper.metadata.requirements import ref_at, same_table
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile, EntryStatus, FileContent, FileKey, ManifestContent, ManifestEntry, ManifestFile

__all__ = ["RECIPE_KEY", "FileReplacement", "SnapshotWriter"]

_Kind = tuple[int, ManifestContent]
"""One spec and one content type per manifest (rule 34)."""

# Specification, "Snapshots", ``operation``: rows stay the same; rows go and none come (rule 39, platform 78).
REPLACE, DELETE = "replace", "delete"
RECIPE_KEY = "icekeeper.recipe"


@dataclass(frozen=True, slots=True)
class FileReplacement:
    """Replace these live data and delete files by those; rows stay the same."""

    removed: frozenset[FileKey]
    added: tuple[tuple[int, DataFile], ...]
    """Spec id and file."""
    data_sequence_number: int | None
    """The planning snapshot's, given to every added file, so that newer equality deletes still apply (rule 1).
    ``None``: added files get that of the commit."""
    own_sequence_numbers: Mapping[FileKey, int] = field(default_factory=dict)
    """Added files whose data sequence number is another one."""
    recipe: str | None = None
    """The recipe by which the rows of every added file are clustered; it is recorded in the snapshot's summary."""
    clustering_depth: float | None = None
    """How many files a lookup opens after it, on average, among those that the plan chose from; recorded likewise."""
    noted: Mapping[str, str] = field(default_factory=dict)
    """What else the summary tells."""


@dataclass(slots=True)
class SnapshotWriter:
    """Writes one attempt's files; ``staged`` lists what must go if the attempt does not land.

    An attempt that cannot even be prepared discards its files itself: no catalog ever heard of them.
    """

    metadata: TableMetadata
    reader: TableReader
    write: Callable[[str, bytes], None]
    discard: Callable[[Sequence[str]], None]
    branch: str
    run_id: str
    now_ms: int
    operation: str | None = None
    """What it is that commits, for the summary."""
    staged: list[str] = field(default_factory=list)
    snapshot_id: int = field(default_factory=lambda: secrets.randbits(63) or 1)
    attempt_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def head(self) -> Snapshot:
        head = self.metadata.head(self.branch)
        if head is None:
            raise PlanStale(f"branch '{self.branch}' has no snapshot any more")
        return head

    @property
    def sequence_number(self) -> int:
        """The attempt's sequence number: counted over all branches, hence from the table and not the head (rule 4)."""
        return 0 if self.metadata.format_version == 1 else self.metadata.last_sequence_number + 1

    def replace_files(
        self, replacement: FileReplacement, manifests: Sequence[ManifestFile], affected: Iterable[str]
    ) -> PreparedCommit:
        """Swap files; ``manifests`` are the head's, ``affected`` the paths of those that hold removed files.

        Raises:
            PlanStale: a removed file is in none of the affected manifests.
            MetadataUnreadable: an affected manifest cannot be read.
        """
        return self._change_files(REPLACE, replacement, manifests, affected)

    def drop_files(
        self, removed: Iterable[FileKey], manifests: Sequence[ManifestFile], affected: Iterable[str]
    ) -> PreparedCommit:
        """Take files out of the table, and their rows with them; parameters and errors as of :meth:`replace_files`."""
        return self._change_files(DELETE, FileReplacement(frozenset(removed), (), None), manifests, affected)

    def _change_files(
        self, operation: str, replacement: FileReplacement, manifests: Sequence[ManifestFile], affected: Iterable[str]
    ) -> PreparedCommit:
        """Write the manifests of the change.

        Entries marked DELETED get manifests of their own, which every planner skips and the next commit drops.
        """
        affected = set(affected)
        carried = [m for m in manifests if m.manifest_path not in affected and m.may_have_live_files]
        live: dict[_Kind, list[ManifestEntry]] = defaultdict(list)
        deleted: dict[_Kind, list[ManifestEntry]] = defaultdict(list)
        for spec_id, file in replacement.added:
            number = replacement.own_sequence_numbers.get(file.key, replacement.data_sequence_number)
            if self.metadata.format_version == 1:
                number = None
            content = ManifestContent.DATA if file.content is FileContent.DATA else ManifestContent.DELETES
            live[spec_id, content].append(ManifestEntry(EntryStatus.ADDED, self.snapshot_id, number, None, file))
        old = [m for m in manifests if m.manifest_path in affected]
        for manifest, entries in self.reader.entries(old):
            for entry in entries:
                if not entry.is_live:
                    continue
                if entry.file.key in replacement.removed:
                    gone = replace(entry, status=EntryStatus.DELETED, snapshot_id=self.snapshot_id)
                    deleted[manifest.partition_spec_id, manifest.content].append(gone)
                else:
                    live[manifest.partition_spec_id, manifest.content].append(
                        replace(entry, status=EntryStatus.EXISTING)
                    )
        removed = [(spec_id, entry.file) for (spec_id, _), entries in deleted.items() for entry in entries]
        if len({file.key for _, file in removed}) != len(replacement.removed):
            raise PlanStale("a file to be replaced is no longer in the table; plan again")
        entry_bytes = bytes_per_entry(old)
        with self._discarding():
            written = [
                self._write_manifest(spec_id, content, portion)
                for by_kind in (live, deleted)
                for (spec_id, content), entries in sorted(by_kind.items())
                for portion in portions(self.metadata, spec_id, entries, entry_bytes)
            ]
            extra = self._extra(written, carried, old)
            extra.update(replacement.noted)
            if replacement.recipe is not None:
                extra[RECIPE_KEY] = replacement.recipe
            if replacement.clustering_depth is not None:
                extra[DEPTH_KEY] = f"{replacement.clustering_depth:g}"
            manifests = self._counted([*written, *carried])
            counted = counted_totals(manifests)
            summary = snapshot_summary(operation, self.head, replacement.added, removed, extra, counted)
            return self._prepare(manifests, summary)

    def replace_manifests(
        self, written: Sequence[ManifestFile], old: Sequence[ManifestFile], manifests: Sequence[ManifestFile]
    ) -> PreparedCommit:
        """Swap manifests for ones, stored already, that hold the same live entries; ``manifests`` are the head's.

        Their sequence number and snapshot are this attempt's; nothing in the files depends on it.
        """
        gone = {manifest.manifest_path for manifest in old}
        carried = [m for m in manifests if m.manifest_path not in gone and m.may_have_live_files]
        new = [replace(m, sequence_number=self.sequence_number, added_snapshot_id=self.snapshot_id) for m in written]
        with self._discarding():
            extra = self._extra(new, carried, old)
            extra["entries-processed"] = str(sum(manifest.existing_files_count or 0 for manifest in written))
            manifests = self._counted([*new, *carried])
            counted = counted_totals(manifests)
            return self._prepare(manifests, snapshot_summary(REPLACE, self.head, (), (), extra, counted))

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
        """Summary entries: Java's manifest counters, and which operation of which run wrote the snapshot."""
        return {
            RUN_ID_KEY: self.run_id,
            **({} if self.operation is None else {OPERATION_KEY: self.operation}),
            "manifests-created": str(len(written)),
            "manifests-kept": str(len(carried)),
            "manifests-replaced": str(len(old)),
        }

    def _prepare(self, manifests: Sequence[ManifestFile], summary: dict[str, str]) -> PreparedCommit:
        head, version = self.head, self.metadata.format_version
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
            "schema-id": int(self.metadata.current_schema.get("schema-id", 0)),
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
        """The manifests with the counts filled in that a v1 writer left out and that v2 manifest lists require."""
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

    def _write_manifest(self, spec_id: int, content: ManifestContent, entries: Sequence[ManifestEntry]) -> ManifestFile:
        # The last path written is counted, so names never repeat within an attempt.
        path = f"{self.metadata.metadata_directory}/{self.attempt_id}-m{len(self.staged)}.avro"
        encoded = encode_manifest(
            self.metadata,
            spec_id=spec_id,
            content=content,
            entries=entries,
            path=path,
            snapshot=NewSnapshot(self.snapshot_id, self.sequence_number),
        )
        self._store(path, encoded.data)
        return encoded.manifest

    def _store(self, path: str, data: bytes) -> None:
        self.staged.append(path)
        self.write(path, data)


def _counts(manifest: ManifestFile) -> tuple[int | None, ...]:
    return (
        manifest.added_files_count,
        manifest.existing_files_count,
        manifest.deleted_files_count,
        manifest.added_rows_count,
        manifest.existing_rows_count,
        manifest.deleted_rows_count,
    )
