"""The plan of a repair: which entries of a head are mended and how, and which findings are only reported (pure).

A finder returns :class:`Found`: mends of entries or manifests, and damage that is left.  :func:`plan_of` joins what all
finders return to a :class:`RepairPlan`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from icekeeper.commit.snapshot import DELETE, OVERWRITE, REPLACE, MendedEntry
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestEntry, ManifestFile


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions:
    """What a person permits a repair to do; a saved plan carries them."""

    file_metrics: bool = False
    """Read the footers of all data files, and recompute what entries say about them."""
    drop_missing: bool = False
    """Drop entries whose files are gone and cannot be found elsewhere: their rows are lost."""
    point_to: str | None = None
    """The newer metadata file at which the catalog is to point; then nothing else is repaired."""
    keep: int | None = None
    """Which entry stays of several entries of a file that differ: 1 is the oldest."""
    branch: str | None = None
    """The branch whose head is repaired; ``None``: that of the table's policy."""


class MendKind(StrEnum):
    """The kinds of mends: a closed vocabulary, for programs."""

    DUPLICATE_FILE = "duplicate_file"
    """A second entry of a file goes."""
    FILE_METRICS = "file_metrics"
    """An entry gets the size, counts and bounds of its file."""
    MANIFEST_COUNTS = "manifest_counts"
    """A manifest is written anew, because its manifest list describes it wrongly."""
    SUMMARY = "summary"
    """The snapshot gets the totals of its manifests."""
    MISSING_FILE = "missing_file"
    """A file that is gone is copied from elsewhere."""
    DROPPED_FILE = "dropped_file"
    """The entry of a file that is gone goes."""
    MOVED_PATH = "moved_path"
    """An entry gets the path at which its file is."""
    METADATA_FILE = "metadata_file"
    """A manifest list or manifest that is gone is found again, or a list is rebuilt."""
    POINTER = "pointer"
    """The catalog points at a newer metadata file."""
    UNITED_VECTORS = "united_vectors"
    """One deletion vector takes the place of several vectors of a data file."""
    DANGLING_DELETE = "dangling_delete"
    """A vector of a data file that the table no longer has goes."""
    MOVED_DELETE = "moved_delete"
    """A delete gets the spec and partition of the data file whose rows it deletes."""


class Effect(IntEnum):
    """What a mend changes for readers, in the order in which the strongest effect decides the operation."""

    NONE = 0
    ROWS_GO = 1
    ROWS_CHANGE = 2


_OPERATIONS = {Effect.NONE: REPLACE, Effect.ROWS_GO: DELETE, Effect.ROWS_CHANGE: OVERWRITE}


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryMend:
    """The mend of one entry of the head."""

    kind: MendKind
    manifest: str
    """The path of the manifest that has the entry."""
    place: int
    """The place of the entry in the manifest, counted from 0 over entries of every status."""
    spec_id: int
    entry: ManifestEntry
    """The entry as read, with inherited values."""
    becomes: ManifestEntry | None
    """The entry in its place; ``None``: the entry goes."""
    new_spec_id: int | None = None
    """The spec of the entry in its place, if it moves."""
    sentence: str
    """What is wrong and what the mend does, for people; it names the file."""
    rows_lost: int = 0
    """The rows of the table that are gone for good."""
    rows_back: int | None = 0
    """The rows that deletes no longer hide after the mend; ``None``: it is unknown how many."""
    leaves_deleted: bool = False
    """Whether an entry that goes is recorded as DELETED."""
    copy_from: str | None = None
    """The file that is copied to the path of ``becomes`` before the commit, if there is none; it stays."""
    copy_version: str | None = None
    """The version of that object, if it is not the current version."""
    new_file: bytes | None = field(default=None, repr=False)
    """The bytes that are written to the path of ``becomes`` before the commit, if there is no file."""

    @property
    def is_copy(self) -> bool:
        """Whether it only copies the file back to its path: the entry stays as it is, in every snapshot."""
        return self.copy_from is not None and self.becomes is not None and self.becomes.file.key == self.entry.file.key

    @property
    def effect(self) -> Effect:
        """What readers see of it."""
        if self.rows_back != 0:
            return Effect.ROWS_CHANGE
        if self.entry.file.content is not FileContent.DATA:
            return Effect.NONE
        if self.becomes is None:
            return Effect.ROWS_GO if self.leaves_deleted else Effect.ROWS_CHANGE
        is_same = self.becomes.file.record_count == self.entry.file.record_count
        return Effect.NONE if is_same else Effect.ROWS_CHANGE

    @property
    def mended(self) -> MendedEntry:
        """The same for the commit; an entry that stays is EXISTING, with the ids that were read."""
        if self.becomes is None:
            return MendedEntry(None, self.leaves_deleted)
        return MendedEntry((self.home, self.becomes))

    @property
    def home(self) -> int:
        """The spec of the entry after the mend."""
        return self.spec_id if self.new_spec_id is None else self.new_spec_id

    def document(self) -> dict[str, Any]:
        """An element of ``mends``."""
        return {
            "kind": self.kind.value,
            "path": self.entry.file.file_path,
            "detail": self.sentence,
            "rows_lost": self.rows_lost,
            "rows_back": self.rows_back,
        }

    def facts(self) -> dict[str, Any]:
        """All that decides what the mend does, without the place of the entry: other writers merge manifests."""
        return {
            **self.document(),
            "entry": _entry(self.spec_id, self.entry),
            "becomes": None if self.becomes is None else _entry(self.home, self.becomes),
            "leaves_deleted": self.leaves_deleted,
            "copy_from": [self.copy_from, self.copy_version],
            "new_file": None if self.new_file is None else hashlib.sha256(self.new_file).hexdigest(),
        }


class Listed(NamedTuple):
    """An entry of a head, and where it is."""

    manifest: ManifestFile
    place: int
    """As in :class:`EntryMend`."""
    entry: ManifestEntry

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.entry.file.file_path

    def mend(self, kind: MendKind, becomes: ManifestEntry | None, sentence: str, **more: Any) -> EntryMend:
        """The mend of the entry; ``more``: further fields of :class:`EntryMend`."""
        return EntryMend(
            kind=kind,
            manifest=self.manifest.manifest_path,
            place=self.place,
            spec_id=self.manifest.partition_spec_id,
            entry=self.entry,
            becomes=becomes,
            sentence=sentence,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestMend:
    """A manifest whose entry in the manifest list is wrong: it is written anew, with the same live entries."""

    manifest: str
    """Its path; for :attr:`MendKind.SUMMARY` that of the manifest list."""
    sentence: str
    effect: Effect = Effect.NONE
    kind: MendKind = MendKind.MANIFEST_COUNTS

    def document(self) -> dict[str, Any]:
        """An element of ``mends``."""
        return {
            "kind": self.kind.value,
            "path": self.manifest,
            "detail": self.sentence,
            "rows_lost": 0,
            "rows_back": 0 if self.effect is Effect.NONE else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMend:
    """A manifest list or manifest that is gone, and its content: every snapshot that needs it can be read again."""

    path: str
    data: bytes = field(repr=False)
    sentence: str
    kind: MendKind = MendKind.METADATA_FILE
    effect: Effect = Effect.NONE

    def document(self) -> dict[str, Any]:
        """An element of ``mends``."""
        return _without_rows(self.kind, self.path, self.sentence)

    def facts(self) -> dict[str, Any]:
        """All that decides what the mend does, without the random marker between the blocks of an Avro file."""
        return {**self.document(), "data": hashlib.sha256(self.data.replace(self.data[-16:], b"")).hexdigest()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerMend:
    """The newer metadata file ``path`` at which the catalog points afterwards."""

    path: str
    sentence: str
    kind: MendKind = MendKind.POINTER
    effect: Effect = Effect.NONE

    def document(self) -> dict[str, Any]:
        """An element of ``mends``."""
        return _without_rows(self.kind, self.path, self.sentence)


def _without_rows(kind: MendKind, path: str, sentence: str) -> dict[str, Any]:
    return {"kind": kind.value, "path": path, "detail": sentence, "rows_lost": 0, "rows_back": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmended:
    """Damage that the plan leaves."""

    kind: str
    """A kind of mend or of problem."""
    path: str
    sentence: str
    """What is wrong, and why it is not mended or what each choice means, for people."""
    option: str | None = None
    """The option with which a repair mends it, such as ``--keep 7``, or another command; ``None``: no repair can."""

    def document(self) -> dict[str, Any]:
        """An element of ``unmended``."""
        return {"kind": self.kind, "path": self.path, "detail": self.sentence, "option": self.option}


@dataclass(frozen=True, slots=True)
class Found:
    """What a finder found in a head."""

    mends: tuple[EntryMend, ...] = ()
    manifests: tuple[ManifestMend, ...] = ()
    unmended: tuple[Unmended, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a repair reads of a table before it plans: pure finders decide by it."""

    metadata: TableMetadata
    snapshot: Snapshot
    manifests: tuple[ManifestFile, ...]
    entries: Mapping[str, tuple[ManifestEntry, ...]]
    """Manifest path → its entries of every status, in the order of the file, with inherited values."""
    sizes: Mapping[str, int | None]
    """Path of each live file and manifest → the size of the object; ``None``: there is none."""

    def live(self) -> Iterable[Listed]:
        """Every live entry."""
        for manifest in self.manifests:
            for place, entry in enumerate(self.entries[manifest.manifest_path]):
                if entry.is_live:
                    yield Listed(manifest, place, entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What a repair does to the head of a branch."""

    snapshot_id: int
    """The head that was read."""
    branch: str
    mends: tuple[EntryMend, ...] = ()
    manifests: tuple[ManifestMend, ...] = ()
    files: tuple[FileMend, ...] = ()
    """Metadata that comes back; a plan with such files has no other mends, because these are planned on whole
    metadata."""
    pointer: PointerMend | None = None
    """The only mend of the plan, if it is given."""
    unmended: tuple[Unmended, ...] = ()
    states: tuple[tuple[int, str], ...] = ()
    """The snapshots that lack metadata: id, and ``mended`` or ``unmended``."""

    @property
    def is_empty(self) -> bool:
        return not self.every

    @property
    def every(self) -> tuple[EntryMend | ManifestMend | FileMend | PointerMend, ...]:
        """The mends of entries, then those of manifests, metadata and the catalog's entry."""
        pointer = () if self.pointer is None else (self.pointer,)
        return (*self.mends, *self.manifests, *self.files, *pointer)

    @property
    def affected(self) -> frozenset[str]:
        """The paths of the manifests that are written anew (Iceberg's ``repairedManifests``)."""
        written = (m.manifest for m in self.manifests if m.kind is not MendKind.SUMMARY)
        return frozenset((*(m.manifest for m in self.mends if not m.is_copy), *written))

    @property
    def operation(self) -> str:
        """The operation of the snapshot: ``replace`` if no reader's rows change, ``delete`` if data entries only go,
        ``overwrite`` if rows reappear, a duplicate goes or a row count changes, which incremental readers must see."""
        return _OPERATIONS[max((mend.effect for mend in self.every), default=Effect.NONE)]

    @property
    def mended_entries(self) -> dict[tuple[str, int], MendedEntry]:
        """The mends for the commit, by manifest and place."""
        return {(mend.manifest, mend.place): mend.mended for mend in self.mends if not mend.is_copy}

    @property
    def needs_commit(self) -> bool:
        """Whether anything but copies of files is to do."""
        return bool(self.manifests) or any(not mend.is_copy for mend in self.mends)

    @property
    def after_copies(self) -> RepairPlan:
        """The plan for the same head once all copies are made."""
        return replace(self, mends=tuple(mend for mend in self.mends if not mend.is_copy))

    @property
    def digest(self) -> str:
        """Equal for plans that do the same, also where other writers have merged the manifests meanwhile."""
        facts = sorted(json.dumps(mend.facts(), sort_keys=True) for mend in self.mends)
        counts = sorted(json.dumps(mend.document(), sort_keys=True) for mend in self.manifests)
        whole = [mend.facts() for mend in self.files] + ([] if self.pointer is None else [self.pointer.document()])
        return hashlib.sha256(json.dumps([self.branch, facts, counts, whole]).encode()).hexdigest()


def plan_of(head: Head, branch: str, found: Iterable[Found]) -> RepairPlan:
    """Join what finders found.  Of several mends of an entry the first counts."""
    mends: dict[tuple[str, int], EntryMend] = {}
    manifests: dict[str, ManifestMend] = {}
    unmended: list[Unmended] = []
    for one in found:
        for mend in one.mends:
            mends.setdefault((mend.manifest, mend.place), mend)
        for manifest in one.manifests:
            manifests.setdefault(manifest.manifest, manifest)
        unmended += one.unmended
    return RepairPlan(
        snapshot_id=head.snapshot.snapshot_id,
        branch=branch,
        mends=tuple(mends.values()),
        manifests=tuple(manifests.values()),
        unmended=tuple(dict.fromkeys(unmended)),
    )


def existing(entry: ManifestEntry) -> ManifestEntry:
    """The entry with the status EXISTING, as a mended manifest keeps it."""
    return ManifestEntry(
        EntryStatus.EXISTING, entry.snapshot_id, entry.sequence_number, entry.file_sequence_number, entry.file
    )


def _entry(spec_id: int, entry: ManifestEntry) -> dict[str, Any]:
    """An entry as JSON, without its status: a merge of manifests makes ADDED entries EXISTING."""
    file = {part.name: _value(getattr(entry.file, part.name)) for part in fields(DataFile)}
    return {
        "spec_id": spec_id,
        "snapshot_id": entry.snapshot_id,
        "sequence_number": entry.sequence_number,
        "file_sequence_number": entry.file_sequence_number,
        "file": file,
    }


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): _value(part) for key, part in sorted(value.items())}
    if isinstance(value, tuple):
        return [_value(part) for part in value]
    return value
