"""The handler that the functions of operations share: one table of a run, and what its plan has for this function."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import files_ahead  # noqa: F401 - this function reads files
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.operation_facts import Limit
from icekeeper.pipeline.events import TableEvent, parse_event
from icekeeper.pipeline.run_step import TableWork, run_steps, steps_for
from idempotency import once
from observability import about, deployment, logger

# Of a function's memory an eighth is spare: packages take a sixth of 1.5 GB, a row group and its encoded bytes as much.
_SPARE_SHARE = 8


def carry_out(event: dict[str, Any], context: Any, function: str, *, max_bytes: int | None = None) -> dict[str, Any]:
    """Run those steps of a table's pass that are this function's, by its folder, and that its plan has for a function.

    Raises:
        PolicyError: the event is malformed.
        MaintenanceError: as ``run_steps``; the state machine tries again, or goes on without this step.
    """
    asked = parse_event(TableEvent, event)
    about(asked.run_id, asked.item, step=function)
    work = replace(table_work(asked, context), max_bytes=max_bytes)

    def call() -> dict[str, Any]:
        told = run_steps(work, steps_for(work, function))
        for step, sentence in told.items():
            logger.info("%s: %s", step, sentence)
        return dict(told)

    return once(function, table_key(asked), context, call)


def table_work(asked: TableEvent, context: Any) -> TableWork:
    """What this call does of a table's pass."""
    return TableWork(
        deployment=deployment(),
        run_id=asked.run_id,
        started_ms=asked.started_ms,
        item=asked.item,
        engine=local_engine(),
        time_left_s=time_left(context),
        listed=asked.listed,
    )


def most_bytes() -> int:
    """How many bytes a function can rewrite: more than what is planned for one, because tables grow until it runs."""
    return 2 * deployment().settings.limits[Limit.COMPACTION_BYTES]


def local_engine() -> LocalEngine:
    """The engine of a function: Lambda has no shared memory for a pool of processes."""
    return LocalEngine(processes=1, cores=_cores(), spare_bytes=_memory_mb() * 2**20 // _SPARE_SHARE)


def time_left(context: Any) -> Callable[[], float]:
    """Seconds until Lambda ends this call, which asks for them anew each time."""
    return lambda: float(context.get_remaining_time_in_millis()) / 1000


def _cores() -> int:
    """How many whole cores this function has: one per 1,769 MB (AWS Lambda developer guide, "Memory")."""
    return max(1, _memory_mb() // 1769)


def _memory_mb() -> int:
    return int(os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "0"))


def table_key(asked: TableEvent) -> dict[str, str]:
    """The key by which two attempts are attempts at the same work."""
    return {"run_id": asked.run_id, "table": asked.item.identity.spelling}
