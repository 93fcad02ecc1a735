"""Looks into tables that took files in since anybody looked at them: some may lie in the folders of this table.

What a table has taken in (``add_files``) stands in its manifests alone.  Each is read once for all passes over all
tables that share the state, because what was seen is recorded (rule 184).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from icekeeper.deletion.claims import is_seen, look_into
from icekeeper.deletion.neighbours import TableFolders
from icekeeper.errors import MaintenanceError
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.request_count import WorkThreads
from icekeeper.state.claims import TableClaims

__all__ = ["look_into_all"]

_PARALLEL_LOOKS = 8


def look_into_all(
    context: OperationContext, tables: Iterable[TableFolders], known: Mapping[TableName, TableClaims]
) -> Sequence[tuple[TableFolders, MaintenanceError | None]]:
    """The tables with every folder in which they have files now; with an error, those whose manifests cannot be read.

    ``known``: what is recorded of the tables of their catalog.
    """

    def look(one: TableFolders) -> tuple[TableFolders, MaintenanceError | None]:
        if is_seen(known.get(one.table.name), one.table):
            return one, None
        try:
            return replace(one, files_in=one.files_in | look_into(context, one.catalog, one.table)), None
        except MaintenanceError as error:
            return one, error

    with WorkThreads(_PARALLEL_LOOKS, thread_name_prefix="table-look") as pool:
        return list(pool.map(look, tables))
