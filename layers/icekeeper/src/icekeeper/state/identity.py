"""Which table a record in the state is about (rule 111).

A table is identified by its UUID, whatever catalogs call it and wherever it has moved.  Names are only shown to people:
if records were filed under them, a rename, a second catalog, another case or another spelling of the warehouse would
lose what they protect.  Copies of a table share its UUID, and whoever writes a table's metadata chooses its UUID.  So
only records that spare files are filed under the UUID alone; all others, leases among them, under UUID and location.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from icekeeper.model import TableName

__all__ = ["TableIdentity"]


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """The lasting identity of a table: one that is dropped and created again under its name has another UUID.

    Two unequal objects may be the same table: ask :meth:`is_same_table`.
    """

    catalog: str
    """The catalog's name; only shown to people, like the two fields that follow."""
    warehouse: str
    table: TableName
    uuid: str
    """In lower case; empty for v1 tables without one."""
    location: str = ""
    """The table's location, normalised; empty where nobody has read the table."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "uuid", self.uuid.strip().lower())

    @property
    def spelling(self) -> str:
        """Names and UUID as JSON text."""
        return _text(self.catalog, self.warehouse, str(self.table), self.uuid)

    @property
    def key(self) -> str:
        """The key of pins and staged loads, which only spare files: the UUID, for a table without one its place."""
        return self.uuid or self.place

    @property
    def lease_key(self) -> str:
        """The key of the table's lease: UUID and location (rule 270).

        As JSON, so that no UUID reads like the name of a slot, and none runs into a location.
        """
        return _text(self.uuid, self.place)

    @property
    def place(self) -> str:
        """What tells this copy of the table from others: its location, and the names of a table that nobody read."""
        return self.location or self.spelling

    @property
    def copy(self) -> tuple[str, str]:
        """UUID and location, which no other copy of the table shares."""
        return self.uuid, self.location

    def is_same_table(self, other: TableIdentity) -> bool:
        """Whether both are the same table, or copies of one."""
        return self.key == other.key

    def is_same_copy(self, other: TableIdentity) -> bool:
        """Whether both are the same copy of the same table, whatever catalogs call it (rule 270)."""
        return self.lease_key == other.lease_key


def _text(*parts: str) -> str:
    return json.dumps(parts, ensure_ascii=False)
