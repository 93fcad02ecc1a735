"""Staged loads and pending deletions: the records with lists of files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from icekeeper.errors import StorageError
from icekeeper.state.identity import TableIdentity
from icekeeper.state.item_layout import (
    KEPT_MS,
    copy_key,
    delete_paths,
    new_list_id,
    read_paths,
    sort_key,
    table_key,
    write_paths,
)
from icekeeper.state.items import REMOVED, Item, Records, understood


class LoadOrigin(StrEnum):
    """Who wrote the files: a user's load, or a rewrite of Icekeeper."""

    USER = "user"
    JOB = "job"


class LoadState(StrEnum):
    """``pending``: a commit may still add the files; ``adopted``: a commit has added them; ``failed``: none will."""

    PENDING = "pending"
    ADOPTED = "adopted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedLoad:
    """The record of one load: files that a writer puts into a table's location before a commit adds them.

    The files are read separately, because there may be very many.  A job's files are recorded before they are written:
    an entry is a path, or stands for the files of all attempts of a task (``icekeeper.storage.paths``).

    ``name`` is unique per table; ``changed_ms`` is when state or files last changed.
    """

    identity: TableIdentity
    name: str
    origin: LoadOrigin = LoadOrigin.USER
    state: LoadState = LoadState.PENDING
    prefixes: tuple[str, ...] = ()
    """Folders whose files all belong to this load."""
    changed_ms: int
    expires_ms: int | None = None
    """When a rewrite counts as dead unless it extends its record; ``None`` for users' loads."""
    file_count: int = 0

    @property
    def is_protected(self) -> bool:
        """Whether its files must not be deleted.  A dead job may wake up: only FAILED stops it from committing them."""
        return self.state is not LoadState.FAILED

    def is_dead(self, now_ms: int) -> bool:
        """Whether it is a pending job that stopped extending its record, because its process ended."""
        return self.state is LoadState.PENDING and self.expires_ms is not None and now_ms >= self.expires_ms

    def can_be_cleaned(self, now_ms: int, grace_ms: int) -> bool:
        """Whether it failed at least ``grace_ms`` ago; after a clock was set back it seems younger, which is safe."""
        since = self.failed_since(now_ms)
        return since is not None and now_ms - since >= grace_ms

    def failed_since(self, now_ms: int) -> int | None:
        """When the load failed, or expired as a dead job; ``None`` if neither."""
        if self.state is LoadState.FAILED:
            return self.changed_ms
        return self.expires_ms if self.is_dead(now_ms) else None


LOADS = "now#load#"
"""The prefix of the sort keys of staged loads; detection reads all keys that start with ``now#`` in one query."""


class StagingStore(Records):
    """As in Modak, staged files that await adoption must never be deleted (rule: rewrites-pin-and-record).

    Files of failed loads are deleted by their record, never by listing.

    An item per record, and its paths as a list.  There may be too many paths for DynamoDB to write them together with
    the record.  So the record is written first, and from then on protects its prefixes and all recorded paths; then
    come the paths, and at last their number.
    """

    def stage(self, load: StagedLoad, files: Iterable[str]) -> StagedLoad:
        """Record a load, or change the load of its name: files are added, everything else is replaced.

        Returns the record as it is now.  On an error, some files may be recorded: they are protected.
        """
        key = _load_key(load)
        record: Item = {}

        def begin(found: Item | None) -> Item:
            nonlocal record
            before = found or {"file_count": 0, "list_id": new_list_id(), "turn": 0}
            record = {
                "name": load.name,
                "origin": load.origin.value,
                "state": load.state.value,
                "prefixes": json.dumps(load.prefixes),
                "changed_ms": load.changed_ms,
                "run_out_ms": load.expires_ms,
                "file_count": before["file_count"],
                "list_id": before["list_id"],
                # Numbers this call, so that concurrent calls write different parts.
                "turn": before["turn"] + 1,
            }
            return record

        def add_count(found: Item | None) -> Item:
            nonlocal record
            if found is None or found["list_id"] != list_id:
                delete_paths(self.table, list_id)
                raise StorageError(f"the record {load.name} was removed while its files were recorded: stage it again")
            record = {**found, "file_count": found["file_count"] + count}
            return record

        with self.table.together():
            self.table.change(*key, begin)
            list_id = record["list_id"]
            count = write_paths(self.table, list_id, files, call=record["turn"])
            if count:
                self.table.change(*key, add_count)
        return load_of(load.identity, record)

    def loads(self, identity: TableIdentity) -> tuple[StagedLoad, ...]:
        """All loads of a table, ordered by name."""
        return loads_of(identity, self.table.query(table_key(identity), LOADS))

    def files(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        """The files of a load in batches, in the order in which they were recorded."""
        found = self.table.get(table_key(identity), sort_key(LOADS, name))
        return iter(()) if found is None else read_paths(self.table, found["list_id"])

    def change(self, before: StagedLoad, after: StagedLoad) -> bool:
        """Replace state and times of a record if it still equals ``before``; else return false."""

        def decide(found: Item | None) -> Item | None:
            if found is None or not _is_unchanged(found, before):
                return None
            now = {"state": after.state.value, "changed_ms": after.changed_ms, "run_out_ms": after.expires_ms}
            return {**found, **now}

        return self.table.change(*_load_key(before), decide)

    def forget(self, load: StagedLoad) -> bool:
        """Remove a record and its files if it still equals ``load``; else return false."""
        list_id = ""

        def decide(found: Item | None) -> Item | None:
            nonlocal list_id
            if found is None or not _is_unchanged(found, load):
                return None
            list_id = found["list_id"]
            return REMOVED

        with self.table.together():
            gone = self.table.change(*_load_key(load), decide)
            if gone:  # the paths last: without a record they belong to no load, and the next record has a new list
                delete_paths(self.table, list_id)
        return gone


def loads_of(identity: TableIdentity, items: Iterable[Item]) -> tuple[StagedLoad, ...]:
    """The loads of a table, from items of its partition, ordered by name as UTF-8 bytes."""
    loads = (load_of(identity, item) for item in items if item["sk"].startswith(LOADS))
    return tuple(sorted(loads, key=lambda load: load.name.encode()))


def load_of(identity: TableIdentity, item: Item) -> StagedLoad:
    """The load of an item."""
    with understood(item):
        return StagedLoad(
            identity=identity,
            name=item["name"],
            origin=LoadOrigin(item["origin"]),
            state=LoadState(item["state"]),
            prefixes=tuple(json.loads(item["prefixes"])),
            changed_ms=item["changed_ms"],
            expires_ms=item.get("run_out_ms"),
            file_count=item["file_count"],
        )


def _load_key(load: StagedLoad) -> tuple[str, str]:
    return table_key(load.identity), sort_key(LOADS, load.name)


def _is_unchanged(item: Item, load: StagedLoad) -> bool:
    found = load_of(load.identity, item)
    return replace(found, origin=load.origin, prefixes=load.prefixes) == load


_DELETIONS = "deletions#"


class PendingDeletionStore(Records):
    """Lists of files that a run will delete, so that a later run can finish the deletion after a crash.

    A list is written before the commit that unreferences its files.  It does not allow a deletion: the run that
    finishes checks every path against the table's newest references.  Source: iceberg 7937, an expiry that resumes
    (rule: protection-is-written-at-once).
    """

    def expect(self, identity: TableIdentity, name: str, paths: Iterable[str]) -> None:
        """Record the files of a list, replacing the list of this name; on an error, some may be recorded."""
        list_id, expires_s = new_list_id(), self.table.expires_s(KEPT_MS)
        with self.table.together():
            # The paths first, so that a list with an item is complete.
            count = write_paths(self.table, list_id, paths, expires_s=expires_s)
            named: Item = {"name": name, "list_id": list_id, "expires_s": expires_s}
            self._replace(identity, name, named if count else REMOVED)

    def lists(self, identity: TableIdentity) -> tuple[str, ...]:
        """The names of the lists, in order."""
        names = (item["name"] for item in self.table.query(copy_key(identity), _DELETIONS))
        return tuple(sorted(names, key=str.encode))

    def paths(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        """The files of a list in batches, in the order in which they were recorded."""
        found = self.table.get(copy_key(identity), sort_key(_DELETIONS, name))
        return iter(()) if found is None else read_paths(self.table, found["list_id"])

    def forget(self, identity: TableIdentity, name: str) -> None:
        """Remove a list, if there is one."""
        with self.table.together():
            self._replace(identity, name, REMOVED)

    def _replace(self, identity: TableIdentity, name: str, wanted: Item) -> None:
        before: Item | None = None

        def decide(found: Item | None) -> Item | None:
            nonlocal before
            before = found
            return wanted if wanted or found else None

        self.table.change(copy_key(identity), sort_key(_DELETIONS, name), decide)
        if before is not None:
            delete_paths(self.table, before["list_id"])
