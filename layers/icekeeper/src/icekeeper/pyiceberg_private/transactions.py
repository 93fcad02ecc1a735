"""Faster transactions of PyIceberg, for code that makes many small commits: the demonstration, and tests.

A transaction makes a deep copy at each access to a table's metadata, eighteen times for an append.  For a small table
this is half of the append's cost, and the cost grows with the number of snapshots.
"""

from __future__ import annotations

from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import update_table_metadata

_LAST_LOOK = "icekeeper_last_look"


def copy_metadata_once() -> None:
    """Make each transaction of this process copy the metadata once for each staged change.

    Commits do not use these copies, because the catalog applies the staged updates to its own metadata.
    """
    Transaction.table_metadata = property(_table_metadata)  # type: ignore[method-assign,assignment]  # there is no seam


def _table_metadata(transaction: Transaction) -> TableMetadata:
    base, updates = transaction._table.metadata, transaction._updates
    last: tuple[object, object, TableMetadata] | None = vars(transaction).get(_LAST_LOOK)
    # Compare by identity, because metadata and updates are replaced, never changed.
    if last is None or last[0] is not base or last[1] is not updates:
        last = base, updates, update_table_metadata(base, updates)
        vars(transaction)[_LAST_LOOK] = last
    return last[2]
