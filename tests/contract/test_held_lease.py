"""A lease while its holder works, over every store: prolonged by a thread, lost once another one has it."""

from __future__ import annotations

import threading

import pytest

from icekeeper.errors import LeaseHeld, LeaseLost, StorageError
from icekeeper.state.held_lease import HeldLease, kept_alive
from icekeeper.state.leases import LeaseStore
from support.state_stores import IDENTITY, OpenStore

KEY, NAME = IDENTITY.lease_key, str(IDENTITY.table)
TTL_MS = 120


def held(leases: LeaseStore, now: list[int], ttl_ms: int = TTL_MS) -> HeldLease:
    lease = leases.acquire(KEY, "a", now_ms=now[0], ttl_ms=ttl_ms, name=NAME)
    return HeldLease(leases, lease, ttl_ms, lambda: now[0])


def test_whoever_asks_for_it_prolongs_it(open_store: OpenStore) -> None:
    now, leases = [1_000], open_store().leases
    lease = held(leases, now)
    now[0] += 100
    lease.require()
    found = leases.current(KEY, now_ms=1_219)
    assert found is not None
    assert (found.holder, found.expires_ms) == ("a", 1_220)


def test_what_another_one_took_is_lost_for_good(open_store: OpenStore) -> None:
    now, leases = [1_000], open_store().leases
    lease = held(leases, now)
    now[0] += TTL_MS
    stolen = leases.acquire(KEY, "b", now_ms=now[0], ttl_ms=TTL_MS, name=NAME)
    with pytest.raises(LeaseLost, match=rf"^the lease of a on {NAME} is lost: b took it$"):
        lease.require()
    assert leases.release(stolen)
    assert lease.is_lost
    with pytest.raises(LeaseLost):  # though it is free again: what came in between is not known
        lease.require()
    lease.give_back()


def test_a_lease_that_cannot_be_prolonged_is_nobodys_right(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, leases = [1_000], open_store().leases
    lease = held(leases, now)

    def down(*_: object, **__: object) -> None:
        raise StorageError("the state is down")

    with monkeypatch.context() as patch:
        patch.setattr(type(leases), "renew", down)
        with pytest.raises(StorageError, match="down"):
            lease.require()
    lease.require()
    assert not lease.is_lost


def test_it_is_prolonged_while_its_holder_works_and_given_back_at_the_end(open_store: OpenStore) -> None:
    """The clock jumps by almost a whole lease at each beat, several times: without beats it would run out."""
    leases = open_store().leases
    now, beats, enough = [1_000], [0], threading.Event()
    lease = held(leases, now)
    renew = lease.require

    def counted() -> None:
        renew()
        beats[0] += 1
        now[0] += TTL_MS - 1
        if beats[0] == 3:
            enough.set()

    lease.require = counted  # type: ignore[method-assign] # the beat of the very object under test is counted
    with kept_alive(lease):
        assert enough.wait(30)
        with pytest.raises(LeaseHeld):
            leases.acquire(KEY, "b", now_ms=1_000 + 3 * (TTL_MS - 1) - 1, ttl_ms=1)
    assert leases.current(KEY, now_ms=1_000) is None


def test_it_is_given_back_after_an_interrupt(open_store: OpenStore) -> None:
    leases = open_store().leases
    with pytest.raises(KeyboardInterrupt), kept_alive(held(leases, [1_000], 60_000)):
        raise KeyboardInterrupt
    assert leases.current(KEY, now_ms=1_000) is None
