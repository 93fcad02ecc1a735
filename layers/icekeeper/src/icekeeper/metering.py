"""Counts what this process uses and AWS bills, until somebody takes the counts to record them.

Process-wide on purpose: a function serves one call at a time, and what several calls in one process use together is
recorded together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from threading import Lock

__all__ = ["Amount", "Meter", "process_meter"]


class Amount(StrEnum):
    """What is counted; whole numbers, so that many processes can add to one total."""

    LAMBDA_CALLS = "lambda_calls"
    LAMBDA_MB_MS = "lambda_mb_ms"
    """Memory of a function, in MB, times the milliseconds that it ran; on x86."""
    LAMBDA_ARM_MB_MS = "lambda_arm_mb_ms"
    """The same on arm64."""
    GLUE_DPU_MS = "glue_dpu_ms"
    """Data processing units of a Glue job times the milliseconds that it ran."""
    GLUE_FLEX_DPU_MS = "glue_flex_dpu_ms"
    """The same of the execution class FLEX."""
    STATE_TRANSITIONS = "state_transitions"
    """States of the state machine that were entered."""
    STORE_GETS = "store_gets"
    """GET and HEAD of objects."""
    STORE_PUTS = "store_puts"
    """PUT, POST and LIST of objects."""
    STATE_READ_UNITS = "state_read_units"
    """Read request units of the state table (DynamoDB), in thousandths."""
    STATE_WRITE_UNITS = "state_write_units"
    """Write request units of the state table, in thousandths."""
    LOG_BYTES = "log_bytes"
    """What functions log, lines of metrics included."""
    TABLE_METRIC_HOURS = "table_metric_hours"
    """Metrics by table, each for the hour in which it was written."""
    COMPACTIONS = "compactions"
    """Compactions of a table that committed."""
    COMPACTED_FILES = "compacted_files"
    """Data files that compaction replaced."""
    COMPACTED_BYTES = "compacted_bytes"
    """Their size."""


class Meter:
    """Amounts that were used and not recorded yet; may be shared by threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._amounts: Counter[Amount] = Counter()

    def add(self, amount: Amount, number: int = 1) -> None:
        """Count some more of one thing."""
        with self._lock:
            self._amounts[amount] += number

    def take(self) -> Mapping[Amount, int]:
        """What was counted since it was last taken, without zeros."""
        with self._lock:
            taken, self._amounts = self._amounts, Counter()
        return {amount: number for amount, number in taken.items() if number}


process_meter = Meter()
"""What this process used."""
