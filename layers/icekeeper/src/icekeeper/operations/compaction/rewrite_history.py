"""What writers added to a branch, and what our own passes rewrote of it, as its snapshots tell (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.health.examine import summary_counter, summary_counters
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import Snapshot, TableMetadata

__all__ = ["RewriteHistory"]

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
