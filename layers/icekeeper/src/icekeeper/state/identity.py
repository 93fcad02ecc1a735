"""Which table a record in the state is about (rule 111).

A table is identified by its UUID, whatever catalogs call it and wherever it has moved.  Names are only shown to people:
if records were filed under them, a rename, a second catalog, another case or another spelling of the warehouse would
lose what they protect.  Copies of a table share its UUID, and whoever writes a table's metadata chooses its UUID.  So
only records that spare files are filed under the UUID alone; all others, leases among them, under UUID and location.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

from icekeeper.model import TableName

__all__ = ["EarlierIdentity", "TableIdentity"]


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
    """The table's location, normalised; empty where an earlier version did not record it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "uuid", self.uuid.strip().lower())

    @property
    def spelling(self) -> str:
        """Names and UUID as JSON text, under which earlier versions filed what they recorded."""
        return _text(self.catalog, self.warehouse, str(self.table), self.uuid)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys under which pins and staged loads of this table are found; new ones go under the first.

        The UUID alone.  For a table without one, its location and the spelling of earlier versions.
        """
        if self.uuid:
            return (self.uuid,)
        return (self.location, self.spelling) if self.location else (self.spelling,)

    @property
    def key(self) -> str:
        """The first of :attr:`keys`, under which new pins and staged loads are filed: they only spare."""
        return self.keys[0]

    @property
    def lease_key(self) -> str:
        """The key of the table's lease: UUID and location (rule 270).

        As JSON, so that no UUID reads like the name of a slot, and none runs into a location.
        """
        return _text(self.uuid, self.place)

    @property
    def places(self) -> tuple[str, ...]:
        """What tells this copy of the table from others, for journal and memory; new records go under the first.

        The location, and the spelling of earlier versions, which recorded no location.
        """
        return (self.location, self.spelling) if self.location else (self.spelling,)

    @property
    def place(self) -> str:
        """The first of :attr:`places`, under which new records of journal and memory are filed."""
        return self.places[0]

    @property
    def copy(self) -> tuple[str, str]:
        """UUID and location, which no other copy of the table shares."""
        return self.uuid, self.location

    def is_same_table(self, other: TableIdentity) -> bool:
        """Whether both are the same table, or copies of one."""
        return not set(self.keys).isdisjoint(other.keys)

    def is_same_copy(self, other: TableIdentity) -> bool:
        """Whether both are the same copy of the same table, whatever catalogs call it (rule 270).

        Where a record of an earlier version has no location, the UUID decides.
        """
        return self.is_same_table(other) and (not (self.location and other.location) or self.location == other.location)


@dataclass(frozen=True, slots=True)
class EarlierIdentity:
    """The identity of a table as earlier versions recorded it; ``table`` may be text that is no table name now."""

    catalog: str
    warehouse: str
    table: str
    uuid: str

    @classmethod
    def parse(cls, text: str) -> EarlierIdentity | None:
        """Parse the key of an earlier version; ``None`` for any other text."""
        try:
            parts = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return cls(*map(str, parts)) if isinstance(parts, list) and len(parts) == len(fields(cls)) else None

    @property
    def spelling(self) -> str:
        """The :attr:`TableIdentity.spelling` of this table."""
        return _text(self.catalog, self.warehouse, self.table, self.uuid.strip().lower())

    @property
    def key(self) -> str:
        """The :attr:`TableIdentity.key` of this table."""
        return self.uuid.strip().lower() or self.spelling


def _text(*parts: str) -> str:
    return json.dumps(parts, ensure_ascii=False)
