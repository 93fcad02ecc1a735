"""Two runs, or two calls of one run, at the same time
(rule: overlapping-runs-share-slots, concurrent-calls-lose-nothing)."""

from __future__ import annotations

from typing import Any

import pytest

from icekeeper.errors import FleetBusy, LeaseHeld
from icekeeper.machine.clock import HOUR_MS, Clock, system_clock
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease, renew_table_lease
from icekeeper.state.leases import is_scheduled, slot_keys, take_slot
from icekeeper.state.store import MaintenanceRequest
from icekeeper.storage.storage import store_now_ms
from support.moments import Moment, at
from support.pipeline_deployment import RUN, Pipeline

# Scheduled runs that overlap (rule: overlapping-runs-share-slots): detection goes on, no table is maintained twice, the
# limit holds for all.


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


# Two calls under one run's id at the same time: no row and no count is lost (rule: concurrent-calls-lose-nothing).


def beside_a_commit(pipeline: Pipeline, other: str) -> tuple[Any, Any]:
    """What the other call's step and the compaction answered, whose commit was under way meanwhile."""
    item, plan = pipeline.begin()
    answers: list[Any] = []
    with at(Moment.BEFORE_COMMIT, lambda: answers.append(pipeline.run(item, plan, other))):
        compacted = pipeline.run(item, plan, "compact")
    pipeline.report(item, plan)
    return answers[0], compacted


def by_the_stores_clock(pipeline: Pipeline, clock: Clock) -> None:
    pipeline.deployment = Deployment.open(pipeline.environment, clock=clock, store_clock=store_now_ms)


def test_a_sweep_leaves_the_files_of_the_other_calls_commit(pipeline: Pipeline) -> None:
    by_the_stores_clock(pipeline, system_clock)
    before = pipeline.table.rows()
    swept, compacted = beside_a_commit(pipeline, "remove_orphans")
    assert (swept["status"], swept["summary"]) == ("succeeded", "removed 0 orphan file(s)")
    assert compacted["status"] == "succeeded"
    assert (pipeline.table.problems(), pipeline.table.rows()) == ({}, before)


def test_a_sweep_by_a_clock_of_2096_is_refused(pipeline: Pipeline) -> None:
    by_the_stores_clock(pipeline, pipeline.clock)
    before = pipeline.table.rows()
    swept, compacted = beside_a_commit(pipeline, "remove_orphans")
    assert (swept["status"], compacted["status"]) == ("refused", "succeeded")
    assert (pipeline.table.problems(), pipeline.table.rows()) == ({}, before)


def test_the_call_that_was_overtaken_tells_what_the_other_committed(pipeline: Pipeline) -> None:
    before = pipeline.table.rows()
    first, second = beside_a_commit(pipeline, "compact")
    assert (first["status"], second["status"]) == ("succeeded", "failed")
    (told,) = pipeline.deployment.state.history(pipeline.identity)
    assert (told.metrics["compact.files_merged"], told.metrics["compact.files_written"]) == (5, 1)
    assert (pipeline.table.problems(), pipeline.table.rows()) == ({}, before)


def test_the_call_that_finds_nothing_to_do_tells_what_the_other_committed(pipeline: Pipeline) -> None:
    before = pipeline.table.rows()
    item, plan = pipeline.begin()
    with at(Moment.OPERATION_STARTED, lambda: pipeline.run(item, plan, "compact")):
        second = pipeline.run(item, plan, "compact")
    assert second["status"] == "succeeded"
    pipeline.report(item, plan)
    (told,) = pipeline.deployment.state.history(pipeline.identity)
    assert (told.metrics["compact.files_merged"], told.metrics["compact.files_written"]) == (5, 1)
    assert (pipeline.table.problems(), pipeline.table.rows()) == ({}, before)
