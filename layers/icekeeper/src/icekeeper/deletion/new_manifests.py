"""Reads the manifests that were added since the last pass, to learn in which folders the table has files.

A table may have files in another table's folder.  Whoever deletes there must know it, also when a pass over the guest
only expires snapshots or does nothing.  Up to where manifests were read is recorded, so that each is read only once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import MetadataUnreadable, is_gone
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_portions import portions
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestFile
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.footprint import Footprint, data_folders
from icekeeper.state.claims import TableClaims
from icekeeper.storage.storage import Storage

__all__ = ["newest_marks", "read_new_manifests"]

log = logging.getLogger(__name__)

_Item = TypeVar("_Item")
_Read = TypeVar("_Read")

# Below, the manifests of a pass fit into its cache, or nearly; above, its operations read most of them again anyway.
_BY_ENGINE_BYTES = 64 * 1024 * 1024
_TASK_BYTES = 8 * 1024 * 1024
# Entries are decoded in Python: a byte of them takes as long as so many of a data file.
_DATA_BYTES_PER_BYTE = 8


def read_new_manifests(context: OperationContext, loaded: LoadedTable, before: Iterable[TableClaims]) -> bool:
    """Take note in the pass's footprint of every file of the manifests that were added since ``before``: in this
    process, or of many manifests by all workers.

    Returns whether all of them were there: one that is gone stops neither readers of the others nor this (rule 184).

    Raises:
        MetadataUnreadable: a manifest list or manifest is damaged.
        StorageError: a store or the engine broke.
    """
    reader = context.reader(loaded)
    known = list(before)
    sequence_number = max((one.seen_sequence_number for one in known), default=-1)
    seen_ms = max((one.seen_ms for one in known), default=-1)
    if _went_back(reader.metadata, sequence_number, seen_ms):
        sequence_number = seen_ms = -1
    seen = sequence_number
    snapshots = reader.metadata.snapshots
    new = [s for s in snapshots.values() if s.sequence_number > sequence_number or s.timestamp_ms > seen_ms]
    lists, listed = _that_are_there(lambda some: list(reader.manifests_of(some)), new)
    manifests = _new_manifests(reader, chain.from_iterable(lists), {snapshot.snapshot_id for snapshot in new}, seen)
    if context.planned is None and sum(m.manifest_length for m in manifests) > _BY_ENGINE_BYTES:
        return _see_by_engine(context, loaded, manifests) and listed
    return _see(reader, manifests) and listed


def _see(reader: TableReader, manifests: Sequence[ManifestFile]) -> bool:
    """Read the paths of all live entries; whether all manifests were there."""
    return _that_are_there(lambda some: deque(reader.live_paths(some), maxlen=0), manifests)[1]


def _that_are_there(read: Callable[[Sequence[_Item]], _Read], items: Sequence[_Item]) -> tuple[Sequence[_Read], bool]:
    """Read all items at once, and where a file is gone, one by one all that are there; whether none is gone.

    Raises:
        MetadataUnreadable: one is damaged.
    """
    try:
        return [read(items)], True
    except MetadataUnreadable as error:
        if not is_gone(error):
            raise
    found = []
    for item in items:
        try:
            found.append(read([item]))
        except MetadataUnreadable as error:
            if not is_gone(error):
                raise
            log.warning("%s: what it named is not known", error)
    return found, False


@dataclass(frozen=True, slots=True)
class _Look:
    """Some manifests to read; ``own``: the folders in which the table keeps data files and nothing else."""

    storage: Storage
    document: Mapping[str, Any]
    """What a reader asks of the table's metadata; not the snapshots, which can be many."""
    manifests: tuple[ManifestFile, ...]
    own: tuple[str, ...]

    @property
    def input_bytes(self) -> int:
        """See :class:`.ReadsBytes`."""
        return _DATA_BYTES_PER_BYTE * sum(manifest.manifest_length for manifest in self.manifests)


def _see_by_engine(context: OperationContext, loaded: LoadedTable, manifests: Sequence[ManifestFile]) -> bool:
    storage, own = context.storage(loaded), data_folders(loaded.metadata)
    document = {key: loaded.metadata.document[key] for key in ("format-version", "location")}
    looks = [_Look(storage, document, portion, own) for portion in portions(manifests, _TASK_BYTES)]
    is_whole = True
    for roots, were_there, error in context.engine.map(_roots_of, looks, lambda done: None):
        context.footprint.add(roots)
        is_whole = is_whole and were_there
        if error is not None:
            raise MetadataUnreadable(error)
    return is_whole


def _roots_of(look: _Look) -> tuple[frozenset[str], bool, str | None]:
    """The roots of the files of live entries, whether all manifests were there, and what could not be read."""
    seen = Footprint()
    reader = TableReader(TableMetadata(look.document), look.storage.read, partial(seen.see, own=look.own))
    try:
        were_there = _see(reader, look.manifests)
    except MetadataUnreadable as error:
        return seen.roots(), True, str(error)
    return seen.roots(), were_there, None


def newest_marks(metadata: TableMetadata) -> tuple[int, int]:
    """The sequence number and the time (epoch milliseconds) up to which the table's manifests are read by now."""
    return metadata.last_sequence_number, max(metadata.snapshot_times_ms, default=-1)


def _went_back(metadata: TableMetadata, sequence_number: int, seen_ms: int) -> bool:
    """Whether the table is at another state than one that follows on what was seen up to these marks (rule 167).

    Its catalog entry was restored or registered anew: its sequence numbers begin again below those that were seen.
    """
    return metadata.last_sequence_number < sequence_number or any(
        0 < s.sequence_number <= sequence_number and s.timestamp_ms > seen_ms for s in metadata.snapshots.values()
    )


def _new_manifests(
    reader: TableReader, listed: Iterable[ManifestFile], ids: Collection[int], sequence_number: int
) -> Sequence[ManifestFile]:
    """Those of the ``listed`` manifests that came since; ``ids``: of the snapshots that list them."""
    snapshots = reader.metadata.snapshots
    found: dict[str, ManifestFile] = {}
    for manifest in listed:
        adder = manifest.added_snapshot_id
        # Manifests of v1 have no sequence number; when one came whose snapshot is gone is not known.
        is_new_v1 = manifest.sequence_number == 0 and (adder in ids or adder not in snapshots)
        if manifest.may_have_live_files and (manifest.sequence_number > sequence_number or is_new_v1):
            found[manifest.manifest_path] = manifest
    return list(found.values())
