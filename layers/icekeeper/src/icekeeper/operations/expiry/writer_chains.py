"""Which snapshots streaming writers need to find their last commit (rule 75) (pure).

A writer walks from the head from parent to parent to the newest snapshot that it marked, and gives up at the first one
that is missing.  So every snapshot on the way must stay, not only the marked one.  A writer that has not committed for
long is taken for dead, so that it cannot stop expiry for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from icekeeper.errors import OperationRefused
from icekeeper.metadata.document import Ref, TableMetadata
from icekeeper.metadata.writer_marks import marks_of
from icekeeper.policy import Policy

__all__ = ["refuse_broken_chains", "writer_chains"]


def writer_chains(metadata: TableMetadata, refs: Iterable[Ref], policy: Policy, now_ms: int) -> Mapping[int, str]:
    """The ids of the snapshots on the way from each branch's head to every writer's newest mark, each with a writer
    that needs it; only writers that committed within ``writer_mark_retention_hours`` count."""
    chains: dict[int, str] = {}
    if policy.writer_mark_retention_ms == 0:
        return chains
    for ref in refs:
        if ref.type == "branch":
            for snapshot_id, writer in _chains_of(metadata, ref, now_ms - policy.writer_mark_retention_ms).items():
                chains.setdefault(snapshot_id, writer)
    return chains


def refuse_broken_chains(metadata: TableMetadata, policy: Policy, now_ms: int) -> None:
    """Refuse when the policy names a snapshot that a writer needs to find its last commit.

    Raises:
        OperationRefused: without one of them a writer would not find its last commit.
    """
    key, named = policy.named_snapshots
    if not named:
        return
    chains = writer_chains(metadata, metadata.refs.values(), policy, now_ms)
    for snapshot_id in named:
        if snapshot_id in chains:
            raise OperationRefused(
                f"snapshot {snapshot_id} of {key} is one by which {chains[snapshot_id]} finds its last "
                "commit, and without which it may write its data again; nothing expired: take the snapshot out, or, "
                "if that writer is gone for good, set writer_mark_retention_hours=0"
            )


def _chains_of(metadata: TableMetadata, branch: Ref, oldest_ms: int) -> dict[int, str]:
    chains: dict[int, str] = {}
    seen: set[str] = set()
    way: list[int] = []
    for snapshot in metadata.ancestors(branch.snapshot_id):
        way.append(snapshot.snapshot_id)
        for mark in marks_of(snapshot):
            # Only the newest mark of a writer counts: older ones are never reached.
            if mark.writer not in seen and mark.committed_ms >= oldest_ms:
                chains.update(dict.fromkeys(way, mark.writer))
                way = []
            seen.add(mark.writer)
    return chains
