"""The quarantine ledger in the state table: an item for each path.

Sightings are counted by reading and writing items, without a condition: DynamoDB has none for many items at once.  The
lease lets one run at a time count for a table; if two counted together, a sighting would be lost, and the orphan
deleted a pass later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.dynamodb.batches import delete_all, get_all, put_all
from icekeeper.state.dynamodb.items import copy_key, sort_key
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import Sighting

__all__ = ["DynamoQuarantine"]

_BATCH = 100
# Counts expire when no pass has seen the path for this long; a forgotten path is deleted later, not earlier.
_KEPT_MS = 400 * 24 * HOUR_MS


class DynamoQuarantine:
    """See :class:`icekeeper.state.store.QuarantineLedger`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def see(self, identity: TableIdentity, run_id: str, paths: Iterable[str], *, now_ms: int) -> None:
        pk, expires_s = copy_key("quarantine", identity), self._table.expires_s(_KEPT_MS)
        for batch in _batches(pk, paths):
            known = {item["path"]: _sighting(item) for item in get_all(self._table, batch.values())}
            put_all(
                self._table,
                (
                    {
                        "pk": pk,
                        "sk": sk,
                        "path": path,
                        "sightings": 1 if before is None else before.count + (before.run_id != run_id),
                        "first_seen_ms": now_ms if before is None else before.first_seen_ms,
                        "run_id": run_id,
                        "expires_s": expires_s,
                    }
                    for path, (_, sk) in batch.items()
                    for before in (known.get(path),)
                ),
            )

    def counts(self, identity: TableIdentity, run_id: str, paths: Iterable[str]) -> Mapping[str, int]:
        return {
            entry.path: entry.count - (entry.run_id == run_id)
            for batch in _batches(copy_key("quarantine", identity), paths)
            for entry in map(_sighting, get_all(self._table, batch.values()))
        }

    def forget_unseen(self, identity: TableIdentity, run_id: str) -> None:
        entries = self._table.query(copy_key("quarantine", identity), attributes=("pk", "sk", "run_id"))
        delete_all(self._table, ((entry["pk"], entry["sk"]) for entry in entries if entry["run_id"] != run_id))

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        for batch in _batches(copy_key("quarantine", identity), paths):
            delete_all(self._table, batch.values())

    def sightings(self, identity: TableIdentity) -> Iterator[Sighting]:
        return map(_sighting, self._table.query(copy_key("quarantine", identity)))


def _batches(pk: str, paths: Iterable[str]) -> Iterator[dict[str, tuple[str, str]]]:
    """Batches of path → key."""
    rest = iter(paths)
    while batch := {path: (pk, sort_key("/", path)) for path in islice(rest, _BATCH)}:
        yield batch


def _sighting(item: Mapping[str, object]) -> Sighting:
    return Sighting(
        str(item["path"]),
        count=int(str(item["sightings"])),
        first_seen_ms=int(str(item["first_seen_ms"])),
        run_id=str(item["run_id"]),
    )
