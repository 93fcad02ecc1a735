"""Which table comes first: the weight of each signal, the priority of all signals together, and urgency (pure).

A weight is about 1 where its signal reaches the threshold, and grows from there.  The priority is between 0 and 1.
Where a scan may not propose all tables, it chooses by urgency: the priority, and the time since the last pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import Policy

EXPIRED_REFS_WEIGHT = 1.0
FAILED_LOADS_WEIGHT = 0.1
# Only manifests show whether partitions are past their retention, and only a listing shows orphans.  Tables that
# certainly need work come first.
OLD_PARTITIONS_WEIGHT = 0.1
SWEEP_WEIGHT = 0.1
# A pass may find nothing here.  Tables with a sign of need come first.
LOOK_WEIGHT = 0.05
# Statistics only improve query plans; small files and deletes slow all queries down.
_STATISTICS_WEIGHT = 0.2
# A table with a tenth of its rows deleted gets the weight of another signal at its threshold.
_DELETED_ROWS_WEIGHT = 10


@dataclass(frozen=True, slots=True)
class Signal:
    """A reason why a table needs work, and its weight."""

    reason: str
    weight: float


def expiry_weight(expirable: int, policy: Policy) -> float:
    """The weight of this many snapshots that can expire."""
    return expirable / policy.max_snapshots_to_keep


def small_files_weight(files: int, average_bytes: float, policy: Policy) -> float:
    """The weight of this many data files that are small on average."""
    return files / policy.min_input_files * (1 - average_bytes / policy.min_file_size_bytes)


def large_files_weight(average_bytes: float, policy: Policy) -> float:
    """The weight of data files that are on average far above the target."""
    return average_bytes / policy.target_file_size_bytes - 1


def delete_debt_weight(delete_files: int, deleted_share: float, policy: Policy) -> float:
    """The weight of this many delete files that delete this share of the table's rows."""
    return delete_files / policy.min_input_files + _DELETED_ROWS_WEIGHT * deleted_share


def manifests_weight(manifests: int, policy: Policy) -> float:
    """The weight of this many manifests."""
    return manifests / policy.min_manifests_to_rewrite


def clustering_weight(files: int, total: int | None, policy: Policy) -> float:
    """The weight of ``files`` data files, of ``total`` (``None``: unknown), added since files were last clustered."""
    return files / policy.min_input_files * (files / total if total else 1.0)


def statistics_weight(changed_share: float = 0.0) -> float:
    """The weight of missing statistics, or of the share of rows that changed since statistics were computed."""
    return _STATISTICS_WEIGHT * (1 + changed_share)


def priority_of(signals: Iterable[Signal]) -> float:
    """Towards 1 with growing weights; a new signal never lowers it."""
    return round(1 - 1 / math.prod(1 + signal.weight for signal in signals), 4)


# By priority alone, every scan would choose the same hundred tables if their passes cannot help them.  So urgency grows
# with the time since the last pass: after a day, a table precedes all that had a pass just now.

_DAY_MS = 24 * HOUR_MS
# Beyond this, urgency does not grow, and priority decides again, as in a fleet that is scanned for the first time.
_LONGEST_DAYS = 7


def waited_ms(metadata: TableMetadata, passes_ms: Iterable[int], now_ms: int) -> int:
    """Milliseconds since the last end of a pass in ``passes_ms``; without any, since the oldest snapshot."""
    oldest_ms = min(metadata.snapshot_times_ms, default=now_ms)
    return max(0, now_ms - max(passes_ms, default=oldest_ms))


def urgency(priority: float, waited_ms: int) -> float:
    """The priority of a table (0 to 1) plus 1 for each day that it waited; higher is chosen first."""
    return priority + min(waited_ms / _DAY_MS, _LONGEST_DAYS)
