"""Limits how much one pass rewrites: by the policy's caps, and by a budget for delete debt (rule 51) (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.commit.history import RUN_ID_KEY
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.operations.compaction.bins import Reason
from icekeeper.operations.compaction.payback import WeighedBin
from icekeeper.policy import Policy
from icekeeper.policy.choices import JobOrder

__all__ = ["bytes_since_rewrite", "in_job_order", "within_budget"]


def bytes_since_rewrite(metadata: TableMetadata, snapshot: Snapshot) -> int:
    """Bytes of files that were added to the branch since we last rewrote files, as far as its history is known."""
    received = 0
    for ancestor in metadata.ancestors(snapshot.snapshot_id):
        summary = ancestor.summary
        if RUN_ID_KEY in summary and "deleted-data-files" in summary:
            break
        added = str(summary.get("added-files-size", "0"))
        received += int(added) if added.isdecimal() else 0
    return received


def within_budget(
    bins: Sequence[WeighedBin], policy: Policy, new_bytes: int
) -> tuple[list[WeighedBin], list[WeighedBin]]:
    """The bins that this pass rewrites, and those that must wait, each in the order in which they came.

    Bins that are rewritten for their deletes alone share a budget of ``max_write_amplification`` times ``new_bytes``,
    those with the most deletes first.  So one global equality delete per checkpoint does not rewrite the table every
    hour (OLake, iceberg 6669), and yet every pass takes one.  A bin whose deleted rows free enough bytes costs that
    budget nothing.  The caps are filled in the order of jobs, so by default with what saves the most per byte.
    """
    allowed = _affordable(bins, policy, new_bytes)
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


def _affordable(bins: Sequence[WeighedBin], policy: Policy, new_bytes: int) -> list[WeighedBin]:
    amplification = policy.max_write_amplification
    budget = amplification * new_bytes
    unpaid = [b for b in bins if b.bin.for_deletes and amplification * b.worth.bytes_saved < b.worth.bytes_rewritten]
    refused: set[int] = set()
    for number, candidate in enumerate(sorted(unpaid, key=_debt, reverse=True)):
        if number and candidate.worth.bytes_rewritten > budget:
            refused.add(id(candidate))
        else:
            budget -= candidate.worth.bytes_rewritten
    return [b for b in bins if id(b) not in refused]


def _debt(candidate: WeighedBin) -> int:
    """How often a delete file applies to a file of the bin."""
    return sum(len(c.deletes) for c in candidate.bin.files)
