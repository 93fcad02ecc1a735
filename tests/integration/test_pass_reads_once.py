"""The steps of a pass in one call read each file once, and each asks which state the table is in (rule 156)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.sql import SqlCatalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.model import TableName
from icekeeper.pipeline import whole_pass
from icekeeper.pipeline.events import Item
from icekeeper.pipeline.run_leases import release_table_lease
from icekeeper.pipeline.run_step import run_step
from icekeeper.pipeline.whole_pass import CallLimits, WholePass, WholePassEvent, run_whole_pass
from icekeeper.storage.storage import Storage
from support.maintained_table import MaintainedTable
from support.pipeline_deployment import RUN, Pipeline


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


@pytest.fixture(autouse=True)
def may_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a table bucket, where nobody deletes objects; the folder of these tests is none."""
    monkeypatch.setattr(whole_pass, "is_table_bucket", lambda _: True)


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
    # What the pass wrote is read back, once: a file that did not arrive must stop what deletes (rule 133).
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
