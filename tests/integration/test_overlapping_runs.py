"""Scheduled runs that overlap (rule 127): detection goes on, no table is maintained twice, the limit holds for all."""

from __future__ import annotations

import pytest

from icekeeper.errors import FleetBusy, LeaseHeld
from icekeeper.machine.clock import HOUR_MS
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease, renew_table_lease
from icekeeper.state.leases import is_scheduled, slot_keys, take_slot
from icekeeper.state.store import MaintenanceRequest
from support.pipeline_deployment import RUN, Pipeline


def test_a_run_takes_a_slot_with_the_table_and_gives_both_back(pipeline: Pipeline) -> None:
    (item,) = pipeline.detect()[1]
    for _ in range(2):  # a repeat has both already
        acquire_table_lease(pipeline.deployment, RUN, item)
    assert pipeline.slots() == [RUN]
    assert release_table_lease(pipeline.deployment, RUN, item)
    assert pipeline.slots() == []


def test_without_a_free_slot_the_table_stays_free_too(pipeline: Pipeline) -> None:
    pipeline.deployment = pipeline.open(ICEKEEPER_MAX_CONCURRENT_JOBS="1")
    (item,) = pipeline.detect()[1]
    leases, now_ms = pipeline.deployment.state.leases, pipeline.clock.now_ms
    other = take_slot(leases, "run-0 for another table", 1, now_ms=now_ms, ttl_ms=HOUR_MS)
    with pytest.raises(FleetBusy, match=r"^ns\.t has to wait: 1 table\(s\) are maintained now"):
        acquire_table_lease(pipeline.deployment, RUN, item)
    assert leases.current(item.identity.lease_key, now_ms=now_ms) is None
    leases.release(other)
    acquire_table_lease(pipeline.deployment, RUN, item)
    with pytest.raises(LeaseHeld, match=r"^ns\.t is leased by run-1 until "):
        acquire_table_lease(pipeline.open(ICEKEEPER_MAX_CONCURRENT_JOBS="2"), "run-2", item)
    assert leases.current(slot_keys(2)[1], now_ms=now_ms) is None, "who does not get the table keeps no slot"


def test_a_run_for_one_table_takes_no_slot(pipeline: Pipeline) -> None:
    leases, now_ms = pipeline.deployment.state.leases, pipeline.clock.now_ms
    for key in slot_keys(4):
        take_slot(leases, f"run-0 {key}", 4, now_ms=now_ms, ttl_ms=HOUR_MS)
    item, _ = pipeline.begin()
    assert not item.is_scheduled
    assert RUN not in pipeline.slots()


def test_steps_prolong_the_slot(pipeline: Pipeline) -> None:
    (item,) = pipeline.detect()[1]
    acquire_table_lease(pipeline.deployment, RUN, item)
    for _ in range(3):
        pipeline.clock.now_ms += 2 * HOUR_MS
        renew_table_lease(pipeline.deployment, RUN, item, 3 * HOUR_MS)
        assert pipeline.slots() == [RUN]
    pipeline.clock.now_ms += 3 * HOUR_MS  # it was stopped
    assert pipeline.slots() == []


def test_a_detection_goes_on_while_another_run_is_under_way(pipeline: Pipeline) -> None:
    """Only the table at work is left out; health is recorded, and the schedule is seen to be on."""
    (item,) = pipeline.detect()[1]
    acquire_table_lease(pipeline.deployment, RUN, item)
    answer, none = pipeline.detect("run-2")
    assert (none, answer["reason"]) == ([], "0 of 1 table(s) need maintenance")
    state = pipeline.deployment.state
    assert is_scheduled(state.leases, now_ms=pipeline.clock.now_ms)
    assert not is_scheduled(state.leases, now_ms=pipeline.clock.now_ms + 26 * HOUR_MS)
    release_table_lease(pipeline.deployment, RUN, item)
    assert [found.table for found in pipeline.detect("run-3")[1]] == ["ns.t"]


def test_what_another_run_has_maintained_meanwhile_is_not_maintained_again(pipeline: Pipeline) -> None:
    """Two detections have found the same table before either run came to it."""
    (first,), (second,) = pipeline.detect()[1], pipeline.detect("run-2")[1]
    acquire_table_lease(pipeline.deployment, RUN, first)
    plan = pipeline.plan(first)
    pipeline.clock.now_ms += 1
    pipeline.run(first, plan, "compact")
    pipeline.report(first, plan)
    release_table_lease(pipeline.deployment, RUN, first)
    acquire_table_lease(pipeline.deployment, "run-2", second)
    again = pipeline.plan(second, "run-2")
    assert set(again.routes.values()) == {"none"}
    report = pipeline.report(second, again, "run-2")
    assert (report.status, report.summary) == ("skipped", "another run has maintained ns.t since it was detected")
    assert [run_id for run_id, _, _ in pipeline.journal(first)] == [RUN]


def test_a_request_that_was_withdrawn_is_not_served(pipeline: Pipeline) -> None:
    request = MaintenanceRequest(identity=pipeline.identity, requested_ms=1, settings={"operations": "compact"})
    requests = pipeline.deployment.state.requests
    requests.file(request)
    (item,) = pipeline.detect()[1]
    assert item.forced
    acquire_table_lease(pipeline.deployment, RUN, item)
    assert requests.claim(request)
    plan = pipeline.plan(item)
    assert set(plan.routes.values()) == {"none"}
    assert pipeline.report(item, plan).summary == "the request was served or withdrawn since it was detected"
