"""PyIceberg's transactions for whoever writes tables in many small commits: the demonstration, and tests.

At every look at a table's metadata a transaction makes a deep copy of them, eighteen times for one append: of a small
table that is half of what the append costs, and it grows with the snapshots.
"""

from __future__ import annotations

from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import update_table_metadata

_LAST_LOOK = "icekeeper_last_look"


def copy_metadata_once() -> None:
    """From now on each transaction of this process copies the metadata once for every change that is staged.

    What a commit sends does not come from these copies: the catalog applies the staged updates to its own metadata.
    """
    Transaction.table_metadata = property(_table_metadata)  # type: ignore[method-assign,assignment]  # there is no seam


def _table_metadata(transaction: Transaction) -> TableMetadata:
    base, updates = transaction._table.metadata, transaction._updates
    last: tuple[object, object, TableMetadata] | None = vars(transaction).get(_LAST_LOOK)
    # By identity: metadata and updates are replaced, never changed.
    if last is None or last[0] is not base or last[1] is not updates:
        last = base, updates, update_table_metadata(base, updates)
        vars(transaction)[_LAST_LOOK] = last
    return last[2]
