"""Two calls under one run's id at the same time: no row and no count is lost (rule 155)."""

from __future__ import annotations

from typing import Any

from icekeeper.machine.clock import Clock, system_clock
from icekeeper.pipeline.deployment import Deployment
from icekeeper.storage.storage import store_now_ms
from support.moments import Moment, at
from support.pipeline_deployment import Pipeline


def beside_a_commit(pipeline: Pipeline, other: str) -> tuple[Any, Any]:
    """What the other call's step and the compaction answered, whose commit was under way meanwhile."""
    item, plan = pipeline.begin()
    answers: list[Any] = []
    with at(Moment.BEFORE_COMMIT, lambda: answers.append(pipeline.run(item, plan, other))):
        compacted = pipeline.run(item, plan, "compact")
    pipeline.report(item, plan)
    return answers[0], compacted


def by_the_stores_clock(pipeline: Pipeline, clock: Clock) -> None:
    pipeline.deployment = Deployment.open(pipeline.environment, clock=clock, store_clock=store_now_ms)


def test_a_sweep_leaves_the_files_of_the_other_calls_commit(pipeline: Pipeline) -> None:
    by_the_stores_clock(pipeline, system_clock)
    before = pipeline.table.rows()
    swept, compacted = beside_a_commit(pipeline, "remove_orphans")
    assert (swept["status"], swept["summary"]) == ("succeeded", "removed 0 orphan file(s)")
    assert compacted["status"] == "succeeded"
    assert (pipeline.table.problems(), pipeline.table.rows()) == ({}, before)


def test_a_sweep_by_a_clock_of_2096_is_refused(pipeline: Pipeline) -> None:
    by_the_stores_clock(pipeline, pipeline.clock)
    before = pipeline.table.rows()
    swept, compacted = beside_a_commit(pipeline, "remove_orphans")
    assert (swept["status"], compacted["status"]) == ("refused", "succeeded")
    assert (pipeline.table.problems(), pipeline.table.rows()) == ({}, before)


def test_the_call_that_was_overtaken_tells_what_the_other_committed(pipeline: Pipeline) -> None:
    before = pipeline.table.rows()
    first, second = beside_a_commit(pipeline, "compact")
    assert (first["status"], second["status"]) == ("succeeded", "failed")
    (told,) = pipeline.deployment.state.history(pipeline.identity)
    assert (told.metrics["compact.files_merged"], told.metrics["compact.files_written"]) == (5, 1)
    assert (pipeline.table.problems(), pipeline.table.rows()) == ({}, before)


def test_the_call_that_finds_nothing_to_do_tells_what_the_other_committed(pipeline: Pipeline) -> None:
    before = pipeline.table.rows()
    item, plan = pipeline.begin()
    with at(Moment.OPERATION_STARTED, lambda: pipeline.run(item, plan, "compact")):
        second = pipeline.run(item, plan, "compact")
    assert second["status"] == "succeeded"
    pipeline.report(item, plan)
    (told,) = pipeline.deployment.state.history(pipeline.identity)
    assert (told.metrics["compact.files_merged"], told.metrics["compact.files_written"]) == (5, 1)
    assert (pipeline.table.problems(), pipeline.table.rows()) == ({}, before)
