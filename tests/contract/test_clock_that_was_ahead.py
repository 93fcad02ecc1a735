"""What a machine recorded while its clock was ahead bars nobody once the clock is right (rule 170)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from icekeeper.detection.assess import TableFindings, assess
from icekeeper.errors import LeaseHeld
from icekeeper.machine.clock import HOUR_MS
from icekeeper.maintenance.table_lease import why_needless
from icekeeper.pipeline.request_pass import Waiting, await_pass
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import OVERLAP_MS, LastSeen, MaintenanceRequest
from support.settings import MB, NOW_MS, policy, small_files, table
from support.state_stores import IDENTITY, OpenStore

KEY = IDENTITY.lease_key
YEAR_MS = 366 * 24 * HOUR_MS
SEEN = LastSeen(snapshot_id=3, fingerprint=policy().fingerprint(), finished_ms=NOW_MS, idle=True)
FROM_AHEAD = replace(SEEN, finished_ms=NOW_MS + YEAR_MS)


def test_a_lease_of_a_killed_process_does_not_bar_the_table_for_a_year(open_store: OpenStore) -> None:
    leases = open_store().leases
    leases.acquire(KEY, "killed", now_ms=NOW_MS + YEAR_MS, ttl_ms=100)
    assert leases.current(KEY, now_ms=NOW_MS) is None
    taken = leases.acquire(KEY, "next", now_ms=NOW_MS, ttl_ms=100)
    assert (taken.holder, taken.expires_ms) == ("next", NOW_MS + 100)


def test_a_holder_whose_clock_is_set_right_has_a_lease_that_ends_in_time(tmp_path: Path) -> None:
    """Should it be killed now, it bars others no longer than ever; a shared store goes by a clock of its own."""
    leases = SqliteStateStore(tmp_path / "state.db").leases
    lease = leases.acquire(KEY, "holder", now_ms=NOW_MS + YEAR_MS, ttl_ms=100)
    assert leases.renew(lease, now_ms=NOW_MS, ttl_ms=100).expires_ms == NOW_MS + 100
    with pytest.raises(LeaseHeld):
        leases.acquire(KEY, "other", now_ms=NOW_MS + 99, ttl_ms=100)


def test_the_next_pass_takes_the_place_of_one_that_ended_in_the_future(open_store: OpenStore) -> None:
    store = open_store()
    store.remember(IDENTITY, FROM_AHEAD)
    store.remember(IDENTITY, replace(SEEN, idle=False))
    assert store.last_seen(IDENTITY) == replace(SEEN, idle=False)
    earlier = replace(SEEN, finished_ms=NOW_MS - OVERLAP_MS)
    store.remember(IDENTITY, earlier)  # the report of a pass at the same time, which arrives late
    assert store.last_seen(IDENTITY) == replace(SEEN, idle=False)


def test_no_pass_is_left_out_for_one_that_ended_in_the_future(open_store: OpenStore) -> None:
    """A laptop that was a year ahead had every run skip its tables for a year: "another run has maintained it"."""
    store = open_store()
    store.remember(IDENTITY, FROM_AHEAD)
    assert why_needless(store, IDENTITY, NOW_MS - 1, now_ms=NOW_MS, is_pending=None) is None
    store.remember(IDENTITY, SEEN)
    told = why_needless(store, IDENTITY, NOW_MS - 1, now_ms=NOW_MS, is_pending=None)
    assert told == f"another run has maintained {IDENTITY.table} since it was detected"


def test_detection_does_not_believe_that_nothing_was_to_do_in_the_future() -> None:
    metadata = table(small_files(400, MB), snapshots=3)
    unknown = TableFindings(now_ms=NOW_MS, expirable=0)
    misled = replace(unknown, last_seen=FROM_AHEAD)
    assert assess("ns.t", metadata, policy(), misled) == assess("ns.t", metadata, policy(), unknown)


def test_a_request_is_not_answered_by_a_pass_that_ended_in_the_future(open_store: OpenStore) -> None:
    store, waiting = open_store(), Waiting(clock=lambda: NOW_MS, sleep=lambda seconds: None)
    request = MaintenanceRequest(identity=IDENTITY, requested_ms=NOW_MS - 1, settings={})
    store.remember(IDENTITY, FROM_AHEAD)
    assert await_pass(store, request, waiting).status == "failed"
    store.remember(IDENTITY, SEEN)
    assert await_pass(store, request, waiting).status == "skipped"
