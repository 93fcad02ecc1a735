"""What stands between a list of files and their deletion (DESIGN 6.4).

Just before each batch the catalog's pointer is read again: a file that some new snapshot came to reference between
planning and now is spared, and so is what a pin or a staged load holds by now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import OperationRefused
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.reachability import References, reachable_files
from icekeeper.operations.context import OperationContext
from icekeeper.operations.held_files import HeldFiles
from icekeeper.policy import gc_enabled
from icekeeper.storage_paths import is_under, normalise

__all__ = ["GC_DISABLED", "DeletedFiles", "delete_unreferenced", "owned_locations"]

GC_DISABLED = "gc.enabled is false: this table's files must not be deleted"

# S3's limit for one DeleteObjects request; also how much is deleted between two looks at the pointer.
_BATCH = 1000


@dataclass(slots=True)
class DeletedFiles:
    """Paths really deleted, and those that could not be, with the reason."""

    deleted: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    spared: list[str] = field(default_factory=list)


def owned_locations(metadata: TableMetadata) -> tuple[str, ...]:
    """Where this table's files live; nothing outside is ever deleted.  Nested locations are listed once."""
    locations: list[str] = []
    for location in sorted({metadata.location, metadata.data_location, metadata.metadata_directory}, key=len):
        if not any(is_under(location, other) for other in locations):
            locations.append(location)
    return tuple(locations)


def delete_unreferenced(
    context: OperationContext, known: LoadedTable, paths: Sequence[str], what: str, references: References
) -> DeletedFiles:
    """Delete files that none of ``references`` needs, batch by batch, each after another look.

    Whatever else the table references by now, protects its files: also a snapshot that a commit should have removed.

    Raises:
        OperationRefused: the table was replaced meanwhile, or its files must not be deleted any more.
        MetadataUnreadable: new references cannot be read; what was not yet deleted stays.
    """
    result = DeletedFiles()
    guard = _Guard(context, known, references)
    storage = context.storage(known)
    for start in range(0, len(paths), _BATCH):
        batch = paths[start : start + _BATCH]
        referenced = guard.referenced_since()
        spared = {path for path in batch if normalise(path) in referenced or guard.held.hold(path)}
        wanted = [path for path in batch if path not in spared]
        result.spared.extend(path for path in batch if path in spared)
        report = storage.delete(wanted)
        result.deleted.extend(report.deleted)
        result.failed.update(report.failed)
        context.progress(what, min(start + _BATCH, len(paths)), len(paths))
    return result


class _Guard:
    """Follows the pointer and collects every reference that came after those already known."""

    def __init__(self, context: OperationContext, known: LoadedTable, references: References) -> None:
        self._context = context
        self._uuid = known.metadata.uuid
        self._references = references
        self._seen: str | None = None
        self._referenced: set[str] = set()
        self.held = HeldFiles(context.memory, context.storage(known).read)
        """What pins and staged loads hold, as of the last :meth:`referenced_since`."""

    def referenced_since(self) -> set[str]:
        """Normalised paths."""
        now = self._context.load()
        if now.metadata.uuid != self._uuid:
            raise OperationRefused(f"table {now.name} was replaced by another one; nothing more was deleted")
        if not gc_enabled(now.metadata):
            raise OperationRefused(f"{GC_DISABLED}; nothing more was deleted")
        if now.metadata_location != self._seen:
            new = reachable_files(self._context.reader(now), now.metadata_location, self._references)
            self._referenced.update(map(normalise, new))
            self._seen = now.metadata_location
        self.held.look(now.metadata)
        return self._referenced
