"""Gather the work of each stage of a run from the plans of its tables."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from icekeeper.errors import StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.operation_facts import STEP_FACTS, Stage, StepFacts
from icekeeper.pipeline.control_bucket import (
    PassDocuments,
    PlanDocument,
    StageItem,
    Work,
    WorkTable,
    is_damaged,
    proposals_key,
    stage_key,
)
from icekeeper.pipeline.deployment import WORKER_TYPE, Deployment, travelling_environment
from icekeeper.pipeline.events import Item, Route, RunEvent
from icekeeper.pipeline.wave import in_order, run_size

log = logging.getLogger(__name__)

JOB_STAGES = tuple(dict.fromkeys(step.job.stage for step in STEP_FACTS if step.job is not None))
"""The stages that each are a single run of a Glue job; the others are lists of tables for functions."""
_READERS = 16
"""How many plans are read at once: each read is a request that mostly waits."""
_Planned: TypeAlias = tuple[Item, PlanDocument, tuple[str, ...]]
"""A table with its plan, and the steps that a stage does."""


def gather(deployment: Deployment, event: RunEvent) -> Mapping[str, Any]:
    """Write the work of each stage to the control bucket; return stage → where the work is stored, and how much it is.

    A stage without work has a ``count`` of 0 and nothing else. A table that could not be planned is in no stage; the
    report of the run says why.

    Raises:
        StorageError: the control bucket does not answer.
    """
    control = deployment.control
    items = control.find_objects(proposals_key(event.run_id), Item)
    with WorkThreads(_READERS, thread_name_prefix="icekeeper-gather") as threads:
        futures = [threads.submit(_plan_of, PassDocuments(control, event.run_id, item), item) for item in items]
        plans = [
            (item, plan) for item, found in zip(items, futures, strict=True) if (plan := found.result()) is not None
        ]
    answer: dict[str, Mapping[str, Any]] = {}
    for stage in Stage:
        work = [(item, plan, steps) for item, plan in plans if (steps := steps_in(stage, plan.routes))]
        write = _job if stage in JOB_STAGES else _list
        answer[stage.value] = write(deployment, event, stage, work) if work else {"count": 0}
    return answer


def _plan_of(documents: PassDocuments, item: Item) -> PlanDocument | None:
    """The plan of a table; ``None`` if it has none or the document is malformed, which must not stop other tables."""
    try:
        return documents.plan()
    except StorageError as error:
        if not is_damaged(error):
            raise
        log.error("%s is left out: %s", item.table, error)
        return None


def steps_in(stage: Stage, routes: Mapping[str, Route]) -> tuple[str, ...]:
    """The steps of a plan that belong to a stage, in canonical order."""
    return tuple(step for step, found in stages_of(routes).items() if found is stage)


def stages_of(routes: Mapping[str, Route]) -> Mapping[str, Stage]:
    """The stage of each step that a plan runs, in canonical order: the first that can run the step and is not before
    the stage of an earlier step.

    A step without such a stage does not run; only a plan that somebody changed has one.
    """
    stages, found = list(Stage), dict[str, Stage]()
    for step in STEP_FACTS:
        able = _able(step, routes.get(step.name, "none"))
        stage = next((stage for stage in stages if stage in able), None)
        if stage is not None:
            found[step.name] = stage
            del stages[: stages.index(stage)]
    return found


def _able(step: StepFacts, route: Route) -> Collection[Stage | None]:
    """The stages that can run a step with this route."""
    if route == "glue" and step.job is not None:
        return (step.job.stage,)
    return () if route == "none" else (step.stage, step.later_stage)


def _list(deployment: Deployment, event: RunEvent, stage: Stage, work: Sequence[_Planned]) -> Mapping[str, Any]:
    tables = [StageItem(item=item, steps=dict.fromkeys(steps, "function")) for item, _, steps in work]
    key = stage_key(event.run_id, stage)
    deployment.control.write(key, [table.model_dump(mode="json") for table in tables])
    return {"bucket": deployment.control.name, "key": key, "count": len(tables)}


def _job(deployment: Deployment, event: RunEvent, stage: Stage, work: Sequence[_Planned]) -> Mapping[str, Any]:
    tables = in_order(
        WorkTable(item=item, steps=steps, size_bytes=plan.size_bytes, manifest_bytes=plan.manifest_bytes)
        for item, plan, steps in work
    )
    is_compaction = stage is Stage.COMPACTION  # the others read metadata, which is small compared with data
    size_bytes = sum(table.size_bytes for table in tables) if is_compaction else 0
    sorted_bytes = max(plan.sorted_bytes for _, plan, _ in work) if is_compaction else 0
    settings = deployment.settings
    workers, worker_type = run_size(size_bytes, sorted_bytes, settings.worker_type, settings.max_workers)
    document = Work(
        run_id=event.run_id,
        started_ms=event.started_ms,
        stage=stage,
        tables=tables,
        workers=workers,
        environment={**travelling_environment(deployment.environment), WORKER_TYPE: worker_type},
    )
    key = stage_key(event.run_id, stage)
    digest = deployment.control.write(key, document.model_dump(mode="json"))
    # A person waits for a requested table.
    is_urgent = any(table.item.forced and not table.item.is_scheduled for table in tables)
    execution_class = "STANDARD" if is_urgent else settings.execution_class
    return {
        "key": key,
        "digest": digest,
        "count": len(tables),
        "workers": workers,
        "worker_type": worker_type,
        "execution_class": execution_class,
    }
