"""Documents of the control bucket that somebody has changed by hand (rule 188)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icekeeper.errors import OperationRefused, StorageError
from icekeeper.pipeline.control_bucket import table_folder
from icekeeper.pipeline.events import Item
from support.pipeline_deployment import RUN, Pipeline


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
