"""Finds the metadata files that other catalog entries of a table point at or log; a commit must not delete them.

A commit deletes the metadata files that fall off the log, where the table's property
``write.metadata.delete-after-commit.enabled`` asks for it.  An entry that another catalog, or another name, has of the
same table may still be at one of them.  Whoever copies UUID and location of a table looks like such an entry, so what
the others' logs name stays, too (rule 262).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.metadata.document import TableMetadata
from icekeeper.state.store import StateStore

__all__ = ["deletes_after_commit", "metadata_of_other_entries"]


def deletes_after_commit(metadata: TableMetadata) -> bool:
    """Whether commits delete the metadata files that fall off the table's log."""
    return metadata.property_flag("write.metadata.delete-after-commit.enabled", default=False)


def metadata_of_other_entries(
    state: StateStore,
    catalog: Catalog,
    head: LoadedTable,
    other_catalog: Callable[[str, str], Catalog | None],
    run: str,
) -> Iterator[str]:
    """The metadata files that other entries of the same table point at or log; the whole log where one cannot be
    loaded, or where the look that the ``run`` took at every table has not seen one, and no rule keeps that away.

    Raises:
        StorageError: the state store failed.
    """
    if not deletes_after_commit(head.metadata):
        return
    looks = [look for look in state.claims.looks() if look.run == run]
    yield from (one.pointer for look in looks for one in look.unseen if one.pointer)
    if any(look.is_blind(head.is_kept_apart_from) for look in looks):
        yield from (str(entry["metadata-file"]) for entry in head.metadata.metadata_log)
        return
    identity = identity_of(catalog, head)
    for claims in state.claims.touching(identity.location):
        if claims.copy != identity.copy or claims.entry == (catalog.name, catalog.warehouse, head.name.key):
            continue
        is_here = (claims.catalog, claims.warehouse) == (catalog.name, catalog.warehouse)
        try:
            other = catalog if is_here else other_catalog(claims.catalog, claims.warehouse)
        except MaintenanceError:
            other = None
        try:
            if other is not None:
                there = other.load(claims.table)
                yield there.metadata_location
                yield from (str(entry["metadata-file"]) for entry in there.metadata.metadata_log)
                continue
        except PolicyError:
            continue  # that catalog has no such entry any more
        except MaintenanceError:
            pass
        yield from (str(entry["metadata-file"]) for entry in head.metadata.metadata_log)
