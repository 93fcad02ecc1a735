"""Carries out a history of :mod:`support.cleanup_histories` by Iceberg-Java and us."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from icekeeper.report.outcome import OperationOutcome
from support.cleanup_acts import ACTS
from support.cleanup_histories import Cleaning, CleanupHistory, CleanupStep
from support.cleanup_table import CleanupTable
from support.java_writer import JavaTables

_KEPT_FOR_HOURS = 1


class CleanupRun(CleanupTable):
    """Takes the steps of a history one by one."""

    def __init__(self, history: CleanupHistory, tables: JavaTables, folder: Path) -> None:
        super().__init__(history, tables, folder)
        if history.is_partitioned:
            self.java.repartition(lambda update: update.addField("part"))
        for step in history.steps:
            self.take(step)

    def take(self, step: CleanupStep) -> None:
        """Do one step; one that this table does not allow changes nothing."""
        self.trace.append(repr(step))
        # Java refuses what cannot be: to publish what is published, to go forward to another line.
        with suppress(Py4JJavaError, CapturedException):
            ACTS[step.act](self, random.Random(step.seed))
        self.remember()

    def clean(self, cleaning: Cleaning) -> OperationOutcome:
        """The last expiry, by a clock at which as many snapshots are young as it says."""
        newest_first = sorted((s.timestampMillis() for s in self.java.table.snapshots()), reverse=True)
        young = newest_first[: cleaning.young]
        oldest_young = young[-1] if young else newest_first[0] + 1
        now_ms = oldest_young + _KEPT_FOR_HOURS * 3_600_000
        self.table.late_ms += now_ms - self.table.runtime.clock()
        settings = {**cleaning.settings, "snapshot_retention_hours": str(_KEPT_FOR_HOURS)}
        if cleaning.crash_at is not None:
            self.killed_at(cleaning.crash_at, lambda: self.expire(**settings))
            self.remember()
        return self.expire(**settings)
