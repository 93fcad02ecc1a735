"""The handler that the functions of single operations share: one event, one operation, one small answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import files_ahead  # noqa: F401 - this function reads files
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import PolicyError
from icekeeper.operation_facts import Limit, steps_of_function
from icekeeper.pipeline.events import OperationEvent, parse_event
from icekeeper.pipeline.run_step import run_step
from idempotency import once
from observability import about, deployment

# Of a function's memory an eighth is spare: packages take a sixth of 1.5 GB, a row group and its encoded bytes as much.
_SPARE_SHARE = 8


def carry_out(event: dict[str, Any], context: Any, function: str, *, max_bytes: int | None = None) -> dict[str, Any]:
    """Run the step that the event names, which must be one of this function's; ``function`` is its folder.

    Raises:
        PolicyError: the event is malformed, or for another function, whose permissions this one does not have.
    """
    asked = parse_event(OperationEvent, event)
    about(asked.run_id, asked.item, step=asked.step)
    steps = steps_of_function(function)
    if asked.step not in steps:
        does = ", ".join(sorted(steps))
        raise PolicyError(f"malformed event: operation: this function does {does}, not {asked.step}")

    def work() -> dict[str, Any]:
        return dict(run_step(deployment(), asked, local_engine(), max_bytes=max_bytes, time_left_s=time_left(context)))

    return once(asked.step, step_key(asked), context, work)


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


def step_key(asked: OperationEvent) -> dict[str, str]:
    """The key by which two attempts are attempts at the same step."""
    return {"run_id": asked.run_id, "table": asked.item.identity.spelling, "plan": asked.plan.digest}
