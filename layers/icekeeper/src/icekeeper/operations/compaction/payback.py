"""Weighs what a rewrite saves its readers against what it costs (rule 125) (pure).

Money is the common measure of requests, bytes and opened files, by the policy's prices.  The defaults are AWS's; on
storage of one's own they stand for the time that the same work takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from icekeeper.model import FileContent, FileKey
from icekeeper.operations.compaction.bins import Bin, Reason
from icekeeper.operations.compaction.candidates import Candidate
from icekeeper.operations.compaction.deleted_rows import known_deleted_rows
from icekeeper.operations.compaction.likely_copied import is_likely_copied
from icekeeper.policy import Policy

__all__ = ["OPEN_BYTES", "WeighedBin", "Worth", "files_until_paid", "freed_bytes", "rewrite_price", "weigh"]

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

    Only for small and large files does the price decide.  Deletes have limits and a budget of their own (rule 51);
    order, too, is worth what skipping saves, of which sizes tell nothing; and what is asked for by name is done.
    Sizes do not tell what cutting a large file saves either: it may cost as much as the scans of the file.
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


def files_until_paid(files: Iterable[Candidate], policy: Policy) -> int | None:
    """How many new files at least must join such candidates before merging any of them pays; ``None``: no number."""
    per_get, per_put = policy.price_per_1000_gets / 1000, policy.price_per_1000_puts / 1000
    per_open = (policy.expected_scans or 1) * _open_price(policy)
    gain = per_open - _GETS_PER_FILE * per_get
    lacking = per_open + per_put
    for candidate in files:
        if candidate.deletes:
            return 1  # what they save depends on how their rows are spread
        lacking -= max(Fraction(0), gain - _price_of_file(candidate, policy))
    return max(1, math.ceil(lacking / gain)) if gain > 0 else None


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
