"""Which folders tables were seen to have files in, so that its owner hears of its guests (rule 89).

An entry of a catalog claims its own location and every other folder that holds files of it: a ``write.data.path``
elsewhere, another table's files that ``add_files`` took in.  What is recorded is a hint where to look and no proof:
whoever finds a claim loads that table and reads what it references by now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from icekeeper.model import TableName

__all__ = ["ClaimStore", "Entry", "TableClaims", "folders_around", "store_of", "touches"]

Entry: TypeAlias = tuple[str, str, str]
"""Catalog, warehouse and table, as a catalog's entry is opened again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableClaims:
    """Where one entry of a catalog was seen to have files; every folder is normalised."""

    catalog: str
    warehouse: str
    table: TableName
    uuid: str
    """Empty for v1 tables without one."""
    location: str
    folders: frozenset[str] = frozenset()
    """Folders outside the location that hold files of the table."""
    data_roots: frozenset[str] = frozenset()
    """Folders inside the location under which data files of the table have been found, at any time."""
    seen_sequence_number: int = -1
    """Manifests up to this sequence number have been looked at; -1: none."""
    seen_ms: int = -1
    """Snapshots up to this time have been looked at, for tables without sequence numbers (v1)."""

    @property
    def entry(self) -> Entry:
        return self.catalog, self.warehouse, str(self.table)

    def touch(self, folder: str) -> bool:
        """Whether the table may have files in a (normalised) folder, or the folder lies around or below its own."""
        return any(touches(own, folder) for own in (self.location, *self.folders))


class ClaimStore(Protocol):
    """Every method raises StorageError when the store fails."""

    def record(self, claims: TableClaims, *, replaces: TableClaims | None = None) -> None:
        """Replace what is known of an entry; ``replaces``: what that is, where the caller has just read it."""
        ...

    def of_entry(self, entry: Entry) -> TableClaims | None: ...

    def touching(self, folder: str) -> Iterator[TableClaims]:
        """Every claim, of any catalog, on the normalised folder itself, a folder around it, or one below it."""
        ...

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[TableClaims]:
        """Every entry of a catalog that was ever seen; read in few requests."""
        ...

    def forget(self, entry: Entry) -> None:
        """Told when a catalog has no such entry any more."""
        ...


def touches(one: str, other: str) -> bool:
    """Of normalised folders: whether they are the same, or one lies inside the other."""
    return one == other or _is_in(one, other) or _is_in(other, one)


def store_of(folder: str) -> str:
    """Scheme and bucket or host of a normalised folder; ``/`` of a local one."""
    scheme, separator, rest = folder.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else "/"


def folders_around(folder: str) -> tuple[str, ...]:
    """A normalised folder and all that it lies in, up to its store."""
    found, store = [folder], store_of(folder)
    while len(folder) > len(store):
        folder = folder.rpartition("/")[0]
        if len(folder) < len(store):
            break
        found.append(folder)
    return (*found, "/") if store == "/" and "/" not in found else tuple(found)


def _is_in(inner: str, outer: str) -> bool:
    return inner.startswith(outer if outer.endswith("/") else f"{outer}/")
