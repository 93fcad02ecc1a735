"""Which files an expiry frees: what the expired snapshots reference and nothing that stays does.

Manifests never change and are shared from snapshot to snapshot, so most of them need not be opened.  Let a manifest be
*kept* when a retained snapshot lists it, and *dropped* when only expired ones do.

1. A file can only become free when a manifest with a live entry for it is dropped: a kept manifest keeps its files.
   So when every dropped manifest is without live entries, no manifest is opened.
2. Of the dropped manifests only live entries name candidates.  DELETED entries are history: whether the file is still
   needed is a question to those that hold it.
3. A candidate stays when a kept manifest has a live entry for it.  A snapshot holds a path at most once (ICEBERG-RULES
   15; specification, "Snapshots": the files of a snapshot are the union of its manifests' live files).  So when a kept
   manifest K and a dropped manifest D are listed by one expired snapshot, no file is live in both.  A K that has
   been listed beside *every* dropped manifest with live entries cannot hold a candidate, and is not opened.  It need
   not be one snapshot for all of them: the statement is about each pair, and manifests do not change.
4. Deletion vectors are outside this proof: a path may be live in both K and D, at other offsets of one Puffin file.
   When a delete manifest is dropped from a table that may hold vectors, every kept delete manifest is opened.
5. When no data or delete file is left among the candidates, the rest is not opened.

The third rule trusts the specification.  A table that lists a file twice, and of which somebody then drops one of the
two entries alone, would lose the file; ``verify`` names such tables (``duplicate_file``).

Every manifest list of the table is read once, and whatever cannot be read that these rules need stops the expiry.
Sources: DESIGN 6.4; specification, "Snapshots", "Deletion Vectors"; compare Iceberg-Java's ReachableFileCleanup.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.reachability import References, statistics_files
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestContent
from icekeeper.operations.expiry.candidates import Candidates
from icekeeper.operations.expiry.listings import INLINE_SPEC, listed_manifests
from icekeeper.storage_paths import normalise

__all__ = ["Unreferenced", "still_unreferenced", "unreferenced_files"]

# Up to so many bits (256 MB) are spent on which kept manifest was listed beside which dropped one.
_MOST_PAIRS = 2**31
FIRST_VERSION_WITH_VECTORS = 3


@dataclass(slots=True)
class Unreferenced:
    """What an expiry frees, and the references of what stays, for the guard before each deletion."""

    candidates: Candidates
    references: References
    kept_specs: frozenset[int] | None = None
    """The partition specs of manifests that stay; ``None``: some of these would have to be opened to know."""
    keeps_deletes: bool = True
    """Whether a manifest of delete files stays."""


def unreferenced_files(
    reader: TableReader,
    expired: Collection[int],
    owned: Sequence[str],
    is_held: Callable[[str], bool] = lambda path: False,
) -> Unreferenced:
    """What is freed when the snapshots of these ids go; only under ``owned``, and nothing that ``is_held``.

    Raises:
        MetadataUnreadable: a manifest list or a manifest that decides cannot be read.
        OperationRefused: a file would be referenced if only scheme or bucket were spelled otherwise.
    """
    metadata = reader.metadata
    gone = [s for i, s in metadata.snapshots.items() if i in expired]
    staying = [s for i, s in metadata.snapshots.items() if i not in expired]
    candidates = Candidates(owned, is_held)
    kept = _kept(reader, staying)
    dropped = _dropped(reader, gone, kept, candidates)
    has_vectors = metadata.format_version >= FIRST_VERSION_WITH_VECTORS and dropped.held_deletes
    for _, files in reader.live_files(dropped.live):
        for file in files:
            candidates.add(file.path, file.size, holds_rows=True)
            has_vectors |= file.content_offset is not None
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        if int(statistics["snapshot-id"]) in expired:
            candidates.add(str(statistics["statistics-path"]), int(statistics.get("file-size-in-bytes") or 0))
    lists = (s.manifest_list for s in staying if s.manifest_list is not None)
    for path in chain(lists, kept.is_deletes, statistics_files(_without(metadata, expired))):
        candidates.spare(path)
    if candidates.files_left:
        opened = reader.live_files(_suspects(kept, dropped, has_vectors))
        for _, files in opened:
            for file in files:
                candidates.spare(file.path)
            if not candidates.files_left:
                break
    # Whatever was not opened has been proven to hold no candidate: the guard need not ask it again.
    references = References({s.snapshot_id for s in staying}, set(kept.is_deletes))
    return Unreferenced(
        candidates,
        references,
        None if INLINE_SPEC in kept.specs else frozenset(kept.specs),
        any(kept.is_deletes.values()),
    )


def still_unreferenced(reader: TableReader, expired: Collection[int], before: Unreferenced) -> None:
    """Take from ``before``, which held for an older head, what the newest head has come to reference.

    Only what is new on this head is read: on a busy table there is no time for more.

    Raises:
        MetadataUnreadable: something new cannot be read.
        OperationRefused: as :func:`unreferenced_files`.
    """
    metadata = reader.metadata
    staying = [s for i, s in metadata.snapshots.items() if i not in expired]
    for path in chain(before.references.follow(reader, staying), statistics_files(_without(metadata, expired))):
        before.candidates.spare(path)


@dataclass(slots=True)
class _Kept:
    """Manifests that a retained snapshot lists; each spelling stands for itself, it may be another object."""

    is_deletes: dict[str, bool] = field(default_factory=dict)
    """By path as spelled: whether it is a delete manifest."""
    specs: set[int] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    """Normalised paths: whatever may be one of these is not dropped."""


@dataclass(slots=True)
class _Dropped:
    """Manifests that only expired snapshots list."""

    live: list[str] = field(default_factory=list)
    """Paths of those that may have live entries; their places are the bits of the masks."""
    held_deletes: bool = False
    beside: dict[str, int] | None = field(default_factory=dict)
    """Kept manifest → mask of the dropped ones that an expired snapshot lists beside it; ``None``: too many to tell."""


def _kept(reader: TableReader, staying: Sequence[Snapshot]) -> _Kept:
    kept = _Kept()
    for _, _, manifests in listed_manifests(reader, staying):
        for manifest in manifests:
            path = manifest.manifest_path
            if path not in kept.is_deletes:
                kept.keys.add(_key(path))
                kept.specs.add(manifest.partition_spec_id)
            kept.is_deletes[path] = manifest.content is ManifestContent.DELETES
    return kept


def _dropped(reader: TableReader, gone: Sequence[Snapshot], kept: _Kept, candidates: Candidates) -> _Dropped:
    """Manifest lists and dropped manifests become candidates on the way."""
    dropped = _Dropped()
    bits: dict[str, int | None] = {}
    for snapshot, size, manifests in listed_manifests(reader, gone):
        if snapshot.manifest_list is not None:
            candidates.add(snapshot.manifest_list, size)
        staying, mask = [], 0
        for manifest in manifests:
            path = manifest.manifest_path
            if path in kept.is_deletes:
                staying.append(path)
                continue
            if path not in bits and _key(path) not in kept.keys:
                candidates.add(path, manifest.manifest_length)
                bits[path] = len(dropped.live) if manifest.may_have_live_files else None
                if manifest.may_have_live_files:
                    dropped.live.append(path)
                    dropped.held_deletes |= manifest.content is ManifestContent.DELETES
            bit = bits.get(path)
            if bit is not None:
                mask |= 1 << bit
        if mask and dropped.beside is not None:
            for path in staying:
                dropped.beside[path] = dropped.beside.get(path, 0) | mask
            if len(dropped.beside) * len(dropped.live) > _MOST_PAIRS:
                dropped.beside = None
    return dropped


def _suspects(kept: _Kept, dropped: _Dropped, has_vectors: bool) -> Iterator[str]:
    """Kept manifests that may hold a candidate."""
    beside = dropped.beside or {}
    every = (1 << len(dropped.live)) - 1
    for path, is_deletes in kept.is_deletes.items():
        if beside.get(path, 0) != every or (has_vectors and is_deletes):
            yield path


def _key(path: str) -> str:
    """The normalised path; the very same text where that changes nothing, which saves holding it twice."""
    normal = normalise(path)
    return path if normal == path else normal


def _without(metadata: TableMetadata, expired: Collection[int]) -> TableMetadata:
    def kept(entries: Any) -> list[Any]:
        return [entry for entry in entries if int(entry["snapshot-id"]) not in expired]

    return TableMetadata(
        {
            **metadata.document,
            "statistics": kept(metadata.statistics),
            "partition-statistics": kept(metadata.partition_statistics),
        }
    )
