"""Whether a partition is at rest: writers have done with it, as far as one can tell (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.compaction.candidates import Candidate
from icekeeper.policy import Policy

__all__ = ["PartitionRest"]


@dataclass(frozen=True, slots=True)
class PartitionRest:
    """Tells partitions at rest: no file came for ``partition_rest_hours``, and for as long as files came before.

    By hours alone, a table that gets a file a day would be at rest once a day, and be merged as a whole each time.
    """

    now_ms: int
    known_since_ms: int
    """The time of the oldest snapshot that is kept; when older files were added is not known."""
    least_ms: int

    @classmethod
    def of(cls, metadata: TableMetadata, policy: Policy, now_ms: int) -> PartitionRest:
        known_since_ms = min((one.timestamp_ms for one in metadata.snapshots.values()), default=now_ms)
        return cls(now_ms, known_since_ms, policy.partition_rest_ms)

    def rests_ms(self, candidates: Sequence[Candidate]) -> int | None:
        """From when the partition of these candidates, which are all that it has, is at rest (epoch milliseconds).

        ``None``: nothing tells when a file came.  When older snapshots expire it may be at rest sooner.
        """
        added_ms = [c.added_ms for c in candidates if c.added_ms is not None]
        if not added_ms:
            return None
        newest_ms = max(added_ms)
        oldest_ms = min(added_ms) if len(added_ms) == len(candidates) else self.known_since_ms
        return newest_ms + max(self.least_ms, newest_ms - oldest_ms)
