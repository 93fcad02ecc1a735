"""Reports of a run and its passes: failures, killed and skipped steps, and repeated reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from icekeeper.errors import OperationRefused, PolicyError, StorageError
from icekeeper.operation_facts import Stage
from icekeeper.pipeline import report as reports
from icekeeper.pipeline.control_bucket import BegunStep, ControlBucket, PassDocuments
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import DetectEvent, Item, ReportEvent, RunState, parse_event
from icekeeper.pipeline.report import RunReport, report_run, report_table
from icekeeper.pipeline.run_leases import held_table
from icekeeper.state.claims import CutWork
from icekeeper.state.leases import end_live_run, note_live_run
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.store import StateStore
from support.pipeline_deployment import HOUR_MS, RUN, Pipeline, Wave, broken
from support.state_stores import newest_look

# Wrong inputs stop the run with an error that names the field or key.

NOON = "2026-11-18T12:00:00Z"


def test_wrong_inputs_are_errors_that_name_their_field(pipeline: Pipeline) -> None:
    with pytest.raises(PolicyError, match=r"^malformed event: input\.table: 'events' is not a table name"):
        parse_event(DetectEvent, {"run_id": RUN, "started": NOON, "input": {"table": "events"}})
    with pytest.raises(PolicyError, match=r"^malformed event: input\.tabel: Extra inputs are not permitted$"):
        parse_event(DetectEvent, {"run_id": RUN, "started": NOON, "input": {"tabel": "ns.t"}})
    with pytest.raises(PolicyError, match=r"no table ns\.unknown"):
        pipeline.detect(table="ns.unknown")
    with pytest.raises(PolicyError, match="has no catalog 'elsewhere'; it has: local"):
        pipeline.detect(table="ns.t", catalog="elsewhere")
    with pytest.raises(PolicyError, match="unknown policy key"):
        pipeline.detect(table="ns.t", settings={"min_input_flies": "1"})
    with pytest.raises(PolicyError, match="ICEKEEPER_CONTROL_BUCKET is not set"):
        Deployment.open({})


# One table: the documents of its steps determine its outcome.


def outcomes(pipeline: Pipeline, item: Item, **state: Any) -> dict[str, tuple[str, str]]:
    """Status and summary of each operation in the report of a table."""
    outcome = report_table(pipeline.deployment, RUN, item, RunState.model_validate(state)).outcome
    assert outcome is not None
    return {record.operation.value: (record.status.value, record.summary) for record in outcome.operations}


def kill(pipeline: Pipeline, item: Item, step: str) -> None:
    """A step begins, and its process dies without a record."""
    pipeline.documents(item).write_begun(step, BegunStep(snapshot_ids=[]))


def test_the_report_of_a_step_follows_from_its_documents(pipeline: Pipeline) -> None:
    pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_COMPACTION_MB="0")
    item, plan = pipeline.begin()
    assert plan.routes["compact"] == "glue"
    documents = pipeline.documents(item)
    kill(pipeline, item, "expire_snapshots")
    documents.write_failure("remove_orphans", OperationRefused("no"))
    documents.write_left("rewrite_manifests", "the policy changed")
    job = {"compaction": {"Error": "States.TaskFailed", "Cause": '{"ErrorMessage": "no such bucket"}'}}
    assert outcomes(pipeline, item, jobs=job) == {
        "compact": ("failed", "it did not begin: its job failed: States.TaskFailed: no such bucket"),
        "rewrite_position_deletes": ("skipped", "no position delete files eligible for merging"),
        "expire_snapshots": ("failed", "it was interrupted; uncommitted work is lost"),
        "remove_orphans": ("refused", "OperationRefused: no"),
        "rewrite_manifests": ("skipped", "the policy changed"),
    }
    assert outcomes(pipeline, item)["compact"] == (
        *("failed", "it did not begin: its function or job did not reach it"),
    )
    ((run_id, status, _),) = pipeline.journal(item)
    assert (run_id, status) == (RUN, "partial")


def test_a_table_that_was_not_planned_is_reported_with_the_reason(pipeline: Pipeline) -> None:
    (item,) = pipeline.detect(table="ns.t")[1]
    documents = pipeline.documents(item)

    def shown() -> tuple[str, str]:
        report = report_table(pipeline.deployment, RUN, item, RunState())
        ended = documents.ended()
        assert report.outcome is None
        assert ended is not None
        assert (ended.status, ended.summary) == (report.status, report.summary)
        return report.status, report.summary

    assert shown() == ("failed", "it was not planned: its execution ended without a result")
    documents.write_failure("plan", StorageError("timed out"))
    assert shown() == ("failed", "plan: StorageError: timed out")
    with held_table(pipeline.deployment, "another", item), pytest.raises(Exception, match="is maintained by another"):
        pipeline.plan(item)
    status, summary = shown()
    assert (status, summary.partition(":")[0]) == ("refused", "another run maintains the table now")
    assert pipeline.journal(item) == []
    assert pipeline.deployment.state.seen(item.identity) is None


def test_a_pass_that_left_every_step_counts_as_refused(pipeline: Pipeline) -> None:
    """Its request stays pending, and its table stays due."""
    item, plan = pipeline.begin(operations="compact")
    file(pipeline, item, {"operations": "compact"})
    plan = pipeline.plan(item)
    assert plan.routes.keys() - {"clean_staged"} == {"compact"}
    pipeline.documents(item).write_left("compact", "another run maintained the table: x")
    pipeline.documents(item).write_left("clean_staged", "another run maintained the table: x")
    answer = pipeline.report()
    assert (answer["error"], answer["cause"]) == (
        "LeaseHeld",
        'another run maintained the table: x; start again later, or with "wait" true',
    )
    assert [(record["status"], record["summary"]) for record in answer["tables"]] == [
        ("refused", "another run maintained the table: x")
    ]
    assert pipeline.journal(item) == []
    assert pipeline.deployment.state.seen(item.identity) is None
    assert len(list(pipeline.deployment.state.requests.pending())) == 1


def test_a_step_killed_with_the_most_time_and_memory_is_cut_off(pipeline: Pipeline) -> None:
    """A step that has a job runs there first; a pass that succeeds ends the cut-off."""
    pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_COMPACTION_MB="1280", ICEKEEPER_SMALL_EXPIRY="0")
    item, plan = pipeline.begin()
    cuts = pipeline.deployment.state.cut_offs

    def shown() -> list[tuple[str, CutWork, int]]:
        found = cuts.of_catalog(item.identity.catalog)
        return [(cut.entry.table, cut.work, cut.times) for cut in found]

    kill(pipeline, item, "compact")
    report_table(pipeline.deployment, RUN, item, RunState())
    assert shown() == []
    kill(pipeline, item, "expire_snapshots")
    for _ in range(2):  # a repetition of the same report
        report_table(pipeline.deployment, RUN, item, RunState())
        assert shown() == [("ns.t", CutWork.PASS, 1)]
    pipeline.run(item, *plan.routes)
    assert report_table(pipeline.deployment, RUN, item, RunState()).status == "succeeded"
    assert shown() == []


def test_a_table_stays_due_after_a_step_that_lost_its_lease(pipeline: Pipeline) -> None:
    """The step is refused, which must not count as nothing to do until the table's next commit."""
    pipeline.deployment = pipeline.open(ICEKEEPER_MIN_INPUT_FILES="5", ICEKEEPER_MAX_SNAPSHOTS_TO_KEEP="100")
    (item,) = pipeline.detect()[1]
    plan = pipeline.plan(item)
    leases = pipeline.deployment.state.leases

    def oversleep(what: str, done: int, total: int) -> None:
        pipeline.clock.now_ms += 10 * HOUR_MS
        if done == total:
            leases.acquire(item.identity.lease_key, "run-2", now_ms=pipeline.clock.now_ms, ttl_ms=1)

    assert pipeline.run(item, "compact", progress=oversleep)["compact"].startswith("refused: ")
    pipeline.clock.now_ms += 1
    pipeline.run(item, *(step for step in plan.routes if step != "compact"))
    assert report_table(pipeline.deployment, RUN, item, RunState()).status == "partial"
    seen = newest_look(pipeline.deployment.state, item.identity)
    assert seen is not None
    assert not seen.is_done


# The record of a table counts passes in a row in which an operation failed.


def test_passes_in_which_an_operation_fails_are_counted_until_it_succeeds(pipeline: Pipeline) -> None:
    def fail(number: int, step: str | None) -> Mapping[str, int]:
        run_id = f"run-{number}"
        pipeline.clock.now_ms += HOUR_MS
        item, plan = pipeline.begin(run_id)
        if step is not None:
            pipeline.documents(item, run_id).write_failure(step, StorageError("x"))
        pipeline.run(item, *(name for name in plan.routes if name != step), run_id=run_id)
        pipeline.clock.now_ms += 1
        first = report_table(pipeline.deployment, run_id, item, RunState()).failures
        pipeline.clock.now_ms += 1
        assert report_table(pipeline.deployment, run_id, item, RunState()).failures == first  # a repetition
        return first

    assert [fail(number, "compact") for number in (1, 2, 3)] == [{"compact": times} for times in (1, 2, 3)]
    assert fail(4, "expire_snapshots") == {"expire_snapshots": 1}
    assert fail(5, "compact") == {"compact": 1}
    assert fail(6, None) == {}
    assert fail(7, "compact") == {"compact": 1}


def test_a_healthy_pass_reads_no_record_to_count(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    item, plan = pipeline.begin()
    pipeline.run(item, *plan.routes)
    monkeypatch.setattr(StateStore, "seen", broken)
    assert report_table(pipeline.deployment, RUN, item, RunState()).status == "succeeded"


# A request stays pending until its pass is recorded.


def file(pipeline: Pipeline, item: Item, settings: Mapping[str, str]) -> MaintenanceRequest:
    request = MaintenanceRequest(identity=item.identity, requested_ms=pipeline.clock.now_ms, settings=settings)
    pipeline.deployment.state.requests.file(request)
    return request


def pending(pipeline: Pipeline) -> list[MaintenanceRequest]:
    return list(pipeline.deployment.state.requests.pending())


@pytest.mark.parametrize("at", ["record_pass", "write_ended", "claim"])
def test_a_report_that_crashes_is_repeated_without_counting_twice(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    (item,) = pipeline.detect(table="ns.t")[1]
    file(pipeline, item, {})
    pipeline.plan(item)
    pipeline.documents(item).write_failure("compact", StorageError("x"))
    pipeline.clock.now_ms += 1
    with monkeypatch.context() as patch:
        state = pipeline.deployment.state
        places = {"record_pass": type(state), "write_ended": PassDocuments, "claim": type(state.requests)}
        patch.setattr(places[at], at, broken)
        with pytest.raises(StorageError, match="it crashed"):
            report_table(pipeline.deployment, RUN, item, RunState())
    assert pipeline.documents(item).ended() is None
    pipeline.clock.now_ms += 1
    assert report_table(pipeline.deployment, RUN, item, RunState()).failures["compact"] == 1
    assert pending(pipeline) == []
    assert len(pipeline.journal(item)) == 1


# The run.


def run_report(pipeline: Pipeline, run_id: str = RUN, seconds: float | None = None, **state: Any) -> RunReport:
    event = parse_event(ReportEvent, {"run_id": run_id, "state": state})
    return report_run(pipeline.deployment, event, None if seconds is None else lambda: seconds)


def live_runs(pipeline: Pipeline) -> list[str]:
    """The live runs that another scheduled run finds."""
    leases, now_ms = pipeline.deployment.state.leases, pipeline.clock.now_ms
    others = note_live_run(leases, "another", now_ms=now_ms)
    end_live_run(leases, "another", now_ms=now_ms)
    return sorted(others)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_PAUSES_S", (0.0, 0.0))


@pytest.fixture
def wave(pipeline: Pipeline) -> Wave:
    """Three tables of a scheduled run, whose steps all ran in this process."""
    made = Wave(pipeline)
    for name, item in made.items.items():
        pipeline.run(item, *made.plans[name].routes)
    return made


def test_all_tables_of_a_run_are_reported_once(pipeline: Pipeline, wave: Wave) -> None:
    report = run_report(pipeline)
    assert report.answer == {
        "run_id": RUN,
        "status": "succeeded",
        "summary": "3 succeeded",
        "left": 0,
        "tables": [],
        "error": "",
        "cause": "",
    }
    assert ({record.item.table for record in report.tables}, report.is_scan) == ({"ns.t", "ns.u", "ns.v"}, True)
    stored = json.loads((pipeline.control / "runs" / RUN / "report.json").read_text())
    assert [record["table"] for record in stored["results"]] == [*wave.items]
    assert (stored["tables"], stored["jobs"]) == ({"succeeded": 3}, {})
    assert live_runs(pipeline) == []
    again = run_report(pipeline)
    assert (again.answer, again.tables) == (report.answer, ())


def test_the_end_of_a_run_writes_the_page_of_all_catalogs(
    pipeline: Pipeline, wave: Wave, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer = run_report(pipeline).answer
    written = pipeline.control / "report" / "index.html"
    data = json.loads(written.read_text().split(' id="data">')[1].split("</script>")[0])
    shown = [
        (record["catalog"], table["name"], table["last_pass"]["status"])
        for record in data["catalogs"]
        for table in record["tables"]
    ]
    assert sorted(shown) == [("local", name, "succeeded") for name in ("ns.t", "ns.u", "ns.v")]
    written.unlink()
    pipeline.clock.now_ms += 8 * 24 * HOUR_MS  # a catalog that was not scanned for a week is left out
    run_report(pipeline)
    assert '"catalogs":[]' in written.read_text()

    def broken(self: ControlBucket, html: str) -> None:
        raise StorageError("the bucket is full")

    monkeypatch.setattr(ControlBucket, "write_page", broken)
    assert run_report(pipeline).answer == answer
    assert caplog.messages == ["cannot write the report page: StorageError: the bucket is full"]


def test_tables_without_time_for_a_report_are_left(pipeline: Pipeline, wave: Wave) -> None:
    report = run_report(pipeline, seconds=59.9)
    assert (report.answer["status"], report.answer["left"], report.has_ended) == ("running", 3, False)
    assert (report.tables, report.failed_jobs) == ((), 0)
    assert not (pipeline.control / "runs" / RUN / "report.json").exists()
    assert live_runs(pipeline) == [RUN]
    report_table(pipeline.deployment, RUN, wave.items["ns.u"], RunState())
    assert run_report(pipeline, seconds=59.9).answer["left"] == 2
    last = run_report(pipeline, seconds=60.0)
    assert (last.answer["summary"], len(last.tables)) == ("3 succeeded", 2)


def break_reports_of(monkeypatch: pytest.MonkeyPatch, table: str, error: Exception, times: int) -> list[str]:
    """Let the first ``times`` reports of a table fail; return the tables in the order of the attempts."""
    tried: list[str] = []

    def report(deployment: Deployment, run_id: str, item: Item, state: RunState) -> Any:
        tried.append(item.table)
        if item.table == table and tried.count(table) <= times:
            raise error
        return report_table(deployment, run_id, item, state)

    monkeypatch.setattr(reports, "report_table", report)
    return tried


def test_a_report_that_the_store_prevented_is_retried_after_the_others(
    pipeline: Pipeline, wave: Wave, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = break_reports_of(monkeypatch, "ns.u", StorageError("slow down"), times=2)
    report = run_report(pipeline)
    assert (report.answer["summary"], len(report.tables)) == ("3 succeeded", 3)
    assert (sorted(tried[:3]), tried[3:]) == (["ns.t", "ns.u", "ns.v"], ["ns.u", "ns.u"])


@pytest.mark.parametrize(("error", "attempts"), [(StorageError("it is closed"), 3), (KeyError("x"), 1)])
def test_a_table_that_cannot_be_reported_counts_as_failed_and_stops_no_other(
    pipeline: Pipeline, wave: Wave, monkeypatch: pytest.MonkeyPatch, error: Exception, attempts: int
) -> None:
    tried = break_reports_of(monkeypatch, "ns.u", error, times=99)
    report = run_report(pipeline)
    assert tried.count("ns.u") == attempts
    assert (report.answer["status"], report.answer["summary"]) == ("partial", "1 failed, 2 succeeded")
    shown = {record.item.table: (record.status, record.summary) for record in report.tables}
    sentence = f"cannot report the pass: {type(error).__name__}: {error}"
    assert shown["ns.u"] == ("failed", sentence)
    # It stays due.
    assert pipeline.deployment.state.seen(wave.items["ns.u"].identity) is None
    assert pipeline.deployment.state.seen(wave.items["ns.t"].identity) is not None
    assert pipeline.documents(wave.items["ns.u"]).ended() is None


def test_a_run_of_which_no_table_can_be_reported_ends(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that runs out of time without a reported table fails: another call would not get further."""
    Wave(pipeline)
    seconds = iter([100.0, 10.0, 10.0, 10.0])
    break_reports_of(monkeypatch, "ns.t", StorageError("it is closed"), times=99)
    monkeypatch.setattr(reports, "_AT_ONCE", 1)
    with pytest.raises(StorageError, match="it is closed"):
        report_run(pipeline.deployment, ReportEvent(run_id=RUN), lambda: next(seconds))


def test_a_changed_document_fails_its_own_table_only(pipeline: Pipeline, wave: Wave) -> None:
    (pipeline.control / pipeline.documents(wave.items["ns.u"]).folder / "compact.json").write_text("{}")
    report = run_report(pipeline)
    (failed,) = (record for record in report.tables if record.status == "failed")
    assert failed.item.table == "ns.u"
    assert failed.summary.endswith(
        "compact.json was changed after this run wrote it (status: Field required); start another run"
    )


def test_failed_jobs_are_counted_with_the_end_of_the_run(pipeline: Pipeline, wave: Wave) -> None:
    failure = {"Error": "States.TaskFailed", "Cause": "x"}
    # ``jobs`` also has failures of Maps and of the cleaning call, which are no Glue runs.
    jobs = {Stage.COMPACTION: failure, Stage.MANIFESTS: failure, Stage.SWEEP: failure}
    assert run_report(pipeline, seconds=1.0, jobs=jobs).failed_jobs == 0
    assert run_report(pipeline, jobs=jobs).failed_jobs == 2


@pytest.mark.parametrize(
    ("statuses", "status", "error"),
    [
        (["succeeded", "skipped"], "succeeded", ""),
        (["succeeded", "failed"], "partial", ""),
        (["partial"], "partial", ""),
        (["refused", "failed"], "failed", "PassesFailed"),
        (["refused"], "refused", ""),
    ],
)
def test_a_run_has_the_status_of_its_tables(pipeline: Pipeline, statuses: list[str], status: str, error: str) -> None:
    (item,) = pipeline.detect()[1]
    items = [item.model_copy(update={"table": f"ns.t{number}"}) for number in range(len(statuses))]
    (pipeline.control / "runs" / RUN / "proposals.json").write_text(
        json.dumps([record.model_dump(mode="json") for record in items])
    )
    for record, shown in zip(items, statuses, strict=True):
        pipeline.documents(record).write_ended({"status": shown, "summary": f"{shown}!"})
    answer = pipeline.report()
    assert (answer["status"], answer["error"]) == (status, error)
    if error:
        assert answer["cause"] == "every attempted table failed: ns.t1: failed!"


FAILURE = {"Error": "PolicyError", "Cause": '{"errorMessage": "no catalog"}'}


@pytest.mark.parametrize(
    ("given", "is_scan"),
    [({}, True), ({"operation": "compact"}, True), ({"table": "ns.t", "jobs": 1}, False), ("x", False)],
)
def test_a_failed_detection_fails_the_run(pipeline: Pipeline, given: object, *, is_scan: bool) -> None:
    report = run_report(pipeline, "run-9", failure=FAILURE, input=given)
    assert (report.answer["status"], report.answer["error"]) == ("failed", "DetectionFailed")
    assert report.answer["cause"] == "detection failed before any table was changed: PolicyError: no catalog"
    assert report.is_scan is is_scan


def test_a_run_whose_stages_could_not_be_gathered_is_reported_as_failed(pipeline: Pipeline) -> None:
    item, _ = pipeline.begin()
    answer = pipeline.report(failure=FAILURE)
    assert (answer["status"], answer["error"]) == ("failed", "TablesNotRead")
    assert answer["cause"] == "the run ended after planning its tables: PolicyError: no catalog"
    assert outcomes(pipeline, item)["compact"][0] == "failed"
