"""Claims of tables on folders (rule: ask-neighbours-before-deleting), and tables that were cut off.

A claim says in which folders a table was seen to have files, so that no other table deletes them there: the location of
a catalog entry, and every other folder with files of the table (a ``write.data.path`` elsewhere, files that
``add_files`` took from another table).  A claim is only a hint: code that finds a claim loads that table and reads what
it references now.

A table is cut off when its reading or maintenance takes too long.  These records are filed under the catalog entry,
because a table that cannot be read has no other name.  So a copied UUID does not delay another table.

Every function and method that uses the state raises StorageError when it fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from icekeeper.machine.clock import HOUR_MS, iso_utc
from icekeeper.model import CatalogId, TableName
from icekeeper.state.identity import Entry
from icekeeper.state.item_layout import KEPT_MS, catalog_key, named_key, sort_key
from icekeeper.state.items import Item, Records, understood

GONE_AFTER_MS = 8 * 24 * HOUR_MS
"""How long a missing table keeps its claims: by default, Unity Catalog can restore a dropped table for seven days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHead:
    """The head of a table up to which its manifests were read.

    Nothing here depends on the clocks of writers, which Iceberg lets differ by a minute.
    """

    metadata_file: str = ""
    """Its metadata file, as the catalog spells it; empty: no manifest was read."""
    updated_ms: int = -1
    """Its ``last-updated-ms``: after a restore, some catalogs write another file of the same name."""
    sequence_number: int = -1
    """The highest of its snapshots."""
    snapshots: frozenset[int] = frozenset()
    """The ids of the snapshots with that number, and of those without a number (v1); empty if they are too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableClaims:
    """The claims of one catalog entry; every folder is normalised."""

    catalog: CatalogId
    table: TableName
    uuid: str
    """Empty for v1 tables without a UUID."""
    location: str
    """Empty for an excluded entry."""
    folders: frozenset[str] = frozenset()
    """Folders outside the location that hold files of the table."""
    data_roots: frozenset[str] = frozenset()
    """Folders inside the location in which data files of the table have been found."""
    seen: SeenHead = SeenHead()
    """The folders include those of all manifests up to this head."""
    missing_ms: int = -1
    """Since when the table is missing (epoch milliseconds): its catalog answered that there is no such table, and a
    complete listing that began afterwards did not contain it; -1: it was read since, or was never missing."""

    @property
    def entry(self) -> Entry:
        return Entry(self.catalog, self.table.key)

    @property
    def copy(self) -> tuple[str, str]:
        """As :attr:`.TableIdentity.copy`."""
        return self.uuid, self.location

    @property
    def is_looked_into(self) -> bool:
        """Whether the table's manifests were ever read, not only its metadata file."""
        return bool(self.seen.metadata_file)

    @property
    def is_excluded(self) -> bool:
        """Whether a person has declared that an unreadable entry needs no protection."""
        return not self.location

    def missing_again(self, now_ms: int) -> TableClaims | None:
        """The claims when the table is missing now; ``None``: it is gone for good (rule: gone-is-proven-twice)."""
        if self.missing_ms == -1 or self.missing_ms > now_ms:  # a time in the future is not evidence
            return replace(self, missing_ms=now_ms)
        return self if now_ms - self.missing_ms < GONE_AFTER_MS else None

    def touch(self, folder: str) -> bool:
        """Whether a normalised folder equals, contains or is inside one of the table's folders."""
        return any(touches(own, folder) for own in (self.location, *self.folders))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenEntry:
    """A catalog entry whose newest head a run has not read."""

    table: TableName
    reason: str = ""
    """Why reading it failed; empty if it was not tried yet."""
    location: str = ""
    """The table's normalised folder, from the entry's metadata pointer; empty if unknown."""
    is_gone: bool = False
    """Whether its metadata file does not exist any more, so that no client can read the table."""
    is_known: bool = False
    """Whether an earlier look recorded its folders; they stay protected, so deletions need not wait for it."""
    pointer: str = ""
    """The metadata file of the entry, if it is outside the table's allowed locations and was therefore not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogLook:
    """The last look at all tables of a catalog: which run made it, and which tables it could not read."""

    catalog: CatalogId
    run: str = ""
    """The run whose passes share the look; empty: no run has looked yet."""
    looked_ms: int = 0
    """When the look began, in epoch milliseconds by the clock of that run."""
    unseen: tuple[UnseenEntry, ...] = ()
    failure: str = ""
    """Why not all tables could be listed."""
    hidden: tuple[tuple[str, ...], ...] = ()
    """The namespaces that were not listed, if nothing else failed."""

    def is_blind(self, is_kept_apart: Callable[[CatalogId, TableName], bool]) -> bool:
        """Whether there may be a readable table that the look did not read.

        ``is_kept_apart(catalog, table)``: whether the operator's rules separate that table from the caller's.
        """
        missed = (table.table for table in self.unseen if not table.is_gone and not table.is_known)
        return self.may_hide(is_kept_apart) or any(not is_kept_apart(self.catalog, table) for table in missed)

    def may_hide(self, is_kept_apart: Callable[[CatalogId, TableName], bool]) -> bool:
        """Whether there may be a table that was not listed; ``is_kept_apart`` as for :meth:`is_blind`."""
        hidden = (TableName(namespace, "") for namespace in self.hidden)
        return bool(self.failure) and not (self.hidden and all(is_kept_apart(self.catalog, table) for table in hidden))

    def to_json(self) -> dict[str, Any]:
        """The document that :meth:`from_json` reads; the catalog is not in it."""
        unseen = [
            [[*row.table.namespace, row.table.name], row.reason, row.location, row.is_gone, row.is_known, row.pointer]
            for row in self.unseen
        ]
        return {
            "run": self.run,
            "looked_ms": self.looked_ms,
            "unseen": unseen,
            "failure": self.failure,
            "hidden": [list(namespace) for namespace in self.hidden],
        }

    @classmethod
    def from_json(cls, catalog: CatalogId, document: dict[str, Any]) -> CatalogLook:
        """Raises KeyError, TypeError or ValueError for a malformed document."""
        return cls(
            catalog=catalog,
            run=document["run"],
            looked_ms=int(document["looked_ms"]),
            unseen=tuple(
                UnseenEntry(
                    table=TableName(tuple(map(str, levels)), str(name)),
                    reason=reason,
                    location=location,
                    is_gone=is_gone,
                    is_known=is_known,
                    pointer=pointer,
                )
                for (*levels, name), reason, location, is_gone, is_known, pointer in document["unseen"]
            ),
            failure=document["failure"],
            hidden=tuple(tuple(map(str, namespace)) for namespace in document["hidden"]),
        )


_LOOKS = "looks#all"
# Sorts before every character of a name, so that a folder comes before longer names that start with its name.
_END = "\x1f"
# A sort key has at most 1,024 bytes: a query uses this many characters of a folder; the rest is compared afterwards.
_SEARCHED = 200


class ClaimStore(Records):
    """An item per catalog entry, and an item per claimed folder to find entries by.

    The folders of one bucket or host are in one partition: all folders inside a folder are one range of sort keys, and
    each folder that contains it is a further range.
    """

    def record(self, claims: TableClaims, *, replaces: TableClaims | None = None) -> None:
        """Replace the claims of an entry; ``replaces`` are those that the caller has just read, if any."""
        with self.table.together():
            # Another process may have replaced them since; the lease on the table makes that unlikely.
            before = self.of_entry(claims.entry) if replaces is None or self.table.is_local else replaces
            if before == claims:
                return
            known = set() if before is None else {before.location, *before.folders}
            now = {claims.location, *claims.folders}
            # New folders are written first: a concurrent search finds too many entries, never too few.
            for folder in now if before is None or before.uuid != claims.uuid else now - known:
                self.table.put(_folder_item(folder, claims.entry))
            self.table.put(_entry_item(claims))
            for folder in known - now:
                self.table.delete(_store_key(folder), _folder_key(folder, json.dumps(claims.entry)))
            if before is None:
                self._know_catalogs([claims])

    def record_first_looks(self, claims: Sequence[TableClaims]) -> None:
        """Replace the claims of many entries that have no recorded claims on folders outside their location."""
        # In the same order as above; folders that an entry no longer claims stay, and searches find them needlessly.
        folders = (_folder_item(folder, claim.entry) for claim in claims for folder in {claim.location, *claim.folders})
        with self.table.together():
            self.table.put_all(folders)
            self.table.put_all(map(_entry_item, claims))
            self._know_catalogs(claims)

    def looks(self) -> Sequence[CatalogLook]:
        """The last look at each catalog that has a recorded look or recorded claims."""
        return [*map(_look, self.table.query(_LOOKS))]

    def record_look(self, look: CatalogLook) -> None:
        self.table.put(_look_item(look))

    def _know_catalogs(self, claims: Sequence[TableClaims]) -> None:
        for catalog in {claim.catalog for claim in claims}:
            item = _look_item(CatalogLook(catalog=catalog))
            self.table.change(item["pk"], item["sk"], partial(_unless_found, item))

    def of_entry(self, entry: Entry) -> TableClaims | None:
        item = self.table.get(*_entry_key(entry))
        return None if item is None else _claims(item)

    def touching(self, folder: str) -> Iterator[TableClaims]:
        """The claims, in all catalogs, on a normalised folder, on folders that contain it, and on folders inside it."""
        pk = _store_key(folder)
        below = folder if folder.endswith("/") else f"{folder}/"
        entries: set[Entry] = set()
        with self.table.together(to_read=True):
            for item in self.table.query(pk, below[:_SEARCHED]):
                if item["folder"].startswith(below):
                    entries.add(_entry(item))
            for around in folders_around(folder):
                for item in self.table.query(pk, f"{around}{_END}"[:_SEARCHED]):
                    if item["folder"] == around:
                        entries.add(_entry(item))
        for entry in sorted(entries):
            claims = self.of_entry(entry)
            if claims is not None:
                yield claims

    def of_catalog(self, catalog: CatalogId) -> Iterator[TableClaims]:
        """The claims of every entry of a catalog that was ever seen; uses few requests."""
        return map(_claims, self.table.query(catalog_key("claims", catalog)))

    def forget(self, entry: Entry) -> None:
        """Remove the claims of an entry that its catalog no longer has."""
        with self.table.together():
            claims = self.of_entry(entry)
            self.table.delete(*_entry_key(entry))
            if claims is not None:
                for folder in (claims.location, *claims.folders):
                    self.table.delete(_store_key(folder), _folder_key(folder, json.dumps(entry)))


def _entry_item(claims: TableClaims) -> Item:
    pk, sk = _entry_key(claims.entry)
    return {
        "pk": pk,
        "sk": sk,
        "entry": json.dumps(claims.entry),
        "uuid": claims.uuid,
        "location": claims.location,
        "folders": json.dumps(sorted(claims.folders)),
        "data_roots": json.dumps(sorted(claims.data_roots)),
        "seen": json.dumps(
            [
                claims.seen.metadata_file,
                claims.seen.updated_ms,
                claims.seen.sequence_number,
                sorted(claims.seen.snapshots),
            ]
        ),
        "missing_ms": claims.missing_ms,
    }


def _folder_item(folder: str, entry: Entry) -> Item:
    text = json.dumps(entry)
    return {"pk": _store_key(folder), "sk": _folder_key(folder, text), "folder": folder, "entry": text}


def _look_item(look: CatalogLook) -> Item:
    return {
        "pk": _LOOKS,
        "sk": sort_key("", json.dumps(look.catalog)),
        "catalog": look.catalog.name,
        "warehouse": look.catalog.warehouse,
        "look": json.dumps(look.to_json()),
    }


def _unless_found(new: Item, found: Item | None) -> Item | None:
    return new if found is None else None


def _look(item: Item) -> CatalogLook:
    with understood(item):
        return CatalogLook.from_json(CatalogId(item["catalog"], item["warehouse"]), json.loads(item["look"]))


def _entry_key(entry: Entry) -> tuple[str, str]:
    return catalog_key("claims", entry.catalog), sort_key("", entry.table)


def _store_key(folder: str) -> str:
    return named_key("claimed", store_of(folder))


def _folder_key(folder: str, entry: str) -> str:
    return sort_key("", f"{folder}{_END}{entry}")


def _entry(item: Item) -> Entry:
    with understood(item):
        (name, warehouse), table = json.loads(item["entry"])
        return Entry(CatalogId(name, warehouse), table)


def _claims(item: Item) -> TableClaims:
    with understood(item):
        catalog, table = _entry(item)
        metadata_file, updated_ms, sequence_number, snapshots = json.loads(item["seen"])
        return TableClaims(
            catalog=catalog,
            table=TableName.recorded(table),
            uuid=item["uuid"],
            location=item["location"],
            folders=frozenset(json.loads(item["folders"])),
            data_roots=frozenset(json.loads(item["data_roots"])),
            seen=SeenHead(
                metadata_file=str(metadata_file),
                updated_ms=int(updated_ms),
                sequence_number=int(sequence_number),
                snapshots=frozenset(map(int, snapshots)),
            ),
            missing_ms=item["missing_ms"],
        )


def touches(folder: str, other: str) -> bool:
    """Whether two normalised folders are the same, or one is inside the other."""
    return folder == other or _is_in(folder, other) or _is_in(other, folder)


def store_of(folder: str) -> str:
    """Scheme and bucket or host of a normalised folder (``s3://bucket``); ``/`` for a local folder."""
    scheme, separator, rest = folder.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else "/"


def folders_around(folder: str) -> tuple[str, ...]:
    """A normalised folder and all folders that contain it, innermost first, up to :func:`store_of`."""
    found, store = [folder], store_of(folder)
    while len(folder) > len(store):
        folder = folder.rpartition("/")[0]
        if len(folder) < len(store):
            break
        found.append(folder)
    return (*found, "/") if store == "/" and "/" not in found else tuple(found)


def _is_in(inner: str, outer: str) -> bool:
    return inner.startswith(outer if outer.endswith("/") else f"{outer}/")


LEAST_LIMIT_S = 60
"""A cut under a shorter limit is not recorded: otherwise the sender of a request could make other passes wait."""
_FIRST_WAIT_MS = 3 * HOUR_MS
_LONGEST_WAIT_MS = 7 * 24 * HOUR_MS
_MOST_DOUBLINGS = 10


class CutWork(StrEnum):
    """The work that was cut off: ``look`` (reading the table's metadata) or ``pass`` (its maintenance)."""

    LOOK = "look"
    PASS = "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """Work on a catalog entry that was cut off, ``times`` times in a row."""

    entry: Entry
    work: CutWork
    times: int
    cut_ms: int
    """The last time, in epoch milliseconds."""
    why: str
    """A sentence that names the setting with the limit."""

    @property
    def until_ms(self) -> int:
        """When the work is tried again: three hours after the first cut, then doubled each time, at most a week."""
        return self.cut_ms + min(_LONGEST_WAIT_MS, _FIRST_WAIT_MS << min(self.times - 1, _MOST_DOUBLINGS))

    def waits(self, now_ms: int) -> bool:
        """Whether the work must not be tried yet; a record with a time in the future has no effect."""
        return self.cut_ms <= now_ms < self.until_ms

    @property
    def sentence(self) -> str:
        """A sentence for people: what happened, how often, and when the work is tried again."""
        often = f", {self.times} times in a row" if self.times > 1 else ""
        return f"{self.why}{often}; it is tried again after {iso_utc(self.until_ms)}"


class CutOffStore(Records):
    """The records of a catalog are in one partition."""

    def record(self, cut: CutOff) -> None:
        """Replace the record of the entry and work."""
        pk, sk = _cut_key(cut.entry, cut.work)
        self.table.put(
            {
                "pk": pk,
                "sk": sk,
                "table_name": cut.entry.table,
                "work": cut.work.value,
                "times": cut.times,
                "cut_ms": cut.cut_ms,
                "why": cut.why,
                "expires_s": self.table.expires_s(KEPT_MS, at_least_ms=cut.cut_ms),
            }
        )

    def of_catalog(self, catalog: CatalogId) -> Sequence[CutOff]:
        """The records of a catalog, ordered by table and work; uses few requests."""
        found = []
        for item in self.table.query(catalog_key("cut", catalog)):
            with understood(item):
                entry, work = Entry(catalog, item["table_name"]), CutWork(item["work"])
            found.append(CutOff(entry=entry, work=work, times=item["times"], cut_ms=item["cut_ms"], why=item["why"]))
        return sorted(found, key=lambda cut: (cut.entry.table.encode(), cut.work.value))

    def forget(self, entry: Entry, work: CutWork) -> None:
        """Remove a record, if there is one."""
        self.table.delete(*_cut_key(entry, work))


def _cut_key(entry: Entry, work: CutWork) -> tuple[str, str]:
    return catalog_key("cut", entry.catalog), sort_key(f"{work.value}#", entry.table)


def cut_again(
    store: CutOffStore, entry: Entry, work: CutWork, why: str, *, now_ms: int, begun_ms: int | None = None
) -> CutOff:
    """Record another cut, unless a cut of this work, which began at ``begun_ms``, is recorded already."""
    before = next((cut for cut in store.of_catalog(entry.catalog) if (cut.entry, cut.work) == (entry, work)), None)
    if before is not None and begun_ms is not None and begun_ms <= before.cut_ms <= now_ms:
        return before
    cut = CutOff(entry=entry, work=work, times=1 + (before.times if before else 0), cut_ms=now_ms, why=why)
    store.record(cut)
    return cut


def forget_cut(store: CutOffStore, entry: Entry, *works: CutWork) -> None:
    """Remove the records of work that has ended in time, if there are any; reads the records once."""
    for cut in store.of_catalog(entry.catalog):
        if cut.entry == entry and cut.work in works:
            store.forget(entry, cut.work)


def look_reason(limit_s: int) -> str:
    """Why the reading of a table was cut off."""
    return f"reading it did not end within detection_timeout_s {limit_s}"


def waiting_cuts(cuts: Sequence[CutOff], work: CutWork, now_ms: int) -> Mapping[str, CutOff]:
    """The cuts of tables whose work of this kind waits, by :attr:`.TableName.key`."""
    return {cut.entry.table: cut for cut in cuts if cut.work is work and cut.waits(now_ms)}
