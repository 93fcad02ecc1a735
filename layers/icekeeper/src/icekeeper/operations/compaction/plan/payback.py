"""Weigh what a rewrite saves readers against what it costs, and limit how much a pass rewrites (pure).

Requests, bytes and opened files are compared in money, at the prices of :mod:`icekeeper.report.prices`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile

from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.health.examine import summary_counter, summary_counters
from icekeeper.machine.clock import HOUR_MS
from icekeeper.machine.metering import GETS_PER_FILE
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import FileKey
from icekeeper.operations.compaction.plan.bins import FileGroup, Reason, Worth
from icekeeper.operations.compaction.plan.candidate import Candidate
from icekeeper.operations.compaction.plan.candidates import likely_deleted_rows
from icekeeper.policy import Policy
from icekeeper.policy.values import JobOrder
from icekeeper.report.prices import COPIED_GB_USD, GETS_1000_USD, PUTS_1000_USD, REWRITTEN_GB_USD, SCANNED_GB_USD

# Spark's spark.sql.files.openCostInBytes: opening a file takes as long as reading this many bytes.
OPEN_BYTES = 4 * 1024 * 1024
_GIGABYTE = 1024**3
# RocksDB's size ratio between levels is 10, which is also the write amplification of a level.
MAX_WRITE_AMPLIFICATION = 10
"""Once a week's rewrites exceed this many bytes per new byte, no file is rewritten for its deletes alone."""


def weighed(group: FileGroup, policy: Policy, spread: Mapping[FileKey, int]) -> FileGroup:
    """The group with its worth; ``spread`` as in :class:`.Candidates`.

    The price decides only about small files.  Deletes have their own limits and budget.  Sizes do not show what
    clustering saves by skipping data, nor what cutting a large file saves; a cut costs a fifth of a scan of the file.
    Explicit requests are always done.
    """
    freed = freed_bytes(group.files, spread)
    size = group.total_bytes
    gets, puts = GETS_PER_FILE * len(group.files), group.output_count
    cost = (gets * GETS_1000_USD + puts * PUTS_1000_USD) / 1000
    if group.reason is Reason.LARGE:
        freed, saving = 0.0, Fraction(0)
        cost += _price(size, COPIED_GB_USD)
    else:
        copied = sum(c.file_size_in_bytes for c in group.files if c.condition.is_likely_copied)
        cost += _price(copied, COPIED_GB_USD) + _price(size - copied, REWRITTEN_GB_USD)
        # Data and delete files that a scan no longer opens.
        opens = len(group.files) - group.output_count + sum(len(c.deletes) for c in group.files)
        opened = opens * GETS_PER_FILE * GETS_1000_USD / 1000
        saved = opened + _price(opens * OPEN_BYTES + int(freed), SCANNED_GB_USD)
        saving = (policy.expected_scans or 1) * saved
    is_judged = group.reason is Reason.SMALL and policy.expected_scans is not None
    worth = Worth(
        bytes_saved=freed,
        bytes_rewritten=size,
        requests=gets + puts,
        saving=float(saving),
        cost=float(cost),
        pays=saving >= cost or not is_judged,
    )
    return replace(group, worth=worth)


def rewrite_price(size: int) -> float:
    """US dollars to rewrite ``size`` bytes, without requests."""
    return float(_price(size, REWRITTEN_GB_USD))


def _price(size: int, per_gigabyte: Fraction) -> Fraction:
    return size * per_gigabyte / _GIGABYTE


def freed_bytes(files: Iterable[Candidate], spread: Mapping[FileKey, int]) -> float:
    """Estimated bytes of deleted rows; the rows of a delete file that covers many data files are divided evenly among
    them."""
    freed = 0.0
    for candidate in files:
        rows = likely_deleted_rows(candidate, spread)
        share = min(1.0, rows / candidate.record_count) if candidate.record_count else 1.0
        freed += share * candidate.file_size_in_bytes
    return freed


# Older snapshots do not count for the budget; by default, snapshots are kept for this long.
_WINDOW_MS = 7 * 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class RewriteHistory:
    """Bytes that were added to a branch, and bytes that we rewrote, since its oldest deletes; for a week at most."""

    recent: int
    """Bytes that writers added since our last rewrite, however long ago that was."""
    received: int
    """Bytes that writers added; rewrites by other engines do not count."""
    rewritten: int
    """Bytes that our rewrites removed."""

    @classmethod
    def of(cls, metadata: TableMetadata, head: Snapshot, oldest_delete: int) -> RewriteHistory:
        """Read the history of the branch that ends in ``head`` from its retained snapshots.

        ``oldest_delete`` is the data sequence number of the oldest live delete file.  Deletes that are no longer live
        count as well.  A counter that is missing in a summary counts as 0.
        """
        start_ms = head.timestamp_ms - _WINDOW_MS
        week = list(takewhile(lambda snapshot: snapshot.timestamp_ms >= start_ms, metadata.ancestors(head.snapshot_id)))
        with_deletes = (
            snapshot.sequence_number
            for snapshot in week
            if not _is_ours(snapshot) and _counted(snapshot, "added-delete-files")
        )
        first = min(oldest_delete, head.sequence_number, *with_deletes)
        since = [snapshot for snapshot in week if snapshot.sequence_number >= first]
        recent = takewhile(lambda snapshot: not _is_ours(snapshot), metadata.ancestors(head.snapshot_id))
        return cls(
            recent=sum(_counted(snapshot, "added-files-size") for snapshot in recent if not _is_rewrite(snapshot)),
            received=sum(
                _counted(snapshot, "added-files-size")
                for snapshot in since
                if not (_is_ours(snapshot) or _is_rewrite(snapshot))
            ),
            rewritten=sum(
                _counted(snapshot, "removed-files-size")
                for snapshot in since
                if _is_ours(snapshot) and _is_rewrite(snapshot)
            ),
        )


def _is_ours(snapshot: Snapshot) -> bool:
    """Whether one of our passes wrote the snapshot and removed data files."""
    counters = summary_counters(snapshot)
    return RUN_ID_KEY in counters and "deleted-data-files" in counters


def _is_rewrite(snapshot: Snapshot) -> bool:
    return summary_counters(snapshot).get("operation") == "replace"


def _counted(snapshot: Snapshot, key: str) -> int:
    return summary_counter(summary_counters(snapshot), key) or 0


def within_budget(
    groups: Sequence[FileGroup], policy: Policy, history: RewriteHistory
) -> tuple[list[FileGroup], list[FileGroup]]:
    """Divide the groups that pay into those that this pass rewrites and those that wait; both in the given order.

    A budget limits groups that are rewritten for their deletes alone.  The
    policy's caps are filled in job order.
    """
    groups = [group for group in groups if group.worth.pays]
    allowed = _affordable(groups, policy, history)
    files_left, bytes_left = policy.max_files_to_rewrite, policy.max_bytes_to_rewrite
    if files_left is not None or bytes_left is not None:
        taken: set[int] = set()
        for group in in_job_order(allowed, policy.rewrite_job_order):
            count, size = len(group.files), group.worth.bytes_rewritten
            if (files_left is not None and count > files_left) or (bytes_left is not None and size > bytes_left):
                continue
            files_left = None if files_left is None else files_left - count
            bytes_left = None if bytes_left is None else bytes_left - size
            taken.add(id(group))
        allowed = [group for group in allowed if id(group) in taken]
    chosen = {id(group) for group in allowed}
    return allowed, [group for group in groups if id(group) not in chosen]


def in_job_order(groups: Sequence[FileGroup], order: JobOrder) -> list[FileGroup]:
    """Sort groups into the order of their rewrites; by default the largest saving per byte comes first.

    Ties keep their order.
    """
    if order is JobOrder.NONE:
        return sorted(groups, key=_rank, reverse=True)
    by_bytes = order in (JobOrder.BYTES_ASC, JobOrder.BYTES_DESC)
    descending = order in (JobOrder.BYTES_DESC, JobOrder.FILES_DESC)
    return sorted(groups, key=lambda g: g.worth.bytes_rewritten if by_bytes else len(g.files), reverse=descending)


def _rank(group: FileGroup) -> tuple[float, int]:
    # Sizes do not show what clustering saves, so the group with the most files comes first.
    return (0.0, len(group.files)) if group.reason is Reason.CLUSTERING else (group.worth.saving_per_byte, 0)


def _affordable(groups: Sequence[FileGroup], policy: Policy, history: RewriteHistory) -> list[FileGroup]:
    """Remove the groups that would be rewritten for their deletes alone and exceed the budget.

    All rewrites of a week together write at most ``MAX_WRITE_AMPLIFICATION`` times the bytes that writers added.
    Within the rest of that budget, a pass takes every group that pays for itself.  Of the other groups it takes as much
    as the bytes added since the last rewrite allow, but at least one group.  So a global equality delete per checkpoint
    does not rewrite the table every hour (OLake, iceberg 6669).  Three kinds of groups do not wait: all groups if they
    are small together, groups of mostly deleted rows, and a share of the groups whose deletes are expensive to read
    (:func:`_is_overdue`).
    """
    for_deletes = [group for group in groups if group.reason is Reason.DELETES]
    if sum(group.worth.bytes_rewritten for group in for_deletes) <= MAX_WRITE_AMPLIFICATION * OPEN_BYTES:
        return list(groups)
    of_week = MAX_WRITE_AMPLIFICATION * history.received
    others = sum(group.worth.bytes_rewritten for group in groups if group.reason is not Reason.DELETES)
    left = of_week - history.rewritten - others
    recent, is_first = MAX_WRITE_AMPLIFICATION * history.recent, True
    forced = math.ceil(sum(map(_is_overdue, for_deletes)) / MAX_WRITE_AMPLIFICATION)
    refused: set[int] = set()
    for group in sorted(for_deletes, key=lambda group: group.worth.saving_per_byte, reverse=True):
        size, saved = group.worth.bytes_rewritten, group.worth.bytes_saved
        pays = MAX_WRITE_AMPLIFICATION * saved >= size
        is_dead = pays and (saved >= policy.delete_compaction_min_ratio * size or of_week < size)
        is_forced = not is_dead and forced > 0 and _is_overdue(group)
        fits = size <= left and (pays or is_first or size <= recent)
        if is_dead or is_forced or fits:
            forced -= is_forced
            recent -= 0 if pays else size
            is_first = is_first and pays
            left -= size
            continue
        refused.add(id(group))
        if left < size <= of_week:
            left = 0  # this group is next: smaller groups could delay it forever
    return [group for group in groups if id(group) not in refused]


def _is_overdue(group: FileGroup) -> bool:
    """Whether opening its delete files costs a scan ``MAX_WRITE_AMPLIFICATION`` times as much as reading its files."""
    deletes = sum(len(c.deletes) for c in group.files)
    least = max(group.worth.bytes_rewritten, len(group.files) * OPEN_BYTES)
    return deletes * OPEN_BYTES > MAX_WRITE_AMPLIFICATION * least
