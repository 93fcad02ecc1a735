"""Which table something is remembered about (rule 111).

A table is its UUID, whatever it is called today, by whom, and wherever it has moved.  Names are told to people, and
protect nothing: a rename, a second catalog, another case or another spelling of the warehouse would lose what they
protect.  Copies of a table share its UUID; the location tells them apart where protecting too much would not be safe.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

from icekeeper.model import TableName

__all__ = ["EarlierIdentity", "TableIdentity"]


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """Which table, for good: a table dropped and created again under its name has another UUID.

    Two of these may be equal tables although they are not equal objects: compare :attr:`key`.
    """

    catalog: str
    """What the catalog is called here; told, like the two that follow."""
    warehouse: str
    table: TableName
    uuid: str
    """In lower case; empty for the v1 tables whose writer gave none."""
    location: str = ""
    """The table's folder in its normal spelling; empty where an earlier version left it out."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "uuid", self.uuid.strip().lower())

    @property
    def spelling(self) -> str:
        """The names and the UUID in one text, by which earlier versions knew the table."""
        return _text(self.catalog, self.warehouse, str(self.table), self.uuid)

    @property
    def keys(self) -> tuple[str, ...]:
        """Whose pins, staged loads and leases hold for this table; what is new is filed under the first.

        The UUID alone.  A table without one is known by its location, and by what earlier versions called it.
        """
        if self.uuid:
            return (self.uuid,)
        return (self.location, self.spelling) if self.location else (self.spelling,)

    @property
    def key(self) -> str:
        """The first of :attr:`keys`: what protects is filed under it."""
        return self.keys[0]

    @property
    def places(self) -> tuple[str, ...]:
        """Which of several copies this is, for the memory and the journal; what is new is filed under the first.

        Earlier versions recorded no location: what they remembered is that of the table they called so.
        """
        return (self.location, self.spelling) if self.location else (self.spelling,)

    @property
    def place(self) -> str:
        """The first of :attr:`places`."""
        return self.places[0]

    def is_same_table(self, other: TableIdentity) -> bool:
        """Whether both are one table, or copies of one."""
        return not set(self.keys).isdisjoint(other.keys)


@dataclass(frozen=True, slots=True)
class EarlierIdentity:
    """Which table an earlier version meant, as far as it recorded it; ``table`` may be no name that we would take."""

    catalog: str
    warehouse: str
    table: str
    uuid: str

    @classmethod
    def parse(cls, text: str) -> EarlierIdentity | None:
        """From the text that earlier versions keyed by; ``None`` where it is none."""
        try:
            parts = json.loads(text)
        except ValueError:
            return None
        return cls(*map(str, parts)) if isinstance(parts, list) and len(parts) == len(fields(cls)) else None

    @property
    def spelling(self) -> str:
        """As :attr:`TableIdentity.spelling` of the table under these names."""
        return _text(self.catalog, self.warehouse, self.table, self.uuid.strip().lower())

    @property
    def key(self) -> str:
        """The one of :attr:`TableIdentity.keys` under which the table's entries are found."""
        return self.uuid.strip().lower() or self.spelling


def _text(*parts: str) -> str:
    return json.dumps(parts, ensure_ascii=False)
