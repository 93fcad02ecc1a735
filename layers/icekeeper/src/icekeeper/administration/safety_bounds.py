"""The safety bounds that hold for a table now, for another engine that carries a plan out.

What a plan names was judged at one moment.  Until it is carried out readers may pin a snapshot and loads may stage
files; whoever deletes or expires asks for these bounds again, and honours them.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.policy import ResolvedPolicy, gc_enabled
from icekeeper.report.listings import MAX_INLINE_PATHS, ListingWriter
from icekeeper.state.table_memory import TableMemory

__all__ = ["safety_bounds"]


def safety_bounds(
    loaded: LoadedTable, resolved: ResolvedPolicy, memory: TableMemory, now_ms: int, listing: ListingWriter
) -> dict[str, Any]:
    """``bounds`` in ``plan --json``: what no deletion may touch; times are epoch milliseconds by the store's clock.

    ``listing`` stores the staged files where they are too many for the document.

    Raises:
        StorageError: the state store cannot be read, or the list cannot be written.
    """
    metadata, policy = loaded.metadata, resolved.policy
    pins, loads = memory.pins(), [load for load in memory.staged_loads() if load.is_protected(now_ms)]
    there = [metadata.snapshots[pin.snapshot_id] for pin in pins if pin.snapshot_id in metadata.snapshots]
    oldest = min(there, key=lambda snapshot: (snapshot.timestamp_ms, snapshot.sequence_number), default=None)
    files = list(chain.from_iterable(map(memory.staged_files, loads)))
    staged: dict[str, Any] = {"prefixes": sorted({prefix for load in loads for prefix in load.prefixes})}
    if len(files) <= MAX_INLINE_PATHS:
        staged["files"] = files
    else:
        name = f"{loaded.name}-staged"
        staged |= {"files_count": len(files), "listing": listing(name, {"staged": files})}
    return {
        "now_ms": now_ms,
        "metadata_location": loaded.metadata_location,
        "gc_enabled": gc_enabled(metadata),
        "oldest_pinned_snapshot_id": None if oldest is None else oldest.snapshot_id,
        "pinned_metadata": sorted({pin.metadata_location for pin in pins}),
        "staged": staged,
        "protected_prefixes": list(policy.orphan_protected_prefixes),
        "allowed_prefixes": list(loaded.allowed.prefixes),
        "orphans_modified_before_ms": now_ms - policy.orphan_older_than_ms,
        "snapshots_committed_before_ms": now_ms - policy.snapshot_retention_ms,
        "snapshots_kept": policy.max_snapshots_to_keep,
    }
