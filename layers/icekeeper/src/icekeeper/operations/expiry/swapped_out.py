"""Finds the state that a commit really replaced, by the metadata log (rule 78).

A REST catalog makes a commit on whatever is newest, if only what the commit requires still holds.  So the state that it
swapped out may be a newer one than the commit was prepared on, with refs that nobody here has ever seen.  Each state
names the file of the one before it (specification, "Table Metadata Fields", ``metadata-log``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import parse_document
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage

__all__ = ["Swap", "find_swap"]

# The walk normally ends at once; on a busy table, after as many commits as came since a run was interrupted.
_MOST_STATES = 500


@dataclass(frozen=True, slots=True)
class Swap:
    """The state that a commit replaced (``before``, in the file ``location``), and the one that came in its place."""

    location: str
    before: TableMetadata
    after: TableMetadata


def find_swap(
    now: LoadedTable,
    is_before: Callable[[TableMetadata], bool],
    storage: Storage,
    known: LoadedTable | None = None,
) -> Swap | None:
    """The last state for which ``is_before`` holds, and the one after it; for ``now`` it must not hold any more.

    ``known`` is a state that was read already; mostly it is the one to find.  Returns ``None`` when the log does not
    reach back so far, or the files that it names are gone.

    Raises:
        MetadataUnreadable: a state cannot be read or parsed.
    """
    after = now.metadata
    for _ in range(_MOST_STATES):
        log = after.metadata_log
        location = str(log[-1]["metadata-file"]) if log else None
        if location is None:
            return None
        if known is not None and normalise(location) == normalise(known.metadata_location):
            before: TableMetadata | None = known.metadata
        else:
            before = _read(storage, location)
        if before is None:
            return None
        if is_before(before):
            return Swap(location, before, after)
        after = before
    return None


def _read(storage: Storage, location: str) -> TableMetadata | None:
    """The metadata in a file; ``None`` if the file is gone."""
    try:
        return parse_document(storage.read(location), location)
    except MetadataUnreadable:
        raise
    except StorageError as error:
        if storage.size(location) is None:
            return None
        raise MetadataUnreadable(f"metadata file {error}") from error
