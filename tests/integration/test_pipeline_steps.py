"""The pipeline's use cases over a real local table, in the order in which the state machine calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import LeaseHeld, LeaseLost, OperationRefused, PlanStale
from icekeeper.operation_facts import STEPS
from icekeeper.pipeline import run_step as step_module
from icekeeper.pipeline.control_bucket import table_folder
from icekeeper.pipeline.events import (
    Failure,
    OperationEvent,
    parse_event,
)
from icekeeper.pipeline.plan_table import MAX_ATTEMPTS
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.pipeline.run_step import list_orphans
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.storage import Storage
from support.maintained_table import ID_AND_PART
from support.pipeline_deployment import HOUR_MS, RUN, Pipeline


def test_a_whole_pass_step_by_step(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    assert {step for step in STEPS if plan.routes[step] != "none"} == {
        *("compact", "expire_snapshots", "remove_orphans", "rewrite_manifests")  # there are no deletes to merge
    }
    assert set(plan.routes.values()) == {"none", "function"}
    rows = sorted(pipeline.table.table.scan().to_arrow().column("id").to_pylist())
    answers = {step: pipeline.run(item, plan, step) for step in STEPS if plan.routes[step] == "function"}
    assert answers["compact"] == {"status": "succeeded", "summary": "compacted 5 files into 1 (across 1 bins)"}
    report = pipeline.report(item, plan)
    assert report.status == "succeeded"
    assert release_table_lease(pipeline.deployment, RUN, item)
    assert sorted(pipeline.table.table.scan().to_arrow().column("id").to_pylist()) == rows
    assert pipeline.journal(item) == [(RUN, "succeeded", report.summary)]
    assert report.outcome is not None
    assert report.outcome.metrics["compact.files_merged"] == 5
    assert [one.operation for one in report.outcome.operations] == [
        *(Operation.COMPACT, Operation.REWRITE_POSITION_DELETES, Operation.EXPIRE_SNAPSHOTS),
        *(Operation.REMOVE_ORPHANS, Operation.REWRITE_MANIFESTS),
    ]
    # A second pass finds nothing to compact, which its plan knows already.
    item, plan = pipeline.begin("run-2")
    assert plan.routes["compact"] == "none"
    assert pipeline.document(item, "plan.json", "run-2")["outcomes"]["compact"]["reason"] == (
        "no files eligible for compaction"
    )


def test_a_file_that_cannot_be_read_holds_up_no_step(pipeline: Pipeline) -> None:
    """All steps succeed, the next run has none for it, and detection proposes nothing (rule 186, rule 216)."""
    bad = pipeline.table.data_files()[2].file_path
    Path(bad.removeprefix("file://")).unlink()
    item, plan = pipeline.begin()
    answers = {step: pipeline.run(item, plan, step) for step in STEPS if plan.routes[step] == "function"}
    told = f"left 1 file(s) out: {bad} does not exist"
    assert answers["compact"] == {
        "status": "succeeded",
        "summary": f"compacted 4 files into 1 (across 1 bins); {told}",
    }
    assert {answer["status"] for answer in answers.values()} == {"succeeded"}
    assert pipeline.report(item, plan).status == "succeeded"
    assert release_table_lease(pipeline.deployment, RUN, item)
    assert pipeline.detect("run-2") == ({**pipeline.detect("run-2")[0]}, [])
    item, plan = pipeline.begin("run-3")
    assert plan.routes["compact"] == "none"
    assert pipeline.document(item, "plan.json", "run-3")["outcomes"]["compact"]["reason"] == (
        f"no files eligible for compaction (1 file(s) are left alone: {bad} does not exist)"
    )


def test_a_step_that_ended_is_not_done_again(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    first = pipeline.run(item, plan, "compact")
    snapshots = len(pipeline.table.table.snapshots())
    pipeline.table.fill(5, start=50)
    assert pipeline.run(item, plan, "compact") == first
    assert len(pipeline.table.table.snapshots()) == snapshots + 5


def test_a_crash_between_commit_and_answer_is_told_once(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    item, plan = pipeline.begin()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(step_module, "_finish", die)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(item, plan, "compact")
    landed = pipeline.table.table.current_snapshot()
    assert landed is not None
    answer = pipeline.run(item, plan, "compact")
    assert answer == {"status": "succeeded", "summary": f"committed by an earlier attempt: {landed.snapshot_id}"}
    assert pipeline.table.table.current_snapshot() == landed
    report = pipeline.report(item, plan)
    assert report.outcome is not None
    assert report.outcome.metrics["compact.files_merged"] == 5
    assert report.outcome.metrics["compact.files_written"] == 1
    pipeline.report(item, plan)
    assert len(pipeline.journal(item)) == 1


def test_one_run_at_a_time_maintains_a_table(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    with pytest.raises(LeaseHeld, match=r"^ns\.t is leased by run-1 until "):
        acquire_table_lease(pipeline.deployment, "run-2", item)
    pipeline.clock.now_ms += 10 * HOUR_MS
    acquire_table_lease(pipeline.deployment, "run-2", item)
    with pytest.raises(LeaseLost):
        pipeline.run(item, plan, "compact")
    assert not release_table_lease(pipeline.deployment, RUN, item)


def test_a_step_that_loses_its_lease_at_work_commits_nothing(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    before = pipeline.table.table.current_snapshot()

    def oversleep(what: str, done: int, total: int) -> None:
        pipeline.clock.now_ms += 10 * HOUR_MS
        if done == total:
            acquire_table_lease(pipeline.deployment, "run-2", item)

    answer = pipeline.run(item, plan, "compact", progress=oversleep)
    assert answer["status"] == "refused"
    assert "run-2 took it" in answer["summary"]
    assert pipeline.table.table.current_snapshot() == before


def test_a_policy_that_changes_makes_the_plan_stale(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    with pipeline.table.table.transaction() as change:
        change.set_properties({"icekeeper.maintenance_enabled": "false"})
    with pytest.raises(PlanStale, match=r"policy of ns\.t changed"):
        pipeline.run(item, plan, "compact")
    again = pipeline.plan(item, attempt=2)
    assert {step for step, route in again.routes.items() if route != "none"} == set()
    assert pipeline.report(item, again).status == "succeeded"


def test_planning_ends_after_three_attempts(pipeline: Pipeline) -> None:
    item, _ = pipeline.begin()
    plan = pipeline.plan(item, attempt=MAX_ATTEMPTS + 1)
    assert plan.routes["compact"] == "none"
    assert pipeline.report(item, plan).status == "failed"


def test_what_is_done_is_not_planned_again(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    first = pipeline.document(item, "plan.json")
    pipeline.run(item, plan, "compact")
    again = pipeline.plan(item, attempt=2)
    assert again.routes["compact"] == "none"
    assert again.routes["expire_snapshots"] == "function"
    assert pipeline.document(item, "plan.json")["head_id"] == first["head_id"]
    assert pipeline.report(item, again, expire_snapshots=Failure(Error="StorageError", Cause="")).status == "partial"


def test_another_plan_than_the_one_made_is_refused(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    path = pipeline.control / plan.key
    path.write_text(path.read_text().replace('"attempt":1', '"attempt":2'))
    with pytest.raises(OperationRefused, match="its digest differs"):
        pipeline.run(item, plan, "compact")


def test_a_table_dropped_since_it_was_detected(pipeline: Pipeline) -> None:
    (item,) = pipeline.detect(table="ns.t")[1]
    acquire_table_lease(pipeline.deployment, RUN, item)
    pipeline.table.pyiceberg.drop_table("ns.t")
    plan = pipeline.plan(item)
    assert set(plan.routes.values()) == {"none"}
    report = pipeline.report(item, plan)
    assert (report.status, report.summary) == ("skipped", "ns.t was dropped or replaced since it was detected")
    assert pipeline.journal(item) == []


def test_a_table_replaced_since_it_was_planned(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    pipeline.table.pyiceberg.drop_table("ns.t")
    pipeline.table.pyiceberg.create_table("ns.t", schema=ID_AND_PART)
    with pytest.raises(PlanStale, match="replaced by another table"):
        pipeline.run(item, plan, "compact")


def test_orphans_are_listed_by_one_step_and_removed_by_the_next(pipeline: Pipeline) -> None:
    orphan = Path(pipeline.table.table.location().removeprefix("file://")) / "data" / "left.parquet"
    orphan.write_bytes(b"left")
    item, plan = pipeline.begin()
    event = parse_event(OperationEvent, {"run_id": RUN, "item": item, "plan": plan, "operation": "remove_orphans"})
    listed = list_orphans(pipeline.deployment, event, LocalEngine(1))
    assert listed == {"status": "succeeded", "summary": "would remove 1 orphan file(s)", "count": 1}
    assert orphan.exists()
    second = orphan.with_name("later.parquet")
    second.write_bytes(b"later")
    assert pipeline.run(item, plan, "remove_orphans")["summary"] == "removed 1 orphan file(s)"
    assert (orphan.exists(), second.exists()) == (False, True)
    report = pipeline.report(item, plan)
    assert report.outcome is not None
    assert report.outcome.metrics["remove_orphans.files_listed"] > 10


def test_what_the_listing_leaves_to_a_person_makes_the_removal_a_refusal(pipeline: Pipeline) -> None:
    """A copy of a missing file (rule 227): the removal is given the other orphans only, and knows of no listing."""
    live = Path(pipeline.table.table.inspect.files().column("file_path").to_pylist()[0].removeprefix("file://"))
    copy = live.rename(live.with_name("copy.parquet"))
    (live.parent / "left.parquet").write_bytes(b"left")
    item, plan = pipeline.begin()
    event = parse_event(OperationEvent, {"run_id": RUN, "item": item, "plan": plan, "operation": "remove_orphans"})
    listed = list_orphans(pipeline.deployment, event, LocalEngine(1))
    assert (listed["status"], listed["count"]) == ("refused", 1)
    removal = pipeline.run(item, plan, "remove_orphans")
    assert removal["status"] == "refused"
    assert removal["summary"].endswith("; removed 1 orphan file(s)")
    assert (copy.exists(), (live.parent / "left.parquet").exists()) == (True, False)
    report = pipeline.report(item, plan)
    assert report.outcome is not None
    assert report.outcome.metrics["remove_orphans.files_like_missing"] == 1


def test_the_listing_never_asks_whether_it_could_delete(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no right to; and asking would be denied, which looks as if the storage knew no deletion."""
    orphan = Path(pipeline.table.table.location().removeprefix("file://")) / "data" / "left.parquet"
    orphan.write_bytes(b"left")
    item, plan = pipeline.begin()
    event = parse_event(OperationEvent, {"run_id": RUN, "item": item, "plan": plan, "operation": "remove_orphans"})
    monkeypatch.setattr(Storage, "can_delete", lambda *_: False)
    assert list_orphans(pipeline.deployment, event, LocalEngine(1))["count"] == 1
    removal = pipeline.run(item, plan, "remove_orphans")
    assert removal["status"] == "skipped"
    assert "objects cannot be deleted in this storage" in removal["summary"]
    assert orphan.exists()


def test_an_orphan_that_is_referenced_meanwhile_stays(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    live = pipeline.table.table.inspect.files().column("file_path").to_pylist()[0]
    folder = pipeline.control / table_folder(RUN, item.identity.spelling)
    (folder / "list_orphans.json").write_text(json.dumps({"plan": plan.digest, "paths": [live], "metrics": {}}))
    assert pipeline.run(item, plan, "remove_orphans")["summary"] == "removed 0 orphan file(s)"
    assert Path(live.removeprefix("file://")).exists()


def test_no_orphans_need_no_removal(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    event = parse_event(OperationEvent, {"run_id": RUN, "item": item, "plan": plan, "operation": "remove_orphans"})
    assert list_orphans(pipeline.deployment, event, LocalEngine(1))["count"] == 0
    report = pipeline.report(item, plan)
    assert report.outcome is not None
    sweep = next(one for one in report.outcome.operations if one.operation is Operation.REMOVE_ORPHANS)
    assert (sweep.status, sweep.summary) == (Status.SUCCEEDED, "removed 0 orphan file(s)")


def test_steps_do_not_look_for_the_table_buckets_again(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run recorded where its table is; a fleet may have hundreds of buckets."""
    item, plan = pipeline.begin()
    pipeline.deployment = pipeline.open(ICEKEEPER_TABLE_BUCKETS="all")

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("listed")

    monkeypatch.setattr("icekeeper.pipeline.deployment.fleet_catalogs", fail)
    assert pipeline.run(item, plan, "compact")["status"] == "succeeded"
