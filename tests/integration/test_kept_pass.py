"""What a pass in one call reads and writes, exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.sql import SqlCatalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.model import TableName
from icekeeper.pipeline import run_step as run_step_module
from icekeeper.pipeline import whole_pass
from icekeeper.pipeline.control_bucket import ControlBucket, table_folder
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.report_table import TableReport
from icekeeper.pipeline.run_leases import release_table_lease
from icekeeper.pipeline.run_step import run_step
from icekeeper.pipeline.whole_pass import CallLimits, WholePass, WholePassEvent, run_whole_pass
from icekeeper.state.store import StateStore
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer
from support.maintained_table import MaintainedTable
from support.pipeline_deployment import RUN, Pipeline
from support.state_stores import a_table

# What a pass in one call writes and asks for, exactly, and that a crash at any moment is told as before
# (rule: record-outcomes-as-they-happen).

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
        "write compact.begun.json": 1,  # what a killed call leaves behind
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
    """Before each operation, each swap and each batch of deletions (rule: lost-lease-changes-nothing), and nowhere
    else."""
    table = a_table(moto_dynamodb)
    pipeline.deployment = replace(pipeline.deployment, state=StateStore(table))
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


# The steps of a pass in one call read each file once, and each asks which state the table is in
# (rule: cache-only-immutable-metadata).


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was read, by its name."""
    found: Counter[str] = Counter()

    real = Storage._open

    def opened(self: Storage, path: str) -> Any:
        found[path.rpartition("/")[2]] += 1
        return real(self, path)

    monkeypatch.setattr(Storage, "_open", opened)
    return found


def item_of(pipeline: Pipeline, run_id: str = RUN) -> Item:
    (item,) = pipeline.detect(run_id, table="ns.t")[1]
    return item


def in_one_call(pipeline: Pipeline, item: Item, run_id: str = RUN) -> WholePass:
    limits, event = CallLimits(2**40, lambda: 3600.0), WholePassEvent(run_id=run_id, item=item)
    done = run_whole_pass(pipeline.deployment, event, LocalEngine(1), limits)
    assert (done.failures, done.left) == ({}, ())
    assert release_table_lease(pipeline.deployment, run_id, item)
    return done


def names_in(table: MaintainedTable) -> set[str]:
    return {path.rpartition("/")[2] for path in table.files()}


def with_policy_file(pipeline: Pipeline, folder: Path) -> Path:
    file = folder / "policy.yaml"
    file.write_text("rules:\n- settings:\n    proof: full\n")
    pipeline.deployment = pipeline.open(ICEKEEPER_POLICY_FILE=str(file))
    return file


def test_each_file_is_read_once(pipeline: Pipeline, tmp_path: Path, reads: Counter[str]) -> None:
    with_policy_file(pipeline, tmp_path)
    before, data = names_in(pipeline.table), {file.file_path for file in pipeline.table.data_files()}
    item = item_of(pipeline)
    reads.clear()
    in_one_call(pipeline, item)
    # What the pass wrote is read back, once: a file that did not arrive must stop what deletes
    # (rule: cache-only-immutable-metadata).
    written = names_in(pipeline.table) - before
    assert {name: number for name, number in reads.items() if name in before | written and number > 1} == {}
    assert {path.rpartition("/")[2] for path in data} <= reads.keys()
    assert {name for name in written if name.endswith(".parquet")} <= reads.keys()


def test_another_call_reads_anew_what_people_configure(pipeline: Pipeline, tmp_path: Path, reads: Counter[str]) -> None:
    file = with_policy_file(pipeline, tmp_path)
    item = item_of(pipeline)
    reads.clear()
    in_one_call(pipeline, item)
    assert (reads["policy.yaml"], reads["pyiceberg.yaml"]) == (1, 1)
    file.write_text("rules:\n- settings:\n    operations: expire_snapshots\n")
    done = in_one_call(pipeline, item_of(pipeline, "run-2"), "run-2")
    assert {step for step, route in done.plan.routes.items() if route != "none"} == {"expire_snapshots"}


def test_what_others_commit_between_two_steps_is_seen(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata files are remembered, the pointer never is: each load tells where the catalog points now."""
    waiting = {"compact": (50, 51), "expire_snapshots": (60, 61), "rewrite_manifests": (70, 71)}
    real_load, item = SqlCatalog.load, item_of(pipeline)

    def overtaken(deployment: Any, event: Any, *arguments: Any, **options: Any) -> Any:
        if event.step in waiting:
            pipeline.table.append(*waiting.pop(event.step))
        return run_step(deployment, event, *arguments, **options)

    def load(self: SqlCatalog, name: TableName) -> LoadedTable:
        loaded = real_load(self, name)
        assert loaded.metadata_location == pipeline.table.table.metadata_location
        return loaded

    monkeypatch.setattr(whole_pass, "run_step", overtaken)
    monkeypatch.setattr(SqlCatalog, "load", load)
    ids = sorted([*pipeline.table.ids(), 50, 51, 60, 61, 70, 71])
    in_one_call(pipeline, item)
    assert waiting == {}
    assert pipeline.table.readers_agree() == ids
