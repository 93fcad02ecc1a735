"""Which table a record in the state is about (rule 111).

A table is identified by its UUID, whatever catalogs call it and wherever it has moved.  Names are only shown to people:
if records were filed under them, a rename, a second catalog, another case or another spelling of the warehouse would
lose what they protect.  Copies of a table share its UUID.  Records that must not be shared by copies are filed under
UUID and location.
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
        """The keys under which pins, staged loads and leases of this table are found; new ones go under the first.

        The UUID alone.  For a table without one, its location and the spelling of earlier versions.
        """
        if self.uuid:
            return (self.uuid,)
        return (self.location, self.spelling) if self.location else (self.spelling,)

    @property
    def key(self) -> str:
        """The first of :attr:`keys`, under which new pins, staged loads and leases are filed."""
        return self.keys[0]

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
