"""Limits how much one pass rewrites: by the policy's caps, and by a budget for delete debt (rule 51) (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from icekeeper.operations.compaction.bins import Reason
from icekeeper.operations.compaction.payback import OPEN_BYTES, WeighedBin
from icekeeper.operations.compaction.rewrite_history import RewriteHistory
from icekeeper.policy import Policy
from icekeeper.policy.choices import JobOrder

__all__ = ["in_job_order", "within_budget"]


def within_budget(
    bins: Sequence[WeighedBin], policy: Policy, history: RewriteHistory
) -> tuple[list[WeighedBin], list[WeighedBin]]:
    """The bins that this pass rewrites, and those that must wait, each in the order in which they came.

    Bins that are rewritten for their deletes alone have a budget (:func:`_affordable`).  The caps are filled in the
    order of jobs, so by default with what saves the most per byte.
    """
    allowed = _affordable(bins, policy, history)
    files_left, bytes_left = policy.max_files_to_rewrite, policy.max_bytes_to_rewrite
    if files_left is not None or bytes_left is not None:
        taken: set[int] = set()
        for candidate in in_job_order(allowed, policy.rewrite_job_order):
            count, size = len(candidate.bin.files), candidate.worth.bytes_rewritten
            if (files_left is not None and count > files_left) or (bytes_left is not None and size > bytes_left):
                continue
            files_left = None if files_left is None else files_left - count
            bytes_left = None if bytes_left is None else bytes_left - size
            taken.add(id(candidate))
        allowed = [b for b in allowed if id(b) in taken]
    chosen = {id(b) for b in allowed}
    return allowed, [b for b in bins if id(b) not in chosen]


def in_job_order(bins: Sequence[WeighedBin], order: JobOrder) -> list[WeighedBin]:
    """Bins in the order in which they are to be rewritten; ties keep their order.

    Where the policy asks for none, what saves most per byte comes first.
    """
    if order is JobOrder.NONE:
        return sorted(bins, key=_rank, reverse=True)
    by_bytes = order in (JobOrder.BYTES_ASC, JobOrder.BYTES_DESC)
    descending = order in (JobOrder.BYTES_DESC, JobOrder.FILES_DESC)
    return sorted(bins, key=lambda b: b.worth.bytes_rewritten if by_bytes else len(b.bin.files), reverse=descending)


def _rank(candidate: WeighedBin) -> tuple[float, int]:
    # What order saves, sizes do not tell: the group with most files is clustered first.
    is_clustering = candidate.bin.reason is Reason.CLUSTERING
    return (0.0, len(candidate.bin.files)) if is_clustering else (candidate.worth.saving_per_byte, 0)


def _affordable(bins: Sequence[WeighedBin], policy: Policy, history: RewriteHistory) -> list[WeighedBin]:
    """The bins without those that would be rewritten for their deletes alone and must wait (rule 51).

    All rewrites together keep within ``max_write_amplification`` times the bytes that came over the last week.  Of what
    that leaves, a pass takes what pays for itself, and for the rest as much as came since the last rewrite allows, but
    one bin at least: so one global equality delete per checkpoint does not rewrite the table every hour (OLake, iceberg
    6669).  Debts that are small altogether, mostly dead files, and a part of those whose deletes cost readers more than
    they may (:func:`_is_overdue`) do not wait.
    """
    for_deletes = [b for b in bins if b.bin.for_deletes]
    most = policy.max_write_amplification
    if sum(b.worth.bytes_rewritten for b in for_deletes) <= most * OPEN_BYTES:
        return list(bins)
    of_week = most * history.received
    left = of_week - history.rewritten - sum(b.worth.bytes_rewritten for b in bins if not b.bin.for_deletes)
    recent, is_first = most * history.recent, True
    forced = math.ceil(sum(_is_overdue(b, policy) for b in for_deletes) / max(Fraction(1), most))
    refused: set[int] = set()
    for candidate in sorted(for_deletes, key=lambda b: b.worth.saving_per_byte, reverse=True):
        size, saved = candidate.worth.bytes_rewritten, candidate.worth.bytes_saved
        pays = most * saved >= size
        is_dead = pays and (saved >= policy.delete_compaction_min_ratio * size or of_week < size)
        is_forced = not is_dead and forced > 0 and _is_overdue(candidate, policy)
        fits = size <= left and (pays or is_first or size <= recent)
        if is_dead or is_forced or fits:
            forced -= is_forced
            recent -= 0 if pays else size
            is_first = is_first and pays
            left -= size
            continue
        refused.add(id(candidate))
        if left < size <= of_week:
            left = Fraction(0)  # it is the next one: smaller ones would take its turn for ever
    return [b for b in bins if id(b) not in refused]


def _is_overdue(candidate: WeighedBin, policy: Policy) -> bool:
    """Whether opening its delete files costs a scan ``max_write_amplification`` times as much as reading its files."""
    files = candidate.bin.files
    deletes = sum(len(c.deletes) for c in files)
    least = max(candidate.worth.bytes_rewritten, len(files) * OPEN_BYTES)
    return deletes * OPEN_BYTES > policy.max_write_amplification * least
