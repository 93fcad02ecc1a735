"""Staged loads in the state table: an item for each record, its paths apart.

A record and its paths cannot be written at once, because paths may be very many.  So whoever stages first writes the
record, which from then on protects its prefixes and whatever is recorded, then the paths, and last their number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from icekeeper.errors import StorageError
from icekeeper.state.dynamodb.items import Item, sort_key, table_key, understood
from icekeeper.state.dynamodb.path_lists import delete_paths, new_list_id, read_paths, write_paths
from icekeeper.state.dynamodb.table import REMOVED, DynamoTable
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import LoadOrigin, LoadState, StagedLoad

__all__ = ["LOADS", "DynamoStaging", "load_of"]

LOADS = "now#load#"
"""The prefix of the sort keys of staged loads; detection reads all keys that begin with ``now#`` in one query."""


class DynamoStaging:
    """A :class:`icekeeper.state.store.StagingStore`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def stage(self, load: StagedLoad, files: Iterable[str]) -> StagedLoad:
        key = _key(load.identity, load.name)
        record: Item = {}

        def begin(found: Item | None) -> Item:
            nonlocal record
            before = found or {"file_count": 0, "list_id": new_list_id(), "turn": 0}
            record = {
                **_fields(load),
                "file_count": before["file_count"],
                "list_id": before["list_id"],
                # Numbers this call, so that calls at the same time write different parts.
                "turn": before["turn"] + 1,
            }
            return record

        self._table.change(*key, begin)
        list_id = record["list_id"]
        count = write_paths(self._table, list_id, files, call=record["turn"])
        if not count:
            return load_of(load.identity, record)

        def add_count(found: Item | None) -> Item:
            nonlocal record
            if found is None or found["list_id"] != list_id:
                delete_paths(self._table, list_id)
                raise StorageError(f"the record {load.name} was removed while its files were recorded: stage it again")
            record = {**found, "file_count": found["file_count"] + count}
            return record

        self._table.change(*key, add_count)
        return load_of(load.identity, record)

    def loads(self, identity: TableIdentity) -> tuple[StagedLoad, ...]:
        items = self._table.query(table_key(identity), LOADS)
        return tuple(sorted((load_of(identity, item) for item in items), key=lambda load: load.name.encode()))

    def files(self, identity: TableIdentity, name: str) -> Iterator[Sequence[str]]:
        found = self._table.get(*_key(identity, name))
        return iter(()) if found is None else read_paths(self._table, found["list_id"])

    def change(self, before: StagedLoad, after: StagedLoad) -> bool:
        def decide(found: Item | None) -> Item | None:
            if found is None or not _is_unchanged(found, before):
                return None
            times = {"changed_ms": after.changed_ms, "run_out_ms": after.expires_ms}
            return {**found, "state": after.state.value, **times}

        return self._table.change(*_key(before.identity, before.name), decide)

    def forget(self, load: StagedLoad) -> bool:
        list_id = ""

        def decide(found: Item | None) -> Item | None:
            nonlocal list_id
            if found is None or not _is_unchanged(found, load):
                return None
            list_id = found["list_id"]
            return REMOVED

        gone = self._table.change(*_key(load.identity, load.name), decide)
        if gone:  # last: paths without a record belong to no load, since the next record has another list
            delete_paths(self._table, list_id)
        return gone


def load_of(identity: TableIdentity, item: Item) -> StagedLoad:
    """The record that an item holds."""
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


def _key(identity: TableIdentity, name: str) -> tuple[str, str]:
    return table_key(identity), sort_key(LOADS, name)


def _fields(load: StagedLoad) -> Item:
    return {
        "name": load.name,
        "origin": load.origin.value,
        "state": load.state.value,
        "prefixes": json.dumps(load.prefixes),
        "changed_ms": load.changed_ms,
        "run_out_ms": load.expires_ms,
    }


def _is_unchanged(item: Item, load: StagedLoad) -> bool:
    recorded = load_of(load.identity, item)
    return (recorded.state, recorded.changed_ms, recorded.expires_ms, recorded.file_count) == (
        load.state,
        load.changed_ms,
        load.expires_ms,
        load.file_count,
    )
