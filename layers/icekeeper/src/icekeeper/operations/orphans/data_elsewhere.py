"""Data files outside of the table's location: swept where a person has named their folder (rule 228).

``write.data.path`` may be any folder, and nothing there says whose a file is.  So a folder of it is swept only when
``orphan_sweep_prefixes`` names it and no known table has files in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.other_tables import near_tables
from icekeeper.errors import OperationRefused
from icekeeper.metadata.document import TableMetadata
from icekeeper.pass_context.context import OperationContext
from icekeeper.storage.path_set import may_be_under
from icekeeper.storage.paths import normalise

__all__ = ["folders_elsewhere", "refuse_shared_folders", "tell_unswept"]


def folders_elsewhere(metadata: TableMetadata, named: Iterable[str]) -> tuple[str, ...]:
    """The folders of a data path outside the location that ``named`` (``orphan_sweep_prefixes``) has swept, too.

    Raises:
        OperationRefused: a named folder holds the data path and more.
    """
    home, data = metadata.location, metadata.data_location
    if may_be_under(data, home):
        return ()
    folders: list[str] = []
    for folder in sorted(named, key=len):
        if may_be_under(folder, home) or may_be_under(home, folder):
            continue  # which names folders of the location
        if may_be_under(folder, data):
            if not any(may_be_under(folder, other) for other in folders):
                folders.append(folder)
        elif may_be_under(data, folder):
            raise OperationRefused(
                f"orphan_sweep_prefixes names {folder}, outside of the table's location, where more lies than its "
                f"write.data.path {data}; nothing was deleted; name that folder itself, or one in it"
            )
    return tuple(folders)


def tell_unswept(metadata: TableMetadata, named: Iterable[str]) -> str:
    """What the summary says of a data path outside of the location in which nothing is swept; else nothing."""
    home, data = metadata.location, metadata.data_location
    if may_be_under(data, home) or folders_elsewhere(metadata, named):
        return ""
    if may_be_under(home, data):
        return f"; write.data.path {data} is around the table's location and not swept"
    return (
        f"; write.data.path {data} is outside of the table's location and not swept, unless orphan_sweep_prefixes "
        "names it"
    )


def refuse_shared_folders(context: OperationContext, table: LoadedTable, folders: Iterable[str]) -> None:
    """Refuse to sweep the folders when any known table but ``table`` may have files in one.

    Raises:
        OperationRefused: names the folder and the table.
        StorageError: the state store failed.
    """
    folders = tuple(folders)
    near = near_tables(context, table, list(map(normalise, folders)))
    for one in near.tables:
        if not one.is_table_of(table) and not one.is_kept_apart:  # which names no folder as its own there
            for folder in filter(one.overlap, folders):
                _refuse(context, folder, f"{one.table.name} of catalog {one.catalog.name}")
    for claims, reason in (*near.unreadable, *near.given_up):
        for folder in filter(claims.touch, map(normalise, folders)):
            _refuse(context, folder, f"{claims.table} of catalog {claims.catalog}, which cannot be loaded ({reason}),")


def _refuse(context: OperationContext, folder: str, who: str) -> None:
    raise OperationRefused(
        f"orphan_sweep_prefixes names {folder}, in the write.data.path of {context.table}, where {who} may have files: "
        "whose a file there is cannot be told; nothing was deleted; give each table a data path of its own, or take "
        "the folder out of orphan_sweep_prefixes"
    )
