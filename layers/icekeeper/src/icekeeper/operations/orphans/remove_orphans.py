"""The ``remove_orphans`` operation: delete listed files that nothing references, once their grace period is over."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias
from zlib import crc32

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.file_needs import GC_DISABLED, refuse_if_left_to_collector
from icekeeper.deletion.neighbours import behind_authority
from icekeeper.deletion.referenced_paths import ReferencedPaths, path_hash
from icekeeper.deletion.sweep_permission import refuse_other_type
from icekeeper.engines.engine import Engine
from icekeeper.errors import MetadataUnreadable, OperationRefused, StorageError
from icekeeper.machine.clock import stopwatch
from icekeeper.metadata.document import require_writable
from icekeeper.metadata.manifest_read import decode_live_paths
from icekeeper.metadata.table_reader import References, documents
from icekeeper.model import ManifestFile
from icekeeper.operations.orphans.delete_orphans import TableCandidates, delete_orphans, folders_elsewhere
from icekeeper.operations.orphans.inventory import InventoryFiles
from icekeeper.operations.orphans.orphan_rules import OrphanCandidates, find_candidates, join_candidates, live_files
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation, gc_enabled
from icekeeper.policy.sweep_rhythm import NOT_POSSIBLE
from icekeeper.report.outcome import OperationOutcome, skipped
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import FolderNames
from icekeeper.storage.storage import FileSource, ListedLocations, SourcePart, Storage

_OPERATION = Operation.REMOVE_ORPHANS


def remove_orphans(
    context: OperationContext, *, listed: FileSource | None = None, only_lists: bool = False
) -> OperationOutcome:
    """Delete unreferenced files past the grace period.

    ``listed`` are files that an earlier step of the pass listed; they are used instead of a listing.  With
    ``only_lists`` this process has no right to delete; the deleting process checks its own.

    Summary and metric keys are those of SeaweedFS's worker.

    Raises:
        OperationRefused: a check found a danger; nothing was deleted.
        MetadataUnreadable: a reference cannot be read; nothing was deleted.
        PolicyError: the inventory is invalid.
        StorageError: the store failed.
    """
    with stopwatch() as elapsed_ms:
        table = context.load()
        skip = why_skipped(context, table, only_lists=only_lists)
        if skip is not None:
            return skip
        found = _list_candidates(context, table, listed)
        outcome = delete_orphans(context, found)
        if context.dry_run:
            return outcome
        return replace(outcome, metrics={**outcome.metrics, "remove_orphans.duration_ms": elapsed_ms()})


def why_skipped(context: OperationContext, table: LoadedTable, *, only_lists: bool = False) -> OperationOutcome | None:
    """The outcome for a table whose files must not or cannot be deleted (``only_lists``: listed); ``None`` if they can
    be.

    Raises:
        TableUnsupported: this version does not maintain the table's format.
        OperationRefused: the table may be of another format, or Nessie or lakeFS manages it.
        StorageError: the store does not answer.
    """
    require_writable(table.metadata)
    if not gc_enabled(table.metadata):
        return skipped(_OPERATION, GC_DISABLED)
    refuse_other_type(table.metadata, context.policy.orphan_table_types)
    if not table.metadata.has_history and _OPERATION not in context.asked_by_name:  # (rule: sweep-iceberg-tables-only)
        asking = ("icekeeper", "maintain", str(table.name), "--catalog", context.catalogs.own.id.name)
        return skipped(
            _OPERATION,
            f"{table.name} has never had a commit, so nothing shows that the files in its folder belong to Iceberg; "
            f"if they do, run {shlex.join(asking)} --operations {_OPERATION.value}",
        )
    storage, location = context.stores.storage(table), table.metadata.location
    refuse_if_left_to_collector(storage, table)
    can_be_read = context.policy.orphan_inventory is not None or storage.can_list(location)
    if can_be_read and (only_lists or storage.can_delete(location)):
        return None
    verb = "listed" if not can_be_read else "deleted"
    reason = f"objects cannot be {verb} in this storage; it removes unreferenced files itself"
    return skipped(_OPERATION, reason, metrics={NOT_POSSIBLE: 1})


def _list_candidates(context: OperationContext, table: LoadedTable, listed: FileSource | None) -> TableCandidates:
    """List the table's files and compare them with the references that were loaded before the listing.

    :func:`delete_orphans` reads the references of later commits.
    """
    storage, reader, metadata = context.stores.storage(table), context.reader(table), table.metadata
    inventory = context.policy.orphan_inventory
    roots = (metadata.location, *folders_elsewhere(metadata, context.policy.orphan_sweep_prefixes))
    source: FileSource
    if listed is not None:
        source = listed
    elif inventory is not None:
        if len(roots) > 1:
            raise OperationRefused(
                f"orphan_sweep_prefixes names {roots[1]}, which is outside the table's location and can only be swept "
                "by listing; nothing was deleted; set orphan_inventory=none, or take the folder out"
            )
        # An operator may name any inventory; a table property only an inventory that the table may read.
        is_tables = context.resolved.sources["orphan_inventory"].startswith("table property")
        source = InventoryFiles(storage if is_tables else storage.operators(), inventory, metadata.location)
    else:
        source = ListedLocations(storage, tuple(roots))
    grace_ms = context.policy.orphan_older_than_ms
    older_than_ms = context.stores.trusted_now_ms(table, grace_ms, "orphan_older_than_hours") - grace_ms
    references = References()
    manifests = references.listed(reader, metadata.snapshots.values())
    named = [*documents(metadata, table.metadata_location), *context.memory.pinned_metadata(), *manifests]
    if live_files(manifests.values()) > DISTRIBUTED_ABOVE:
        candidates = compare_by_engine(
            source, roots, named, manifests, references, older_than_ms, context.engine, storage
        )
    else:
        referenced = ReferencedPaths(roots[0], named, listed_too=roots[1:])
        referenced.expect(references.held(reader, manifests.values()))
        candidates = find_candidates(source.objects(), referenced, older_than_ms)
        if not context.dry_run:
            context.memory.forget_unreferenced(referenced.__contains__, context.started_ms)
    if listed is not None:  # this is not a complete listing, so it cannot show missing files
        candidates.unlisted = None
    if not candidates.listed and inventory is not None and listed is None:
        raise OperationRefused(
            f"{inventory} (orphan_inventory) names no file under {metadata.location}, although at least the table's "
            "metadata is there; nothing was deleted; name the inventory of the table's bucket, or set "
            "orphan_inventory=none"
        )
    return TableCandidates(table, candidates, references, older_than_ms, source.is_current)


# Comparing listed files with references, in this process or on an engine's workers.
# Both ways find candidates with the same function.  Paths are distributed to workers by the hash of the path without
# scheme and bucket, so that a file and every spelling of a reference to it reach the same worker.

DISTRIBUTED_ABOVE = 10_000_000
"""The number of references above which workers compare.  This many references take 90 MB as hashes (twice that while
sorting) and a minute of a core; with more, starting workers pays off."""

_REFERENCES_PER_PART = 250_000
_MOST_PARTS = 4_000
"""Enough for 1,000 million references.  The limit is needed because a damaged manifest list may claim any number."""
_MANIFESTS_PER_TASK = 50
_ITEM_PATHS = 200
_LISTED_AT_ONCE = 10_000

_Item: TypeAlias = tuple[str, Any]
"""``(references | expected | objects | unreadable | failed, payload)``."""


def compare_by_engine(
    source: FileSource,
    roots: tuple[str, ...],
    documents: Iterable[str],
    manifests: Mapping[str, ManifestFile],
    references: References,
    older_than_ms: int,
    engine: Engine,
    storage: Storage,
) -> OrphanCandidates:
    """Compare on an engine's workers, which list files and read manifests; the result is the same.

    Args:
        source: the files to compare.
        roots: the table's location, and other listed folders.
        documents: paths of metadata files, manifest lists, manifests and statistics files.
        manifests: path → manifest, of every snapshot; their entries are read.
        references: records which manifests were read.
        older_than_ms: files that were modified before (epoch milliseconds) are past the grace period.
        engine: runs the workers.
        storage: access to the table's files.

    Raises:
        MetadataUnreadable: a manifest cannot be read.
        StorageError: the files cannot be listed, or the engine failed.
    """
    unseen = [path for path in manifests if path not in references.manifests]
    references.manifests.update(unseen)
    parts = max(2, min(-(-live_files(manifests.values()) // _REFERENCES_PER_PART), _MOST_PARTS))
    chunks = [unseen[start : start + _MANIFESTS_PER_TASK] for start in range(0, len(unseen), _MANIFESTS_PER_TASK)]
    tasks: list[partial[Iterator[tuple[str, int, Any]]]] = [
        partial(_references, roots, parts, tuple(documents)),
        *(partial(_references_in, roots, parts, tuple(chunk), storage) for chunk in chunks),
        *(partial(_objects, parts, listed) for listed in source.parts()),
    ]
    results = engine.exchange(_split, tasks, partial(_merge, roots, older_than_ms), range(parts), lambda done: None)
    for _, error in results:
        if error is not None:
            raise error
    return join_candidates(candidates for candidates, _ in results)


def _split(task: Callable[[], Iterator[tuple[str, int, Any]]]) -> Iterator[tuple[int, _Item]]:
    """Put up to ``_ITEM_PATHS`` values of the same kind and part into an item, because each item is pickled."""
    waiting: defaultdict[tuple[str, int], list[Any]] = defaultdict(list)
    try:
        for kind, part, value in task():
            waiting[kind, part].append(value)
            if len(waiting[kind, part]) >= _ITEM_PATHS:
                yield part, (kind, waiting.pop((kind, part)))
    except MetadataUnreadable as error:
        yield 0, ("unreadable", str(error))
        return
    except StorageError as error:
        yield 0, ("failed", str(error))
        return
    for (kind, part), rest in waiting.items():
        yield part, (kind, rest)


def _objects(parts: int, listed: SourcePart) -> Iterator[tuple[str, int, Any]]:
    names, rest = FolderNames(of_listed=True), iter(listed())
    while some := [*islice(rest, _LISTED_AT_ONCE)]:
        for found, normal in zip(some, names.spellings([found.path for found in some]), strict=True):
            yield "objects", _part(normal, parts), (found.path, found.size, found.modified_ms)


def _references(roots: tuple[str, ...], parts: int, paths: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
    hasher = ReferencedPaths(roots[0], hash_of=path_hash)
    for normal in FolderNames().spellings(paths):
        yield "references", _part(normal, parts), hasher.hashes(normal)


def _references_in(
    roots: tuple[str, ...], parts: int, manifests: Iterable[str], storage: Storage
) -> Iterator[tuple[str, int, Any]]:
    hasher, names = ReferencedPaths(roots[0], hash_of=path_hash, listed_too=roots[1:]), FolderNames()
    for manifest in manifests:
        try:
            data = storage.read(manifest)
        except StorageError as error:
            raise MetadataUnreadable(f"manifest {error}") from error
        for normal in chain.from_iterable(map(names.spellings, decode_live_paths(data, manifest))):
            expected = hasher.expected_hash(normal)
            if expected is None:
                yield "references", _part(normal, parts), hasher.hashes(normal)
            else:
                yield "expected", _part(normal, parts), expected


def _part(normal: str, parts: int) -> int:
    return crc32(behind_authority(normal).encode("utf-8", "surrogatepass")) % parts


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
