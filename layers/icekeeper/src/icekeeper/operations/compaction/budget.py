"""Limits how much one pass rewrites: by the policy's caps, and by a budget for delete debt (rule 51) (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from icekeeper.commit.snapshot import RUN_ID_KEY
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import FileContent, FileKey
from icekeeper.operations.compaction.candidates import Candidate, known_deleted_rows
from icekeeper.policy import Policy
from icekeeper.policy.choices import JobOrder

__all__ = ["Bin", "bytes_since_rewrite", "in_job_order", "within_budget"]


@dataclass(frozen=True, slots=True)
class Bin:
    """Candidates that are to be rewritten together."""

    files: tuple[Candidate, ...]
    for_deletes: bool = False
    """Whether their deletes are the only reason to rewrite them."""
    outputs: int = 1
    """How many files they become when their rows are not sorted."""

    @property
    def total_bytes(self) -> int:
        return sum(candidate.file.file_size_in_bytes for candidate in self.files)


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
    bins: Sequence[Bin], policy: Policy, needs: Mapping[FileKey, int], new_bytes: int
) -> tuple[list[Bin], int]:
    """The bins that this pass rewrites, in their order, and how many must wait.

    ``needs`` counts per delete file the data files that need it.  Bins that are rewritten for their deletes alone share
    a budget of ``max_write_amplification`` times ``new_bytes``, those with the most deletes first.  So one global
    equality delete per checkpoint does not rewrite the table every hour (OLake, iceberg 6669), and yet every pass takes
    one.  A bin whose deleted rows free enough bytes costs that budget nothing.
    """
    affordable = _affordable(bins, policy, needs, new_bytes)
    waiting = len(bins) - len(affordable)
    if policy.max_files_to_rewrite is None and policy.max_bytes_to_rewrite is None:
        return affordable, waiting
    files_left, bytes_left = policy.max_files_to_rewrite, policy.max_bytes_to_rewrite
    chosen: list[int] = []
    ordered = in_job_order(affordable, policy.rewrite_job_order)
    if policy.rewrite_job_order is JobOrder.NONE:
        ordered = sorted(affordable, key=lambda b: len(b.files), reverse=True)  # most files first
    for candidate in ordered:
        count, size = len(candidate.files), candidate.total_bytes
        if (files_left is not None and count > files_left) or (bytes_left is not None and size > bytes_left):
            continue
        files_left = None if files_left is None else files_left - count
        bytes_left = None if bytes_left is None else bytes_left - size
        chosen.append(id(candidate))
    taken = frozenset(chosen)
    return [b for b in affordable if id(b) in taken], len(bins) - len(taken)


def in_job_order(bins: Sequence[Bin], order: JobOrder) -> list[Bin]:
    """Bins in the order in which they are to be rewritten; ties keep their order."""
    if order is JobOrder.NONE:
        return list(bins)
    by_bytes = order in (JobOrder.BYTES_ASC, JobOrder.BYTES_DESC)
    descending = order in (JobOrder.BYTES_DESC, JobOrder.FILES_DESC)
    return sorted(bins, key=lambda b: b.total_bytes if by_bytes else len(b.files), reverse=descending)


def _affordable(bins: Sequence[Bin], policy: Policy, needs: Mapping[FileKey, int], new_bytes: int) -> list[Bin]:
    amplification = policy.max_write_amplification
    budget = amplification * new_bytes
    unpaid = [b for b in bins if b.for_deletes and amplification * _freed_bytes(b.files, needs) < b.total_bytes]
    refused: set[int] = set()
    for number, candidate in enumerate(sorted(unpaid, key=_debt, reverse=True)):
        if number and candidate.total_bytes > budget:
            refused.add(id(candidate))
        else:
            budget -= candidate.total_bytes
    return [b for b in bins if id(b) not in refused]


def _debt(candidate: Bin) -> int:
    """How often a delete file applies to a file of the bin."""
    return sum(len(c.deletes) for c in candidate.files)


def _freed_bytes(files: Iterable[Candidate], needs: Mapping[FileKey, int]) -> float:
    """Estimated bytes of deleted rows: those of an equality delete are spread evenly over the files that need it."""
    freed = 0.0
    for candidate in files:
        rows = known_deleted_rows(candidate.file, candidate.deletes) + sum(
            entry.file.record_count / max(1, needs.get(entry.file.key, 1))
            for entry in candidate.deletes
            if entry.file.content is FileContent.EQUALITY_DELETES
        )
        share = min(1.0, rows / candidate.file.record_count) if candidate.file.record_count else 1.0
        freed += share * candidate.file.file_size_in_bytes
    return freed
