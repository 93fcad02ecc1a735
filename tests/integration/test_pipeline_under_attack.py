"""What must not get past the pipeline: forged inputs, and documents changed by hand
(rule: documents-are-not-trusted)."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from icekeeper.pipeline.one_call import RestEvent, take_up_rest
from icekeeper.pipeline.report_table import report_run, report_table, was_scan

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.sql import SqlCatalog as SqlTables
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import OperationRefused, PlanStale, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.pipeline.control_bucket import proposals_key, table_folder
from icekeeper.pipeline.events import (
    Failure,
    Item,
    MachineInput,
    OperationEvent,
    ReportRunEvent,
    ReportTableEvent,
    parse_event,
)
from icekeeper.pipeline.plan_table import MAX_ATTEMPTS
from icekeeper.pipeline.request_pass import file_request
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.pipeline.run_step import list_orphans
from icekeeper.runtime import Runtime
from icekeeper.state.leases import slot_keys
from icekeeper.state.store import MaintenanceRequest
from support.pipeline_deployment import RUN, Pipeline, broken

# What must not get past the pipeline's use cases: faults found by attacking them, each with the harm it did.

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


# Documents of the control bucket that somebody has changed by hand (rule: documents-are-not-trusted).


def folder_of(pipeline: Pipeline, item: Item) -> Path:
    return pipeline.control / table_folder(RUN, item.identity.spelling)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data[:100], id="truncated"),
        pytest.param(lambda data: data.replace(b'"ns.t"', b'"ns.u"'), id="another table"),
        pytest.param(lambda data: b"[]", id="another schema"),
    ],
)
def test_a_plan_that_was_changed_is_refused(pipeline: Pipeline, change: Callable[[bytes], bytes]) -> None:
    item, plan = pipeline.begin()
    before, path = pipeline.table.files(), pipeline.control / plan.key
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(OperationRefused, match=r"plan\.json is not the document .*; start another run$"):
        pipeline.run(item, plan, "compact")
    assert pipeline.table.files() == before


def test_nothing_but_an_orphan_of_the_table_is_deleted(pipeline: Pipeline, tmp_path: Path) -> None:
    """Whatever a list of orphans names: another table's file, one of none, a live one, one by a detour, a folder."""
    item, plan = pipeline.begin()
    location, orphan = pipeline.table.metadata.location, pipeline.table.plant("data/orphan.parquet")
    outside, neighbour = tmp_path / "outside.parquet", tmp_path / "warehouse" / "ns" / "u" / "data" / "x.parquet"
    neighbour.parent.mkdir(parents=True)
    for path in (outside, neighbour):
        path.write_bytes(b"x")
    paths = [str(outside), outside.as_uri(), neighbour.as_uri(), f"{location}/data/../../u/data/x.parquet"]
    paths += [*pipeline.table.live_files(), pipeline.table.metadata_location, location, f"{location}/data", ""]
    listed = {
        "plan": plan.digest,
        "paths": [*paths, orphan, orphan],
        "metrics": {"remove_orphans.files_listed": -(10**30)},
    }
    (folder_of(pipeline, item) / "list_orphans.json").write_text(json.dumps(listed))
    before = pipeline.table.files()
    done = pipeline.run(item, plan, "remove_orphans")
    assert (outside.exists(), neighbour.exists()) == (True, True)
    assert before - pipeline.table.files() == {orphan}
    assert done["summary"] == "removed 1 orphan file(s)"


@pytest.mark.parametrize(
    ("step", "name", "document"),
    [
        ("remove_orphans", "list_orphans", []),
        ("remove_orphans", "list_orphans", {"plan": "p"}),
        ("remove_orphans", "list_orphans", {"plan": "p", "paths": "abc", "metrics": {}}),
        ("remove_orphans", "list_orphans", {"plan": "p", "paths": [7], "metrics": {}}),
        ("remove_orphans", "list_orphans", {"plan": "p", "paths": [], "metrics": {"remove_orphans.files_listed": "x"}}),
        ("compact", "compact", 7),
        ("compact", "compact", {"summary": "s"}),
        ("compact", "compact.begun", {}),
        ("compact", "compact.begun", {"snapshot_ids": [1, None]}),
    ],
)
def test_a_document_of_another_shape_is_refused_in_a_sentence(
    pipeline: Pipeline, step: str, name: str, document: Any
) -> None:
    item, plan = pipeline.begin()
    before = pipeline.table.files()
    (folder_of(pipeline, item) / f"{name}.json").write_text(json.dumps(document))
    with pytest.raises(StorageError, match=rf"/{name}\.json is not as this run wrote it \(.*\); start another run$"):
        pipeline.run(item, plan, step)
    assert pipeline.table.files() == before


def test_a_document_that_is_nested_too_deeply_is_no_document(pipeline: Pipeline) -> None:
    (pipeline.control / "runs").mkdir(parents=True)
    (pipeline.control / "runs" / "deep.json").write_text("[" * 100_000)
    with pytest.raises(StorageError, match=r"deep\.json is no JSON document: "):
        pipeline.deployment.control.find("runs/deep.json")
    assert pipeline.deployment.control.find_hint("runs/deep.json") is None


# Documents that a run's report and a second plan find by their key alone, changed by hand
# (rule: documents-are-not-trusted).

CHANGED = r"is not as this run wrote it \(.*\); start another run$"


def change(pipeline: Pipeline, item: Item, name: str, document: Any) -> None:
    (pipeline.control / table_folder(RUN, item.identity.spelling) / name).write_text(json.dumps(document))


@pytest.mark.parametrize("document", [7, {}, [7], [{"table": "ns.t"}]])
def test_proposals_of_another_shape_are_refused_in_a_sentence(pipeline: Pipeline, document: Any) -> None:
    pipeline.begin()
    (pipeline.control / proposals_key(RUN)).write_text(json.dumps(document))
    for read in (
        lambda: was_scan(pipeline.deployment, RUN),
        lambda: take_up_rest(pipeline.deployment, RestEvent(run_id=RUN, left=())),
        lambda: report_run(pipeline.deployment, ReportRunEvent(run_id=RUN)),
    ):
        with pytest.raises(StorageError, match=rf"/proposals\.json {CHANGED}"):
            read()


@pytest.mark.parametrize("document", [[], {"summary": "s"}, {"status": "fine", "summary": "s"}, {"status": "failed"}])
def test_an_end_of_another_shape_is_refused_in_a_sentence(pipeline: Pipeline, document: Any) -> None:
    item, _ = pipeline.begin()
    change(pipeline, item, "pass.json", document)
    with pytest.raises(StorageError, match=rf"/pass\.json {CHANGED}"):
        report_run(pipeline.deployment, ReportRunEvent(run_id=RUN))


@pytest.mark.parametrize("change_of", [{"done": []}, {"done": {"compact": 7}}, {"started_ms": "x"}, {"head_id": []}])
def test_a_first_plan_of_another_shape_is_refused_in_a_sentence(pipeline: Pipeline, change_of: dict[str, Any]) -> None:
    item, plan = pipeline.begin()
    first = json.loads((pipeline.control / plan.key).read_text())
    change(pipeline, item, "plan.json", {**first, **change_of})
    with pytest.raises(StorageError, match=rf"/plan\.json {CHANGED}"):
        pipeline.plan(item, attempt=2)
