"""Reads the manifests that were added since the last pass, to learn in which folders the table has files.

A table may have files in another table's folder.  Whoever deletes there must know it, also when a pass over the guest
only expires snapshots or does nothing.  Up to where manifests were read is recorded, so that each is read only once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.manifest_portions import portions
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestFile
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.footprint import Footprint, data_folders
from icekeeper.state.claims import TableClaims
from icekeeper.storage.storage import Storage

__all__ = ["newest_marks", "read_new_manifests"]

# Below, the manifests of a pass fit into its cache, or nearly; above, its operations read most of them again anyway.
_BY_ENGINE_BYTES = 64 * 1024 * 1024
_TASK_BYTES = 8 * 1024 * 1024
# Entries are decoded in Python: a byte of them takes as long as so many of a data file.
_DATA_BYTES_PER_BYTE = 8


def read_new_manifests(context: OperationContext, loaded: LoadedTable, before: Iterable[TableClaims]) -> None:
    """Take note in the pass's footprint of every file of the manifests that were added since ``before``: in this
    process, or of many manifests by all workers.

    Raises:
        MetadataUnreadable: a manifest list or manifest is missing or damaged.
        StorageError: the engine broke.
    """
    reader = context.reader(loaded)
    known = list(before)
    sequence_number = max((one.seen_sequence_number for one in known), default=-1)
    seen_ms = max((one.seen_ms for one in known), default=-1)
    if _went_back(reader.metadata, sequence_number, seen_ms):
        sequence_number = seen_ms = -1
    snapshots = reader.metadata.snapshots
    new = [s for s in snapshots.values() if s.sequence_number > sequence_number or s.timestamp_ms > seen_ms]
    manifests = _new_manifests(reader, new, sequence_number)
    if context.planned is None and sum(m.manifest_length for m in manifests) > _BY_ENGINE_BYTES:
        _see_by_engine(context, loaded, manifests)
        return
    deque(reader.live_paths(manifests), maxlen=0)


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


def _see_by_engine(context: OperationContext, loaded: LoadedTable, manifests: Sequence[ManifestFile]) -> None:
    storage, own = context.storage(loaded), data_folders(loaded.metadata)
    document = {key: loaded.metadata.document[key] for key in ("format-version", "location")}
    looks = [_Look(storage, document, portion, own) for portion in portions(manifests, _TASK_BYTES)]
    for roots, error in context.engine.map(_roots_of, looks, lambda done: None):
        context.footprint.add(roots)
        if error is not None:
            raise MetadataUnreadable(error)


def _roots_of(look: _Look) -> tuple[frozenset[str], str | None]:
    """The roots of the files of live entries, and what could not be read."""
    seen = Footprint()
    reader = TableReader(TableMetadata(look.document), look.storage.read, partial(seen.see, own=look.own))
    try:
        deque(reader.live_paths(look.manifests), maxlen=0)
    except MetadataUnreadable as error:
        return seen.roots(), str(error)
    return seen.roots(), None


def newest_marks(metadata: TableMetadata) -> tuple[int, int]:
    """The sequence number and the time (epoch milliseconds) up to which the table's manifests are read by now."""
    return metadata.last_sequence_number, max((s.timestamp_ms for s in metadata.snapshots.values()), default=-1)


def _went_back(metadata: TableMetadata, sequence_number: int, seen_ms: int) -> bool:
    """Whether the table is at another state than one that follows on what was seen up to these marks (rule 167).

    Its catalog entry was restored or registered anew: its sequence numbers begin again below those that were seen.
    """
    return metadata.last_sequence_number < sequence_number or any(
        0 < s.sequence_number <= sequence_number and s.timestamp_ms > seen_ms for s in metadata.snapshots.values()
    )


def _new_manifests(reader: TableReader, new: Sequence[Snapshot], sequence_number: int) -> Sequence[ManifestFile]:
    snapshots, ids = reader.metadata.snapshots, {snapshot.snapshot_id for snapshot in new}
    found: dict[str, ManifestFile] = {}
    for manifest in reader.manifests_of(new):
        adder = manifest.added_snapshot_id
        # Manifests of v1 have no sequence number; when one came whose snapshot is gone is not known.
        is_new_v1 = manifest.sequence_number == 0 and (adder in ids or adder not in snapshots)
        if manifest.may_have_live_files and (manifest.sequence_number > sequence_number or is_new_v1):
            found[manifest.manifest_path] = manifest
    return list(found.values())
