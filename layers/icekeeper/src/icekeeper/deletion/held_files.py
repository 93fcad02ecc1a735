"""Files that must stay although the table's newest state does not reference them: pinned and staged ones (rule 82).

Whoever adds a pin checks afterwards that its snapshot is still there.  An expiry that read the pins before, and commits
after that check, still finds the pin here, before it deletes a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from icekeeper.catalogs.catalog import identity_of
from icekeeper.deletion.neighbours import TableFolders
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import parse_document
from icekeeper.metadata.reachability import References, statistics_files
from icekeeper.metadata.table_reader import TableReader
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.staging import StagedLoad
from icekeeper.state.store import Pin
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.merged_spellings import any_spelling
from icekeeper.storage.path_set import PathSet

__all__ = ["HeldFiles", "held_by_others"]


def held_by_others(context: OperationContext, tables: Iterable[TableFolders]) -> Sequence[str]:
    """The paths that loads of other tables have staged, and their pinned metadata files; they may lie in our location.

    Raises:
        StorageError: the state store cannot be read.
    """
    held: list[str] = []
    for claims in tables:
        memory = TableMemory(context.state, identity_of(claims.catalog, claims.table), context.memory.clock)
        held += (*memory.staged_paths(), *memory.pinned_metadata())
    return held


class HeldFiles:
    """What pins and staged loads hold, as of the last :meth:`look`."""

    def __init__(self, memory: TableMemory, read: Callable[[str], bytes]) -> None:
        self._memory = memory
        self._read = read
        self._loads: tuple[StagedLoad, ...] = ()
        self._staged = PathSet()
        self._pinned: set[str] = set()
        self._followed: set[tuple[int, str]] = set()

    def look(self, now: TableMetadata) -> None:
        """Ask the state store anew; ``now`` is the table's newest state, whose snapshots need no pin.

        Raises:
            MetadataUnreadable: what a pinned snapshot needs cannot be read.
            StorageError: the state store cannot be read.
        """
        loads = self._memory.staged_loads()
        if loads != self._loads:
            self._loads, self._staged = loads, PathSet(self._memory.staged_paths_of(loads))
        for pin in self._memory.pins():
            self._pinned.add(any_spelling(pin.metadata_location))
            key = (pin.snapshot_id, pin.metadata_location)
            if pin.snapshot_id not in now.snapshots and key not in self._followed:
                self._pinned.update(map(any_spelling, self._needed(pin)))
                self._followed.add(key)

    @property
    def pinned(self) -> Set[str]:
        """Normalised paths of the files that pins hold."""
        return self._pinned

    def hold(self, path: str) -> bool:
        """Whether the file must not be deleted."""
        return any_spelling(path) in self._pinned or self._staged.may_contain(path)

    def _needed(self, pin: Pin) -> Iterator[str]:
        try:
            metadata = parse_document(self._read(pin.metadata_location), pin.metadata_location)
            snapshot = metadata.snapshots.get(pin.snapshot_id)
            if snapshot is not None:
                yield from statistics_files(metadata)
                yield from References().follow(TableReader(metadata, self._read), [snapshot])
        except StorageError as error:
            raise MetadataUnreadable(
                f"what pin '{pin.name}' holds cannot be told, so nothing was deleted: {error}; remove the pin when "
                "nobody reads by it"
            ) from error
