"""Weighs what a rewrite saves against what it costs, and limits it (rule: delete-rewrites-within-budget) (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import takewhile

from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.health.examine import summary_counter, summary_counters
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import FileContent, FileKey
from icekeeper.operations.compaction.bins import Bin, Reason
from icekeeper.operations.compaction.candidates import Candidate, is_likely_copied, known_deleted_rows
from icekeeper.policy import Policy
from icekeeper.policy.values import JobOrder

# Weighs what a rewrite saves its readers against what it costs (pure).
#
# Money is the common measure of requests, bytes and opened files, by the policy's prices.  The defaults are AWS's; on
# storage of one's own they stand for the time that the same work takes.

# Spark's spark.sql.files.openCostInBytes: opening a file takes as long as reading this many bytes.
OPEN_BYTES = 4 * 1024 * 1024
# A reader asks for a Parquet file's footer and for its data; whoever rewrites one does too.
_GETS_PER_FILE = 2
_GIGABYTE = 1024**3


@dataclass(frozen=True, slots=True)
class Worth:
    """What rewriting a bin saves each scan that reads all of it, and what it costs once; money in US dollars."""

    opens_saved: int
    """Data and delete files that a scan opens less."""
    bytes_saved: float
    """Bytes of deleted rows that a scan reads no more."""
    bytes_rewritten: int
    requests: int
    """Requests of the rewrite itself."""
    saving: float
    """Over all scans that the new files are expected to serve."""
    cost: float
    pays: bool

    @property
    def saving_per_byte(self) -> float:
        """Saving for each byte rewritten; where the budget does not allow all bins, those that save most come first."""
        return self.saving / max(1, self.bytes_rewritten)


@dataclass(frozen=True, slots=True)
class WeighedBin:
    """A bin and its worth."""

    bin: Bin
    worth: Worth


def weigh(chosen: Bin, policy: Policy, spread: Mapping[FileKey, int]) -> WeighedBin:
    """Tell the worth of a bin; ``spread`` counts per equality delete the data files that it is spread over.

    Only for small and large files does the price decide.  Deletes have limits and a budget of their own
    (rule: delete-rewrites-within-budget); order, too, is worth what skipping saves, of which sizes tell nothing; and
    what is asked for by name is done.  Sizes do not tell what cutting a large file saves either: it may cost as much as
    the scans of the file.
    """
    inputs = len(chosen.files)
    opens = inputs - chosen.outputs + sum(len(c.deletes) for c in chosen.files)
    freed = freed_bytes(chosen.files, spread)
    size = chosen.total_bytes
    gets, puts = _GETS_PER_FILE * inputs, chosen.outputs
    per_get, per_put = policy.price_per_1000_gets / 1000, policy.price_per_1000_puts / 1000
    per_scan = opens * _open_price(policy) + _price(int(freed), policy.price_per_gb_scanned)
    scans = policy.expected_scans or 1
    if chosen.reason is Reason.LARGE:
        opens, freed = 0, 0.0
        cost = _price(size, policy.price_per_gb_copied) + gets * per_get + puts * per_put
        saving, least = Fraction(0), cost - scans * _price(size, policy.price_per_gb_scanned)
    else:
        cost = sum((_price_of_file(c, policy) for c in chosen.files), Fraction(0)) + gets * per_get + puts * per_put
        saving = scans * per_scan
        least = cost
    is_judged = chosen.reason in (Reason.SMALL, Reason.LARGE) and policy.expected_scans is not None
    worth = Worth(
        opens_saved=opens,
        bytes_saved=freed,
        bytes_rewritten=size,
        requests=gets + puts,
        saving=float(saving),
        cost=float(cost),
        pays=saving >= least or not is_judged,
    )
    return WeighedBin(chosen, worth)


def rewrite_price(size: int, policy: Policy) -> float:
    """US dollars to rewrite so many bytes, without requests."""
    return float(_price(size, policy.price_per_gb_rewritten))


def _price_of_file(candidate: Candidate, policy: Policy) -> Fraction:
    """What rewriting one file costs, without requests."""
    copied = is_likely_copied(candidate, policy)
    per_gigabyte = policy.price_per_gb_copied if copied else policy.price_per_gb_rewritten
    return _price(candidate.file.file_size_in_bytes, per_gigabyte)


def _open_price(policy: Policy) -> Fraction:
    return _GETS_PER_FILE * policy.price_per_1000_gets / 1000 + _price(OPEN_BYTES, policy.price_per_gb_scanned)


def _price(size: int, per_gigabyte: Fraction) -> Fraction:
    return size * per_gigabyte / _GIGABYTE


def freed_bytes(files: Iterable[Candidate], spread: Mapping[FileKey, int]) -> float:
    """Estimated bytes of deleted rows: those of an equality delete are spread evenly over files."""
    freed = 0.0
    for candidate in files:
        rows = known_deleted_rows(candidate.file, candidate.deletes) + sum(
            entry.file.record_count / max(1, spread.get(entry.file.key, 1))
            for entry in candidate.deletes
            if entry.file.content is FileContent.EQUALITY_DELETES
        )
        share = min(1.0, rows / candidate.file.record_count) if candidate.file.record_count else 1.0
        freed += share * candidate.file.file_size_in_bytes
    return freed


# What writers added to a branch, and what our own passes rewrote of it, as its snapshots tell (pure).

# A week: so long snapshots are kept by default.  What was written earlier has no say in what may be rewritten now.
_WINDOW_MS = 7 * 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class RewriteHistory:
    """Bytes that came to a branch and that we rewrote since deletes came to it, over a week at most."""

    recent: int
    """Added by writers since we last rewrote files, however long ago that was."""
    received: int
    """Added by writers; what other engines rewrote is no new data."""
    rewritten: int
    """Removed by our rewrites, whose outputs took their place."""

    @classmethod
    def of(cls, metadata: TableMetadata, head: Snapshot, oldest_delete: int) -> RewriteHistory:
        """The history of the branch that ends in ``head``, as far as its snapshots are kept.

        ``oldest_delete`` is the data sequence number of the oldest live one; deletes that were live once count as well.
        A counter that a summary lacks counts nothing.
        """
        start_ms = head.timestamp_ms - _WINDOW_MS
        week = list(takewhile(lambda one: one.timestamp_ms >= start_ms, metadata.ancestors(head.snapshot_id)))
        with_deletes = (
            one.sequence_number for one in week if not _is_ours(one) and _counted(one, "added-delete-files")
        )
        first = min(oldest_delete, head.sequence_number, *with_deletes)
        since = [one for one in week if one.sequence_number >= first]
        recent = takewhile(lambda one: not _is_ours(one), metadata.ancestors(head.snapshot_id))
        return cls(
            recent=sum(_counted(one, "added-files-size") for one in recent if not _is_rewrite(one)),
            received=sum(_counted(one, "added-files-size") for one in since if not (_is_ours(one) or _is_rewrite(one))),
            rewritten=sum(_counted(one, "removed-files-size") for one in since if _is_ours(one) and _is_rewrite(one)),
        )


def _is_ours(snapshot: Snapshot) -> bool:
    """Whether a pass of ours removed data files by it."""
    counters = summary_counters(snapshot)
    return RUN_ID_KEY in counters and "deleted-data-files" in counters


def _is_rewrite(snapshot: Snapshot) -> bool:
    return summary_counters(snapshot).get("operation") == "replace"


def _counted(snapshot: Snapshot, key: str) -> int:
    return summary_counter(summary_counters(snapshot), key) or 0


# Limits how much one pass rewrites: by the policy's caps, and by a budget for delete debt
# (rule: delete-rewrites-within-budget) (pure).


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
    """The bins without those that would be rewritten for their deletes alone and must wait
    (rule: delete-rewrites-within-budget).

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
