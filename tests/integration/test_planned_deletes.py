"""Where the manifest list has no deletes, the plan tells that there are none to merge, and no step is invoked."""

from __future__ import annotations

from support.deletes import commit_deletes, position_delete
from support.pipeline_deployment import Pipeline

MERGE = "rewrite_position_deletes"


def test_without_deletes_the_plan_says_so(pipeline: Pipeline) -> None:
    item, plan = pipeline.begin()
    assert plan.routes[MERGE] == "none"
    outcome = pipeline.document(item, "plan.json")["outcomes"][MERGE]
    assert (outcome["status"], outcome["reason"]) == ("skipped", "no position delete files eligible for merging")
    report = pipeline.report(item, plan)
    assert report.outcome is not None
    assert MERGE in [one.operation.value for one in report.outcome.operations]


def test_with_deletes_the_step_looks_at_them(pipeline: Pipeline) -> None:
    path = pipeline.table.table.inspect.files()["file_path"][0].as_py()
    content, more = position_delete(path, 0, "")
    commit_deletes(pipeline.table, [(content, {**more, "partition": ()})])
    assert pipeline.begin()[1].routes[MERGE] != "none"
