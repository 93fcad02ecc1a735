"""What came into a table since a pass looked, at most, as the summaries of the snapshots since then tell (pure).

Counters are optional in the specification.  They are believed where totals and changes agree with the parent's totals;
where they do not, or where history is gone, nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.health.counters import summary_counter, summary_counters
from icekeeper.metadata.document import Snapshot, TableMetadata

__all__ = ["Came", "came_since"]

# (total, what adds to it, what takes from it), as Java's SnapshotProducer.updateTotal pairs them.
_FILES = ("total-data-files", "added-data-files", "deleted-data-files")
_DELETES = ("total-delete-files", "added-delete-files", "removed-delete-files")
_BYTES = ("total-files-size", "added-files-size", "removed-files-size")


@dataclass(frozen=True, slots=True)
class Came:
    """What came at most; commits that only moved entries between manifests brought nothing."""

    data_files: int = 0
    in_one_partition: int = 0
    """Data files, at most, in any one partition."""
    bytes: int = 0
    delete_files: int = 0
    manifests: int | None = 0
    """``None``: not known."""
    removed: int = 0
    """Data files that are gone."""
    deletes_removed: int = 0
    """Delete files that are gone, but for deletion vectors that others replaced."""
    had_deletes: bool = False
    """Whether there were delete files when data files were removed, which perhaps nothing needs any more."""
    arrivals: tuple[tuple[int, int], ...] = ()
    """For each commit with data files: its time in epoch milliseconds, and ``in_one_partition`` up to it."""

    def reached_ms(self, files: int) -> int | None:
        """When a partition may first have got so many of the data files, in epoch milliseconds; ``None``: never."""
        return next((time_ms for time_ms, count in self.arrivals if count >= files), None)


def came_since(
    metadata: TableMetadata,
    head: Snapshot,
    snapshot_id: int,
    *,
    run_id: str | None = None,
    of_age_ms: int | None = None,
) -> Came | None:
    """What came after a snapshot, up to ``head``; ``None``: that cannot be told.

    Rewrites of data files by ``run_id`` are left out.  With ``of_age_ms`` only data files that came up to then count,
    which is for files that are looked at once they are old enough (epoch milliseconds).
    """
    since: list[Snapshot] = []
    for snapshot in metadata.ancestors(head.snapshot_id):
        if snapshot.snapshot_id == snapshot_id:
            break
        since.append(snapshot)
    else:
        return None
    came = Came()
    for snapshot in reversed(since):
        parent = metadata.snapshots[snapshot.parent_id] if snapshot.parent_id is not None else None
        if parent is None:
            return None
        if _is_own_rewrite(snapshot, run_id):
            continue
        added = _added(metadata, snapshot, parent)
        if added is None:
            return None
        if of_age_ms is not None and snapshot.timestamp_ms > of_age_ms:
            added = replace(added, data_files=0, in_one_partition=0, bytes=0)  # not in scope yet
        came = _together(came, added, snapshot.timestamp_ms)
    return came


def _is_own_rewrite(snapshot: Snapshot, run_id: str | None) -> bool:
    counters = summary_counters(snapshot)
    return run_id is not None and counters.get(RUN_ID_KEY) == run_id and "added-delete-files" not in counters


def _together(came: Came, added: Came, time_ms: int) -> Came:
    in_one = came.in_one_partition + added.in_one_partition
    unknown = came.manifests is None or added.manifests is None
    return Came(
        came.data_files + added.data_files,
        in_one,
        came.bytes + added.bytes,
        came.delete_files + added.delete_files,
        None if unknown else (came.manifests or 0) + (added.manifests or 0),
        came.removed + added.removed,
        came.deletes_removed + added.deletes_removed,
        came.had_deletes or added.had_deletes,
        (*came.arrivals, (time_ms, in_one)) if added.data_files else came.arrivals,
    )


def _added(metadata: TableMetadata, snapshot: Snapshot, parent: Snapshot) -> Came | None:
    """What one commit brought; ``None`` where its counters are not to be believed."""
    counters, before = summary_counters(snapshot), summary_counters(parent)
    changes = [_change(counters, before, keys, metadata.format_version) for keys in (_FILES, _DELETES, _BYTES)]
    if None in changes:
        return None
    (files, gone), (deletes, deletes_gone), (size, _) = (change or (0, 0) for change in changes)
    partitions = summary_counter(counters, "changed-partition-count")
    # Each partition takes one of the changed files; rows of older specs may go to one partition of the current spec.
    apart = partitions if partitions and len(metadata.specs) == 1 else 1
    in_one = max(0, min(files, files + gone + deletes + deletes_gone - apart + 1))
    created = summary_counter(counters, "manifests-created")
    # Merged manifests, and those that files were taken out of, hold old entries.
    is_plain = not (gone or deletes_gone or summary_counter(counters, "manifests-replaced"))
    return Came(
        data_files=files,
        in_one_partition=in_one,
        bytes=size,
        delete_files=deletes,
        manifests=(files + deletes if created is None else created) if is_plain else None,
        removed=gone,
        deletes_removed=deletes_gone - min(deletes_gone, summary_counter(counters, "removed-dvs") or 0),
        had_deletes=gone > 0 and summary_counter(before, _DELETES[0]) != 0 and metadata.format_version > 1,
    )


def _change(
    counters: Mapping[object, object], before: Mapping[object, object], keys: Sequence[str], version: int
) -> tuple[int, int] | None:
    """What was added and removed of one kind; a counter that is not there is 0 if that fits the totals."""
    total, plus, minus = keys
    added, removed = (summary_counter(counters, key) if key in counters else 0 for key in (plus, minus))
    if added is None or removed is None:
        return None
    then, now = (summary_counter(found, total) for found in (before, counters))
    if version == 1 and total == _DELETES[0] and total not in before and total not in counters:
        then = now = 0  # v1 has no delete files
    return (added, removed) if None not in (then, now) and (then or 0) + added - removed == now else None
