"""Documents that a run's report and a second plan find by their key alone, changed by hand (rule 188)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from icekeeper.errors import StorageError
from icekeeper.pipeline.control_bucket import proposals_key, table_folder
from icekeeper.pipeline.events import Item, ReportRunEvent
from icekeeper.pipeline.one_call import RestEvent, take_up_rest
from icekeeper.pipeline.report_table import report_run, was_scan
from support.pipeline_deployment import RUN, Pipeline

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
