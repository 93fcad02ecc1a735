"""Leases in every state store: one holder at a time, slots, live runs, and clocks that were ahead."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest

from icekeeper.detection.assess import assess
from icekeeper.errors import LeaseHeld, LeaseLost, StorageError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.maintenance.run_pass import why_needless
from icekeeper.pipeline.request_pass import Waiting, await_pass
from icekeeper.state import leases as lease_module
from icekeeper.state.item_layout import named_key
from icekeeper.state.leases import (
    HeldLease,
    Lease,
    LeaseStore,
    end_live_run,
    has_died,
    holder_name,
    kept_alive,
    note_live_run,
    slot_keys,
    take_slot,
    taken_slots,
)
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import OVERLAP_MS
from support.settings import MB, NOW_MS, policy, small_files, table
from support.state_stores import CALLED, COPY, IDENTITY, OTHERS, OpenStore, look, looks, remember

KEY = IDENTITY.lease_key
NAME = str(IDENTITY.table)
MIDNIGHT_MS = 1_767_225_600_000


def a_lease(holder: str, expires_ms: int, key: str = KEY) -> Lease:
    return Lease(key=key, holder=holder, expires_ms=expires_ms)


def test_a_lease_holds_until_it_expires(open_store: OpenStore) -> None:
    """``expires_ms`` is the first millisecond at which others may take it.  Only the caller's clock counts: by the wall
    clock these leases expired decades ago."""
    leases = open_store().leases
    assert leases.current(KEY, now_ms=0) is None
    assert leases.release(a_lease("a", 10)) is False
    assert leases.acquire(KEY, "a", now_ms=1_000, ttl_ms=60) == a_lease("a", 1_060)
    assert open_store().leases.current(KEY, now_ms=1_059) == a_lease("a", 1_060)
    assert open_store().leases.current(KEY, now_ms=1_060) is None
    with pytest.raises(LeaseHeld):
        open_store().leases.acquire(KEY, "b", now_ms=1_059, ttl_ms=60)
    assert open_store().leases.acquire(KEY, "b", now_ms=1_060, ttl_ms=10) == a_lease("b", 1_070)
    assert leases.current(KEY, now_ms=5_000) is None
    assert leases.release(a_lease("b", 1_070)) is True


def test_a_wrong_guess_that_a_lease_is_free_changes_no_answer(open_store: OpenStore) -> None:
    leases = open_store().leases
    take = partial(leases.acquire, KEY, ttl_ms=60, is_likely_free=True)
    assert take("a", now_ms=0) == a_lease("a", 60)
    with pytest.raises(LeaseHeld):
        take("b", now_ms=59)
    assert take("a", now_ms=59) == a_lease("a", 119)
    assert take("b", now_ms=119) == a_lease("b", 179)


def test_a_refusal_names_the_holder_and_the_end_of_the_lease(open_store: OpenStore) -> None:
    leases = open_store().leases
    leases.acquire(KEY, "run-1", now_ms=MIDNIGHT_MS, ttl_ms=90_000, name="ns.sub.t")
    leases.acquire("fleet", "run-1", now_ms=MIDNIGHT_MS, ttl_ms=90_000)
    with pytest.raises(LeaseHeld) as caught:
        leases.acquire(KEY, "run-2", now_ms=MIDNIGHT_MS, ttl_ms=1)
    assert str(caught.value) == "ns.sub.t is leased by run-1 until 2026-01-01T00:01:30Z"
    with pytest.raises(LeaseHeld, match=r"^fleet is leased by run-1 until 2026-01-01T00:01:30Z$"):
        leases.acquire("fleet", "run-2", now_ms=MIDNIGHT_MS, ttl_ms=1)


def test_the_holder_may_acquire_its_lease_again_without_shortening_it(open_store: OpenStore) -> None:
    """A function that is retried after its answer was lost gets the same lease.  The next holder's lease ends by its
    own TTL."""
    leases = open_store().leases
    leases.acquire(KEY, "a", now_ms=0, ttl_ms=100)
    assert leases.acquire(KEY, "a", now_ms=10, ttl_ms=20) == a_lease("a", 100)
    assert leases.acquire(KEY, "a", now_ms=10, ttl_ms=200) == a_lease("a", 210)
    assert leases.acquire(KEY, "a", now_ms=300, ttl_ms=20) == a_lease("a", 320)
    assert leases.current(KEY, now_ms=319) == a_lease("a", 320)
    assert leases.acquire(KEY, "b", now_ms=320, ttl_ms=1) == a_lease("b", 321)
    assert leases.current(KEY, now_ms=320) == a_lease("b", 321)


def test_renewal_extends_a_lease_and_never_shortens_it(open_store: OpenStore) -> None:
    """Also an expired lease that no other run has taken."""
    leases = open_store().leases
    lease = leases.acquire(KEY, "a", now_ms=0, ttl_ms=100)
    assert open_store().leases.renew(lease, now_ms=50, ttl_ms=100) == a_lease("a", 150)
    assert open_store().leases.renew(lease, now_ms=60, ttl_ms=10) == a_lease("a", 150)
    assert open_store().leases.current(KEY, now_ms=149) == a_lease("a", 150)
    assert leases.renew(lease, now_ms=5_000, ttl_ms=100) == a_lease("a", 5_100)
    assert leases.renew(lease, now_ms=5_008, ttl_ms=100) == a_lease("a", 5_100), "only checked"
    assert leases.renew(lease, now_ms=5_009, ttl_ms=100) == a_lease("a", 5_109)
    with pytest.raises(LeaseHeld):
        leases.acquire(KEY, "b", now_ms=5_050, ttl_ms=1)


def test_a_lease_taken_by_another_run_is_lost_even_after_it_expires_again(open_store: OpenStore) -> None:
    leases = open_store().leases
    lease = leases.acquire(KEY, "a", now_ms=0, ttl_ms=100, name=NAME)
    leases.acquire(KEY, "b", now_ms=100, ttl_ms=100)
    for now_ms in (150, 900):
        with pytest.raises(LeaseLost) as caught:
            leases.renew(lease, now_ms=now_ms, ttl_ms=100)
        assert str(caught.value) == f"the lease of a on {NAME} is lost: b took it"
    assert leases.release(lease) is False
    assert leases.current(KEY, now_ms=150) == a_lease("b", 200)


def test_a_released_lease_is_free_and_cannot_be_renewed(open_store: OpenStore) -> None:
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


def test_two_names_of_a_table_exclude_each_other(open_store: OpenStore) -> None:
    leases = open_store().leases
    taken = leases.acquire(KEY, "a", now_ms=0, ttl_ms=100, name=NAME)
    assert leases.current(CALLED.lease_key, now_ms=0) == taken
    with pytest.raises(LeaseHeld, match=f"^{CALLED.table} is leased by a until 1970-01-01T00:00:00Z$"):
        leases.acquire(CALLED.lease_key, "b", now_ms=50, ttl_ms=100, name=str(CALLED.table))
    assert leases.renew(replace(taken, name=""), now_ms=60, ttl_ms=100) == replace(taken, expires_ms=160)


def test_leases_with_different_keys_are_independent(open_store: OpenStore) -> None:
    """Writers choose a table's UUID, which must not match another lease (rule: table-identity-is-its-uuid)."""
    leases = open_store().leases
    taken = leases.acquire(KEY, "a", now_ms=0, ttl_ms=100)
    uuids = ("slot-1", "schedule", "uuid-1 s3://bucket/ns/sub/t", '["uuid-1", "x"]')
    hostile = [replace(IDENTITY, uuid=uuid, location="s3://bucket/hostile") for uuid in uuids]
    others = [*(identity.lease_key for identity in (COPY, *OTHERS.values(), *hostile)), "fleet", "Flotte ü"]
    for other in others:
        assert leases.acquire(other, "b", now_ms=0, ttl_ms=100) == a_lease("b", 100, other)
    assert take_slot(leases, "c", 1, now_ms=0, ttl_ms=100).holder == "c"
    assert leases.current("schedule", now_ms=0) is None
    for other in others:
        assert leases.release(a_lease("b", 100, other)) is True
    assert leases.current(KEY, now_ms=0) == taken


@pytest.mark.parametrize("run_out", [False, True], ids=["free", "run out"])
def test_exactly_one_of_many_racing_runs_gets_the_lease(open_store: OpenStore, run_out: bool) -> None:
    """Of racing runs, exactly one acquires the lease (rule: one-lease-holder)."""
    if run_out:
        open_store().leases.acquire(KEY, "before", now_ms=0, ttl_ms=100)
    start = Barrier(8)

    def acquire(number: int) -> Lease | None:
        leases = open_store().leases
        start.wait()
        try:
            return leases.acquire(KEY, f"run-{number}", now_ms=200, ttl_ms=100)
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(8) as pool:
        winners = [lease for lease in pool.map(acquire, range(8)) if lease]
    assert len(winners) == 1
    assert open_store().leases.current(KEY, now_ms=250) == winners[0]


def test_of_a_racing_renewal_and_takeover_exactly_one_wins(open_store: OpenStore) -> None:
    start = Barrier(2)
    lease = open_store().leases.acquire(KEY, "a", now_ms=0, ttl_ms=100)

    def renew() -> Lease | None:
        leases = open_store().leases
        start.wait()
        try:
            return leases.renew(lease, now_ms=200, ttl_ms=100)
        except LeaseLost:
            return None

    def take_over() -> Lease | None:
        leases = open_store().leases
        start.wait()
        try:
            return leases.acquire(KEY, "b", now_ms=200, ttl_ms=100)
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(renew), pool.submit(take_over)]
        winners = [taken for answer in answers if (taken := answer.result())]
    assert len(winners) == 1
    assert open_store().leases.current(KEY, now_ms=250) == winners[0]


def killed_holder() -> str:
    """The holder name of a killed process on this machine."""
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


def test_the_lease_of_a_dead_process_is_free(open_store: OpenStore) -> None:
    holder = killed_holder()
    leases = open_store().leases
    first = leases.acquire(KEY, holder, now_ms=1_000, ttl_ms=1_000)
    assert leases.current(KEY, now_ms=1_001) is None
    taken = leases.acquire(KEY, "b", now_ms=1_001, ttl_ms=1_000)
    assert taken.holder == "b"
    assert leases.release(first) is False
    assert leases.current(KEY, now_ms=1_002) == taken


def test_a_holder_that_may_live_keeps_its_lease(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A holder in another container, of another boot or user, without a mark, or of an unknown form."""
    dead, alive = killed_holder(), holder_name("icekeeper run", "r")
    assert has_died(dead)
    name = Lease(key=KEY, holder=dead, expires_ms=1).who
    assert dead.startswith(f"{name} [")
    assert name.endswith(", run 01234567)")
    assert not has_died(alive)
    boot_id = dead[dead.index(" [") + 2 :][:16]
    others = [
        name,
        "",
        "run-1",
        dead.replace(boot_id, "0" * 16),
        f"{name} [{boot_id}]",
        f"{dead} ",
        dead.replace("(", ""),
    ]
    assert [has_died(other) for other in others] == [False] * len(others)
    # The process with this number started at another time than the holder.
    mark, _, start = alive.removesuffix("]").rpartition(".")
    assert has_died(f"{mark}.{int(start) + 1}]")
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda pid, number: (_ for _ in ()).throw(PermissionError()))
        assert not has_died(dead)
    # /proc is empty or belongs to another namespace.
    monkeypatch.setattr(lease_module, "_PROC", tmp_path)
    assert not has_died(dead)
    assert holder_name("icekeeper run", "r") == alive.rpartition(" [")[0]


# Records from a clock that was ahead stop no pass once the clock is right.

BARRED = IDENTITY.lease_key
YEAR_MS = 366 * 24 * HOUR_MS
SEEN = look(NOW_MS)
FROM_AHEAD = replace(SEEN, finished_ms=NOW_MS + YEAR_MS)


def test_a_lease_from_a_clock_that_was_ahead_does_not_bar_the_table(open_store: OpenStore) -> None:
    leases = open_store().leases
    leases.acquire(BARRED, "killed", now_ms=NOW_MS + YEAR_MS, ttl_ms=100)
    assert leases.current(BARRED, now_ms=NOW_MS) is None
    taken = leases.acquire(BARRED, "next", now_ms=NOW_MS, ttl_ms=100)
    assert (taken.holder, taken.expires_ms) == ("next", NOW_MS + 100)


def test_renewal_after_the_clock_is_set_right_shortens_the_lease(tmp_path: Path) -> None:
    """If the holder is killed, it bars others no longer than its TTL; a shared store has its own clock."""
    leases = SqliteStateStore(tmp_path / "state.db").leases
    lease = leases.acquire(BARRED, "holder", now_ms=NOW_MS + YEAR_MS, ttl_ms=100)
    assert leases.renew(lease, now_ms=NOW_MS, ttl_ms=100).expires_ms == NOW_MS + 100
    with pytest.raises(LeaseHeld):
        leases.acquire(BARRED, "other", now_ms=NOW_MS + 99, ttl_ms=100)


def test_the_next_pass_replaces_the_record_of_a_pass_that_ended_in_the_future(open_store: OpenStore) -> None:
    store = open_store()
    remember(store, IDENTITY, FROM_AHEAD)
    remember(store, IDENTITY, FROM_AHEAD, "of another digest")
    remember(store, IDENTITY, replace(SEEN, is_done=False))
    assert store.seen(IDENTITY) == looks(replace(SEEN, is_done=False))
    earlier = replace(SEEN, finished_ms=NOW_MS - OVERLAP_MS)
    remember(store, IDENTITY, earlier)  # a late report of a concurrent pass
    assert store.seen(IDENTITY) == looks(replace(SEEN, is_done=False))


def test_a_pass_that_ended_in_the_future_makes_no_other_pass_needless(open_store: OpenStore) -> None:
    """Otherwise a laptop that is a year ahead makes every run skip its tables for a year."""
    store = open_store()
    remember(store, IDENTITY, FROM_AHEAD)
    assert why_needless(store, IDENTITY, "d", NOW_MS - 1, now_ms=NOW_MS, is_pending=None) is None
    remember(store, IDENTITY, SEEN)
    reason = why_needless(store, IDENTITY, "d", NOW_MS - 1, now_ms=NOW_MS, is_pending=None)
    assert reason == f"another run has maintained {IDENTITY.table} since it was detected"
    # A pass with other settings or operations does not replace the proposed pass.
    assert why_needless(store, IDENTITY, "other", NOW_MS - 1, now_ms=NOW_MS, is_pending=None) is None


def test_detection_ignores_a_pass_that_ended_in_the_future() -> None:
    metadata = table(small_files(400, MB), snapshots=3)
    unknown = assess("ns.t", metadata, policy(), now_ms=NOW_MS, expirable=0)
    seen = looks(replace(FROM_AHEAD, snapshot_id=3), policy().digest_over(metadata))
    assert assess("ns.t", metadata, policy(), now_ms=NOW_MS, expirable=0, seen=seen) == unknown


def test_a_pass_that_ended_in_the_future_serves_no_request(open_store: OpenStore) -> None:
    store, waiting = open_store(), Waiting(clock=lambda: NOW_MS, sleep=lambda seconds: None)
    request = MaintenanceRequest(identity=IDENTITY, requested_ms=NOW_MS - 1, settings={})
    remember(store, IDENTITY, FROM_AHEAD)
    assert await_pass(store, request, waiting).status == "failed"
    remember(store, IDENTITY, SEEN)
    assert await_pass(store, request, waiting).status == "skipped"


# A lease that a thread extends while its holder works.

HELD, HELD_NAME = IDENTITY.lease_key, str(IDENTITY.table)
TTL_MS = 120


def held_lease(leases: LeaseStore, now: list[int], ttl_ms: int = TTL_MS) -> HeldLease:
    lease = leases.acquire(HELD, "a", now_ms=now[0], ttl_ms=ttl_ms, name=HELD_NAME)
    return HeldLease(leases, lease, ttl_ms, lambda: now[0])


def test_requiring_a_lease_extends_it(open_store: OpenStore) -> None:
    now, leases = [1_000], open_store().leases
    lease = held_lease(leases, now)
    now[0] += 100
    lease.require()
    found = leases.current(HELD, now_ms=1_219)
    assert found is not None
    assert (found.holder, found.expires_ms) == ("a", 1_220)


def test_a_lease_taken_by_another_run_stays_lost(open_store: OpenStore) -> None:
    now, leases = [1_000], open_store().leases
    lease = held_lease(leases, now)
    now[0] += TTL_MS
    stolen = leases.acquire(HELD, "b", now_ms=now[0], ttl_ms=TTL_MS, name=HELD_NAME)
    with pytest.raises(LeaseLost, match=rf"^the lease of a on {HELD_NAME} is lost: b took it$"):
        lease.require()
    assert leases.release(stolen)
    assert lease.is_lost
    with pytest.raises(LeaseLost):  # though it is free again: the other run's changes are unknown
        lease.require()
    lease.give_back()


def test_a_lease_that_cannot_be_extended_permits_nothing(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, leases = [1_000], open_store().leases
    lease = held_lease(leases, now)

    def down(*_: object, **__: object) -> None:
        raise StorageError("the state is down")

    with monkeypatch.context() as patch:
        patch.setattr(type(leases), "renew", down)
        with pytest.raises(StorageError, match="down"):
            lease.require()
    lease.require()
    assert not lease.is_lost


def test_a_lease_is_extended_while_its_holder_works_and_released_at_the_end(open_store: OpenStore) -> None:
    """The clock advances by almost the TTL at each beat; without beats the lease would expire."""
    leases = open_store().leases
    now, beats, enough = [1_000], [0], threading.Event()
    lease = held_lease(leases, now)
    renew = lease.require

    def counted() -> None:
        renew()
        beats[0] += 1
        now[0] += TTL_MS - 1
        if beats[0] == 3:
            enough.set()

    lease.require = counted  # type: ignore[method-assign] # counts the beats of the object under test
    with kept_alive(lease):
        assert enough.wait(30)
        with pytest.raises(LeaseHeld):
            leases.acquire(HELD, "b", now_ms=1_000 + 3 * (TTL_MS - 1) - 1, ttl_ms=1)
    assert leases.current(HELD, now_ms=1_000) is None


def test_a_lease_is_released_after_an_interrupt(open_store: OpenStore) -> None:
    leases = open_store().leases
    with pytest.raises(KeyboardInterrupt), kept_alive(held_lease(leases, [1_000], 60_000)):
        raise KeyboardInterrupt
    assert leases.current(HELD, now_ms=1_000) is None


# Slots.


def test_no_more_slots_are_taken_than_there_are(open_store: OpenStore) -> None:
    leases = open_store().leases
    taken = [take_slot(leases, holder, 2, now_ms=0, ttl_ms=100) for holder in ("a", "b")]
    assert sorted(lease.key for lease in taken) == slot_keys(2)
    with pytest.raises(LeaseHeld, match=r"^2 table\(s\) are maintained now, as many as max_concurrent_jobs allows"):
        take_slot(leases, "c", 2, now_ms=0, ttl_ms=100)
    assert take_slot(leases, "c", 3, now_ms=0, ttl_ms=100).key == "slot-3"
    assert leases.release(taken[0])
    assert take_slot(leases, "d", 2, now_ms=0, ttl_ms=100).key == taken[0].key
    assert take_slot(leases, "e", 1, now_ms=100, ttl_ms=100).key == "slot-1", "the slot of a dead process runs out"


def test_a_run_that_holds_a_slot_gets_the_same_slot_again(open_store: OpenStore) -> None:
    """Also when an earlier slot is free: a repeated call must not take two slots."""
    leases = open_store().leases
    first = take_slot(leases, "a", 2, now_ms=0, ttl_ms=100)
    second = take_slot(leases, "b", 2, now_ms=0, ttl_ms=100)
    assert leases.release(first)
    again = take_slot(leases, "b", 2, now_ms=50, ttl_ms=100)
    assert (again.key, again.expires_ms) == (second.key, 150)
    assert taken_slots(leases, 2, now_ms=50) == {again.key: again}


def test_racing_runs_get_exactly_as_many_slots_as_there_are(open_store: OpenStore) -> None:
    start = Barrier(6)

    def take(number: int) -> Lease | None:
        leases = open_store().leases
        start.wait()
        try:
            return take_slot(leases, f"run-{number}", 3, now_ms=0, ttl_ms=100)
        except LeaseHeld:
            return None

    with ThreadPoolExecutor(6) as pool:
        won = [lease for lease in pool.map(take, range(6)) if lease]
    assert sorted(lease.key for lease in won) == slot_keys(3)


# Live runs.


def test_a_run_reads_the_other_live_runs_until_they_end(open_store: OpenStore) -> None:
    leases = open_store().leases
    assert note_live_run(leases, "a", now_ms=0) == frozenset()
    assert note_live_run(leases, "b", now_ms=1) == {"a"}
    assert note_live_run(leases, "a", now_ms=2) == {"b"}, "a repeat is no other run"
    end_live_run(leases, "a", now_ms=3)
    assert note_live_run(leases, "c", now_ms=4) == {"b"}
    for run_id in ("b", "c", "never noted"):
        end_live_run(leases, run_id, now_ms=5)
    assert note_live_run(leases, "d", now_ms=6) == frozenset()


def test_a_live_run_is_forgotten_after_twelve_hours(open_store: OpenStore) -> None:
    leases = open_store().leases
    note_live_run(leases, "a", now_ms=0)
    assert note_live_run(leases, "b", now_ms=12 * HOUR_MS - 1) == {"a"}
    assert note_live_run(leases, "c", now_ms=12 * HOUR_MS) == {"b"}
    for run_id in "bc":
        end_live_run(leases, run_id, now_ms=12 * HOUR_MS)
    # A run from a clock that is a little ahead counts.
    note_live_run(leases, "far", now_ms=13 * HOUR_MS)
    note_live_run(leases, "near", now_ms=HOUR_MS)
    assert note_live_run(leases, "now", now_ms=0) == {"near"}


def test_racing_runs_are_noted_one_after_the_other(open_store: OpenStore) -> None:
    start = Barrier(4)

    def note(number: int) -> int:
        leases = open_store().leases
        start.wait()
        return len(note_live_run(leases, f"run-{number}", now_ms=0))

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(note, range(4))) == [0, 1, 2, 3]


def test_a_malformed_record_of_live_runs_is_ignored(open_store: OpenStore) -> None:
    leases = open_store().leases
    key = named_key("lease", lease_module._LIVE_RUNS)
    for text in ("{", "[]", "7", "null", '{"a": "soon"}', '{"a": null}', '{"a": 1e99}', '{"a": -1}'):
        note_live_run(leases, "a", now_ms=0)
        record = {"settings": text, "expires_s": leases.table.expires_s(HOUR_MS)}
        leases.table.change(key, "lease", lambda item, record=record: record)  # type: ignore[misc]
        assert note_live_run(leases, "b", now_ms=1) == frozenset(), text
        assert note_live_run(leases, "c", now_ms=2) == {"b"}
