"""Two runs, or two calls of one run, at the same time (rule: failures-cost-no-row)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from icekeeper.errors import FleetBusy, LeaseHeld, StorageError, TableBusy
from icekeeper.machine.clock import HOUR_MS, Clock, system_clock
from icekeeper.pipeline import detect_tables as detect_module
from icekeeper.pipeline.control_bucket import proposals_key
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.run_leases import held_table
from icekeeper.state.leases import LeaseStore, end_live_run, is_scheduled, note_live_run, take_slot
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.storage.storage import store_now_ms
from support.moments import Moment, at
from support.pipeline_deployment import RUN, Pipeline

# A function or job holds the lease of its table, and a slot if it counts, only while it works.


def holder(pipeline: Pipeline, item: Item) -> str | None:
    lease = pipeline.deployment.state.leases.current(item.identity.lease_key, now_ms=pipeline.clock.now_ms)
    return None if lease is None else lease.holder


@contextmanager
def maintained_by(pipeline: Pipeline, item: Item, run_id: str) -> Iterator[None]:
    """Hold the table's lease for another run."""
    leases, now_ms = pipeline.deployment.state.leases, pipeline.clock.now_ms
    lease = leases.acquire(item.identity.lease_key, run_id, now_ms=now_ms, ttl_ms=HOUR_MS, name=item.table)
    yield
    leases.release(lease)


def test_a_function_holds_lease_and_slot_and_releases_both(pipeline: Pipeline) -> None:
    """Also if it raises; a plan holds nothing, and neither a run for one table nor a job takes a slot."""
    (item,) = pipeline.detect()[1]
    pipeline.plan(item)
    assert (pipeline.slots(), holder(pipeline, item)) == ([], None)
    with held_table(pipeline.deployment, RUN, item):
        assert (pipeline.slots(), holder(pipeline, item)) == ([RUN], RUN)
        with held_table(pipeline.deployment, RUN, item):  # a retry holds both already
            assert (pipeline.slots(), holder(pipeline, item)) == ([RUN], RUN)
    assert (pipeline.slots(), holder(pipeline, item)) == ([], None)
    for error in (StorageError("down"), LeaseHeld("of another table"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as raised, held_table(pipeline.deployment, RUN, item):
            raise error
        assert raised.value is error
        assert (pipeline.slots(), holder(pipeline, item)) == ([], None)
    (forced,) = pipeline.detect("run-2", table="ns.t")[1]
    with held_table(pipeline.deployment, "run-2", forced):
        assert pipeline.slots() == []
    with held_table(pipeline.deployment, RUN, item, in_job=True):
        assert (pipeline.slots(), holder(pipeline, item)) == ([], RUN)


def test_a_killed_function_bars_only_other_runs_and_only_for_minutes(pipeline: Pipeline) -> None:
    (item,) = pipeline.detect()[1]
    entered = held_table(pipeline.deployment, RUN, item)
    entered.__enter__()  # and never exits
    with pytest.raises(LeaseHeld), held_table(pipeline.deployment, "run-2", item):
        pass
    with held_table(pipeline.deployment, RUN, item):
        assert pipeline.slots() == [RUN]
    entered = held_table(pipeline.deployment, RUN, item)
    entered.__enter__()
    pipeline.clock.now_ms += 20 * 60 * 1000
    assert pipeline.slots() == []
    with held_table(pipeline.deployment, "run-2", item):
        assert holder(pipeline, item) == "run-2"


def test_without_a_free_slot_the_table_is_not_leased(pipeline: Pipeline) -> None:
    pipeline.deployment = pipeline.open(ICEKEEPER_MAX_CONCURRENT_JOBS="1")
    (item,) = pipeline.detect()[1]
    plan = pipeline.plan(item)
    leases, now_ms = pipeline.deployment.state.leases, pipeline.clock.now_ms
    other = take_slot(leases, "run-0 for another table", 1, now_ms=now_ms, ttl_ms=HOUR_MS)
    for call in (lambda: pipeline.run(item, *plan.routes), lambda: pipeline.list_orphans(item)):
        with pytest.raises(FleetBusy, match=r"^ns\.t has to wait: 1 table\(s\) are maintained now"):
            call()
    assert holder(pipeline, item) is None
    documents = pipeline.documents(item)
    for step in plan.routes:
        assert (documents.failure(step), documents.left(step)) == (None, None), "it is asked again"
    leases.release(other)
    assert list(pipeline.run(item, *plan.routes)) == list(plan.routes)


def test_a_run_without_the_lease_keeps_no_slot(pipeline: Pipeline) -> None:
    """It leaves its steps and the table to a later run."""
    (item,) = pipeline.detect()[1]
    plan = pipeline.plan(item)
    with maintained_by(pipeline, item, "run-0"):
        for call in (lambda: pipeline.run(item, *plan.routes), lambda: pipeline.list_orphans(item)):
            with pytest.raises(LeaseHeld, match=r"^ns\.t is leased by run-0 until ") as raised:
                call()
            assert type(raised.value) is LeaseHeld
        assert pipeline.slots() == []
    for step in plan.routes:
        assert (pipeline.documents(item).left(step) or "").startswith("another run maintained the table: ")
    pipeline.report()
    assert [entry.table for entry in pipeline.detect("run-2")[1]] == ["ns.t"]


def test_a_run_that_may_wait_retries(pipeline: Pipeline) -> None:
    (item,) = pipeline.detect(table="ns.t", wait=True)[1]
    with maintained_by(pipeline, item, "run-0"), pytest.raises(TableBusy, match=r"^ns\.t is maintained by run-0$"):
        pipeline.plan(item)
    plan = pipeline.plan(item)
    with maintained_by(pipeline, item, "run-0"):
        for call in (lambda: pipeline.run(item, *plan.routes), lambda: pipeline.list_orphans(item)):
            with pytest.raises(TableBusy, match=r"^ns\.t is leased by run-0 until "):
                call()
    documents = pipeline.documents(item)
    assert [(documents.failure(step), documents.left(step)) for step in plan.routes] == [(None, None)] * len(
        plan.routes
    )
    assert list(pipeline.run(item, *plan.routes)) == list(plan.routes)
    assert pipeline.report()["status"] == "succeeded"


# Scheduled runs that overlap: detection continues, and no table is in two runs.


def test_a_table_of_a_live_run_is_left_out_until_that_run_ends(pipeline: Pipeline) -> None:
    """Even while no run holds its lease; the scan still counts as a sign of an active schedule."""
    state, clock = pipeline.deployment.state, pipeline.clock

    def found(run_id: str, **wanted: Any) -> list[str]:
        return [item.table for item in pipeline.detect(run_id, **wanted)[1]]

    pipeline.detect()
    answer, none = pipeline.detect("run-2")
    reason = "1 of 1 table(s) need maintenance; 1 of them are left to runs that have not ended"
    assert (none, answer["reason"]) == ([], reason)
    assert note_live_run(state.leases, "run-3", now_ms=clock.now_ms) == {RUN}  # run-2 has no table, so it is not live
    end_live_run(state.leases, "run-3", now_ms=clock.now_ms)
    assert is_scheduled(state.leases, now_ms=clock.now_ms)
    assert not is_scheduled(state.leases, now_ms=clock.now_ms + 26 * HOUR_MS)
    pipeline.report()
    assert found("run-3") == ["ns.t"]
    # A dead run is forgotten after half a day.
    clock.now_ms += 12 * HOUR_MS - 1
    assert found("run-4") == []
    clock.now_ms += 1
    assert found("run-5") == ["ns.t"]
    pipeline.report("run-5")
    # A scan leaves a table of a forced run to that run; another forced run takes it.
    assert found("run-6", table="ns.t") == ["ns.t"]
    assert found("run-7") == []
    assert found("run-8", table="ns.t") == ["ns.t"]


def test_two_runs_that_begin_together_do_not_share_a_table(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run begins just before the first run is recorded as live."""
    note, seconds = note_live_run, list[list[Item]]()

    def late(leases: LeaseStore, run_id: str, *, now_ms: int) -> frozenset[str]:
        if run_id == RUN:
            seconds.append(pipeline.detect("run-2")[1])
        return note(leases, run_id, now_ms=now_ms)

    monkeypatch.setattr(detect_module, "note_live_run", late)
    first = pipeline.detect()[1]
    assert [[item.table for item in entry] for entry in (first, *seconds)] == [[], ["ns.t"]]


def test_a_damaged_list_of_a_live_run_bars_no_table(pipeline: Pipeline) -> None:
    for number, document in enumerate(("{", "7", json.dumps([{"table": "ns.t"}]), None)):
        runs = f"{RUN}-{number}", f"run-2-{number}"
        pipeline.detect(runs[0])
        path = pipeline.control / proposals_key(runs[0])
        if document is None:
            path.unlink()
        else:
            path.write_text(document)
        assert [item.table for item in pipeline.detect(runs[1])[1]] == ["ns.t"]
        for run_id in runs:
            end_live_run(pipeline.deployment.state.leases, run_id, now_ms=pipeline.clock.now_ms)


def test_a_table_that_another_run_maintained_since_detection_is_skipped(pipeline: Pipeline) -> None:
    """The record of live runs was lost, so two detections proposed the same table."""
    (first,) = pipeline.detect()[1]
    end_live_run(pipeline.deployment.state.leases, RUN, now_ms=pipeline.clock.now_ms)
    (second,) = pipeline.detect("run-2")[1]
    plan = pipeline.plan(first)
    pipeline.clock.now_ms += 1
    pipeline.run(first, *plan.routes)
    pipeline.report()
    why = "another run has maintained ns.t since it was detected"
    again = pipeline.plan(second, "run-2")
    assert (again.needless, again.routes) == (why, {})
    pipeline.report("run-2")
    assert pipeline.document(second, "pass.json", "run-2") == {"status": "skipped", "summary": why}
    assert [run_id for run_id, _, _ in pipeline.journal(first)] == [RUN]


def test_a_withdrawn_request_is_not_served(pipeline: Pipeline) -> None:
    request = MaintenanceRequest(identity=pipeline.identity, requested_ms=1, settings={"operations": "compact"})
    requests = pipeline.deployment.state.requests
    requests.file(request)
    (item,) = pipeline.detect()[1]
    assert item.forced
    assert requests.claim(request)
    plan = pipeline.plan(item)
    assert (plan.needless, plan.routes) == ("the request was served or withdrawn since it was detected", {})


# Two calls with the same run id at the same time lose no row and no count (rule: failures-cost-no-row).


def beside_a_commit(pipeline: Pipeline, other: str) -> tuple[str, str]:
    """Run another step before the commit of a compaction; return the answers of both."""
    item, _ = pipeline.begin()
    answers: list[str] = []
    with at(Moment.BEFORE_COMMIT, lambda: answers.append(pipeline.run(item, other)[other])):
        compacted = pipeline.run(item, "compact")
    pipeline.report()
    return answers[0], compacted["compact"]


def use_the_stores_clock(pipeline: Pipeline, clock: Clock) -> None:
    pipeline.deployment = Deployment.open(pipeline.environment, clock=clock, store_clock=store_now_ms)


def test_a_sweep_keeps_the_files_of_another_calls_commit(pipeline: Pipeline) -> None:
    use_the_stores_clock(pipeline, system_clock)
    before = pipeline.table.rows()
    swept, compacted = beside_a_commit(pipeline, "remove_orphans")
    assert swept == "succeeded: removed 0 orphan file(s)"
    assert compacted.startswith("succeeded")
    assert (pipeline.table.problems(), pipeline.table.rows()) == ({}, before)


def test_a_sweep_by_a_clock_of_2096_is_refused(pipeline: Pipeline) -> None:
    use_the_stores_clock(pipeline, pipeline.clock)
    before = pipeline.table.rows()
    swept, _ = beside_a_commit(pipeline, "remove_orphans")
    assert swept.startswith("refused")
    assert (pipeline.table.problems(), pipeline.table.rows()) == ({}, before)


@pytest.mark.parametrize("moment", [Moment.BEFORE_COMMIT, Moment.OPERATION_STARTED])
def test_a_call_that_another_call_overtakes_reports_the_others_commit(pipeline: Pipeline, moment: Moment) -> None:
    """It loses its swap or finds nothing to do."""
    before, answers = pipeline.table.rows(), list[str]()
    item, _ = pipeline.begin()
    with at(moment, lambda: answers.append(pipeline.run(item, "compact")["compact"])):
        pipeline.run(item, "compact")
    pipeline.report()
    assert answers[0].startswith("succeeded")
    (shown,) = pipeline.deployment.state.history(pipeline.identity)
    assert (shown.metrics["compact.files_merged"], shown.metrics["compact.files_written"]) == (5, 1)
    assert (pipeline.table.problems(), pipeline.table.rows()) == ({}, before)
