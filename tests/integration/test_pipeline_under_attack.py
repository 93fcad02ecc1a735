"""What must not get past the pipeline's use cases: faults found by attacking them, each with the harm it did."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.sql import SqlCatalog as SqlTables
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import OperationRefused, PlanStale, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.pipeline.events import (
    Failure,
    MachineInput,
    OperationEvent,
    ReportRunEvent,
    ReportTableEvent,
    parse_event,
)
from icekeeper.pipeline.plan_table import MAX_ATTEMPTS
from icekeeper.pipeline.report_table import report_run, report_table
from icekeeper.pipeline.request_pass import file_request
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.pipeline.run_step import list_orphans
from icekeeper.runtime import Runtime
from icekeeper.state.leases import slot_keys
from icekeeper.state.store import MaintenanceRequest
from support.pipeline_deployment import RUN, Pipeline, broken

JOBS = Path(__file__).parents[2] / "glue_jobs"


def test_what_a_run_over_the_fleet_is_told_holds_for_its_passes(pipeline: Pipeline) -> None:
    """Told to compact, it must not expire and delete; told to keep snapshots longer, it must not go by the policy."""
    asked: dict[str, Any] = {"operations": "compact", "settings": {"target_file_size_mb": "64"}}
    (item,) = pipeline.detect(**asked)[1]
    assert dict(item.settings) == {"operations": "compact", "target_file_size_mb": "64"}
    acquire_table_lease(pipeline.deployment, RUN, item)
    plan = pipeline.plan(item)
    assert {step for step, route in plan.routes.items() if route != "none"} == {"compact"}
    # A request goes by its own, or nobody would claim it.
    filed = MaintenanceRequest(identity=item.identity, requested_ms=1, settings={"operations": "rewrite_manifests"})
    pipeline.clock.now_ms += 24 * 3_600_000
    pipeline.deployment.state.requests.file(filed)
    assert [dict(one.settings) for one in pipeline.detect("run-2", **asked)[1]] == [dict(filed.settings)]
    with pytest.raises(PolicyError, match=r"a catalog is named, but no table in it"):
        parse_event(MachineInput, {"catalog": "local"})


def test_a_table_whose_plans_are_all_stale_is_given_up(pipeline: Pipeline) -> None:
    """Cleaning staged files was still routed, found the plan stale, and was planned again, for twelve hours."""
    item, _ = pipeline.begin()
    plan = pipeline.plan(item, attempt=MAX_ATTEMPTS + 1)
    assert set(plan.routes.values()) == {"none"}


def test_what_was_listed_under_another_policy_is_not_removed(pipeline: Pipeline) -> None:
    """Of what a plan has listed the share is judged already; that of a stale plan was judged by another limit."""
    folder = Path(pipeline.table.table.location().removeprefix("file://")) / "data"
    orphans = [folder / f"left-{number}.parquet" for number in range(30)]
    for orphan in orphans:
        orphan.write_bytes(b"left")
    pipeline.deployment = pipeline.open(ICEKEEPER_REQUESTS_MAY="orphan_max_delete_ratio")
    item, plan = pipeline.begin(settings={"orphan_max_delete_ratio": "1"})
    event = {"run_id": RUN, "item": item, "plan": plan, "operation": "remove_orphans"}
    assert list_orphans(pipeline.deployment, parse_event(OperationEvent, event), LocalEngine(1))["count"] == 30
    careful = item.model_copy(update={"settings": {"orphan_max_delete_ratio": "0.1"}})
    with pytest.raises(PlanStale):
        pipeline.run(careful, plan, "remove_orphans")
    again = pipeline.plan(careful, attempt=2)
    answer = pipeline.run(careful, again, "remove_orphans")  # by a job, which lists by itself
    assert answer["status"] == "refused"
    assert all(orphan.exists() for orphan in orphans)


def test_a_second_plan_whose_answer_is_lost_does_not_cost_the_report(pipeline: Pipeline) -> None:
    """It took the place of the plan that the state machine has: what was committed came into no journal."""
    item, plan = pipeline.begin()
    pipeline.run(item, plan, "compact")
    pipeline.plan(item, attempt=2)
    failures = {"plan": Failure(Error="Sandbox.Timedout", Cause="it took too long")}
    event = ReportTableEvent(run_id=RUN, item=item, plan=plan, failures=failures)
    report = report_table(pipeline.deployment, event)
    assert report.outcome is not None
    told = {one.operation.value: (one.status.value, one.summary) for one in report.outcome.operations}
    assert told["compact"] == ("succeeded", "compacted 5 files into 1 (across 1 bins)")
    assert told["expire_snapshots"] == (
        "failed",
        "it could not be planned again: Sandbox.Timedout: it took too long",
    )
    assert [status for _, status, _ in pipeline.journal(item)] == ["partial"]


def test_a_request_that_no_payload_can_carry_does_not_stop_the_fleet(pipeline: Pipeline) -> None:
    """One item above 256 KB ends the Map of every run; the request outlived them all, because none came to claim it."""
    huge = {"where": " or ".join(["id = 1"] * 20_000)}
    runtime = Runtime(pipeline.table.catalog, pipeline.deployment.state, environment=pipeline.environment)
    with pytest.raises(PolicyError, match=r"settings are longer than 16384 bytes"):
        file_request(runtime, TableName.parse("ns.t"), huge)
    assert pipeline.deployment.state.requests.pending() == ()
    with pytest.raises(PolicyError, match=r"settings are longer than 16384 bytes"):
        parse_event(MachineInput, {"table": "ns.t", "settings": huge})
    filed = MaintenanceRequest(identity=pipeline.identity, requested_ms=1, settings=huge)
    pipeline.deployment.state.requests.file(filed)
    assert [(item.forced, item.settings) for item in pipeline.detect()[1]] == [(False, {})]


def test_a_name_that_a_run_had_is_not_had_again(pipeline: Pipeline) -> None:
    """Its documents passed for the new run's: every step had been done, and the pass was a success without work."""
    item, plan = pipeline.begin()
    pipeline.run(item, plan, "compact")
    report_run(pipeline.deployment, ReportRunEvent(run_id=RUN))
    with pytest.raises(OperationRefused, match=r"^a run called run-1 has ended already"):
        pipeline.detect(table="ns.t")


@pytest.mark.parametrize("script", sorted(path.name for path in JOBS.glob("*.py")))
def test_a_job_that_was_well_just_ends(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Glue may take SystemExit for a failure, whatever its code."""
    monkeypatch.setattr("icekeeper.pipeline.glue_job.start_logging", lambda: None)
    monkeypatch.setattr("icekeeper.pipeline.glue_job.run_job", lambda *_: 0)
    runpy.run_path(str(JOBS / script), run_name="__main__")
    monkeypatch.setattr("icekeeper.pipeline.glue_job.run_job", lambda *_: 1)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JOBS / script), run_name="__main__")
    assert ended.value.code == 1


def test_nobody_can_ask_for_a_lease_of_years(pipeline: Pipeline) -> None:
    """Of a run that was stopped, it would have barred the table, and after a schedule a slot of the fleet."""
    filed = {"job_timeout_s": "999999999", "job_retry_limit": "9"}
    request = MaintenanceRequest(identity=pipeline.identity, requested_ms=1, settings=filed)
    pipeline.deployment.state.requests.file(request)
    (item,) = pipeline.detect()[1]
    acquire_table_lease(pipeline.deployment, RUN, item)
    pipeline.run(item, pipeline.plan(item), "compact")
    tomorrow_ms = pipeline.clock.now_ms + 13 * 3_600_000
    for key in (*slot_keys(4), item.identity.lease_key):
        assert pipeline.deployment.state.leases.current(key, now_ms=tomorrow_ms) is None


def test_a_journal_that_does_not_answer_is_asked_again(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass was told as a success, and came into no journal."""
    item, plan = pipeline.begin()
    pipeline.run(item, plan, "compact")
    with monkeypatch.context() as patch:
        patch.setattr(type(pipeline.deployment.state), "record_pass", broken)
        with pytest.raises(StorageError, match="it crashed"):
            pipeline.report(item, plan)
    assert pipeline.report(item, plan).status == "partial"
    assert [status for _, status, _ in pipeline.journal(item)] == ["partial"]


def test_a_table_has_one_lease_however_it_is_spelt(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Glue folds names to lower case; a forced run in capitals maintained the table beside a scheduled one."""
    load = SqlTables.load

    def folded(self: SqlTables, table: TableName) -> LoadedTable:
        return load(self, TableName.parse(str(table).lower()))

    monkeypatch.setattr(SqlTables, "load", folded)
    (item,) = pipeline.detect(table="NS.T")[1]
    assert item.identity == pipeline.identity


def test_a_pass_that_lost_its_lease_does_not_silence_its_table(pipeline: Pipeline) -> None:
    """All refused was remembered as nothing to do, so that no scan proposed the table until its next commit."""
    pipeline.deployment = pipeline.open(ICEKEEPER_MIN_INPUT_FILES="5")
    (item,) = pipeline.detect()[1]
    acquire_table_lease(pipeline.deployment, RUN, item)
    plan = pipeline.plan(item)
    lost = Failure(Error="LeaseLost", Cause="run-2 took it")
    failures = {step: lost for step, route in plan.routes.items() if route != "none"}
    event = ReportTableEvent(run_id=RUN, item=item, plan=plan, failures=failures)
    assert report_table(pipeline.deployment, event).status == "partial"
    release_table_lease(pipeline.deployment, RUN, item)
    report_run(pipeline.deployment, ReportRunEvent(run_id=RUN))
    seen = pipeline.deployment.state.last_seen(item.identity)
    assert seen is not None
    assert seen.fingerprint != pipeline.document(item, "plan.json")["fingerprint"]
    assert [one.table for one in pipeline.detect("run-2")[1]] == ["ns.t"]
