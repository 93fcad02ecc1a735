"""The table in memory, as the operations of a dry run would leave it.

Each operation of a pass plans on the result of earlier operations.  In a dry run, an operation notes how it would
change the table, with the files that it expects to write.  The change is applied to a copy when a later operation loads
the table.  Manifests are encoded and kept in memory; nothing is written or committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.transaction import Committed
from icekeeper.metadata.updates import apply_updates
from icekeeper.model import Nothing
from icekeeper.operation_facts import Operation

log = logging.getLogger(__name__)


@dataclass(slots=True)
class PlannedTable:
    """The changes of a dry run so far; if a change cannot be applied, later plans see the current table."""

    before: tuple[Operation, ...] = ()
    """The operations whose changes are in the table as last loaded."""
    _noted: list[tuple[Operation, Callable[[], object]]] = field(default_factory=list)
    _table: LoadedTable | None = None
    _base: str | None = None
    """The table's metadata file when the dry run began."""
    _files: dict[str, bytes] = field(default_factory=dict)
    """Manifests and manifest lists of the planned snapshots."""
    _names: set[str] = field(default_factory=set)
    """Paths of files that do not exist: these manifests and lists, and the data and delete files of the planned
    snapshots."""
    _is_given_up: bool = False

    @property
    def is_as_it_is(self) -> bool:
        """Whether plans see the current table, because no change was noted."""
        return not self._noted and not self.before and not self._is_given_up

    def note(self, operation: Operation, change: Callable[[], object]) -> None:
        """Note how an operation would change the table; ``change`` commits it through the operation's context."""
        self._noted.append((operation, change))

    def load(self, now: LoadedTable) -> LoadedTable:
        """The table with all noted changes, or ``now`` (the catalog's state) if they cannot be applied."""
        self._base = self._base or now.metadata_location
        if now.metadata_location != self._base:
            self._give_up("another commit landed during the dry run")
        noted, self._noted = self._noted, []
        for operation, change in noted:
            if self._is_given_up:
                break
            try:
                change()
            except Exception as error:  # report the plan; later operations plan on the current table
                self._give_up(f"cannot predict the result of {operation.value}: {type(error).__name__}: {error}")
            if not self._is_given_up:
                self.before = (*self.before, operation)
        return now if self._table is None else self._table

    def read(self, path: str, read: Callable[[str], bytes]) -> bytes:
        """The bytes of a file; ``read`` reads files that really exist."""
        held = self._files.get(path)
        return read(path) if held is None else held

    def write(self, path: str, data: bytes) -> None:
        """Keep a manifest or manifest list of a planned snapshot."""
        self._files[path] = data
        self._names.add(path)

    def will_name(self, paths: Iterable[str]) -> None:
        """Note data and delete files that a planned snapshot names, and that do not exist."""
        self._names.update(paths)

    def is_written(self, path: str) -> bool:
        """Whether the file exists and is not merely expected in a planned snapshot."""
        return path not in self._names

    def commit(
        self, head: LoadedTable, prepare: Callable[[LoadedTable], PreparedCommit | Nothing], now_ms: int
    ) -> Committed | Nothing:
        """Apply a commit to the planned table, which keeps the name of the current metadata file.

        Raises:
            MaintenanceError: by ``prepare``, or the commit does not fit the table.
        """
        prepared = prepare(head)
        if isinstance(prepared, Nothing):
            return prepared
        metadata = apply_updates(head.metadata, prepared.updates, metadata_location=None, now_ms=now_ms)
        table = replace(head, metadata=metadata)
        if not self._is_given_up:
            self._table = table
        return Committed(table, prepared, 1)

    def _give_up(self, why: str) -> None:
        log.info("the rest of the dry run plans on the current table: %s", why)
        self._table, self.before, self._is_given_up = None, (), True
