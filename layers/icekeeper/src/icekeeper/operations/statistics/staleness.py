"""How many rows changed since statistics were computed, from the counters of snapshot summaries alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from icekeeper.health.examine import summary_counter, summary_counters
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.puffin import THETA_SKETCH
from icekeeper.model import Nothing
from icekeeper.operations.statistics.plan_statistics import (
    StatisticsPlan,
    plan_statistics,
    registered_blobs,
    statistics_columns,
    wants_partition_statistics,
)
from icekeeper.policy import Policy
from icekeeper.text import counted

# PostgreSQL's autovacuum_analyze_scale_factor.
MIN_CHANGED_SHARE = Fraction(1, 10)
"""Statistics are due from this share of changed rows on; if a person requests them, they are always due."""

# The sum is never too low: an updated row counts twice, and a row that is rewritten with its file counts, too.
_CHANGES = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """How outdated the statistics of a table are for a snapshot."""

    columns_missing: int = 0
    """The number of columns without statistics for any snapshot in its history."""
    partitions_missing: bool = False
    """Whether the table is partitioned and has no partition statistics for any snapshot in its history."""
    rows_changed: int | None = 0
    """The most rows that changed since the oldest statistics in use; ``None``: unknown."""
    rows: int | None = 0
    """The rows of the snapshot; ``None``: unknown."""

    @property
    def is_known(self) -> bool:
        """Whether all statistics exist and counters show how many rows changed since."""
        is_there = not (self.columns_missing or self.partitions_missing)
        return is_there and self.rows_changed is not None and self.rows is not None

    @property
    def share(self) -> Fraction:
        """The changed rows as a share of all rows, 0 to 1; 1 if unknown."""
        if not self.is_known or self.rows_changed is None or self.rows is None:
            return Fraction(1)
        return min(Fraction(1), Fraction(self.rows_changed, max(1, self.rows)))

    def sentence(self) -> str:
        """A sentence about the changed rows, if their number is known."""
        share = f"{float(self.share) * 100:.3g} % of {self.rows}"
        return f"{counted(self.rows_changed or 0, 'row')} changed since statistics were computed, {share}"


def why_not_yet(plan: StatisticsPlan, found: Staleness) -> str | None:
    """Why a proposed pass does not read columns again yet: fewer rows changed than ``MIN_CHANGED_SHARE``.

    Completing statistics by added files, or carrying them over, is cheap and always due.
    """
    rereads = any(not reading.base for reading in plan.readings)
    if not (rereads and found.is_known and found.rows_changed and found.share < MIN_CHANGED_SHARE):
        return None
    return f"{found.sentence()}; they are computed again from {float(MIN_CHANGED_SHARE) * 100:g} % on"


def why_not_planned(metadata: TableMetadata, snapshot: Snapshot, policy: Policy) -> str | None:
    """As :func:`why_not_yet`, from the metadata document alone; ``None``: the operation may be due.

    Raises:
        PolicyError: ``statistics_columns`` names a column that the table does not have.
    """
    columns = statistics_columns(metadata, policy.statistics_columns)
    plan = plan_statistics(metadata, snapshot, columns, tuple, lambda snapshots: ())
    if isinstance(plan, Nothing):
        return None
    return why_not_yet(plan, staleness(metadata, snapshot, columns))


def staleness(metadata: TableMetadata, snapshot: Snapshot, columns: Mapping[int, str]) -> Staleness:
    """How outdated the statistics of these columns (field id → type) and of partitions are for a snapshot."""
    history = list(metadata.ancestors(snapshot.snapshot_id))
    changed = _changed_since(history)
    newest: dict[int, int] = {}
    for stored in registered_blobs(metadata, history):
        if stored.blob.type == THETA_SKETCH and len(stored.blob.fields) == 1 and stored.holds_for in changed:
            newest.setdefault(stored.blob.fields[0], stored.holds_for)
    bases = [newest[field_id] for field_id in columns if field_id in newest]
    partitions_missing = False
    if wants_partition_statistics(metadata):
        counted = {int(entry["snapshot-id"]) for entry in metadata.partition_statistics}
        of_partitions = next((past.snapshot_id for past in history if past.snapshot_id in counted), None)
        partitions_missing = of_partitions is None
        bases += [] if of_partitions is None else [of_partitions]
    found = [changed[base] for base in bases]
    return Staleness(
        columns_missing=len(columns.keys() - newest.keys()),
        partitions_missing=partitions_missing,
        rows_changed=None if None in found else max((rows for rows in found if rows is not None), default=0),
        rows=summary_counter(summary_counters(snapshot), "total-records"),
    )


def _changed_since(history: Sequence[Snapshot]) -> Mapping[int, int | None]:
    """The rows that changed since each snapshot of a history, newest first; ``None``: unknown."""
    found: dict[int, int | None] = {}
    rows: int | None = 0
    for snapshot in history:
        found[snapshot.snapshot_id] = rows
        own = _changed(snapshot)
        rows = None if rows is None or own is None else rows + own
    return found


def _changed(snapshot: Snapshot) -> int | None:
    if snapshot.operation == "replace":
        return 0  # a replace keeps all rows (specification, "Snapshots")
    counters = summary_counters(snapshot)
    known = [rows for key in _CHANGES if (rows := summary_counter(counters, key)) is not None]
    # Writers leave out counters that are 0, but never all counters.
    return sum(known) if known or summary_counter(counters, "total-records") is not None else None
