"""A table that a catalog does not have: the error about it, and the names that may have been meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.machine.clock import steady_s
from icekeeper.model import TableName

if TYPE_CHECKING:
    from icekeeper.catalogs.catalog import Catalog

__all__ = ["missing_table"]

_SHOWN = 3
# The namespace is often right and makes every table in it similar, so this is above difflib's 0.6.
_CUTOFF = 0.75
# A listing of many namespaces takes a request for each; a person waits for the answer.
_LISTED_WITHIN_S = 3


def missing_table(catalog: Catalog, table: TableName) -> PolicyError:
    """The error that there is no such table; its ``hint`` lists the catalog, once somebody asks for it."""
    hint = partial(_did_you_mean, catalog, table)
    return PolicyError(f"there is no table {table} in catalog {catalog.name}", hint=hint)


def _did_you_mean(catalog: Catalog, table: TableName) -> str:
    """The nearest names, in words to put behind the sentence; empty where none is near or listing fails."""
    listed: list[TableName] = []
    with suppress(MaintenanceError):  # the table is missing all the same; what was listed until then may help
        listed.extend(_listed_in_time(catalog))
    names = {str(one).lower(): str(one) for one in listed if one != table}
    elsewhere = [str(one) for one in listed if one != table and one.name.lower() == table.name.lower()]
    similar = difflib.get_close_matches(str(table).lower(), names, n=_SHOWN, cutoff=_CUTOFF)
    nearest = list(dict.fromkeys([*(names[one] for one in similar), *sorted(elsewhere)]))[:_SHOWN]
    quoted = " or ".join(f"'{one}'" for one in nearest)
    return f" (did you mean {quoted}?)" if nearest else ""


def _listed_in_time(catalog: Catalog) -> Iterator[TableName]:
    until_s = steady_s() + _LISTED_WITHIN_S
    for one in catalog.list_tables():
        yield one
        if steady_s() > until_s:
            return
