"""Claims: in which folders each table has files (rule: ask-neighbours-before-deleting); tables that were cut off
(rule: cut-off-endless-tables)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from icekeeper.machine.clock import HOUR_MS, iso_utc
from icekeeper.model import TableName

# Claims: in which folders each table was seen to have files, so that no other table deletes them there
# (rule: ask-neighbours-before-deleting).
#
# An entry of a catalog claims its table's location and every other folder that holds files of the table: a
# ``write.data.path`` elsewhere, another table's files that ``add_files`` took in.  A claim is a hint where to look and
# no proof: code that finds one loads that table and reads what it references now.

Entry: TypeAlias = tuple[str, str, str]
"""Catalog, warehouse and the table's :attr:`.TableName.key`: by these a catalog's entry can be opened again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableClaims:
    """Where the table of one catalog entry was seen to have files; every folder is normalised."""

    catalog: str
    warehouse: str
    table: TableName
    uuid: str
    """Empty for v1 tables without one."""
    location: str
    folders: frozenset[str] = frozenset()
    """Folders outside the location that hold files of the table."""
    data_roots: frozenset[str] = frozenset()
    """Folders inside the location in which data files of the table have ever been found."""
    seen_sequence_number: int = -1
    """Manifests up to this sequence number have been read for the folders above; -1: none."""
    seen_ms: int = -1
    """Snapshots up to this time (epoch milliseconds) have been read, for v1 tables, without sequence numbers."""

    @property
    def entry(self) -> Entry:
        return self.catalog, self.warehouse, self.table.key

    @property
    def copy(self) -> tuple[str, str]:
        """As :attr:`.TableIdentity.copy`."""
        return self.uuid, self.location

    @property
    def is_looked_into(self) -> bool:
        """Whether the table's manifests have ever been read, and not only its document."""
        return (self.seen_sequence_number, self.seen_ms) != (-1, -1)

    @property
    def is_excluded(self) -> bool:
        """Whether a person has said of an entry that cannot be read that it needs nothing: it has no location then."""
        return not self.location

    def touch(self, folder: str) -> bool:
        """Whether a normalised folder is, contains or lies in one of the table's folders."""
        return any(touches(own, folder) for own in (self.location, *self.folders))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenEntry:
    """An entry of a catalog whose newest head a run has not looked into."""

    table: TableName
    reason: str = ""
    """Why that failed; empty where nobody has tried yet."""
    location: str = ""
    """The normalised folder where its pointer says that the table lies; empty where that is not known."""
    is_gone: bool = False
    """Whether its metadata file does not exist any more, so that nobody can read the table."""
    is_known: bool = False
    """Whether an earlier look recorded where it has files, which is spared: nothing waits for it."""
    pointer: str = ""
    """The metadata file that its entry names, where it lies outside of the table's bound and was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogLook:
    """The last look at every table of a catalog: which run took it, and what it did not see."""

    catalog: str
    warehouse: str
    run: str = ""
    """The run whose passes share the look; empty: no run has looked yet."""
    looked_ms: int = 0
    """When the look began, in epoch milliseconds by the clock of whoever looked."""
    unseen: tuple[UnseenEntry, ...] = ()
    failure: str = ""
    """Why not all of its tables could be looked at."""
    hidden: tuple[tuple[str, ...], ...] = ()
    """The namespaces whose tables were not listed, where that is all that failed."""

    @property
    def key(self) -> tuple[str, str]:
        return self.catalog, self.warehouse

    def is_blind(self, is_kept_apart: Callable[[str, TableName], bool]) -> bool:
        """Whether there is a table that somebody could read, and that was not looked into; of those that no rule keeps
        away, by the names of catalog and table."""
        missed = (one.table for one in self.unseen if not one.is_gone and not one.is_known)
        return self.may_hide(is_kept_apart) or any(not is_kept_apart(self.catalog, table) for table in missed)

    def may_hide(self, is_kept_apart: Callable[[str, TableName], bool]) -> bool:
        """Whether there may be a table that was not listed; of those that no rule keeps away, as above."""
        hidden = (TableName(namespace, "") for namespace in self.hidden)
        return bool(self.failure) and not (self.hidden and all(is_kept_apart(self.catalog, table) for table in hidden))

    def to_json(self) -> dict[str, Any]:
        """What :meth:`from_json` understands, without the catalog."""
        unseen = [
            [[*one.table.namespace, one.table.name], one.reason, one.location, one.is_gone, one.is_known, one.pointer]
            for one in self.unseen
        ]
        hidden = [list(namespace) for namespace in self.hidden]
        return {
            "run": self.run,
            "looked_ms": self.looked_ms,
            "unseen": unseen,
            "failure": self.failure,
            "hidden": hidden,
        }

    @classmethod
    def from_json(cls, catalog: str, warehouse: str, document: dict[str, Any]) -> CatalogLook:
        """Raises KeyError, TypeError or ValueError for what :meth:`to_json` did not make."""
        unseen = tuple(
            UnseenEntry(
                table=TableName(tuple(map(str, levels)), str(name)),
                reason=reason,
                location=location,
                is_gone=is_gone,
                is_known=is_known,
                pointer=pointer,
            )
            for (*levels, name), reason, location, is_gone, is_known, pointer in document["unseen"]
        )
        run, looked_ms = document["run"], int(document["looked_ms"])
        return cls(
            catalog=catalog,
            warehouse=warehouse,
            run=run,
            looked_ms=looked_ms,
            unseen=unseen,
            failure=document["failure"],
            hidden=tuple(tuple(map(str, namespace)) for namespace in document["hidden"]),
        )


class ClaimStore(Protocol):
    """Every method raises StorageError when the store fails."""

    def record(self, claims: TableClaims, *, replaces: TableClaims | None = None) -> None:
        """Replace the claims of an entry; ``replaces`` are those that the caller has just read, if it has."""
        ...

    def record_first_looks(self, claims: Sequence[TableClaims]) -> None:
        """Replace the claims of many entries, of which no claims on other folders are recorded."""
        ...

    def looks(self) -> Sequence[CatalogLook]:
        """The last look at each catalog of which any claims were ever recorded, or that was ever looked at."""
        ...

    def record_look(self, look: CatalogLook) -> None:
        """Replace the last look at a catalog."""
        ...

    def of_entry(self, entry: Entry) -> TableClaims | None: ...

    def touching(self, folder: str) -> Iterator[TableClaims]:
        """The claims of any catalog on a normalised folder, on a folder that contains it, or on one below it."""
        ...

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[TableClaims]:
        """The claims of every entry of a catalog that was ever seen; read in few requests."""
        ...

    def forget(self, entry: Entry) -> None:
        """Remove the claims of an entry that its catalog no longer has."""
        ...


def touches(one: str, other: str) -> bool:
    """Whether two normalised folders are the same, or one lies inside the other."""
    return one == other or _is_in(one, other) or _is_in(other, one)


def store_of(folder: str) -> str:
    """Scheme and bucket or host of a normalised folder (``s3://bucket``); ``/`` for a local one."""
    scheme, separator, rest = folder.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else "/"


def folders_around(folder: str) -> tuple[str, ...]:
    """A normalised folder and all folders that contain it, the innermost first, up to :func:`store_of`."""
    found, store = [folder], store_of(folder)
    while len(folder) > len(store):
        folder = folder.rpartition("/")[0]
        if len(folder) < len(store):
            break
        found.append(folder)
    return (*found, "/") if store == "/" and "/" not in found else tuple(found)


def _is_in(inner: str, outer: str) -> bool:
    return inner.startswith(outer if outer.endswith("/") else f"{outer}/")


# Tables whose reading or maintenance was cut off because it took too long, by catalog entry
# (rule: cut-off-endless-tables).
#
# They are filed under the names by which a catalog lists them, because a table that cannot be read has no other; so a
# copied UUID makes nobody else wait.

LEAST_LIMIT_S = 60
"""Whoever may ask for a run may ask for shorter times; what does not end with them takes long for nobody else."""
LATEST_LOOK_S = 60
"""So much later at the latest a look that hangs is seen by whoever can kill this process."""
_FIRST_WAIT_MS = 3 * HOUR_MS
_LONGEST_WAIT_MS = 7 * 24 * HOUR_MS
_MOST_DOUBLINGS = 10


class CutWork(StrEnum):
    """What was cut off: ``look``, reading the table's metadata, or ``pass``, its maintenance."""

    LOOK = "look"
    PASS = "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """What was cut off of one catalog entry, as often in a row as ``times`` says."""

    entry: Entry
    work: CutWork
    times: int
    cut_ms: int
    """When the last time was, in epoch milliseconds."""
    why: str
    """A sentence that names the setting by which it was cut off."""

    @property
    def until_ms(self) -> int:
        """Until when it is not tried again: three hours after the first time, then twice as long, at most a week."""
        return self.cut_ms + min(_LONGEST_WAIT_MS, _FIRST_WAIT_MS << min(self.times - 1, _MOST_DOUBLINGS))

    def waits(self, now_ms: int) -> bool:
        """Whether it is not yet to be tried; a record of a clock that was ahead bars nothing
        (rule: future-records-bar-nothing)."""
        return self.cut_ms <= now_ms < self.until_ms

    @property
    def sentence(self) -> str:
        """For people: what happened, how often, and until when it waits."""
        often = f", {self.times} times in a row" if self.times > 1 else ""
        return f"{self.why}{often}; it is tried again after {iso_utc(self.until_ms)}"


class CutOffStore(Protocol):
    """Each method raises StorageError when the store fails."""

    def record(self, cut: CutOff) -> None:
        """Replace the record of an entry and a kind of work."""
        ...

    def of_catalog(self, catalog: str, warehouse: str) -> Sequence[CutOff]:
        """The records of a catalog, by table and kind of work; read in few requests."""
        ...

    def forget(self, entry: Entry, work: CutWork) -> None:
        """Remove a record, as far as it is known: the work has ended in time."""
        ...


def cut_again(
    store: CutOffStore, entry: Entry, work: CutWork, why: str, *, now_ms: int, begun_ms: int | None = None
) -> CutOff:
    """Record that a table was cut off once more, unless that is recorded of this work, which began at ``begun_ms``.

    Raises:
        StorageError: the store failed.
    """
    before = next((one for one in store.of_catalog(*entry[:2]) if (one.entry, one.work) == (entry, work)), None)
    if before is not None and begun_ms is not None and begun_ms <= before.cut_ms <= now_ms:
        return before
    cut = CutOff(entry=entry, work=work, times=1 + (before.times if before else 0), cut_ms=now_ms, why=why)
    store.record(cut)
    return cut


def forget_cut(store: CutOffStore, entry: Entry, *works: CutWork) -> None:
    """Remove the records of work that has ended in time, where there are any; they are read once.

    Raises:
        StorageError: the store failed.
    """
    for cut in store.of_catalog(*entry[:2]):
        if cut.entry == entry and cut.work in works:
            store.forget(entry, cut.work)


def look_reason(limit_s: int) -> str:
    """Why a look at a table was cut off."""
    return f"looking at it did not end within detection_timeout_s {limit_s}"


def waiting_cuts(cuts: Sequence[CutOff], work: CutWork, now_ms: int) -> Mapping[str, CutOff]:
    """The tables, by the key of their names, of which this kind of work waits."""
    return {one.entry[2]: one for one in cuts if one.work is work and one.waits(now_ms)}
