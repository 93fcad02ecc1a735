"""Leases in the state table: an item each, replaced on condition that it is as it was read.

They expire by the clock of DynamoDB (the date of the answer that showed the item): by its own clock, a machine that is
ahead would take the leases of others too early.
"""

from __future__ import annotations

from dataclasses import replace

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.dynamodb.items import Item, named_key
from icekeeper.state.dynamodb.table import REMOVED, DynamoTable
from icekeeper.state.held_lease import of_the_living
from icekeeper.state.leases import Lease, renewed_lease, taken_lease

__all__ = ["DynamoLeases"]

# For at least this long after its end, a lease that nobody took can still be renewed.
_KEPT_MS = 24 * HOUR_MS
_SORT_KEY = "lease"


class DynamoLeases:
    """A :class:`icekeeper.state.leases.LeaseStore`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def acquire(self, key: str, holder: str, *, now_ms: int, ttl_ms: int, name: str = "") -> Lease:
        taken = Lease(key=key, holder=holder, expires_ms=0, name=name)

        def decide(item: Item | None) -> Item:
            nonlocal taken
            its_now_ms = self._table.to_table_clock(now_ms)
            wanted = Lease(key=key, holder=holder, expires_ms=its_now_ms + ttl_ms, name=name)
            taken = taken_lease(_lease(key, item), wanted, now_ms=its_now_ms)
            return self._item(taken)

        self._table.change(_pk(key), _SORT_KEY, decide)
        return taken

    def renew(self, lease: Lease, *, now_ms: int, ttl_ms: int) -> Lease:
        # One request, without a look beforehand: DynamoDB's time is that of its answer to whoever took the lease.
        expires_ms = self._table.to_table_clock(now_ms) + ttl_ms
        wanted = self._item(replace(lease, expires_ms=expires_ms))
        _, there = self._table.set_where(
            _pk(lease.key),
            _SORT_KEY,
            {name: wanted[name] for name in ("until_ms", "expires_s")},
            "holder = :holder AND until_ms < :until",  # never shortened
            {":holder": lease.holder, ":until": expires_ms},
        )
        found = _lease(lease.key, there)
        return renewed_lease(found, lease, expires_ms=0 if found is None else found.expires_ms)

    def release(self, lease: Lease) -> bool:

        def decide(item: Item | None) -> Item | None:
            return REMOVED if item is not None and item["holder"] == lease.holder else None

        return self._table.change(_pk(lease.key), _SORT_KEY, decide)

    def current(self, key: str, *, now_ms: int) -> Lease | None:
        found = _lease(key, self._table.get(_pk(key), _SORT_KEY))
        return found if found is not None and found.holds_at(self._table.to_table_clock(now_ms)) else None

    def _item(self, lease: Lease) -> Item:
        expires_s = self._table.expires_s(_KEPT_MS, at_least_ms=lease.expires_ms)
        return {
            "holder": lease.holder,
            "until_ms": lease.expires_ms,
            "name": lease.name or None,
            "expires_s": expires_s,
        }


def _lease(key: str, item: Item | None) -> Lease | None:
    if item is None:
        return None
    return of_the_living(Lease(key=key, holder=item["holder"], expires_ms=item["until_ms"], name=item.get("name", "")))


def _pk(key: str) -> str:
    return named_key("lease", key)
