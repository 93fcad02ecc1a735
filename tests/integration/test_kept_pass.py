"""What a pass in one call writes and asks for, exactly, and that a crash at any moment is told as before (rule 158)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.pipeline import run_step as run_step_module
from icekeeper.pipeline import whole_pass
from icekeeper.pipeline.control_bucket import ControlBucket, table_folder
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.report_table import TableReport
from icekeeper.pipeline.run_leases import release_table_lease
from icekeeper.pipeline.whole_pass import CallLimits, WholePass, WholePassEvent, run_whole_pass
from icekeeper.state.dynamodb.store import DynamoStateStore
from local_stack.moto_server import MotoServer
from support.pipeline_deployment import RUN, Pipeline
from support.state_stores import a_table

ALL_STEPS = ["compact", "rewrite_position_deletes", "expire_snapshots", "remove_orphans", "rewrite_manifests"]


class Dies(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def may_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a table bucket, where nobody deletes objects; the folder of these tests is none."""
    monkeypatch.setattr(whole_pass, "is_table_bucket", lambda _: True)


@contextmanager
def traffic() -> Iterator[Counter[str]]:
    """What is written to the control bucket and asked of it, by kind and name."""
    seen: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("write", "find", "read"):
            real = getattr(ControlBucket, kind)

            def note(self: ControlBucket, key: str, *given: Any, _kind: str = kind, _real: Any = real) -> Any:
                seen[f"{_kind} {key.rpartition('/')[2]}"] += 1
                return _real(self, key, *given)

            patch.setattr(ControlBucket, kind, note)
        yield seen


def proposed(pipeline: Pipeline, run_id: str = RUN) -> Item:
    (item,) = pipeline.detect(run_id)[1]
    return item


def call(pipeline: Pipeline, item: Item, run_id: str = RUN) -> WholePass:
    """One call, as a process of its own."""
    pipeline.deployment = pipeline.deployment.keeping(run_id, item)
    limits = CallLimits(max_bytes=2**40, time_left_s=lambda: 3600.0, sleep=lambda _: None)
    return run_whole_pass(pipeline.deployment, WholePassEvent(run_id=run_id, item=item), LocalEngine(1), limits)


def whole(pipeline: Pipeline, item: Item, run_id: str = RUN) -> TableReport:
    """A call with its report, as the function makes them."""
    done = call(pipeline, item, run_id)
    assert (done.left, done.failures) == ((), {})
    report = pipeline.report(item, done.plan, run_id)
    assert release_table_lease(pipeline.deployment, run_id, item)
    return report


def told(report: TableReport) -> dict[str, tuple[str, int]]:
    assert report.outcome is not None
    return {one.operation.value: (one.status.value, len(one.snapshot_ids)) for one in report.outcome.operations}


def test_a_pass_writes_what_it_did_as_it_is_done_and_its_report_at_the_end(pipeline: Pipeline) -> None:
    item = proposed(pipeline)
    with traffic() as seen:
        report = whole(pipeline, item)
    assert list(told(report)) == ALL_STEPS
    did = [step for step, (status, _) in told(report).items() if status != "skipped"]
    assert did == ["compact", "expire_snapshots", "remove_orphans", "rewrite_manifests"]
    assert {name: count for name, count in seen.items() if name.startswith("write")} == {
        "write compact.begun.json": 1,  # what a killed call leaves behind (rule 162)
        "write plan.json": len(did),
        "write pass.json": 1,
    }
    assert {name: count for name, count in seen.items() if not name.startswith("write")} == {
        "find plan.json": 1,  # was anything begun before?
        "find list_orphans.json": 1,
        f"find {_outgrown(item)}": 1,
    }


def _outgrown(item: Item) -> str:
    return f"{table_folder('outgrown', item.identity.spelling)}.json".rpartition("/")[2]


def test_a_pass_without_work_writes_its_report_only(pipeline: Pipeline) -> None:
    item = proposed(pipeline)
    whole(pipeline, item)
    with traffic() as seen:
        idle = whole(pipeline, replace_detected(item, pipeline), "run-2")
    assert set(told(idle).values()) <= {("skipped", 0), ("succeeded", 0)}
    assert seen["write pass.json"] == 1
    assert {name for name in seen if name.startswith("write")} <= {"write pass.json", "write plan.json"}


def replace_detected(item: Item, pipeline: Pipeline) -> Item:
    """The item as if it had been detected just now."""
    pipeline.clock.now_ms += 1
    return item.model_copy(update={"detected_ms": pipeline.clock.now_ms})


def test_who_asked_for_a_pass_finds_its_plan(pipeline: Pipeline) -> None:
    (item,) = pipeline.detect(table="ns.t")[1]
    with traffic() as seen, pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_pass, "run_step", dies)
        with pytest.raises(Dies):
            call(pipeline, item)
    assert seen["write plan.json"] == 1
    assert pipeline.document(item, "plan.json")["routes"]["compact"] == "function"


def dies(*_: object, **__: object) -> None:
    raise Dies


def test_a_crash_behind_a_commit_is_told_by_a_repetition_of_the_call(pipeline: Pipeline) -> None:
    item = proposed(pipeline)
    landed = crash_behind_the_commit(pipeline, item)
    report = whole(pipeline, item)
    assert f"compact: committed by an earlier attempt: {landed}" in report.summary
    assert report.outcome is not None
    assert report.outcome.metrics["compact.files_merged"] == 5
    assert told(report)["compact"] == ("succeeded", 1)
    assert len(pipeline.journal(item)) == 1


def test_a_crash_behind_a_commit_is_told_by_the_states_that_follow(pipeline: Pipeline) -> None:
    """The call kept no record of what it had begun; the snapshot says which operation of which run made it."""
    item = proposed(pipeline)
    landed = crash_behind_the_commit(pipeline, item)
    pipeline.deployment = pipeline.open()
    plan = pipeline.plan(item)
    assert plan.routes["compact"] == "function"
    assert pipeline.run(item, plan, "compact")["summary"] == f"committed by an earlier attempt: {landed}"
    assert pipeline.document(item, "compact.begun.json") == {"snapshot_ids": []}


def crash_behind_the_commit(pipeline: Pipeline, item: Item) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_step_module, "_finish", dies)
        with pytest.raises(Dies):
            call(pipeline, item)
    landed = pipeline.table.table.refresh().current_snapshot()
    assert landed is not None
    assert landed.summary is not None
    assert (landed.summary["icekeeper.run-id"], landed.summary["icekeeper.operation"]) == (RUN, "compact")
    return int(landed.snapshot_id)


@pytest.mark.parametrize("follows", ["a repetition", "states"])
def test_a_crash_between_two_steps_loses_no_outcome(pipeline: Pipeline, follows: str) -> None:
    item = proposed(pipeline)
    first_head = pipeline.table.table.refresh().current_snapshot()
    crash_before(pipeline, item, "expire_snapshots")
    pipeline.table.fill(2, start=50)  # what compaction has not looked at must be news
    if follows == "states":
        pipeline.deployment = pipeline.open()
        plan = pipeline.plan(item)
        assert plan.routes["compact"] == "none"
        for step in ALL_STEPS[1:]:
            pipeline.run(item, plan, step)
        report = pipeline.report(item, plan)
    else:
        report = whole(pipeline, item)
    assert told(report)["compact"] == ("succeeded", 1)
    assert report.outcome is not None
    assert report.outcome.metrics["compact.files_merged"] == 5
    assert "compact: compacted 5 files into 1" in report.summary
    seen = pipeline.deployment.state.last_seen(item.identity)
    assert seen is not None
    assert first_head is not None
    assert seen.snapshot_id == first_head.snapshot_id


def crash_before(pipeline: Pipeline, item: Item, step: str) -> None:
    real = run_step_module.run_step

    def steps(deployment: Any, event: Any, *given: Any, **options: Any) -> Any:
        if event.step == step:
            raise Dies
        return real(deployment, event, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_pass, "run_step", steps)
        with pytest.raises(Dies):
            call(pipeline, item)


def test_a_lease_is_prolonged_by_one_request_and_only_where_it_must_be_sure(
    pipeline: Pipeline, moto_dynamodb: MotoServer
) -> None:
    """Before each operation, each swap and each batch of deletions (rule 70), and nowhere else."""
    table = a_table(moto_dynamodb)
    pipeline.deployment = replace(pipeline.deployment, state=DynamoStateStore(table))
    item = proposed(pipeline)
    asked: Counter[str] = Counter()

    def note(params: dict[str, Any], model: Any, **_: Any) -> None:
        leases = {found for found in ("slot", "table") if f"lease#{names[found]}" in str(params)}
        asked.update(f"{model.name} {found}" for found in leases)

    names = {"slot": "slot-", "table": item.identity.lease_key}
    table.client.meta.events.register("before-parameter-build.dynamodb", note)
    swaps, deletions = 3, 1  # of compact, expire_snapshots and rewrite_manifests; what expiry freed
    whole(pipeline, item)
    table.client.meta.events.unregister("before-parameter-build.dynamodb", note)
    assert asked == {
        "GetItem slot": 4 + 1 + 1,  # which of the four it has; the first, to take it; to give it back
        "TransactWriteItems slot": 2,
        "GetItem table": 2,
        "TransactWriteItems table": 2,
        "UpdateItem table": len(ALL_STEPS) - 1 + swaps + deletions,  # planning finds no deletes to merge
    }
