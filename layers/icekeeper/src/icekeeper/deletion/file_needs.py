"""Decides whether a file is needed.  Every deletion checks :class:`FileNeeds` at planning and before each batch.

It considers the references of the table and of all tables that may share files with it; the files that pins, staged
loads and running jobs hold; newer metadata that the catalog entry does not know; and the locations where the table may
delete (rule: one-object-decides-deletions).  If any of these cannot be read, it refuses: a failed read deletes less,
never more (rule: unreadable-deletes-less).
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Sequence
from functools import lru_cache

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.catalogs.server_settings import LAKEFS, NESSIE
from icekeeper.deletion.bucket_names import refuse_second_names
from icekeeper.deletion.foreign_tables import find_other_formats
from icekeeper.deletion.near_tables import NearTables, near_tables
from icekeeper.deletion.neighbours import (
    StrayMetadata,
    folders_left_alone,
    has_its_own_bucket,
    owned_locations,
    refuse_other_head,
)
from icekeeper.deletion.other_tables import rules_to_write
from icekeeper.deletion.shared_references import HeldFiles, SharedReferences, list_beside, needed_by, read_strays
from icekeeper.deletion.sweep_permission import is_of_iceberg, refuse_other_type
from icekeeper.errors import OperationRefused
from icekeeper.metadata.table_reader import References, reachable_files
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.metadata_files import read_listed_metadata
from icekeeper.policy import gc_enabled
from icekeeper.state.claims import TableClaims
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.allowed_locations import AllowedLocations
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import PathSet, any_spelling, compared, is_under, may_be_under, normalise
from icekeeper.storage.storage import Storage

log = logging.getLogger(__name__)

_MOST_FOLDERS = 10_000
_COLLECTORS = {NESSIE: "nessie-gc", LAKEFS: "lakeFS's garbage collection"}
GC_DISABLED = "gc.enabled is false: this table's files must not be deleted"  # (rule: gc-disabled-forbids-deletion)


def why_left_to_collector(storage: Storage, table: LoadedTable) -> str | None:
    """Why no file of a table may be deleted: Nessie or lakeFS keeps the table on branches that are not visible here
    (rule: branches-outside-need-everything); ``None``: neither does.

    Raises:
        StorageError: the store does not answer.
    """
    by = table.versioned_by or (LAKEFS if storage.is_in_lakefs(table.metadata.location) else "")
    if not by:
        return None
    return (
        f"{table.name} is in {by}, whose other branches, tags and commits are not visible here and may need any of "
        f"its files: leave deletions to {_COLLECTORS[by]}, and set snapshot_expiry_enabled=false and "
        "orphan_sweep_enabled=false"
    )


def refuse_if_left_to_collector(storage: Storage, table: LoadedTable) -> None:
    """Raises OperationRefused if :func:`why_left_to_collector` returns a reason."""
    why = why_left_to_collector(storage, table)
    if why is not None:
        raise OperationRefused(f"{why}; nothing was deleted")


class OwnPlaces:
    """Where a table may delete: below its own locations, where the deployment allows it."""

    def __init__(self, locations: Sequence[str], allowed: AllowedLocations) -> None:
        self._locations, self._allowed = locations, allowed
        self.look_again()

    def look_again(self) -> None:
        """Resolve the symbolic links of the locations again."""
        self._now = tuple(map(compared, self._locations))
        self._has_folder = lru_cache(_MOST_FOLDERS)(self._look)

    def have(self, path: str) -> bool:
        """Whether the file is in such a place."""
        path = compared(path)
        if self._has_folder(path.rpartition("/")[0], path.authority, path.key.rpartition("/")[0]):
            return not path.has_dots
        return self._has(path)

    def _look(self, folder: str, authority: str, key: str) -> bool:
        found = compared(folder)
        return (found.authority, found.key) == (authority, key) and self._has(found)

    def _has(self, path: str) -> bool:
        return self._allowed.allows(path) and any(is_under(path, location) for location in self._now)


class FileNeeds:
    """Decides which files of a table are needed.

    ``references``: the table's own references that the caller has already read; none of them is a file to delete.
    """

    def __init__(self, context: OperationContext, table: LoadedTable, references: References | None = None) -> None:
        """Check that files of the table may be deleted at all, and read its pins and loads.

        Raises:
            OperationRefused: Nessie or lakeFS keeps the table.
            MetadataUnreadable: a pinned snapshot cannot be read.
            StorageError: the state store or the table's store fails.
        """
        refuse_if_left_to_collector(context.stores.storage(table), table)
        self.references = References() if references is None else references
        self.held = HeldFiles(context.memory, context.stores.storage(table).read)
        self.held.look(table.metadata)
        self.shared = SharedReferences(context, (), table, self.references)
        self._context, self._table = context, table
        self._home = table.metadata.location
        self._owned = owned_locations(table.metadata)
        self._places = OwnPlaces(self._owned, table.allowed)
        directory = table.metadata.metadata_directory
        holds_more = any(may_be_under(place, directory) for place in (table.metadata.data_location, self._home))
        self._metadata_alone = None if holds_more else directory
        self._left_alone = PathSet()
        self._other_formats = PathSet()
        self._is_sweep = False
        self._seen: str | None = None
        # Files that newer metadata reference: of this table's head, of other heads, and of other entries.
        self._newer: set[str] = set()

    def permit_sweep(self) -> None:
        """Check that files which only a listing shows may be deleted; from now on :meth:`look_again` checks this, too.

        Raises:
            OperationRefused: the table may be of another format.
        """
        refuse_other_type(self._table.metadata, self._context.policy.orphan_table_types)
        self._is_sweep = True

    def may_sweep(self, path: str) -> bool:
        """Whether the name of a file that only a listing shows permits its deletion."""
        return is_of_iceberg(path, self._context.policy.orphan_file_endings)

    def ask(self, paths: Iterable[str]) -> None:
        """Find the other tables that may need files that this table's own snapshots or loads name.

        These are tables whose folders touch this table's location or the folders of the files.  If such a table has a
        folder below this table's location, the whole folder is left alone unless both share it.

        Raises:
            OperationRefused: a table that may need them cannot be loaded, a table has a newer head than its entry,
                or a folder cannot be listed.
            MetadataUnreadable: references of such a table cannot be read.
            StorageError: catalog, store or state store failed.
        """
        home, metadata = compared(self._home), self._table.metadata
        outside = [path for path in paths if not is_under(path, home)]
        around = {normalise(location) for path in outside for location in self._owned if is_under(path, location)}
        near = near_tables(self._context, self._table, sorted({normalise(self._home), *around}))
        self._share(near)
        own = (metadata.data_location, metadata.metadata_directory)
        others = (table for table in near.tables if not table.is_table_of(self._table))
        self._left_alone.add(
            folder
            for table in others
            for folder in table.folders.values()
            if is_under(folder, self._home) and not any(may_be_under(place, folder) for place in own)
        )
        self.look_for_other_heads()
        self._look_for_other_formats(paths)

    def ask_neighbours(self) -> Sequence[str]:
        """Find the tables that may need files anywhere in this table's folders; return the folders left to them.

        If such a table has a folder below this table's location, the whole folder is left alone.

        Raises:
            OperationRefused: another table has the same location, or a table that may need files cannot be read.
            MetadataUnreadable: references of such a table cannot be read.
            StorageError: catalog or state store failed.
        """
        near = near_tables(self._context, self._table, sorted({normalise(self._home), *map(normalise, self._owned)}))
        left_alone = folders_left_alone(self._table, near.tables)
        self._share(near)
        self._left_alone.add(left_alone)
        return left_alone

    def look_for_other_heads(self, listed: Iterable[ListedObject] | None = None) -> None:
        """Look for newer metadata of the table that its catalog entry does not know; keep the files it references.

        ``listed``: metadata files from a listing of the location; without it the metadata folders are listed.

        Raises:
            OperationRefused: another catalog, or a newer state of this catalog, has another head of the table; or the
                folders cannot be listed, so that such a head may be missed.
            MetadataUnreadable: such metadata, or its references, cannot be read.
        """
        storage = self._context.stores.storage(self._table)
        found = list_beside(storage, self._table, listed)
        now = self._context.load()  # after the listing, so that metadata of commits made meanwhile are known
        for stray in refuse_other_head(now, read_strays(storage, now, found)):
            self._newer.update(map(any_spelling, needed_by(storage, stray, self.references)))

    def need(self, path: str) -> bool:
        """Whether the file is needed, or this table must not delete it, as of the last :meth:`look_again`."""
        path = compared(path)
        return (
            (bool(self._newer) and any_spelling(path) in self._newer)
            or not self._places.have(path)
            or self.held.hold(path)
            or path in self.shared
            or self.shared.has_prefix_mismatch(path)
            or self._left_alone.may_contain(path)
            or (
                self._other_formats.may_contain(path)
                and not (self._metadata_alone is not None and is_under(path, self._metadata_alone))
            )
        )

    def leave_alone(self, path: str) -> bool:
        """Whether the whole folder of the file is left to another table, as of the last ``ask_…`` call."""
        return self._left_alone.may_contain(path)

    def look_again(self) -> None:
        """Read every catalog pointer, pin and staged load again; called just before each batch.

        Raises:
            OperationRefused: the table was replaced, its files must not be deleted any more, or a table that shares
                files can no longer be loaded.
            MetadataUnreadable: new references cannot be read.
            StorageError: a catalog or the state store does not answer.
        """
        self._places.look_again()
        self.shared.look_again()
        now = self._context.load()
        if now.metadata.uuid != self._table.metadata.uuid:
            raise OperationRefused(f"table {now.name} was replaced by another table; nothing more was deleted")
        if not gc_enabled(now.metadata):
            raise OperationRefused(f"{GC_DISABLED}; nothing more was deleted")
        if self._is_sweep:
            refuse_other_type(now.metadata, self._context.policy.orphan_table_types)
        if now.metadata_location != self._seen:
            new = reachable_files(self._context.reader(now), now.metadata_location, self.references)
            self._newer.update(map(any_spelling, new))
            self._seen = now.metadata_location
        self.held.look(now.metadata)

    def _look_for_other_formats(self, paths: Iterable[str]) -> None:
        storage = self._context.stores.storage(self._table)
        own = None if self._metadata_alone is None else compared(self._metadata_alone)
        data = (path for path in paths if own is None or not is_under(path, own))
        if has_its_own_bucket(self._home):
            return
        if not storage.can_list(self._home):
            raise OperationRefused(
                f"{self._home} may contain tables of other formats, and cannot be listed to check this; nothing was "
                "deleted; allow s3:ListBucket there"
            )
        found = find_other_formats(storage, self._owned, data)
        self._other_formats.add(found)
        for folder in sorted(found):
            log.warning(
                "%s: data files in %s are kept: it is the folder of a table of another format, which may need them; "
                "they can be deleted once its log folder is removed",
                self._table.name,
                folder,
            )

    def _share(self, near: NearTables) -> None:
        refuse_second_names(self._context, self._table)
        # An unusable second entry of this table needs nothing: ``look_for_other_heads`` finds newer metadata.
        identity = identity_of(self._context.catalogs.own, self._table)
        given_up = [
            (claims, reason) for claims, reason in near.given_up if not (identity.uuid and claims.copy == identity.copy)
        ]
        unreadable = [*near.unreadable, *given_up]
        for claims, reason in unreadable:
            self._refuse_around(claims, reason)
        self.shared = SharedReferences(self._context, near.tables, self._table, self.references)
        for claims, reason in near.kept_apart:
            name = f"{claims.table} of catalog {claims.catalog}"
            self.shared.spare_seen(name, (*claims.folders, *claims.data_roots), reason)
        for claims, reason in near.missing:
            name, places = f"{claims.table} of catalog {claims.catalog}", (claims.location, *claims.folders)
            self.shared.spare_seen(name, (*places, *claims.data_roots), reason, "is not proven to be gone")
        for pointer in near.pointers:
            self._spare_entry_at(pointer)
        held: list[str] = []  # files of other tables, which may be in this table's location
        for other in near.tables:
            identity = identity_of(other.catalog, other.table)
            memory = TableMemory(self._context.state, identity, self._context.memory.clock)
            held += (*memory.staged_paths(), *memory.pinned_metadata())
        claimed = (folder for claims, _ in unreadable for folder in (claims.location, *claims.folders))
        self._left_alone = PathSet((*held, *claimed))

    def _spare_entry_at(self, pointer: str) -> None:
        """Keep the files that a second entry of this table references, even if the operator's rules separate that entry
        (rule: stale-entries-delete-nothing)."""
        storage = self._context.stores.storage(self._table)
        found = read_listed_metadata(storage, pointer)
        if found is not None and found.uuid == self._table.metadata.uuid:
            needed = needed_by(storage, StrayMetadata(pointer, found), self.references)
            self._newer.update(map(any_spelling, needed))

    def _refuse_around(self, claims: TableClaims, reason: str) -> None:
        if not any(may_be_under(self._home, folder) for folder in (claims.location, *claims.folders)):
            return
        catalog = self._context.catalogs.own
        to_forget = ""
        if claims.catalog != catalog.id:
            # The entry's catalog may be gone, so that the entry cannot be dropped there.
            command = shlex.join(
                (
                    *("icekeeper", "claims", "forget", str(self._context.table), "--catalog", catalog.id.name),
                    *("--by-catalog", claims.catalog.name, "--by-table", str(claims.table)),
                )
            )
            to_forget = f"; if it is gone for good, with its catalog: {command}"
        raise OperationRefused(
            f"{claims.table} of catalog {claims.catalog} had files at or around {self._home} when it was last read, "
            f"and cannot be loaded now: {reason}; it may need any of them, so nothing was deleted; repair it, "
            f"or drop it from its catalog{rules_to_write(catalog.id, self._table, claims.catalog, claims.table)}"
            f"{to_forget}"
        )
