"""What every store of leases does: of many that want one, exactly one has it."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from icekeeper.errors import LeaseHeld, LeaseLost
from icekeeper.state import held_lease
from icekeeper.state.held_lease import has_died, holder_name
from icekeeper.state.identity import TableIdentity
from icekeeper.state.leases import Lease, take_slot
from support.state_stores import COPY, IDENTITY, OTHERS, SPELLINGS, OpenStore

KEY = IDENTITY.lease_key
NAME = str(IDENTITY.table)
MIDNIGHT_MS = 1_767_225_600_000


def a_lease(holder: str, expires_ms: int, key: str = KEY) -> Lease:
    return Lease(key=key, holder=holder, expires_ms=expires_ms)


def test_nothing_is_leased_at_first(open_store: OpenStore) -> None:
    leases = open_store().leases
    assert leases.current(KEY, now_ms=0) is None
    assert leases.release(a_lease("a", 10)) is False


def test_a_lease_holds_until_it_runs_out(open_store: OpenStore) -> None:
    """``expires_ms`` is the first millisecond at which others may take it."""
    assert open_store().leases.acquire(KEY, "a", now_ms=1_000, ttl_ms=60) == a_lease("a", 1_060)
    assert open_store().leases.current(KEY, now_ms=1_059) == a_lease("a", 1_060)
    assert open_store().leases.current(KEY, now_ms=1_060) is None
    with pytest.raises(LeaseHeld):
        open_store().leases.acquire(KEY, "b", now_ms=1_059, ttl_ms=60)
    assert open_store().leases.acquire(KEY, "b", now_ms=1_060, ttl_ms=10) == a_lease("b", 1_070)


def test_whoever_comes_second_is_told_who_has_it_and_until_when(open_store: OpenStore) -> None:
    leases = open_store().leases
    leases.acquire(KEY, "run-1", now_ms=MIDNIGHT_MS, ttl_ms=90_000, name="ns.sub.t")
    leases.acquire("fleet", "run-1", now_ms=MIDNIGHT_MS, ttl_ms=90_000)
    with pytest.raises(LeaseHeld) as caught:
        leases.acquire(KEY, "run-2", now_ms=MIDNIGHT_MS, ttl_ms=1)
    assert str(caught.value) == "ns.sub.t is leased by run-1 until 2026-01-01T00:01:30Z"
    with pytest.raises(LeaseHeld, match=r"^fleet is leased by run-1 until 2026-01-01T00:01:30Z$"):
        leases.acquire("fleet", "run-2", now_ms=MIDNIGHT_MS, ttl_ms=1)


def test_its_holder_takes_it_again_and_never_shortens_it(open_store: OpenStore) -> None:
    """So that a function which is retried after its answer was lost gets the same answer."""
    leases = open_store().leases
    leases.acquire(KEY, "a", now_ms=0, ttl_ms=100)
    assert leases.acquire(KEY, "a", now_ms=10, ttl_ms=20) == a_lease("a", 100)
    assert leases.acquire(KEY, "a", now_ms=10, ttl_ms=200) == a_lease("a", 210)
    assert leases.acquire(KEY, "a", now_ms=300, ttl_ms=20) == a_lease("a", 320)
    assert leases.current(KEY, now_ms=319) == a_lease("a", 320)


def test_a_lease_that_was_stolen_may_be_shorter(open_store: OpenStore) -> None:
    """What counts is the thief's own time."""
    leases = open_store().leases
    leases.acquire(KEY, "a", now_ms=0, ttl_ms=100)
    assert leases.acquire(KEY, "b", now_ms=100, ttl_ms=1) == a_lease("b", 101)
    assert leases.current(KEY, now_ms=100) == a_lease("b", 101)


def test_renewing_prolongs_and_never_shortens(open_store: OpenStore) -> None:
    lease = open_store().leases.acquire(KEY, "a", now_ms=0, ttl_ms=100)
    assert open_store().leases.renew(lease, now_ms=50, ttl_ms=100) == a_lease("a", 150)
    assert open_store().leases.renew(lease, now_ms=60, ttl_ms=10) == a_lease("a", 150)
    assert open_store().leases.current(KEY, now_ms=149) == a_lease("a", 150)


def test_a_lease_that_ran_out_is_renewed_when_nobody_took_it(open_store: OpenStore) -> None:
    leases = open_store().leases
    lease = leases.acquire(KEY, "a", now_ms=0, ttl_ms=100)
    assert leases.renew(lease, now_ms=5_000, ttl_ms=100) == a_lease("a", 5_100)
    with pytest.raises(LeaseHeld):
        leases.acquire(KEY, "b", now_ms=5_050, ttl_ms=1)


def test_a_stolen_lease_is_lost_even_when_the_thief_ran_out_too(open_store: OpenStore) -> None:
    leases = open_store().leases
    lease = leases.acquire(KEY, "a", now_ms=0, ttl_ms=100, name=NAME)
    leases.acquire(KEY, "b", now_ms=100, ttl_ms=100)
    for now_ms in (150, 900):
        with pytest.raises(LeaseLost) as caught:
            leases.renew(lease, now_ms=now_ms, ttl_ms=100)
        assert str(caught.value) == f"the lease of a on {NAME} is lost: b took it"
    assert leases.release(lease) is False
    assert leases.current(KEY, now_ms=150) == a_lease("b", 200)


def test_a_released_lease_is_free_and_can_not_be_renewed(open_store: OpenStore) -> None:
    leases = open_store().leases
    lease = leases.acquire(KEY, "a", now_ms=0, ttl_ms=100, name=NAME)
    renewed = leases.renew(lease, now_ms=50, ttl_ms=100)
    assert leases.release(lease) is True, "the lease is its holder's, however often it was renewed"
    assert leases.release(renewed) is False
    assert leases.current(KEY, now_ms=50) is None
    with pytest.raises(LeaseLost) as caught:
        leases.renew(lease, now_ms=50, ttl_ms=100)
    assert str(caught.value) == f"the lease of a on {NAME} is lost: it was released"
    assert leases.acquire(KEY, "b", now_ms=50, ttl_ms=10) == a_lease("b", 60)


def test_a_lease_that_ran_out_can_be_released(open_store: OpenStore) -> None:
    leases = open_store().leases
    lease = leases.acquire(KEY, "a", now_ms=0, ttl_ms=100)
    assert leases.current(KEY, now_ms=500) is None
    assert leases.release(lease) is True


def test_only_the_callers_clock_counts(open_store: OpenStore) -> None:
    """These leases ran out decades ago by the wall clock."""
    leases = open_store().leases
    lease = leases.acquire(KEY, "a", now_ms=1, ttl_ms=1)
    with pytest.raises(LeaseHeld):
        open_store().leases.acquire(KEY, "b", now_ms=1, ttl_ms=1)
    assert leases.current(KEY, now_ms=1) == lease


@pytest.mark.parametrize("called", SPELLINGS.values(), ids=SPELLINGS)
def test_two_names_of_a_table_exclude_each_other(open_store: OpenStore, called: TableIdentity) -> None:
    leases = open_store().leases
    taken = leases.acquire(KEY, "a", now_ms=0, ttl_ms=100, name=NAME)
    assert leases.current(called.lease_key, now_ms=0) == taken
    with pytest.raises(LeaseHeld, match=f"^{called.table} is leased by a until 1970-01-01T00:00:00Z$"):
        leases.acquire(called.lease_key, "b", now_ms=50, ttl_ms=100, name=str(called.table))
    assert leases.renew(replace(taken, name=""), now_ms=60, ttl_ms=100) == replace(taken, expires_ms=160)


@pytest.mark.parametrize("other", [*(one.lease_key for one in (COPY, *OTHERS.values())), "fleet", "Flotte ü"])
def test_leases_of_different_things_do_not_meet(open_store: OpenStore, other: str) -> None:
    leases = open_store().leases
    leases.acquire(KEY, "a", now_ms=0, ttl_ms=100)
    assert leases.acquire(other, "b", now_ms=0, ttl_ms=100) == a_lease("b", 100, other)
    assert leases.release(a_lease("b", 100, other)) is True
    assert leases.current(KEY, now_ms=0) == a_lease("a", 100)


@pytest.mark.parametrize("uuid", ["slot-1", "schedule", "uuid-1 s3://bucket/ns/sub/t", '["uuid-1", "x"]'])
def test_no_uuid_that_a_table_gives_itself_reaches_another_lease(open_store: OpenStore, uuid: str) -> None:
    """Rule 270: whoever writes a table's metadata chooses its UUID."""
    leases = open_store().leases
    hostile = replace(IDENTITY, uuid=uuid, location="s3://bucket/hostile")
    leases.acquire(hostile.lease_key, "hostile", now_ms=0, ttl_ms=100)
    assert leases.acquire(KEY, "a", now_ms=0, ttl_ms=100).holder == "a"
    assert take_slot(leases, "b", 1, now_ms=0, ttl_ms=100).holder == "b"
    assert leases.current("schedule", now_ms=0) is None


@pytest.mark.parametrize("run_out", [False, True], ids=["free", "run out"])
def test_of_many_that_want_it_at_once_exactly_one_gets_it(open_store: OpenStore, run_out: bool) -> None:
    if run_out:
        open_store().leases.acquire(KEY, "before", now_ms=0, ttl_ms=100)
    start = Barrier(8)

    def try_it(number: int) -> Lease | None:
        leases = open_store().leases
        start.wait()
        try:
            return leases.acquire(KEY, f"run-{number}", now_ms=200, ttl_ms=100)
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(8) as pool:
        winners = [lease for lease in pool.map(try_it, range(8)) if lease]
    assert len(winners) == 1
    assert open_store().leases.current(KEY, now_ms=250) == winners[0]


def test_of_a_renewal_and_a_theft_at_once_one_wins(open_store: OpenStore) -> None:
    start = Barrier(2)
    lease = open_store().leases.acquire(KEY, "a", now_ms=0, ttl_ms=100)

    def renew() -> Lease | None:
        leases = open_store().leases
        start.wait()
        try:
            return leases.renew(lease, now_ms=200, ttl_ms=100)
        except LeaseLost:
            return None

    def steal() -> Lease | None:
        leases = open_store().leases
        start.wait()
        try:
            return leases.acquire(KEY, "b", now_ms=200, ttl_ms=100)
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(renew), pool.submit(steal)]
        winners = [taken for answer in answers if (taken := answer.result())]
    assert len(winners) == 1
    assert open_store().leases.current(KEY, now_ms=250) == winners[0]


def killed_holder() -> str:
    """The name of a process of this machine that was killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, holder_name("icekeeper maintain", "0123456789").encode())
        signal.pause()
    holder = os.read(read, 1000).decode()
    os.close(read)
    os.close(write)
    assert not has_died(holder)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return holder


def test_the_lease_of_a_process_that_is_dead_bars_nobody(open_store: OpenStore) -> None:
    holder = killed_holder()
    leases = open_store().leases
    first = leases.acquire(KEY, holder, now_ms=1_000, ttl_ms=1_000)
    assert leases.current(KEY, now_ms=1_001) is None
    taken = leases.acquire(KEY, "b", now_ms=1_001, ttl_ms=1_000)
    assert taken.holder == "b"
    assert leases.release(first) is False
    assert leases.current(KEY, now_ms=1_002) == taken


def test_a_holder_that_may_live_keeps_its_lease(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In another container, after another boot, of another user, without a mark, in a form that nobody wrote."""
    dead, alive = killed_holder(), holder_name("icekeeper run", "r")
    assert has_died(dead)
    told = Lease(key=KEY, holder=dead, expires_ms=1).who
    assert dead.startswith(f"{told} [")
    assert told.endswith(", run 01234567)")
    assert not has_died(alive)
    place = dead[dead.index(" [") + 2 :][:16]
    others = [told, "", "run-1", dead.replace(place, "0" * 16), f"{told} [{place}]", f"{dead} ", dead.replace("(", "")]
    assert [has_died(other) for other in others] == [False] * len(others)
    # The number of a process that is there, which began at another time than the one that had it before.
    mark, _, start = alive.removesuffix("]").rpartition(".")
    assert has_died(f"{mark}.{int(start) + 1}]")
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, number: (_ for _ in ()).throw(PermissionError()))
        assert not has_died(dead)
    # Where the system tells nothing, and where another namespace has mounted what it tells.
    monkeypatch.setattr(held_lease, "_PROC", tmp_path)
    assert not has_died(dead)
    assert holder_name("icekeeper run", "r") == alive.rpartition(" [")[0]
