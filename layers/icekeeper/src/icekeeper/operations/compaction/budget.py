"""How much one pass may rewrite: the policy's caps, and what deletes alone may cost (rule 51) (pure)."""

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
    """Candidates of one group; ``for_deletes`` when nothing but their deletes asks for it."""

    files: tuple[Candidate, ...]
    for_deletes: bool = False
    outputs: int = 1
    """Files that they become, where their rows keep their order."""

    @property
    def total_bytes(self) -> int:
        return sum(candidate.file.file_size_in_bytes for candidate in self.files)


def bytes_since_rewrite(metadata: TableMetadata, snapshot: Snapshot) -> int:
    """Bytes that the branch received since its files were last rewritten by us, as far as its history is known."""
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

    Bins that are there for their deletes alone share ``max_write_amplification`` times ``new_bytes``, the most
    indebted first; so one global equality delete per checkpoint does not rewrite the table every hour (OLake, iceberg
    6669), and yet every pass takes one.  A bin that frees enough bytes by itself costs that budget nothing.
    """
    affordable = _affordable(bins, policy, needs, new_bytes)
    waiting = len(bins) - len(affordable)
    if policy.max_files_to_rewrite is None and policy.max_bytes_to_rewrite is None:
        return affordable, waiting
    files_left, bytes_left = policy.max_files_to_rewrite, policy.max_bytes_to_rewrite
    chosen: list[int] = []
    ordered = in_job_order(affordable, policy.rewrite_job_order)
    if policy.rewrite_job_order is JobOrder.NONE:
        ordered = sorted(affordable, key=lambda b: len(b.files), reverse=True)  # those that save most files
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
    return sum(len(c.deletes) for c in candidate.files)


def _freed_bytes(files: Iterable[Candidate], needs: Mapping[FileKey, int]) -> float:
    """Bytes of rows that are deleted, by estimate: a delete file's rows spread evenly over the files that need it."""
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
