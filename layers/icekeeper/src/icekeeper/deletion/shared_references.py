"""The files that other tables need of a shared location, pinned and staged ones included; read anew as they change.

The catalog entry of such a table may be out of date, as the table's own may be: newer metadata beside it is looked for.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.catalogs.pointer import reading_anew
from icekeeper.deletion.held_files import HeldFiles
from icekeeper.deletion.limited_looks import follow_for_a_while
from icekeeper.deletion.neighbours import TableFolders
from icekeeper.deletion.other_heads import refuse_other_head
from icekeeper.deletion.owned_locations import owned_locations
from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.deletion.stray_metadata import list_beside, needed_by, read_strays
from icekeeper.errors import MaintenanceError, OperationRefused, PolicyError
from icekeeper.metadata.reachability import References, metadata_files, reachable_paths
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.footprint import data_root
from icekeeper.state.identity import TableIdentity
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.path_set import PathSet, may_be_under
from icekeeper.storage.paths import normalise

__all__ = ["SharedReferences"]

log = logging.getLogger(__name__)


class _Followed:
    """One table, and those of its references that have been read."""

    def __init__(self, context: OperationContext, found: TableFolders, table: LoadedTable) -> None:
        self.found, self.catalog, self.table = found, found.catalog, table
        self.references = References()
        memory = TableMemory(context.state, self.identity, context.memory.clock)
        self.held = HeldFiles(memory, context.storage(table).read)

    @property
    def identity(self) -> TableIdentity:
        return identity_of(self.catalog, self.table)

    def knows(self, metadata_file: str) -> bool:
        """Whether a (normalised) metadata file is the table's current one, or in its metadata log."""
        known = metadata_files(self.table.metadata, self.table.metadata_location)
        return metadata_file in map(normalise, known)


class _SeenFolders:
    """The folders in which tables that cannot be read were seen to have files, of those that rules keep away.

    A folder below the table that asks is spared whole.  One around it, as anybody's ``write.data.path`` may be, stands
    for the files that such a root has: those directly in it, and in folders of partitions and hashes.
    """

    def __init__(self, own: LoadedTable) -> None:
        self._homes = tuple(map(normalise, owned_locations(own.metadata)))
        self._below, self._roots = PathSet(), set[str]()

    def add(self, folders: Iterable[str]) -> Sequence[str]:
        """Spare what lies in (normalised) folders; those of them that lie in the table."""
        below = sorted({one for one in folders for home in self._homes if one != home and may_be_under(one, home)})
        self._below.add(below)
        self._roots.update(folders)
        return below

    def __contains__(self, path: str) -> bool:
        return self._below.may_contain(path) or (bool(self._roots) and data_root(path) in self._roots)


class SharedReferences:
    """The files that tables which share a location need, and those that are pinned or staged of them."""

    def __init__(
        self, context: OperationContext, tables: Sequence[TableFolders], own: LoadedTable, known: References
    ) -> None:
        """``own``: the table whose files are deleted; the caller has read those of its references that are ``known``.

        Another entry of ``own`` needs the history of the metadata file at which it stands, also where that is our own
        head: it stays there when we go on (rule 222).

        Raises:
            OperationRefused: one of them has a newer head that its catalog entry does not know.
            MetadataUnreadable: something that one of them needs cannot be read.
            StorageError: a store does not answer.
        """
        self._context = context
        self._paths, self._of_kept_apart = (ReferencedPaths(own.metadata.location) for _ in range(2))
        self._seen = _SeenFolders(own)
        self.left: list[str] = []
        """What stays for tables that cannot be read, in sentences."""
        self._followed: dict[tuple[str, str, TableName], _Followed] = {}
        for found in tables:
            key = (found.catalog.name, found.catalog.warehouse, found.table.name)
            self._followed[key] = _Followed(context, found, found.table)
        identity = identity_of(context.catalog, own)
        for followed in self._followed.values():
            if identity.uuid and followed.identity.copy == identity.copy:
                followed.references = References(set(known.snapshots), set(known.manifests))
            with self._reading(followed):
                self._follow(followed)
                followed.held.look(followed.table.metadata)
        for followed in _newest_entries(self._followed.values()):
            # Metadata beside the table that is cleaned is looked for by the caller.
            if followed.identity.copy != identity.copy:
                with self._reading(followed):
                    self._look_beside(followed)

    def spare_seen(self, name: str, folders: Iterable[str], reason: str) -> None:
        """Spare what a table that rules keep away was seen to have in this one's folders, as nobody can read it now."""
        below = self._seen.add(folders)
        told = f"what lies in {' and '.join(below)} stays: {name} was seen to have files there, and cannot be read"
        if below and told not in self.left:
            log.warning("%s: %s: %s", self._context.table, told, reason)
            self.left.append(told)

    def __contains__(self, path: str) -> bool:
        return (
            path in self._paths
            or path in self._of_kept_apart
            or path in self._seen
            or any(followed.held.hold(path) for followed in self._followed.values())
        )

    @property
    def tables(self) -> Sequence[LoadedTable]:
        """The tables as they were last loaded, without those that rules keep away."""
        return [followed.table for followed in self._followed.values() if not followed.found.is_kept_apart]

    def has_prefix_mismatch(self, path: str) -> bool:
        """As :meth:`ReferencedPaths.has_prefix_mismatch`; tables that rules keep away may name any bucket."""
        return self._paths.has_prefix_mismatch(path)

    @contextmanager
    def _reading(self, followed: _Followed) -> Iterator[None]:
        """What cannot be read of a table stops the deletion; where rules keep it away, what was seen is spared."""
        try:
            yield
        except (MaintenanceError, AttributeError, KeyError, TypeError, ValueError) as error:
            if not followed.found.is_kept_apart:
                raise
            name = f"{followed.table.name} of catalog {followed.catalog.name}"
            self.spare_seen(name, followed.found.files_in, str(error))

    def look_again(self) -> None:
        """Look at every table's pointer, and add what came to be referenced since.

        Raises:
            OperationRefused: a table cannot be loaded any more.
            MetadataUnreadable: new references cannot be read.
        """
        for key, known in tuple(self._followed.items()):
            with self._reading(known):
                self._look_again(key, known)

    def _look_again(self, key: tuple[str, str, TableName], known: _Followed) -> None:
        try:
            with reading_anew():
                now = known.catalog.load(known.table.name)
        except PolicyError:
            return  # dropped meanwhile; its files stay protected in this pass
        except MaintenanceError as error:
            raise OperationRefused(
                f"{known.table.name}, which shares this table's location, cannot be loaded any more: {error}; "
                "nothing more was deleted"
            ) from error
        followed = known
        if now.metadata.uuid != known.table.metadata.uuid:
            followed = self._followed[key] = _Followed(self._context, known.found, now)
        has_moved = now.metadata_location != known.table.metadata_location
        followed.table = now
        if has_moved:
            self._follow(followed)
        followed.held.look(now.metadata)

    def _look_beside(self, followed: _Followed) -> None:
        """Add what newer metadata of a table needs that its catalog entry does not know.

        Raises:
            OperationRefused: the table has another head, or whether it has one cannot be told.
            MetadataUnreadable: what is there cannot be read.
            StorageError: the store or the catalog does not answer.
        """
        storage = self._context.storage(followed.table)
        listed = list_beside(storage, followed.table)
        if not read_strays(storage, followed.table, listed):
            return
        # After the listing: what was committed since the table was loaded is no stray.
        self._load_again(followed)
        strays = read_strays(storage, followed.table, listed)
        for stray in strays if followed.found.is_kept_apart else refuse_other_head(followed.table, strays):
            self._paths_of(followed).update(needed_by(storage, stray, followed.references))

    def _paths_of(self, followed: _Followed) -> ReferencedPaths:
        return self._of_kept_apart if followed.found.is_kept_apart else self._paths

    def _load_again(self, followed: _Followed) -> None:
        try:
            with reading_anew():
                now = followed.catalog.load(followed.table.name)
        except PolicyError:
            return  # dropped meanwhile; its files stay protected in this pass
        before = followed.table
        if now.metadata.uuid == before.metadata.uuid and now.metadata_location != before.metadata_location:
            followed.table = now
            self._follow(followed)

    def _follow(self, followed: _Followed) -> None:
        table = followed.table
        reader = TableReader(table.metadata, self._context.storage(table).read)

        def look() -> None:
            self._paths_of(followed).update(reachable_paths(reader, table.metadata_location, followed.references))

        follow_for_a_while(self._context, followed.catalog, table.name, look)


def _newest_entries(entries: Collection[_Followed]) -> Iterator[_Followed]:
    """The catalog entries without those that are out of date: another entry of the same table knows their state."""
    same: defaultdict[tuple[str, str], dict[str, _Followed]] = defaultdict(dict)
    for one in entries:
        same[one.identity.copy].setdefault(normalise(one.table.metadata_location), one)
    for heads in same.values():
        for head, one in heads.items():
            if not any(other.knows(head) for other in heads.values() if other is not one):
                yield one
