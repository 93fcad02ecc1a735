"""Pure checks of metadata documents, manifests, row lineage, deletion vectors and statistics files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from icekeeper.commit.attempt import OPERATION_KEY
from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.document import MAIN, STATES_MAY_OVERLAP_MS, Snapshot, TableMetadata
from icekeeper.metadata.puffin import decode_footer, footer_size, has_compressed_footer
from icekeeper.metadata.statistics import StatisticsFile, blob_metadata
from icekeeper.model import EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile


class ProblemKind(StrEnum):
    """The kinds of problems: a closed vocabulary, so that programs can distinguish damage from minor errors."""

    remedy: str
    """The effect on readers, and what to do; docs/recovery.md says the same."""

    def __new__(cls, value: str, remedy: str) -> ProblemKind:
        self = str.__new__(cls, value)
        self._value_, self.remedy = value, remedy
        return self

    MISSING_FILE = (
        "missing_file",
        "`icekeeper repair` looks for a copy; else restore the object, roll back to a snapshot without it, or repair "
        "with `--drop-missing`",
    )
    UNREADABLE_METADATA = (
        "unreadable_metadata",
        "`icekeeper repair` looks for a copy or a proof of a list; else restore the object, or roll back",
    )
    WRONG_SIZE = (
        "wrong_size",
        "readers may fail; `icekeeper repair --repair-file-metrics` corrects the entry of a whole file; else restore "
        "the file",
    )
    WRONG_COUNT = "wrong_count", "queries by metadata are wrong; `icekeeper repair`"
    DUPLICATE_FILE = (
        "duplicate_file",
        "rows count twice; `icekeeper repair` drops an entry. Never remove the file and add it again: its new sequence "
        "number brings deleted rows back",
    )
    BROKEN_REF = "broken_ref", "set or drop the ref"
    SEQUENCE_NUMBER = "sequence_number", "deletes may apply wrongly; get help before writing"
    SUMMARY = "summary", "statistics are wrong, data is not"
    ROW_LINEAGE = "row_lineage", "`_row_id` is null or not unique; data is not affected"
    DELETION_VECTOR = (
        "deletion_vector",
        "readers disagree about which rows are deleted; `icekeeper repair` unites two vectors; else drop the entry",
    )
    DELETE_SCOPE = ("delete_scope", "Iceberg after 1.11 refuses to read the table; `icekeeper repair` moves the delete")
    UNREADABLE_DATA = (
        "unreadable_data",
        "its rows cannot be read: restore the object, else delete the file's rows and load them again",
    )
    WRONG_METRICS = (
        "wrong_metrics",
        "queries may skip rows or miscount; `icekeeper repair --repair-file-metrics` corrects entries of data files",
    )
    WRONG_PARTITION = (
        "wrong_partition",
        "queries by partition miss these rows; delete them by their values, and insert them again",
    )
    STATISTICS = "statistics", "readers may plan badly, data is not affected; compute the statistics anew"
    NOT_ALLOWED = (
        "not_allowed",
        "it was not read, and may be intact: allow its folder in `ICEKEEPER_ALLOWED_PREFIXES` if it is the table's "
        "own, else drop it from the table",
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem; ``path`` is the file, or the metadata file if the problem concerns the whole table."""

    kind: ProblemKind
    path: str
    detail: str
    by_reading: bool = False
    """Whether only reading the content of data and delete files shows it (``--deep``)."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for one table; ``checked`` counts the checked snapshots, manifests and files."""

    table: str
    problems: tuple[Problem, ...]
    checked: Mapping[str, int]
    referenced: Set[str] = field(default=frozenset(), repr=False, compare=False)
    """The files that its metadata references."""
    superseded: tuple[Problem, ...] = ()
    """Problems that only snapshots from before a repair or rollback have; they end when these snapshots expire."""
    read: Set[str] = field(default=frozenset(), repr=False, compare=False)
    """The data and delete files whose content was read."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """The files that should have been read, but the store failed or refused: path → why."""

    @property
    def by_file(self) -> dict[str, tuple[str, str, bool]]:
        """The first problem of each file: path → kind, a sentence that says what to do, :attr:`Problem.by_reading`."""
        found: dict[str, tuple[str, str, bool]] = {}
        for problem in self.problems:
            sentence = f"{problem.path}: {problem.detail}; {problem.kind.remedy}"
            found.setdefault(problem.path, (problem.kind.value, sentence, problem.by_reading))
        return found

    @property
    def ok(self) -> bool:
        return not self.problems and not self.unread

    def confirming(self, earlier: Verification) -> Verification:
        """This result without problems that an earlier one, of an older head, lacks: an expiry may delete files while
        ``verify`` reads."""
        known = {(p.kind, text) for p in earlier.problems for text in (p.path, p.detail)}
        kept = (p for p in self.problems if not known.isdisjoint({(p.kind, p.path), (p.kind, p.detail)}))
        return replace(self, problems=tuple(kept))

    def still_referenced(self, referenced: Set[str]) -> Verification:
        """This result without what it read in files that the table, which has a newer head, needs no more."""
        kept = (p for p in self.problems if not p.by_reading or p.path in referenced)
        unread = {path: why for path, why in self.unread.items() if path in referenced}
        return replace(self, problems=tuple(kept), unread=unread)

    def to_json(self) -> dict[str, Any]:
        """The document of ``verify --json``."""
        kinds = sorted({problem.kind for problem in self.problems})
        return {
            "table": self.table,
            "ok": self.ok,
            "problems": [{"kind": p.kind.value, "path": p.path, "detail": p.detail} for p in self.problems],
            "checked": dict(self.checked),
            "superseded": len(self.superseded),
            **({"unread": dict(self.unread)} if self.unread else {}),
            **({"remedies": {kind.value: kind.remedy for kind in kinds}} if kinds else {}),
        }


REPAIR = "repair"
"""The operation of a repair, in the summary of its snapshot."""
BEFORE_TAG = "icekeeper-before-"
"""The beginning of the names of tags that keep old heads after a repair or a rollback."""


def superseded_snapshots(metadata: TableMetadata) -> frozenset[int]:
    """The snapshots that repairs and rollbacks have superseded, and that only wait to expire: ancestors of a repair's
    snapshot, and those that only a tag on an old head keeps.  The heads of all other refs are not superseded."""

    def line(snapshot_ids: Iterable[int | None]) -> set[int]:
        return {a.snapshot_id for i in snapshot_ids if i is not None for a in metadata.ancestors(i)}

    old = {ref.snapshot_id for name, ref in metadata.refs.items() if name.startswith(BEFORE_TAG)}
    heads = {ref.snapshot_id for name, ref in metadata.refs.items() if not name.startswith(BEFORE_TAG)}
    repaired = [s.parent_id for s in metadata.snapshots.values() if s.summary.get(OPERATION_KEY) == REPAIR]
    return frozenset((line(repaired) | (line(old) - line(heads))) - heads)


def document_problems(metadata: TableMetadata, location: str) -> Iterator[Problem]:
    """Check refs, sequence numbers, types of summaries, and the order of the snapshot log.

    Iceberg-Java or DuckDB raise an error for each of these problems (specification, "Table Metadata Fields",
    "Snapshots") (platform: java-rejects-broken-metadata).
    """
    for name, ref in metadata.refs.items():
        if ref.snapshot_id not in metadata.snapshots:
            detail = f"ref '{name}' points at snapshot {ref.snapshot_id}, which is missing"
            yield Problem(ProblemKind.BROKEN_REF, location, detail)
    current = metadata.document.get("current-snapshot-id")
    main = metadata.refs.get(MAIN)
    if current is not None and int(current) != -1 and main is not None and main.snapshot_id != int(current):
        detail = f"current-snapshot-id is {current}, ref 'main' points at {main.snapshot_id}"
        yield Problem(ProblemKind.BROKEN_REF, location, detail)
    for snapshot in metadata.snapshots.values():
        if snapshot.sequence_number > metadata.last_sequence_number:
            detail = (
                f"snapshot {snapshot.snapshot_id} has sequence number {snapshot.sequence_number}, above "
                f"last-sequence-number {metadata.last_sequence_number}"
            )
            yield Problem(ProblemKind.SEQUENCE_NUMBER, location, detail)
        if any(not isinstance(value, str) for value in snapshot.summary.values()):
            detail = f"the summary of snapshot {snapshot.snapshot_id} holds values that are not strings"
            yield Problem(ProblemKind.SUMMARY, location, detail)
    log = [int(entry["timestamp-ms"]) for entry in metadata.document.get("snapshot-log") or ()]
    if any(later - earlier < -STATES_MAY_OVERLAP_MS for earlier, later in pairwise(log)):
        yield Problem(ProblemKind.SEQUENCE_NUMBER, location, "snapshot-log is not in the order of time")


# Row ids and deletion vectors of format v3 (specification, "Row Lineage", "Deletion Vectors").  Iceberg-Java reads most
# tables with such problems; two rows may then have the same row id, or a row may have no row id
# (rule: rows-keep-their-lineage).

_FIRST = "first-row-id"
_ADDED = "added-rows"
_PUFFIN = "PUFFIN"


def row_id_problems(metadata: TableMetadata, location: str) -> Iterator[Problem]:
    """Check that every snapshot since the upgrade to v3 has its range of row ids, and that no ranges overlap."""
    taken: int | None = None
    for snapshot in sorted(metadata.snapshots.values(), key=lambda s: s.sequence_number):
        first, added = snapshot.raw.get(_FIRST), snapshot.raw.get(_ADDED)
        if first is None or added is None:
            if taken is not None:
                detail = f"snapshot {snapshot.snapshot_id} does not say which row ids it assigned"
                yield Problem(ProblemKind.ROW_LINEAGE, location, detail)
            continue
        if taken is not None and int(first) < taken:
            detail = f"snapshot {snapshot.snapshot_id} starts at row id {first}, an earlier snapshot ended at {taken}"
            yield Problem(ProblemKind.ROW_LINEAGE, location, detail)
        taken = max(taken or 0, int(first) + int(added))
    if taken is not None and taken > metadata.next_row_id:
        detail = f"next-row-id is {metadata.next_row_id}, ids below {taken} were assigned"
        yield Problem(ProblemKind.ROW_LINEAGE, location, detail)


def manifest_row_id_problems(snapshot: Snapshot, manifests: Sequence[ManifestFile]) -> Iterator[Problem]:
    """Check that every data manifest of a v3 snapshot has a first row id, and that no delete manifest does."""
    if snapshot.raw.get(_FIRST) is None:
        return
    for manifest in manifests:
        is_data = manifest.content is ManifestContent.DATA
        if is_data == (manifest.first_row_id is None):
            detail = f"a {manifest.content.name} manifest of snapshot {snapshot.snapshot_id} has "
            detail += "no first_row_id" if is_data else f"first_row_id {manifest.first_row_id}"
            yield Problem(ProblemKind.ROW_LINEAGE, manifest.manifest_path, detail)


def vector_problems(entries: Iterable[ManifestEntry]) -> Iterator[Problem]:
    """Check that every live deletion vector names its data file, and its range within its Puffin file."""
    for entry in entries:
        file = entry.file
        if not entry.is_live or file.file_format.upper() != _PUFFIN:
            continue
        offset, size = file.content_offset, file.content_size_in_bytes
        if file.referenced_data_file is None or offset is None or size is None:
            detail = "a deletion vector lacks its data file, its offset or its size"
            yield Problem(ProblemKind.DELETION_VECTOR, file.file_path, detail)
        elif offset + size > file.file_size_in_bytes:
            detail = f"a deletion vector ends at byte {offset + size} of {file.file_size_in_bytes}"
            yield Problem(ProblemKind.DELETION_VECTOR, file.file_path, detail)


def duplicate_vector_problems(referenced: Iterable[str]) -> Iterator[Problem]:
    """Check that no data file has two deletion vectors; ``referenced`` are the data files of a snapshot's vectors."""
    for path, count in Counter(referenced).items():
        if count > 1:
            yield Problem(
                ProblemKind.DELETION_VECTOR, path, f"a snapshot has {count} deletion vectors of this data file"
            )


def manifest_problems(manifest: ManifestFile, entries: Sequence[ManifestEntry]) -> Iterator[Problem]:
    """Compare a manifest's entry in the manifest list with all ``entries`` of the manifest.

    Iceberg-Java ignores these problems of counts, content and sequence numbers.
    """
    path = manifest.manifest_path
    files: Counter[EntryStatus] = Counter()
    rows: Counter[EntryStatus] = Counter()
    for entry in entries:
        files[entry.status] += 1
        rows[entry.status] += entry.file.record_count
    for status, file_count, row_count in (
        (EntryStatus.ADDED, manifest.added_files_count, manifest.added_rows_count),
        (EntryStatus.EXISTING, manifest.existing_files_count, manifest.existing_rows_count),
        (EntryStatus.DELETED, manifest.deleted_files_count, manifest.deleted_rows_count),
    ):
        for stated, found, what in ((file_count, files[status], "files"), (row_count, rows[status], "rows")):
            if stated is not None and stated != found:
                detail = f"the manifest list says {stated} {status.name} {what}, the manifest holds {found}"
                yield Problem(ProblemKind.WRONG_COUNT, path, detail)
    least = min((e.sequence_number for e in entries if e.is_live and e.sequence_number is not None), default=None)
    if least is not None and least < manifest.min_sequence_number:
        detail = f"min_sequence_number is {manifest.min_sequence_number}, an entry has {least}"
        yield Problem(ProblemKind.SEQUENCE_NUMBER, path, detail)
    for entry in entries:
        if (entry.file.content is FileContent.DATA) != (manifest.content is ManifestContent.DATA):
            detail = (
                f"a {manifest.content.name} manifest holds the {entry.file.content.name} file {entry.file.file_path}"
            )
            yield Problem(ProblemKind.WRONG_COUNT, path, detail)


def summary_problems(snapshot: Snapshot, manifests: Sequence[ManifestFile], path: str) -> Iterator[Problem]:
    """Compare the totals of a snapshot summary with the counts of its manifests, if both are known.

    ``path`` is the path of the problems.
    """
    data = [m for m in manifests if m.content is ManifestContent.DATA]
    deletes = [m for m in manifests if m.content is ManifestContent.DELETES]
    for key, found in (
        ("total-data-files", _sum([m.added_files_count for m in data], [m.existing_files_count for m in data])),
        ("total-records", _sum([m.added_rows_count for m in data], [m.existing_rows_count for m in data])),
        ("total-delete-files", _sum([m.added_files_count for m in deletes], [m.existing_files_count for m in deletes])),
    ):
        stated = snapshot.summary.get(key)
        if stated is not None and found is not None and stated != str(found):
            detail = f"summary of snapshot {snapshot.snapshot_id} says {key} {stated}, its manifests add up to {found}"
            yield Problem(ProblemKind.SUMMARY, path, detail)


def _sum(*columns: Sequence[int | None]) -> int | None:
    values = [value for column in columns for value in column]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def statistics_problems(file: StatisticsFile, end: bytes) -> Iterator[Problem]:
    """Compare a statistics file with its entry in the metadata; ``end`` is the end of the file, at least its footer.

    Engines plan with the entry alone, so they would not notice that it is wrong (specification, "Table Statistics";
    Puffin specification, "Footer").
    """
    try:
        found = footer_size(end, file.path)
        if found != file.footer_size:
            detail = f"the table says that its footer has {file.footer_size} bytes, it has {found}"
            yield Problem(ProblemKind.WRONG_SIZE, file.path, detail)
        if has_compressed_footer(end):
            return
        blobs = decode_footer(end, file.path)
    except MetadataUnreadable as error:
        yield Problem(ProblemKind.UNREADABLE_METADATA, file.path, str(error))
        return
    found_blobs, listed = Counter(map(blob_metadata, blobs)), Counter(file.blobs)
    for blob in (listed - found_blobs).elements():
        detail = f"the metadata lists a blob {blob.type} of fields {list(blob.fields)}, which it does not have"
        yield Problem(ProblemKind.STATISTICS, file.path, detail)
    for blob in (found_blobs - listed).elements():
        detail = f"it has a blob {blob.type} of fields {list(blob.fields)} that the metadata does not list"
        yield Problem(ProblemKind.STATISTICS, file.path, detail)
    for blob_in_file in blobs:
        if blob_in_file.offset < 0 or blob_in_file.offset + blob_in_file.length > file.size - found:
            detail = f"a blob {blob_in_file.type} reaches into the footer"
            yield Problem(ProblemKind.STATISTICS, file.path, detail)
