"""Slots, over every store: never more are taken than there are, whoever asks (rule 127)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from icekeeper.errors import LeaseHeld
from icekeeper.state.leases import Lease, held_slot, slot_keys, take_slot
from support.state_stores import OpenStore


def test_as_many_are_taken_as_there_are(open_store: OpenStore) -> None:
    leases = open_store().leases
    taken = [take_slot(leases, holder, 2, now_ms=0, ttl_ms=100) for holder in ("a", "b")]
    assert [lease.key for lease in taken] == slot_keys(2)
    with pytest.raises(LeaseHeld, match=r"^2 table\(s\) are maintained now, as many as max_concurrent_jobs allows"):
        take_slot(leases, "c", 2, now_ms=0, ttl_ms=100)
    assert take_slot(leases, "c", 3, now_ms=0, ttl_ms=100).key == "slot-3"
    assert leases.release(taken[0])
    assert take_slot(leases, "d", 2, now_ms=0, ttl_ms=100).key == "slot-1"


def test_who_has_one_gets_it_again(open_store: OpenStore) -> None:
    """Also when one before it has become free: a repeated call must not take two."""
    leases = open_store().leases
    first = take_slot(leases, "a", 2, now_ms=0, ttl_ms=100)
    second = take_slot(leases, "b", 2, now_ms=0, ttl_ms=100)
    assert leases.release(first)
    again = take_slot(leases, "b", 2, now_ms=50, ttl_ms=100)
    assert (again.key, again.expires_ms) == (second.key, 150)
    assert held_slot(leases, "b", 2, now_ms=50) == again
    assert held_slot(leases, "a", 2, now_ms=50) is None


def test_the_slot_of_the_dead_runs_out(open_store: OpenStore) -> None:
    leases = open_store().leases
    take_slot(leases, "killed", 1, now_ms=0, ttl_ms=100)
    assert take_slot(leases, "b", 1, now_ms=100, ttl_ms=100).holder == "b"


def test_of_many_at_once_exactly_so_many_get_one(open_store: OpenStore) -> None:
    start = Barrier(6)

    def try_it(number: int) -> Lease | None:
        leases = open_store().leases
        start.wait()
        try:
            return take_slot(leases, f"run-{number}", 3, now_ms=0, ttl_ms=100)
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(6) as pool:
        won = [lease for lease in pool.map(try_it, range(6)) if lease]
    assert sorted(lease.key for lease in won) == slot_keys(3)
