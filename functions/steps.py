"""The steps of a table's pass that a function carries out, and what a function has for them: engine, memory, time."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.operation_facts import Limit, Operation
from icekeeper.pipeline.events import TableEvent, parse_event
from icekeeper.pipeline.run_step import TableWork, run_steps, steps_for
from idempotency import once
from observability import about, deployment, logger

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

# An eighth of a function's memory is spare: packages take a sixth of 1.5 GB, and so does a row group with its encoded
# bytes.
_SPARE_SHARE = 8


def carry_out(step: str, event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Do a step of a table's pass, and the steps that are done with it, as far as the plan assigns them to a function.

    Raises:
        PolicyError: the event is malformed.
        MaintenanceError: as ``run_steps``; the state machine retries, or continues without this step.
    """
    asked = parse_event(TableEvent, event)
    about(asked.item)
    work = table_work(step, asked, context)

    def call() -> dict[str, Any]:
        plan = work.documents.plan()
        sentences = run_steps(work, steps_for(plan, step), plan)
        for name, sentence in sentences.items():
            logger.info("%s: %s", name, sentence)
        return dict(sentences)

    return once(step, table_key(asked), context, call)


def table_work(step: str, asked: TableEvent, context: LambdaContext) -> TableWork:
    """The part of a table's pass that this call does."""
    return TableWork(
        deployment=deployment(),
        run_id=asked.run_id,
        started_ms=asked.started_ms,
        item=asked.item,
        engine=local_engine(),
        max_bytes=_most_bytes() if step == Operation.COMPACT else None,
        time_left_s=time_left(context),
        listed=asked.listed,
    )


def _most_bytes() -> int:
    """How many bytes a function can rewrite: more than the plan assigns, because tables grow before it runs."""
    return 2 * deployment().settings.limits[Limit.COMPACTION_BYTES]


def local_engine() -> LocalEngine:
    """The engine of a function: Lambda has no shared memory for a pool of processes."""
    return LocalEngine(processes=1, cores=_cores(), spare_bytes=_memory_mb() * 2**20 // _SPARE_SHARE)


def time_left(context: LambdaContext) -> Callable[[], float]:
    """A function that returns the seconds until Lambda ends this call."""
    return lambda: float(context.get_remaining_time_in_millis()) / 1000


def _cores() -> int:
    """How many whole cores this function has: one per 1,769 MB (AWS Lambda developer guide, "Memory")."""
    return max(1, _memory_mb() // 1769)


def _memory_mb() -> int:
    return int(os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "0"))


def table_key(asked: TableEvent) -> dict[str, str]:
    """The key that two attempts at the same work share."""
    return {"run_id": asked.run_id, "table": asked.item.identity.spelling}
