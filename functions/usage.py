"""Records what each call of a function uses that AWS bills, for ``icekeeper cost``.

A call that cannot record it ends as well as without: what is missing is only missing in the estimate.  So is what a
call used that was ended by its timeout.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

from icekeeper.machine.metering import Amount, counting, process_meter
from icekeeper.pipeline.deployment import STORE_AMOUNTS, Deployment, record_use, states_of_call

log = logging.getLogger(__name__)

# What Lambda itself logs of a call: START, END and REPORT (AWS Lambda developer guide, "Log format").
_PLATFORM_LOG_BYTES = 400
# A line of the embedded metric format without its metrics, and what each adds beside its name, which it holds twice.
_METRICS_LINE_BYTES = 250
_METRIC_BYTES = 45
_PROPERTY_BYTES = 10
_metric_names: set[str] = set()
_started_here = False


def metered(
    handler: Callable[[dict[str, Any], Any], dict[str, Any]],
    event: dict[str, Any],
    context: Any,
    opened: Callable[[], Deployment],
) -> dict[str, Any]:
    """Call a handler, count what the call uses, and record it in the deployment's state."""
    begun_s, answer = time.monotonic(), None
    try:
        with counting() as sent:
            answer = handler(event, context)
        return answer
    finally:
        try:
            _note_call(context, time.monotonic() - begun_s)
            for kind, number in sent.counts.items():
                if kind in STORE_AMOUNTS:
                    process_meter.add(STORE_AMOUNTS[kind], number)
            # An attempt that fails enters its own state only.
            role = handler.__module__.partition(".")[0]
            process_meter.add(Amount.STATE_TRANSITIONS, 1 if answer is None else states_of_call(role, event, answer))
            record_use(opened(), _taken_metrics())
        except Exception as error:  # an estimate must never fail the call
            log.info("what this call used cannot be recorded: %s: %s", type(error).__name__, error)


def note_log_bytes(number: int) -> None:
    """Count what was logged."""
    process_meter.add(Amount.LOG_BYTES, number)


def note_metrics(values: Mapping[str, float], *, of_table: bool, properties: Mapping[str, float] | None = None) -> None:
    """Count metrics that were written, of one table or totals, and the log line that holds them and ``properties``."""
    beside = sum(len(name) + _PROPERTY_BYTES for name in properties or ())
    note_log_bytes(_METRICS_LINE_BYTES + sum(2 * len(name) + _METRIC_BYTES for name in values) + beside)
    if of_table:
        process_meter.add(Amount.TABLE_METRIC_HOURS, len(values))
    else:
        _metric_names.update(values)


def _note_call(context: Any, seconds: float) -> None:
    """A call is billed by the millisecond, and the first one of a container for its start, too."""
    global _started_here
    if not _started_here and os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "on-demand":
        # The start is busy from its beginning to its end, so that its processor time is its duration, or nearly.
        seconds = max(seconds, time.process_time())
    _started_here = True
    amount = Amount.LAMBDA_ARM_MB_MS if platform.machine() == "aarch64" else Amount.LAMBDA_MB_MS
    process_meter.add(amount, int(context.memory_limit_in_mb) * max(1, round(seconds * 1000)))
    process_meter.add(Amount.LAMBDA_CALLS)
    note_log_bytes(_PLATFORM_LOG_BYTES)


def _taken_metrics() -> frozenset[str]:
    taken = frozenset(_metric_names)
    _metric_names.clear()
    return taken
