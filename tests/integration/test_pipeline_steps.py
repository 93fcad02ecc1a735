"""The pipeline's use cases over a real local table, in the order of the state machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

from icekeeper.detection.proposal import FleetReport
from icekeeper.errors import PolicyError, StorageError
from icekeeper.maintenance.pass_steps import run_operation
from icekeeper.operation_facts import Stage
from icekeeper.pipeline import report as reports
from icekeeper.pipeline import run_step as step_module
from icekeeper.pipeline import wave
from icekeeper.pipeline.control_bucket import ControlBucket, EndedPass, PassDocuments, PlanDocument, Work, table_folder
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.run_step import run_steps
from icekeeper.policy import Operation
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.storage.storage import Storage
from support.deletes import commit_deletes, position_delete
from support.maintained_table import ID_AND_PART, MaintainedTable, local_path, our_catalog
from support.pipeline_deployment import HOUR_MS, RUN, Pipeline, broken
from support.state_stores import newest_look


def in_functions(pipeline: Pipeline) -> Pipeline:
    """A deployment that compacts small tables in functions."""
    pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_COMPACTION_MB="1280")
    return pipeline


def outcomes(pipeline: Pipeline, item: Item, run_id: str = RUN) -> dict[str, tuple[str, str]]:
    """Status and summary of each operation of a reported pass."""
    shown = pipeline.document(item, "pass.json", run_id)["operations"]
    return {entry["operation"]: (entry["status"], entry["summary"]) for entry in shown}


def test_a_commit_before_a_crash_is_reported_once(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    item, _ = pipeline.begin()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(PassDocuments, "write_outcome", die)
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(item, "compact")
    landed = pipeline.table.table.current_snapshot()
    assert landed is not None
    assert pipeline.run(item, "compact") == {
        "compact": f"succeeded: committed by an earlier attempt: {landed.snapshot_id}"
    }
    assert pipeline.table.table.current_snapshot() == landed
    pipeline.report()
    metrics = pipeline.document(item, "pass.json")["metrics"]
    assert (metrics["compact.files_merged"], metrics["compact.files_written"]) == (5, 1)
    pipeline.report()
    assert len(pipeline.journal(item)) == 1


def test_a_step_that_fails_stops_no_other_step(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage error is retried; a bug and a step that ended are not."""
    item, plan = pipeline.begin()
    called = list[str]()

    def flaky(operation: Operation, *given: Any, **options: Any) -> Any:
        called.append(operation.value)
        if called == ["compact"]:
            raise StorageError("the store is down")
        return run_operation(operation, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(step_module, "run_operation", flaky)
        with pytest.raises(StorageError, match=r"^the store is down$"):
            pipeline.run(item, "compact", "expire_snapshots")
        failure = pipeline.documents(item).failure("compact")
        assert failure is not None
        assert (failure.error, failure.message) == ("StorageError", "the store is down")
        assert pipeline.run(item, "compact", "expire_snapshots")["compact"].startswith("succeeded")
        assert called == ["compact", "expire_snapshots", "compact"]
    snapshots = len(pipeline.table.metadata.snapshots)
    pipeline.table.fill(5, start=50)
    assert pipeline.run(item, "compact") == {}
    assert len(pipeline.table.metadata.snapshots) == snapshots + 5
    pipeline.run(item, *plan.routes)
    assert pipeline.report()["status"] == "succeeded"

    monkeypatch.setattr(step_module, "_commits_before", lambda step: 1 / (step.name != "compact"))
    item, _ = pipeline.begin("run-2")
    answers = pipeline.run(item, "compact", "expire_snapshots", run_id="run-2")
    assert answers["compact"] == "failed: ZeroDivisionError: division by zero"
    assert pipeline.document(item, "compact.json", "run-2")["status"] == "failed"
    assert "expire_snapshots" in answers


# A stale plan leaves its work to the next run.


@pytest.mark.parametrize("what", ["policy", "table"])
def test_a_stale_plan_leaves_its_steps_and_the_table_due(pipeline: Pipeline, what: str) -> None:
    (item,) = pipeline.detect()[1]
    plan = pipeline.plan(item)
    if what == "policy":
        with pipeline.table.table.transaction() as change:
            change.set_properties({"icekeeper.min_input_files": "3"})
        why = "the policy of ns.t changed since it was planned"
    else:
        pipeline.table.pyiceberg.drop_table("ns.t")
        made = pipeline.table.pyiceberg.create_table("ns.t", schema=ID_AND_PART)
        made.append(pipeline.table.new_rows(1, 2))
        why = "ns.t was replaced by another table since it was planned"
    before = len(pipeline.table.metadata.snapshots)
    shown = pipeline.run(item, *plan.routes)
    assert shown == dict.fromkeys(plan.routes, f"left to a later run: {why}")
    assert pipeline.list_orphans(item) == (0, None)
    assert len(pipeline.table.metadata.snapshots) == before
    pipeline.report()
    assert pipeline.documents(item).ended() == EndedPass(status="refused", summary=why)
    assert pipeline.deployment.state.seen(item.identity) is None
    assert [entry.table for entry in pipeline.detect("run-2")[1]] == ["ns.t"]


def test_a_table_dropped_after_detection_is_skipped(pipeline: Pipeline) -> None:
    (item,) = pipeline.detect(table="ns.t")[1]
    pipeline.table.pyiceberg.drop_table("ns.t")
    why = "ns.t was dropped or replaced since it was detected"
    assert pipeline.plan(item) == PlanDocument(needless=why)
    assert {shown["count"] for shown in pipeline.gather().values()} == {0}
    assert pipeline.report()["tables"] == [{"table": "ns.t", "status": "skipped", "summary": why}]
    assert pipeline.journal(item) == []


# Planning again: the newest plan counts.


def test_of_several_plans_the_newest_counts(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed plan is repeated; a plan that was written before a crash counts, although its answer is lost."""
    (item,) = pipeline.detect(table="ns.t")[1]
    write = ControlBucket.write

    def die(self: ControlBucket, key: str, document: Any) -> str:
        write(self, key, document)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ControlBucket, "find_hint", broken)
        with pytest.raises(StorageError, match="it crashed"):
            pipeline.plan(item)
    assert pipeline.documents(item).failure("plan") is not None
    assert pipeline.gather()["sweep"]["count"] == 0
    with monkeypatch.context() as patched:
        patched.setattr(ControlBucket, "write", die)
        with pytest.raises(KeyboardInterrupt):
            pipeline.plan(item)
    assert pipeline.gather()["sweep"]["count"] == 1
    first = pipeline.documents(item).plan()
    assert first is not None
    pipeline.table.fill(1, start=50)
    second = pipeline.plan(item)
    assert second.head_id != first.head_id
    assert pipeline.documents(item).plan() == second
    answers = pipeline.run(item, *second.routes)
    assert answers["compact"] == "succeeded: compacted 6 files into 1 (across 1 bins)"
    assert pipeline.report()["status"] == "succeeded"
    assert pipeline.report()["tables"][0]["status"] != "skipped"


def test_a_plan_reads_no_manifest(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the metadata file and the manifest list of the head only, also for a table with deletes."""
    path = pipeline.table.table.inspect.files()["file_path"][0].as_py()
    content, more = position_delete(path, 0, "")
    commit_deletes(pipeline.table, [(content, {**more, "partition": ()})])
    head = pipeline.table.table.refresh().current_snapshot()
    assert head is not None
    (item,) = pipeline.detect()[1]
    read, seen = Storage.read, list[str]()

    def counted(self: Storage, path: str, *given: Any, **options: Any) -> bytes:
        seen.append(path)
        return read(self, path, *given, **options)

    location = pipeline.table.metadata.location
    monkeypatch.setattr(Storage, "read", counted)
    plan = pipeline.plan(item)
    assert {"compact", "rewrite_position_deletes", "expire_snapshots"} <= set(plan.routes)
    of_table = [path for path in seen if path.startswith(location)]
    assert [path for path in of_table if path.endswith(".avro")] == [head.manifest_list]
    assert len([path for path in of_table if path.endswith(".metadata.json")]) <= 1
    assert len(of_table) <= 2


# Steps that a plan leaves out, because metadata and manifest list show that they would find nothing.

REWRITES = ("compact", "rewrite_position_deletes", "rewrite_manifests")


def detected_pass(pipeline: Pipeline, run_id: str) -> tuple[Item, PlanDocument]:
    """Run a pass that detection proposes, up to its report."""
    (item,) = pipeline.detect(run_id)[1]
    plan = pipeline.plan(item, run_id)
    pipeline.run(item, *plan.routes, run_id=run_id)
    assert pipeline.report(run_id)["status"] == "succeeded"
    return item, plan


def test_a_step_that_a_plan_leaves_out_would_find_nothing(pipeline: Pipeline) -> None:
    """Plans keep leaving it out until enough changes have arrived."""
    pipeline.deployment = pipeline.open(
        ICEKEEPER_MIN_INPUT_FILES="5", ICEKEEPER_MIN_MANIFESTS_TO_REWRITE="6", ICEKEEPER_MAX_SNAPSHOTS_TO_KEEP="100"
    )
    _, plan = detected_pass(pipeline, "run-0")
    assert {"compact", "rewrite_manifests"} <= set(plan.routes)
    for number in range(1, 4):
        pipeline.clock.now_ms += 25 * HOUR_MS  # a sweep is due
        pipeline.table.fill(1, start=100 * number)
        run_id = f"run-{number}"
        (item,) = pipeline.detect(run_id)[1]
        plan = pipeline.plan(item, run_id)
        assert set(plan.routes) == {"expire_snapshots", "remove_orphans"}, number
        assert plan.outcomes["compact"]["reason"] == "too few changes since the last pass"
        shown = run_anyway(pipeline, item, f"look-{number}", ["compact", "rewrite_manifests"])
        assert {sentence.partition(":")[0] for sentence in shown.values()} == {"skipped"}
        pipeline.run(item, *plan.routes, run_id=run_id)
        assert pipeline.report(run_id)["status"] == "succeeded"
        seen = newest_look(pipeline.deployment.state, item.identity)
        assert seen is not None
        assert (seen.is_done, seen.looked_ms) == (True, plan.looked_ms)
    pipeline.clock.now_ms += HOUR_MS
    item, plan = pipeline.begin("run-8")  # a requested pass plans every step
    assert {"compact", "rewrite_manifests"} <= set(plan.routes)
    pipeline.run(item, *plan.routes, run_id="run-8")
    pipeline.report("run-8")
    pipeline.table.fill(5, start=1000)
    pipeline.clock.now_ms += HOUR_MS
    (item,) = pipeline.detect("run-9")[1]
    assert "compact" in pipeline.plan(item, "run-9").routes


def run_anyway(pipeline: Pipeline, item: Item, run_id: str, steps: list[str]) -> Mapping[str, str]:
    """Run steps that the plan left out, in a separate forced run, and return their summaries."""
    plan = pipeline.documents(item, run_id)
    plan.write_plan(pipeline.plan(item.model_copy(update={"detected_ms": None, "forced": True}), run_id))
    return pipeline.run(item.model_copy(update={"detected_ms": None, "forced": True}), *steps, run_id=run_id)


def test_a_table_without_a_snapshot_is_not_rewritten(pipeline: Pipeline) -> None:
    pipeline.table.create_beside("ns.quiet", str(pipeline.table.folder.parent / "quiet"))
    (item,) = pipeline.detect(table="ns.quiet")[1]
    plan = pipeline.plan(item)
    assert set(plan.routes) == {"expire_snapshots", "remove_orphans"}
    assert {step: plan.outcomes[step]["reason"] for step in REWRITES} == dict.fromkeys(REWRITES, "no current snapshot")


def test_expiry_ends_a_rewrite_of_manifests_that_would_find_nothing(pipeline: Pipeline) -> None:
    """Compaction leaves two manifests, as few as it can; without it, the manifests wait for their own step."""
    pipeline.deployment = pipeline.open(ICEKEEPER_MIN_MANIFESTS_TO_REWRITE="3")
    item, _ = pipeline.begin()
    assert set(pipeline.run(item, "expire_snapshots")) == {"expire_snapshots"}
    pipeline.report()
    item, plan = pipeline.begin("run-2")
    assert plan.routes["rewrite_manifests"] == "function"
    pipeline.run(item, "compact", run_id="run-2")
    done = pipeline.run(item, "expire_snapshots", run_id="run-2")
    assert done["rewrite_manifests"] == "skipped: only 2 data manifests, below threshold of 3"
    assert pipeline.document(item, "rewrite_manifests.json", "run-2")["status"] == "skipped"
    assert pipeline.run(item, "rewrite_manifests", run_id="run-2") == {}


# The documents that a run writes for its stages.


def test_each_stage_gets_the_steps_of_its_route(pipeline: Pipeline) -> None:
    pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_MANIFESTS="0", ICEKEEPER_SMALL_ORPHANS="0")
    item, _ = pipeline.begin()
    shown = pipeline.gather()
    for stage, steps in (("compaction", ["compact"]), ("orphans", ["remove_orphans"]), ("manifests", REWRITES[2:])):
        assert shown[stage]["count"] == 1
        assert (shown[stage]["workers"], shown[stage]["execution_class"]) == (2, "STANDARD"), "somebody waits for it"
        document = pipeline.deployment.control.read(shown[stage]["key"], shown[stage]["digest"])
        work = Work.model_validate(document)
        assert (work.run_id, work.stage, work.started_ms) == (RUN, Stage(stage), pipeline.clock.now_ms)
        assert [(table.item, list(table.steps)) for table in work.tables] == [(item, list(steps))]
    assert shown["small"] == shown["staged"] == {"count": 0}
    place = {"bucket": str(pipeline.control), "key": f"runs/{RUN}/sweep.json"}
    assert shown["sweep"] == {**place, "count": 1}
    (listed,) = json.loads((pipeline.control / shown["sweep"]["key"]).read_text())
    assert listed == {"item": item.model_dump(mode="json"), "steps": {"expire_snapshots": "function"}}
    # A scheduled run may wait for cheaper workers.
    pipeline.report()
    pipeline.clock.now_ms += HOUR_MS
    (item,) = pipeline.detect("run-2")[1]
    pipeline.plan(item, "run-2")
    assert pipeline.gather("run-2")["compaction"]["execution_class"] == "FLEX"
    pipeline.deployment = pipeline.open(ICEKEEPER_WAVE_EXECUTION_CLASS="STANDARD")
    assert pipeline.gather("run-2")["compaction"]["execution_class"] == "STANDARD"


def test_a_run_that_sorts_gets_workers_with_enough_disk(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job receives the type of its workers, too."""
    monkeypatch.setattr(wave, "_DISK_PER_SORTED_BYTE", 10**9)
    found = []
    for strategy in ("binpack", "sort"):
        pipeline.deployment = pipeline.open(ICEKEEPER_STRATEGY=strategy, ICEKEEPER_SORT_ORDER="id")
        _, plan = pipeline.begin(strategy)
        shown = pipeline.gather(strategy)["compaction"]
        work = Work.model_validate(pipeline.deployment.control.read(shown["key"], shown["digest"]))
        assert (work.workers, work.environment["ICEKEEPER_WORKER_TYPE"]) == (shown["workers"], shown["worker_type"])
        found.append(
            (plan.sorted_bytes in (0, plan.size_bytes), plan.sorted_bytes > 0, work.workers, shown["worker_type"])
        )
    assert found == [(True, False, 2, "G.1X"), (True, True, 10, "G.2X")]


def test_a_damaged_plan_leaves_out_only_its_table(pipeline: Pipeline) -> None:
    pipeline.table.create_beside("ns.u", str(pipeline.table.folder.parent / "u"))
    pipeline.table.pyiceberg.load_table("ns.u").append(pipeline.table.new_rows(0, 1))
    items = pipeline.detect()[1]
    assert sorted(item.table for item in items) == ["ns.t", "ns.u"]
    for item in items:
        pipeline.plan(item)
    bad = next(item for item in items if item.table == "ns.u")
    for damaged in ("{", "[]", json.dumps({"routes": {"compact": "anywhere"}})):
        (pipeline.control / pipeline.documents(bad).folder / "plan.json").write_text(damaged)
        shown = pipeline.gather()
        (listed,) = json.loads((pipeline.control / shown["sweep"]["key"]).read_text())
        assert listed["item"]["table"] == "ns.t"


# Orphans are listed by one function and removed by the next, which may delete.


def test_orphans_are_listed_by_one_step_and_removed_by_the_next(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pipeline.table.folder / "data"
    orphan, second = folder / "left.parquet", folder / "later.parquet"
    item, _ = pipeline.begin()
    assert pipeline.list_orphans(item) == (0, None)
    pipeline.report()
    assert outcomes(pipeline, item)["remove_orphans"] == ("succeeded", "removed 0 orphan file(s)")

    def listed(run_id: str) -> tuple[Item, str | None]:
        """Begin a run whose listing finds the orphan."""
        item, _ = pipeline.begin(run_id)
        count, listed = pipeline.list_orphans(item, run_id)
        assert (count, orphan.exists()) == (1, True)
        return item, listed

    def removed(item: Item, run_id: str, listed: str | None) -> str:
        return pipeline.run(item, "remove_orphans", run_id=run_id, listed=listed)["remove_orphans"]

    # The state machine passes the digest of the list.
    orphan.write_bytes(b"left")
    item, found = listed("changed")
    live = pipeline.table.data_files()[0].file_path
    path = pipeline.control / pipeline.documents(item, "changed").folder / "list_orphans.json"
    path.write_text(json.dumps({"paths": [live], "metrics": {}}))
    sentence = removed(item, "changed", found)
    assert sentence.startswith("failed: OperationRefused: ")
    assert "its digest differs" in sentence
    assert pipeline.document(item, "remove_orphans.json", "changed")["status"] == "refused"
    assert (orphan.exists(), local_path(live).exists()) == (True, True)
    pipeline.report("changed")

    # The listing has no right to delete: its check would be denied, as if the storage supported no deletion.
    with monkeypatch.context() as patched:
        patched.setattr(Storage, "can_delete", lambda *_: False)
        item, found = listed("no-right")
        assert removed(item, "no-right", found).startswith("skipped: objects cannot be deleted in this storage")
        assert orphan.exists()
    pipeline.report("no-right")

    item, found = listed("removed")
    second.write_bytes(b"later")
    assert removed(item, "removed", found) == "succeeded: removed 1 orphan file(s)"
    assert (orphan.exists(), second.exists()) == (False, True)
    pipeline.report("removed")
    assert pipeline.document(item, "pass.json", "removed")["metrics"]["remove_orphans.files_listed"] > 10
    second.unlink()

    orphan.write_bytes(local_path(live).read_bytes())
    item, found = listed("referenced")
    pipeline.table.table.add_files([orphan.as_uri()])
    assert removed(item, "referenced", found).endswith("removed 0 orphan file(s)")
    assert orphan.exists()


def test_a_possible_last_copy_in_the_listing_makes_the_removal_refused(pipeline: Pipeline) -> None:
    """The removal gets only the other orphans and lists nothing itself (rule: keep-possible-last-copies)."""
    live = Path(pipeline.table.table.inspect.files().column("file_path").to_pylist()[0].removeprefix("file://"))
    copy = live.rename(live.with_name("copy.parquet"))
    (live.parent / "left.parquet").write_bytes(b"left")
    item, _ = pipeline.begin()
    count, listed = pipeline.list_orphans(item)
    assert count == 1
    shown = pipeline.run(item, "remove_orphans", listed=listed)["remove_orphans"]
    assert shown.startswith("refused: ")
    assert shown.endswith("; removed 1 orphan file(s)")
    assert (copy.exists(), (live.parent / "left.parquet").exists()) == (True, False)
    pipeline.report()
    assert pipeline.document(item, "pass.json")["metrics"]["remove_orphans.files_like_missing"] == 1


def test_a_killed_listing_runs_as_a_glue_job_in_the_next_run(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    item, plan = pipeline.begin()
    assert plan.routes["remove_orphans"] == "function"

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(step_module, "run_operation", die)
        with pytest.raises(KeyboardInterrupt):
            pipeline.list_orphans(item)
    pipeline.report()
    assert outcomes(pipeline, item)["remove_orphans"][0] == "failed"
    pipeline.clock.now_ms += HOUR_MS
    assert pipeline.begin("run-2")[1].routes["remove_orphans"] == "glue"


def test_steps_do_not_list_the_table_buckets_again(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run recorded the bucket of its table; a fleet may have hundreds of buckets."""
    item, _ = pipeline.begin()
    pipeline.deployment = pipeline.open(ICEKEEPER_TABLE_BUCKETS="all")

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("listed")

    monkeypatch.setattr("icekeeper.pipeline.deployment.fleet_catalogs", fail)
    assert pipeline.run(item, "compact")["compact"].startswith("succeeded")


# A person's request for a pass: pending until its pass is reported, then claimed; answered if it cannot be served.


def requested(pipeline: Pipeline, requested_ms: int, **settings: str) -> MaintenanceRequest:
    """File a request for the table."""
    request = MaintenanceRequest(identity=pipeline.identity, requested_ms=requested_ms, settings=settings)
    pipeline.deployment.state.requests.file(request)
    return request


def pending(pipeline: Pipeline) -> tuple[MaintenanceRequest, ...]:
    return pipeline.deployment.state.requests.pending()


def test_a_request_is_claimed_once_its_pass_is_reported(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash before the report the next run serves it; after a crash before the claim the retry claims it."""
    request = requested(pipeline, 1, operations="compact")
    item, plan = pipeline.begin(operations="compact")
    assert plan.requested_ms == 1
    pipeline.run(item, "compact")
    assert pending(pipeline) == (request,)
    with monkeypatch.context() as patch:
        patch.setattr(type(pipeline.deployment.state.requests), "claim", broken)
        patch.setattr(reports, "_PAUSES_S", ())
        (shown,) = pipeline.report()["tables"]
        assert shown["summary"] == "cannot report the pass: StorageError: it crashed"
    assert pending(pipeline) == (request,)
    pipeline.report()
    assert pending(pipeline) == ()
    assert len(pipeline.journal(item)) == 1


def test_a_pass_serves_the_requests_from_before_its_newest_plan(pipeline: Pipeline) -> None:
    """Unless its settings differ."""
    requested(pipeline, 1)
    item, plan = pipeline.begin()
    newer = requested(pipeline, 2)
    pipeline.run(item, *plan.routes)
    pipeline.report()
    assert pending(pipeline) == (newer,)
    item, _ = pipeline.begin("run-2")
    newest = requested(pipeline, 3)
    pipeline.plan(item, "run-2")
    pipeline.report("run-2")
    assert pending(pipeline) == ()
    request = requested(pipeline, newest.requested_ms + 1, operations="expire_snapshots")
    pipeline.begin("run-3", operations="compact")
    pipeline.report("run-3")
    assert pending(pipeline) == (request,)


def test_a_request_that_cannot_be_served_is_answered_once(pipeline: Pipeline) -> None:
    """A request filed after the mistake was found stays, because the mistake may be corrected since."""
    request = requested(pipeline, 1, min_input_files="2")
    (item,) = pipeline.detect(table="ns.t", settings={"min_input_files": "2"})[1]
    with pipeline.table.table.transaction() as transaction:
        transaction.set_properties({"icekeeper.max_snapshots_to_keep": "few"})
    with pytest.raises(PolicyError):
        pipeline.plan(item)
    assert pending(pipeline) == (request,)
    newer = requested(pipeline, 2)
    pipeline.report()
    assert pending(pipeline) == (newer,)

    with pipeline.table.table.transaction() as transaction:
        transaction.set_properties({"icekeeper.max_snapshots_to_keep": "9"})
    (item,) = pipeline.detect("run-2", table="ns.t")[1]
    pipeline.table.pyiceberg.drop_table("ns.t")
    pipeline.plan(item, "run-2")
    assert pending(pipeline) == (newer,)
    pipeline.report("run-2")
    assert pending(pipeline) == ()


# Which step runs as a Glue job: large work, and work that a function did not finish before.


def test_a_step_that_a_function_did_not_finish_becomes_a_glue_job(pipeline: Pipeline) -> None:
    """The step began and left no outcome: it ran out of time or memory."""
    in_functions(pipeline)
    item, plan = pipeline.begin()
    assert (plan.routes["compact"], plan.routes["remove_orphans"]) == ("function", "function")
    note = pipeline.control / f"{table_folder('outgrown', item.identity.spelling)}.json"
    note.parent.mkdir(parents=True)
    for damaged in ("{", "{}", "7"):
        note.write_text(damaged)
        assert pipeline.plan(item).routes["compact"] == "function"
    for step in ("compact", "expire_snapshots"):
        (pipeline.control / pipeline.documents(item).folder / f"{step}.begun.json").write_text('{"snapshot_ids": []}')
    pipeline.documents(item).write_failure("remove_orphans", StorageError("the store is down"))
    pipeline.report()
    pipeline.clock.now_ms += HOUR_MS
    routes = pipeline.begin("run-2")[1].routes
    assert {step for step, route in routes.items() if route == "glue"} == {"compact", "expire_snapshots"}


def test_expiry_is_a_glue_job_above_its_limit_of_listed_manifests(pipeline: Pipeline) -> None:
    """All snapshots times the manifests of the head count, and nothing where no snapshot expires."""
    metadata = pipeline.table.metadata
    head = metadata.current_snapshot
    assert head is not None
    listed = len(metadata.snapshots) * len(pipeline.table.reader.manifests(head))
    (item,) = pipeline.detect(table="ns.t", operations="expire_snapshots")[1]

    def route(**environment: str) -> str:
        pipeline.deployment = pipeline.open(**environment)
        return pipeline.plan(item).routes["expire_snapshots"]

    assert route(ICEKEEPER_SMALL_EXPIRY=str(listed)) == "function"
    assert route(ICEKEEPER_SMALL_EXPIRY=str(listed - 1)) == "glue"
    assert route(ICEKEEPER_SMALL_EXPIRY="0", ICEKEEPER_MAX_SNAPSHOTS_TO_KEEP=str(len(metadata.snapshots))) == "function"
    # The function reports what is unreadable.
    Path(str(head.manifest_list).removeprefix("file://")).unlink()
    assert route(ICEKEEPER_SMALL_EXPIRY="0") == "function"


# The pipeline's scan.


def test_a_scan_continues_where_the_last_scan_of_the_same_part_stopped(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cursor, or with a damaged cursor, it begins at the start."""
    given: list[tuple[str, str] | None] = []
    stopped: list[tuple[str, str] | None] = [("local", "ns.a"), ("local", "ns.b"), None, ("local", "ns.c")]

    def stops(*arguments: Any, cursor: tuple[str, str] | None, **options: Any) -> FleetReport:
        given.append(cursor)
        at = stopped.pop(0) if stopped else None
        return FleetReport(scanned=1, listed=2, proposals=(), skipped=(), cursor=at, not_reached=1)

    monkeypatch.setattr("icekeeper.pipeline.detect_tables.detect", stops)
    for number, patterns in enumerate(["", "ns.b*", "", "ns.b*,ns.c", "ns.b*"]):
        pipeline.detect(f"run-{number}", **({"tables": patterns} if patterns else {}))
    assert given == [None, None, ("local", "ns.a"), None, ("local", "ns.b")]
    cursor = pipeline.control / "detection" / "cursor.json"
    assert json.loads(cursor.read_text()) == {"after": {"ns.b*,ns.c": ["local", "ns.c"]}}
    for damaged in ("", '{"after": {"*": ["loc', "[]", "{}", '{"after": "ns.t"}', '{"after": {"*": ["ns.t"]}}'):
        cursor.write_text(damaged)
        pipeline.detect("run-9")
    assert given[5:] == [None] * 6


# ``now()`` in a filter means the start of the run in every step.

TODAY = date(2096, 10, 2)
YESTERDAY = TODAY - timedelta(days=1)
MIDNIGHT = datetime(2096, 10, 3, tzinfo=UTC)
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", DateType()))
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))


class DatedTable(MaintainedTable):
    def add(self, files: int, day: date) -> None:
        for number in range(files):
            self.table.append(pa.table({"id": pa.array([number], pa.int64()), "day": pa.array([day], pa.date32())}))

    def files_by_day(self) -> dict[date, int]:
        """Count the files of each day."""
        days = [date(1970, 1, 1) + timedelta(days=int(file.partition[0] or 0)) for file in self.data_files()]
        return {day: days.count(day) for day in days}


@pytest.fixture
def pipeline_of_days(local_catalog: SqlCatalog, tmp_path: Path) -> Pipeline:
    table = DatedTable(our_catalog(tmp_path), tmp_path, pyiceberg=local_catalog)
    table.create(SCHEMA, partition_spec=SPEC)
    for day in (YESTERDAY, TODAY):
        table.add(2, day)
    return Pipeline(table, tmp_path)


def test_a_step_after_midnight_works_on_the_day_of_its_run(pipeline_of_days: Pipeline) -> None:
    table = pipeline_of_days.table
    assert isinstance(table, DatedTable)
    started_ms = pipeline_of_days.clock.now_ms = int(MIDNIGHT.timestamp() * 1000) - 1000
    wanted: dict[str, Any] = {"settings": {"where": "day < current_date"}, "operations": "compact"}
    item, plan = pipeline_of_days.begin(**wanted)
    assert plan.started_ms == started_ms
    pipeline_of_days.clock.now_ms += 60_000
    work = replace(pipeline_of_days.work(item), started_ms=started_ms)
    assert run_steps(work, ["compact"]) == {"compact": "succeeded: compacted 2 files into 1 (across 1 bins)"}
    assert table.files_by_day() == {YESTERDAY: 1, TODAY: 2}
    # The next run starts on the next day.
    pipeline_of_days.report()
    item, _ = pipeline_of_days.begin("run-2", **wanted)
    pipeline_of_days.run(item, "compact", run_id="run-2")
    assert table.files_by_day() == {YESTERDAY: 1, TODAY: 1}
