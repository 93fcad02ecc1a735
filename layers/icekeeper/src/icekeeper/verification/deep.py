"""``icekeeper verify --deep``: read data and delete files of the heads of all refs, and compare them with manifests.

Work is divided into tasks for an engine, and tasks into rounds, so that memory does not grow with the table: entries
are streamed, and each file is read in batches.  Only row ids are kept, as a bitmap, up to a limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeAlias

from pyroaring import BitMap64

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.engines.engine import Engine
from icekeeper.errors import MetadataUnreadable, TableUnsupported
from icekeeper.metadata.delete_scope import DeleteIndex, partition_key
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.table_reader import TableReader, delete_index
from icekeeper.model import FileKey, LiveEntry, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.operations.statistics.plan_statistics import RowFile
from icekeeper.report.activity import Progress
from icekeeper.rows.arrow_schema import arrow_schema, unshredded
from icekeeper.rows.file_rows import why_unreadable
from icekeeper.rows.read_task import make_read_task, with_lineage
from icekeeper.storage.storage import Storage
from icekeeper.verification.checks import Problem, ProblemKind, Verification, superseded_snapshots
from icekeeper.verification.read_files import FilesToRead, read_files

_File: TypeAlias = tuple[ManifestFile, ManifestEntry, tuple[ManifestEntry, ...]]
"""A chosen file, with the vector or the position deletes that matter for its row ids."""
_TASK_BYTES = 128 * 1024 * 1024
_TASK_FILES = 256
_ROUND_TASKS = 64
_MOST_ID_BYTES = 256 * 1024 * 1024
"""The most bytes of the bitmap of row ids; beyond, ids are only compared within each file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How many files are read."""

    share: float = 1.0
    """The share of the files, chosen by a hash of path and :attr:`seed`."""
    since_ms: int | None = None
    """Only files that snapshots since this time added."""
    seed: int = 0

    def takes(self, entry: ManifestEntry, metadata: TableMetadata) -> bool:
        """Whether the file of an entry is read."""
        if self.since_ms is not None and _added_before(self.since_ms, entry, metadata):
            return False
        place = zlib.crc32(f"{self.seed}:{entry.file.file_path}:{entry.file.content_offset}".encode())
        return place < self.share * 2**32


def _added_before(time_ms: int, entry: ManifestEntry, metadata: TableMetadata) -> bool:
    """Whether a file is older than a time; false if nothing shows it, so that the file is read."""
    snapshot = metadata.snapshots.get(entry.snapshot_id or 0)
    if snapshot is not None:
        return snapshot.timestamp_ms < time_ms
    # Its snapshot has expired; sequence numbers rise with time.
    older = (s.sequence_number for s in metadata.snapshots.values() if s.timestamp_ms < time_ms)
    number = entry.sequence_number if entry.file_sequence_number is None else entry.file_sequence_number
    return (number or 0) <= max(older, default=-1)


def verify_deep(
    loaded: LoadedTable, storage: Storage, engine: Engine, extent: Extent, progress: Progress, known: Verification
) -> Verification:
    """``known`` with what the files of the heads of all refs hold.

    Files that ``known`` reports as missing or not allowed are not read again.

    Raises:
        StorageError: the engine failed, or the table's name mapping is malformed.
    """
    return _DeepVerification(loaded, storage, extent, known).run(engine, progress)


class _DeepVerification:
    def __init__(self, loaded: LoadedTable, storage: Storage, extent: Extent, known: Verification) -> None:
        self._loaded, self._storage, self._extent, self._known = loaded, storage, extent, known
        self._metadata = loaded.metadata
        self._reader = TableReader(loaded.metadata, storage.read)
        skipped = (ProblemKind.MISSING_FILE, ProblemKind.NOT_ALLOWED)
        self._skipped = {problem.path for problem in known.problems if problem.kind in skipped}
        self._schema, self._has_lineage = whole_schema(loaded.metadata), False
        if self._metadata.format_version >= 3:
            with suppress(TableUnsupported):  # a column has a reserved name
                self._schema, self._has_lineage = with_lineage(self._schema), True
        self._row_ids = RowIds()
        self._rows_of: dict[str, int] = {}
        """The rows of data files that have deletion vectors."""
        self._seen: set[FileKey] = set()
        self._total = 1
        """About how many files are read."""
        self._done = self._rows = self._unsupported = self._without_variants = 0
        self._problems = list(known.problems)
        self._read: set[str] = set()
        self._unread: dict[str, str] = {}

    def run(self, engine: Engine, progress: Progress) -> Verification:
        heads = self._heads()
        manifests = {m.manifest_path: m for found in heads.values() for m in found if m.may_have_live_files}
        # The newer of two rows with an id is the wrong one.
        data = sorted(_of(manifests.values(), ManifestContent.DATA), key=lambda manifest: manifest.sequence_number)
        deletes = [
            pair for pair in self._entries(_of(manifests.values(), ManifestContent.DELETES)) if self._takes(*pair)
        ]
        self._rows_of = {str(e.file.referenced_data_file): 0 for _, e in deletes if e.file.content_offset is not None}
        current = self._metadata.current_snapshot
        listed = [] if current is None else heads.get(current.snapshot_id, [])
        files = sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests.values())
        self._total = max(1, int(files * self._extent.share))
        compared = {m.manifest_path for m in listed}
        for round_ in _rounds(self._data_files(data, self._deletes_of_rows(listed))):
            self._read_round(round_, compared, engine, progress)
        self._rows_of = {path: rows for path, rows in self._rows_of.items() if rows}
        # The vectors of a Puffin file belong into the same task.
        deletes.sort(key=lambda pair: pair[1].file.file_path)
        for round_ in _rounds((*pair, ()) for pair in deletes):
            self._read_round(round_, set(), engine, progress)
        checked = {"read_files": self._done, "read_rows": self._rows}
        limits = {
            "unsupported_files": self._unsupported,
            "files_without_variants": self._without_variants,
            "uncompared_files": self._row_ids.left_out,
        }
        checked |= {what: count for what, count in limits.items() if count}
        return replace(
            self._known,
            problems=tuple(dict.fromkeys(self._problems)),
            checked={**self._known.checked, **checked},
            read=self._read,
            unread=self._unread,
        )

    def _heads(self) -> dict[int, list[ManifestFile]]:
        """The manifests of the heads of all refs, except tags on a head from before a repair; ``verify`` has reported
        those that cannot be read."""
        heads: dict[int, list[ManifestFile]] = {}
        old = superseded_snapshots(self._metadata)
        named = [self._metadata.snapshots.get(ref.snapshot_id) for ref in self._metadata.refs.values()]
        for snapshot in (self._metadata.current_snapshot, *named):
            if snapshot is not None and snapshot.snapshot_id not in heads and snapshot.snapshot_id not in old:
                with suppress(MetadataUnreadable):
                    heads[snapshot.snapshot_id] = self._reader.manifests(snapshot)
        return heads

    def _deletes_of_rows(self, manifests: Sequence[ManifestFile]) -> DeleteIndex | None:
        """The deletes of the current snapshot, if row ids are compared; ``verify`` has reported a broken index."""
        if self._has_lineage:
            with suppress(MetadataUnreadable):
                return delete_index(self._reader, manifests)
        return None

    def _data_files(self, manifests: Iterable[ManifestFile], index: DeleteIndex | None) -> Iterator[_File]:
        for manifest, entry in self._entries(manifests):
            path = entry.file.file_path
            if path in self._rows_of:
                self._rows_of[path] = entry.file.record_count
            if self._takes(manifest, entry):
                key = partition_key(manifest.partition_spec_id, entry.file.partition)
                found = () if index is None else tuple(index.positions_of(path, key, entry.sequence_number or 0))
                yield manifest, entry, found

    def _entries(self, manifests: Iterable[ManifestFile]) -> Iterator[LiveEntry]:
        """The live entries; ``verify`` has reported manifests that cannot be read."""
        for manifest in manifests:
            with suppress(MetadataUnreadable):
                yield from self._reader.live_entries([manifest])

    def _takes(self, manifest: ManifestFile, entry: ManifestEntry) -> bool:
        file = entry.file
        if file.key in self._seen or file.file_path in self._skipped or not self._storage.allows(file.file_path):
            return False
        self._seen.add(file.key)
        if not self._extent.takes(entry, self._metadata):
            return False
        is_vector = file.content_offset is not None and file.key_metadata is None
        is_unsupported = not is_vector and why_unreadable(file, (), {}) is not None
        self._unsupported += is_unsupported
        return not is_unsupported

    def _read_round(
        self, round_: Sequence[Sequence[_File]], compared: Set[str], engine: Engine, progress: Progress
    ) -> None:
        """Read the files of some tasks; row ids of files in the manifests ``compared`` are compared."""
        ends = list(accumulate(map(len, round_), initial=self._done))
        what = f"verify: {self._loaded.name}"

        def on_done(tasks: int) -> None:
            progress(what, min(self._total, ends[tasks]), self._total)

        results = engine.map(read_files, [self._task(portion) for portion in round_], on_done)
        self._done = ends[-1]
        for portion, found in zip(round_, results, strict=True):
            for (manifest, _, _), result in zip(portion, found, strict=True):
                self._rows += result.rows
                self._problems += result.problems
                self._without_variants += result.without_variants
                if result.row_ids and manifest.manifest_path in compared:
                    self._problems += self._row_ids.add(result.path, result.row_ids)
                if result.failure:
                    self._unread[result.path] = result.failure
                else:
                    self._read.add(result.path)

    def _task(self, portion: Sequence[_File]) -> FilesToRead:
        inputs = [
            RowFile(
                entry.file.file_path,
                entry.file.file_format,
                entry.file.partition,
                entry.file.record_count,
                entry.file.file_size_in_bytes,
                entry.file.first_row_id,
                manifest.partition_spec_id,
                entry.sequence_number or 0,
                deletes,
            )
            for manifest, entry, deletes in portion
        ]
        files = tuple(entry.file for _, entry, _ in portion)
        referenced = {file.referenced_data_file for file in files}
        return FilesToRead(
            read=make_read_task(self._metadata, inputs, self._schema, self._loaded.io_properties),
            files=files,
            specs=tuple(self._metadata.specs[manifest.partition_spec_id] for manifest, _, _ in portion),
            rows_of={path: self._rows_of[path] for path in referenced if path in self._rows_of},
            next_row_id=self._metadata.next_row_id if self._has_lineage else None,
            last_sequence_number=self._metadata.last_sequence_number,
        )


def _of(manifests: Iterable[ManifestFile], content: ManifestContent) -> list[ManifestFile]:
    return [manifest for manifest in manifests if manifest.content is content]


def _rounds(files: Iterable[_File]) -> Iterator[list[list[_File]]]:
    """The files in portions of a task, and the tasks in rounds whose entries and results are in memory together."""
    round_: list[list[_File]] = [[]]
    size = 0
    for file in files:
        more = file[1].file.content_bytes
        if round_[-1] and (size + more > _TASK_BYTES or len(round_[-1]) == _TASK_FILES):
            if len(round_) == _ROUND_TASKS:
                yield round_
                round_ = []
            round_.append([])
            size = 0
        round_[-1].append(file)
        size += more
    if round_[-1]:
        yield round_


def whole_schema(metadata: TableMetadata) -> dict[str, Any]:
    """All columns that files of a table may have, dropped columns too, without those whose types cannot be read."""
    fields: dict[int, Mapping[str, Any]] = {}
    for number, schema in enumerate(metadata.schemas_current_first):
        for field in schema["fields"]:
            with suppress(TableUnsupported):
                arrow_schema(unshredded({"fields": [field]}))
                fields.setdefault(int(field["id"]), field if number == 0 else {**field, "required": False})
    return {"type": "struct", "fields": list(fields.values())}


class RowIds:
    """The row ids of live rows so far: a row of another file with the same id is a problem (rule:
    rows-keep-their-lineage)."""

    def __init__(self, most_bytes: int = _MOST_ID_BYTES) -> None:
        self._all: BitMap64 | None = BitMap64()
        self._most_bytes, self._bytes = most_bytes, 0
        self.left_out = 0
        """The files whose ids were not compared with others, because the ids took too much memory."""

    def add(self, path: str, serialized: bytes) -> list[Problem]:
        """Take in the ids of a file as a worker serialized them; ids are dropped if they take too much memory."""
        if self._all is None:
            self.left_out += 1
            return []
        ids = BitMap64.deserialize(serialized)
        twice = self._all.intersection(ids)
        self._all |= ids
        self._bytes += len(serialized)
        if self._bytes > self._most_bytes:  # an estimate from above
            self._all.run_optimize()
            self._bytes = len(self._all.serialize())
            self._all = None if self._bytes > self._most_bytes // 2 else self._all
        if not twice:
            return []
        detail = f"{len(twice)} of its live rows have the row id of a row in another file"
        return [Problem(ProblemKind.ROW_LINEAGE, path, detail, by_reading=True)]
