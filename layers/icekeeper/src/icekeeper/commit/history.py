"""What the snapshots of a table prove about commits whose answer was lost (pure).

A snapshot may land, be built upon and expire before anybody looks: its manifests live on in its children.
"""

from __future__ import annotations

from collections.abc import Collection

from icekeeper.metadata.document import TableMetadata

__all__ = [
    "OPERATION_KEY",
    "RUN_ID_KEY",
    "newest_run",
    "operations_of_run",
    "shows_every_commit_since",
    "shows_snapshot",
    "snapshots_of_run",
]

RUN_ID_KEY = "icekeeper.run-id"
"""Snapshot summary: the run that committed it."""
OPERATION_KEY = "icekeeper.operation"
"""Snapshot summary: which operation of the run."""


def newest_run(metadata: TableMetadata) -> tuple[int, str] | None:
    """The newest snapshot that a run committed, and the run's id; ``None`` where no snapshot tells of one."""
    told = [
        (s.timestamp_ms, i, s.summary[RUN_ID_KEY]) for i, s in metadata.snapshots.items() if RUN_ID_KEY in s.summary
    ]
    return max(told)[1:] if told else None


def snapshots_of_run(run_id: str, metadata: TableMetadata) -> tuple[int, ...]:
    """Ids of the snapshots that a run committed, as far as they have not expired."""
    return tuple(i for i, snapshot in metadata.snapshots.items() if snapshot.summary.get(RUN_ID_KEY) == run_id)


def operations_of_run(run_id: str, metadata: TableMetadata) -> dict[int, str | None]:
    """Which operation committed each of :func:`snapshots_of_run`; ``None`` where the snapshot does not say."""
    return {i: metadata.snapshots[i].summary.get(OPERATION_KEY) for i in snapshots_of_run(run_id, metadata)}


def shows_snapshot(snapshot_id: int, metadata: TableMetadata) -> bool:
    """Whether the snapshot has certainly landed: it is there, or a child of it is."""
    return any(snapshot_id in (i, snapshot.parent_id) for i, snapshot in metadata.snapshots.items())


def shows_every_commit_since(base: Collection[int], metadata: TableMetadata) -> bool:
    """Whether every parent of the newer snapshots is still known, so that none committed since can have expired.

    ``base`` are the snapshot ids of an earlier state.

    Some writers take the parent's id away when the parent expires, so that a newer snapshot without one proves nothing.
    """
    known = {*base, *metadata.snapshots}
    return all(s.parent_id in known for i, s in metadata.snapshots.items() if i not in base)
