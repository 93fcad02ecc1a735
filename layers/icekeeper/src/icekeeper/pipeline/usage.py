"""Records in the state what this process used that AWS bills."""

from __future__ import annotations

from collections.abc import Mapping

from icekeeper.machine.metering import Amount, RequestKind, process_meter
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.transitions import states_of_job
from icekeeper.policy import Operation
from icekeeper.prices import GLUE_SHORTEST_S
from icekeeper.report.outcome import PassOutcome
from icekeeper.report.request_metrics import request_key
from icekeeper.state.usage import HourOfUse, hour_of

__all__ = ["STORE_AMOUNTS", "note_job", "note_pass", "record_use"]

STORE_AMOUNTS: Mapping[RequestKind, Amount] = {
    RequestKind.GET: Amount.STORE_GETS,
    RequestKind.PUT: Amount.STORE_PUTS,
}
"""The requests that are billed."""
# AWS Glue developer guide, "Worker types".
_DPU_OF_WORKER: Mapping[str, int] = {"G.1X": 1, "G.2X": 2, "G.4X": 4, "G.8X": 8}


def record_use(deployment: Deployment, metrics: frozenset[str] = frozenset()) -> None:
    """Add what was counted since the last time to the hour of now.

    Raises:
        StorageError: the state cannot be written; what was counted is lost.
    """
    amounts = {amount.value: number for amount, number in process_meter.take().items()}
    deployment.state.usage.add(HourOfUse(hour_of(deployment.clock()), amounts, metrics))


def note_job(worker_type: str, workers: int, seconds: float, *, is_flex: bool, is_wave: bool) -> None:
    """Count a run of a Glue job, for a minute at least."""
    billed_ms = round(max(GLUE_SHORTEST_S, seconds) * 1000)
    amount = Amount.GLUE_FLEX_DPU_MS if is_flex else Amount.GLUE_DPU_MS
    process_meter.add(amount, _DPU_OF_WORKER[worker_type] * workers * billed_ms)
    process_meter.add(Amount.STATE_TRANSITIONS, states_of_job(is_wave=is_wave))


def note_pass(outcome: PassOutcome) -> None:
    """Count what the operations of a pass used and what they compacted, from their outcomes."""
    for name, value in outcome.metrics.items():
        for kind, amount in STORE_AMOUNTS.items():
            if name.endswith(request_key(kind)):
                process_meter.add(amount, int(value))
    compacted = outcome.metrics.get(f"{Operation.COMPACT.value}.files_merged", 0)
    if compacted:
        process_meter.add(Amount.COMPACTIONS)
        process_meter.add(Amount.COMPACTED_FILES, int(compacted))
        process_meter.add(Amount.COMPACTED_BYTES, int(outcome.metrics.get("compact.bytes_read", 0)))
