"""The pipeline rejects forged inputs and documents that were changed by hand (rule: documents-are-not-trusted)."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.sql import SqlCatalog as SqlTables
from icekeeper.errors import OperationRefused, PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.pipeline.control_bucket import ListedOrphans, proposals_key, table_folder
from icekeeper.pipeline.events import Item, MachineInput, ReportEvent, parse_event
from icekeeper.pipeline.report import report_run
from icekeeper.pipeline.request_pass import file_request
from icekeeper.pipeline.run_leases import held_table
from icekeeper.runtime import Runtime
from icekeeper.state.leases import slot_keys
from icekeeper.state.requests import MaintenanceRequest
from support.pipeline_deployment import RUN, Pipeline

# Faults that attacks on the pipeline found; each docstring states the harm.

JOBS = Path(__file__).parents[2] / "glue_jobs"


def test_orphans_listed_under_another_policy_are_not_removed(pipeline: Pipeline) -> None:
    """The listing has checked the share of deleted files, for a stale plan against another limit."""
    folder = Path(pipeline.table.table.location().removeprefix("file://")) / "data"
    orphans = [folder / f"left-{number}.parquet" for number in range(30)]
    for orphan in orphans:
        orphan.write_bytes(b"left")
    pipeline.deployment = pipeline.open(ICEKEEPER_REQUESTS_MAY="orphan_max_delete_ratio")
    item, _ = pipeline.begin(settings={"orphan_max_delete_ratio": "1"})
    count, listed = pipeline.list_orphans(item)
    assert count == 30
    careful = item.model_copy(update={"settings": {"orphan_max_delete_ratio": "0.1"}})
    shown = pipeline.run(careful, "remove_orphans", listed=listed)
    assert shown["remove_orphans"].startswith("left to a later run: the policy of ns.t changed")
    pipeline.plan(careful)
    answer = pipeline.run(careful, "remove_orphans")  # by a job, which lists by itself
    assert answer["remove_orphans"].startswith("refused")
    assert all(orphan.exists() for orphan in orphans)


def test_a_request_larger_than_a_payload_does_not_stop_the_fleet(pipeline: Pipeline) -> None:
    """One item above 256 KB ended the Map of every run; the request stayed, because no run could claim it."""
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


def test_the_name_of_an_ended_run_is_refused(pipeline: Pipeline) -> None:
    """A new run took the old documents for its own: every step counted as done, and the pass succeeded without work."""
    item, _ = pipeline.begin()
    pipeline.run(item, "compact")
    pipeline.report()
    with pytest.raises(OperationRefused, match=r"^a run named run-1 has already ended"):
        pipeline.detect(table="ns.t")


@pytest.mark.parametrize("script", sorted(path.name for path in JOBS.glob("*.py")))
def test_a_successful_job_returns_without_sys_exit(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Glue may take SystemExit for a failure, even with code 0."""
    monkeypatch.setattr("icekeeper.pipeline.glue_job.start_logging", lambda: None)
    monkeypatch.setattr("icekeeper.pipeline.glue_job.run_job", lambda *_: 0)
    runpy.run_path(str(JOBS / script), run_name="__main__")
    monkeypatch.setattr("icekeeper.pipeline.glue_job.run_job", lambda *_: 1)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JOBS / script), run_name="__main__")
    assert ended.value.code == 1


def test_a_request_cannot_extend_a_lease_to_years(pipeline: Pipeline) -> None:
    """The lease of a stopped run barred the table, and its slot barred the fleet, for years."""
    filed = {"job_timeout_s": "999999999", "job_retry_limit": "9"}
    request = MaintenanceRequest(identity=pipeline.identity, requested_ms=1, settings=filed)
    pipeline.deployment.state.requests.file(request)
    (item,) = pipeline.detect()[1]
    pipeline.plan(item)
    held_table(pipeline.deployment, RUN, item).__enter__()  # the function is killed
    soon_ms = pipeline.clock.now_ms + 20 * 60_000
    for key in (*slot_keys(4), item.identity.lease_key):
        assert pipeline.deployment.state.leases.current(key, now_ms=soon_ms) is None


def test_a_table_has_one_lease_in_any_spelling(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Glue folds names to lower case; a forced run in capitals maintained the table beside a scheduled run."""
    load = SqlTables.load

    def folded(self: SqlTables, table: TableName) -> LoadedTable:
        return load(self, TableName.parse(str(table).lower()))

    monkeypatch.setattr(SqlTables, "load", folded)
    (item,) = pipeline.detect(table="NS.T")[1]
    assert item.identity == pipeline.identity


# Documents of the control bucket that were changed by hand (rule: documents-are-not-trusted).


def folder_of(pipeline: Pipeline, item: Item) -> Path:
    return pipeline.control / table_folder(RUN, item.identity.spelling)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data[:100], id="truncated"),
        pytest.param(lambda data: b"[]", id="another shape"),
        pytest.param(lambda data: data.replace(b'"glue"', b'"anywhere"'), id="another route"),
        pytest.param(lambda data: data.replace(b'"head_id":', b'"head_id":"x","head":'), id="another type"),
        pytest.param(lambda data: b'{"started_ms": 1' + b"0" * 30 + b"}", id="another age"),
    ],
)
def test_a_damaged_plan_is_refused(pipeline: Pipeline, change: Callable[[bytes], bytes]) -> None:
    item, _ = pipeline.begin()
    before, path = pipeline.table.files(), folder_of(pipeline, item) / "plan.json"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(StorageError, match=r"plan\.json (was changed after this run wrote it|is not a JSON document)"):
        pipeline.run(item, "compact")
    assert pipeline.table.files() == before


def test_a_forged_plan_cannot_exceed_the_policy(pipeline: Pipeline) -> None:
    """Every step reads the table's policy again and works on its newest head."""
    item, plan = pipeline.begin(operations="compact")
    orphan, rows = pipeline.table.plant("data/orphan.parquet"), pipeline.table.rows()
    routes = dict.fromkeys(("expire_partitions", "remove_orphans", "clean_staged", "compute_statistics"), "function")
    forged = {**plan.model_dump(mode="json"), "routes": routes}
    path = folder_of(pipeline, item) / "plan.json"
    path.write_text(json.dumps(forged))
    shown = pipeline.run(item, *routes)
    assert shown == {
        step: "no files of failed loads to clean"
        if step == "clean_staged"
        else f"left to a later run: the policy of ns.t does not include {step}"
        for step in routes
    }
    assert pipeline.list_orphans(item) == (0, None)
    assert orphan in pipeline.table.files()
    assert pipeline.table.rows() == rows


def test_only_orphans_of_the_table_are_deleted(pipeline: Pipeline, tmp_path: Path) -> None:
    """The list also names another table's file, a stray file, live files, a path with ``..``, and folders."""
    item, _ = pipeline.begin()
    location, orphan = pipeline.table.metadata.location, pipeline.table.plant("data/orphan.parquet")
    outside, neighbour = tmp_path / "outside.parquet", tmp_path / "warehouse" / "ns" / "u" / "data" / "x.parquet"
    neighbour.parent.mkdir(parents=True)
    for path in (outside, neighbour):
        path.write_bytes(b"x")
    paths = [str(outside), outside.as_uri(), neighbour.as_uri(), f"{location}/data/../../u/data/x.parquet"]
    paths += [*pipeline.table.live_files(), pipeline.table.metadata_location, location, f"{location}/data", ""]
    document = ListedOrphans(
        paths=[*paths, orphan, orphan], metrics={"remove_orphans.files_listed": -(10**30)}, refused=None
    )
    listed = pipeline.documents(item).write_listed(document)
    before = pipeline.table.files()
    done = pipeline.run(item, "remove_orphans", listed=listed)
    assert (outside.exists(), neighbour.exists()) == (True, True)
    assert before - pipeline.table.files() == {orphan}
    assert (
        done["remove_orphans"].partition("; 1 unreferenced file(s), such as ")[0]
        == "succeeded: removed 1 orphan file(s)"
    )


@pytest.mark.parametrize(
    ("step", "name", "document"),
    [
        ("compact", "compact", 7),
        ("compact", "compact", {"summary": "s"}),
        ("compact", "compact.begun", {}),
        ("compact", "compact.begun", {"snapshot_ids": [1, None]}),
    ],
)
def test_a_malformed_document_is_refused_with_one_sentence(
    pipeline: Pipeline, step: str, name: str, document: Any
) -> None:
    item, _ = pipeline.begin()
    before = pipeline.table.files()
    (folder_of(pipeline, item) / f"{name}.json").write_text(json.dumps(document))
    with pytest.raises(
        StorageError, match=rf"/{name}\.json was changed after this run wrote it \(.*\); start another run$"
    ):
        pipeline.run(item, step)
    assert pipeline.table.files() == before


def test_a_deeply_nested_document_is_refused(pipeline: Pipeline) -> None:
    (pipeline.control / "runs").mkdir(parents=True)
    (pipeline.control / "runs" / "deep.json").write_text("[" * 100_000)
    with pytest.raises(StorageError, match=r"deep\.json is not a JSON document: "):
        pipeline.deployment.control.find("runs/deep.json")
    assert pipeline.deployment.control.find_hint("runs/deep.json") is None


# Documents without a digest, which the report and a second plan find by key, changed by hand
# (rule: documents-are-not-trusted).

CHANGED = r"was changed after this run wrote it \(.*\); start another run$"


def change(pipeline: Pipeline, item: Item, name: str, document: Any) -> None:
    (pipeline.control / table_folder(RUN, item.identity.spelling) / name).write_text(json.dumps(document))


@pytest.mark.parametrize("document", [7, {}, [7], [{"table": "ns.t"}]])
def test_malformed_proposals_are_refused_with_one_sentence(pipeline: Pipeline, document: Any) -> None:
    pipeline.begin()
    (pipeline.control / proposals_key(RUN)).write_text(json.dumps(document))
    for read in (pipeline.gather, lambda: report_run(pipeline.deployment, ReportEvent(run_id=RUN))):
        with pytest.raises(StorageError, match=rf"/proposals\.json {CHANGED}"):
            read()
