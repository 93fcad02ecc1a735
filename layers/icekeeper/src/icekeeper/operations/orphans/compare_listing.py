"""Compares the listed files with the references: in this process, or on an engine's workers where there are too many.

Both ways find candidates by the same function.  Paths are dealt out to workers by the hash of their part behind scheme
and bucket, so that a file and every spelling of a reference to it come to the same worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from icekeeper.deletion.neighbours import behind_authority
from icekeeper.deletion.referenced_paths import ReferencedPaths, path_hash
from icekeeper.engines.engine import Engine
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.metadata.manifest_read import decode_live_paths
from icekeeper.metadata.table_reader import References, TableReader
from icekeeper.model import ManifestFile
from icekeeper.operations.orphans.candidates import OrphanCandidates, find_candidates, join_candidates
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.merged_spellings import any_spelling
from icekeeper.storage.sources import FileSource, SourcePart
from icekeeper.storage.storage import Storage

__all__ = ["DISTRIBUTED_ABOVE", "Comparison", "compare_by_engine", "compare_here", "live_files"]

DISTRIBUTED_ABOVE = 10_000_000
"""The number of references above which workers compare.  So many take 90 MB as hashes (twice that while they are
sorted), and some ten microseconds each: beyond two minutes of one core, starting workers pays."""

_REFERENCES_PER_PART = 250_000
_MOST_PARTS = 4_000
"""Of a thousand million references.  Their number is what manifest lists say, and a few bytes may say any."""
_MANIFESTS_PER_TASK = 50
_ITEM_PATHS = 200

_Item: TypeAlias = tuple[str, Any]
"""``(references | expected | objects | unreadable | failed, payload)``."""


def live_files(manifests: Iterable[ManifestFile]) -> int:
    """The number of live entries in the manifests by the counts in their manifest lists; a missing count is 0."""
    return sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in manifests)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A listing, and what its files are compared with."""

    source: FileSource
    roots: tuple[str, ...]
    """The table's location, and other folders that the listing holds."""
    documents: Sequence[str]
    """Paths that are referenced by anything but a manifest: metadata files, manifest lists, manifests, statistics."""
    manifests: Mapping[str, ManifestFile]
    """Path → manifest of every snapshot; what these reference is read."""
    references: References
    """Records which manifests were read."""
    older_than_ms: int
    """Epoch milliseconds; only files that were modified before are old."""


def compare_here(asked: Comparison, reader: TableReader) -> OrphanCandidates:
    """Compare in this process: references are held as hashes, and the listing is streamed past them.

    Raises:
        MetadataUnreadable: a manifest cannot be read.
        StorageError: the files cannot be listed.
    """
    referenced = ReferencedPaths(asked.roots[0], asked.documents, listed_too=asked.roots[1:])
    referenced.expect(asked.references.held(reader, asked.manifests.values()))
    return find_candidates(asked.source.objects(), referenced, asked.older_than_ms)


def compare_by_engine(asked: Comparison, engine: Engine, storage: Storage) -> OrphanCandidates:
    """Compare on an engine's workers, which list and read manifests themselves; the result is the same.

    Raises:
        MetadataUnreadable: a manifest cannot be read.
        StorageError: the files cannot be listed, or the engine broke.
    """
    unseen = [path for path in asked.manifests if path not in asked.references.manifests]
    asked.references.manifests.update(unseen)
    parts = -(-live_files(asked.manifests.values()) // _REFERENCES_PER_PART)
    roots, count = asked.roots, max(2, min(parts, _MOST_PARTS))
    chunks = [unseen[start : start + _MANIFESTS_PER_TASK] for start in range(0, len(unseen), _MANIFESTS_PER_TASK)]
    tasks = [
        _Task(roots, count, documents=tuple(asked.documents)),
        *(_Task(roots, count, storage=storage, manifests=tuple(chunk)) for chunk in chunks),
        *(_Task(roots, count, listed=part) for part in asked.source.parts()),
    ]
    merge = partial(_merge, roots, asked.older_than_ms)
    results = engine.exchange(_split, tasks, merge, range(count), lambda done: None)
    for _, error in results:
        if error is not None:
            raise error
    return join_candidates(candidates for candidates, _ in results)


@dataclass(frozen=True, slots=True)
class _Task:
    """One of three kinds of work: paths at hand (``documents``), manifests to read, or a share of the files to list."""

    roots: tuple[str, ...]
    parts: int
    documents: tuple[str, ...] = ()
    storage: Storage | None = None
    manifests: tuple[str, ...] = ()
    listed: SourcePart | None = None


def _split(task: _Task) -> Iterator[tuple[int, _Item]]:
    try:
        yield from _in_items(_objects(task) if task.listed is not None else _references(task))
    except MetadataUnreadable as error:
        yield 0, ("unreadable", str(error))
    except StorageError as error:
        yield 0, ("failed", str(error))


def _objects(task: _Task) -> Iterator[tuple[str, int, Any]]:
    assert task.listed is not None
    for found in task.listed():
        yield "objects", _part(found.path, task.parts), (found.path, found.size, found.modified_ms)


def _references(task: _Task) -> Iterator[tuple[str, int, Any]]:
    hasher = ReferencedPaths(task.roots[0], hash_of=path_hash, listed_too=task.roots[1:])
    for path in task.documents:
        yield "references", _part(path, task.parts), hasher.hashes(path)
    for manifest in task.manifests:
        assert task.storage is not None
        try:
            data = task.storage.read(manifest)
        except StorageError as error:
            raise MetadataUnreadable(f"manifest {error}") from error
        for path in chain.from_iterable(decode_live_paths(data, manifest)):
            expected = hasher.expected_hash(path)
            if expected is None:
                yield "references", _part(path, task.parts), hasher.hashes(path)
            else:
                yield "expected", _part(path, task.parts), expected


def _part(path: str, parts: int) -> int:
    return path_hash(behind_authority(any_spelling(path))) % parts


def _in_items(values: Iterable[tuple[str, int, Any]]) -> Iterator[tuple[int, _Item]]:
    """Put up to ``_ITEM_PATHS`` values of a kind for one part into one item, because every item costs a pickle."""
    waiting: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
    for kind, part, value in values:
        waiting[kind, part].append(value)
        if len(waiting[kind, part]) >= _ITEM_PATHS:
            yield part, (kind, waiting.pop((kind, part)))
    for (kind, part), rest in waiting.items():
        yield part, (kind, rest)


def _merge(
    roots: tuple[str, ...], older_than_ms: int, part: int, items: Iterator[_Item]
) -> tuple[OrphanCandidates, StorageError | None]:
    referenced = ReferencedPaths(roots[0], hash_of=path_hash)
    objects: list[tuple[str, int, int | None]] = []
    error: StorageError | None = None
    for kind, payload in items:
        if kind == "references":
            referenced.add_hashes(payload)
        elif kind == "expected":
            referenced.add_expected(payload)
        elif kind == "objects":
            objects += payload
        else:
            error = MetadataUnreadable(payload) if kind == "unreadable" else StorageError(payload)
    return find_candidates((ListedObject(*found) for found in objects), referenced, older_than_ms), error
