"""What every store of schedules' last turns does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import LastSeen, ScheduleRun
from support.state_stores import COPY, IDENTITY, OTHERS, SPELLINGS, WITHOUT_UUID, OpenStore

NIGHTLY = ScheduleRun(
    schedule="nightly",
    counted_ms=1_767_225_600_000,
    finished_ms=1_767_225_700_000,
    snapshot_id=2**63 - 1,
    fingerprint="f1",
    idle=False,
)
HOURLY = replace(NIGHTLY, schedule="hourly", snapshot_id=None, idle=True)


def test_nothing_is_known_at_first(open_store: OpenStore) -> None:
    assert open_store().schedules.of_table(IDENTITY) == {}
    assert open_store().glance(IDENTITY, now_ms=0).schedules == {}


@pytest.mark.parametrize("identity", [IDENTITY, WITHOUT_UUID], ids=["with a UUID", "without one"])
def test_what_was_recorded_comes_back_as_it_was(open_store: OpenStore, identity: TableIdentity) -> None:
    for run in (NIGHTLY, HOURLY):
        open_store().schedules.record(identity, run)
    assert open_store().schedules.of_table(identity) == {"nightly": NIGHTLY, "hourly": HOURLY}
    assert open_store().glance(identity, now_ms=0).schedules == {"nightly": NIGHTLY, "hourly": HOURLY}


def test_a_turn_replaces_the_one_before_it_also_one_of_a_clock_that_was_ahead(open_store: OpenStore) -> None:
    schedules = open_store().schedules
    ahead = replace(NIGHTLY, counted_ms=2**45, finished_ms=2**45, fingerprint="f2", idle=True)
    schedules.record(IDENTITY, ahead)
    assert schedules.of_table(IDENTITY) == {"nightly": ahead}
    schedules.record(IDENTITY, replace(NIGHTLY, snapshot_id=None))
    assert open_store().schedules.of_table(IDENTITY) == {"nightly": replace(NIGHTLY, snapshot_id=None)}


@pytest.mark.parametrize("name", SPELLINGS)
def test_it_is_the_same_table_by_any_name(open_store: OpenStore, name: str) -> None:
    open_store().schedules.record(IDENTITY, NIGHTLY)
    assert open_store().schedules.of_table(SPELLINGS[name]) == {"nightly": NIGHTLY}


@pytest.mark.parametrize("other", [COPY, *OTHERS.values()])
def test_copies_and_other_tables_have_turns_of_their_own(open_store: OpenStore, other: TableIdentity) -> None:
    schedules = open_store().schedules
    schedules.record(IDENTITY, NIGHTLY)
    assert schedules.of_table(other) == {}
    assert open_store().glance(other, now_ms=0).schedules == {}


def test_a_glance_shows_them_beside_the_last_pass(open_store: OpenStore) -> None:
    store, seen = open_store(), LastSeen(snapshot_id=1, fingerprint="f", finished_ms=9, idle=True)
    store.remember(IDENTITY, seen)
    store.schedules.record(IDENTITY, NIGHTLY)
    glance = store.glance(IDENTITY, now_ms=0)
    assert (glance.last_seen, glance.schedules, glance.pins, glance.loads) == (seen, {"nightly": NIGHTLY}, (), ())
