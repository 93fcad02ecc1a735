"""A signal that statistics are missing, or that many rows changed since they were computed (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.detection.signals import Signal
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.operations.statistics.columns import statistics_columns
from icekeeper.operations.statistics.staleness import staleness
from icekeeper.policy import Policy
from icekeeper.text import counted

__all__ = ["statistics_signals"]

# Statistics help to plan queries; small files and deletes slow all of them down.
_WEIGHT = 0.2


def statistics_signals(metadata: TableMetadata, head: Snapshot, policy: Policy) -> Iterable[Signal]:
    """A signal when a pass should compute statistics of the head.

    Raises:
        PolicyError: ``statistics_columns`` names what the table does not have.
    """
    columns = statistics_columns(metadata, policy.statistics_columns)
    found = staleness(metadata, head, columns)
    if found.columns_missing:
        verb = "has" if found.columns_missing == 1 else "have"
        yield Signal(f"{counted(found.columns_missing, 'column')} {verb} no statistics", _WEIGHT)
    elif found.partitions_missing:
        yield Signal("partitions have no statistics", _WEIGHT)
    elif found.rows_changed is None or found.rows is None:
        yield Signal("how many rows changed since statistics were computed is not known", _WEIGHT)
    elif found.rows_changed and found.share >= policy.statistics_min_changed_ratio:
        yield Signal(found.told(), _WEIGHT * (1 + float(found.share)))
