"""Which recorded loads are cleaned up in this pass (pure).

As in Modak (rule: clean-failed-loads-from-record): staged files of loads that ended in failed are deleted after the
grace period, driven by the load journal rather than by listing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from icekeeper.deletion.neighbours import owned_locations
from icekeeper.errors import PolicyError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import is_metadata_file
from icekeeper.state.store import LoadState, StagedLoad
from icekeeper.storage.paths import is_under

# So many files are cleaned in one pass at most, so that memory stays bounded; a load is never divided.
MAX_FILES = 100_000


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """Failed loads whose files may be deleted, longest failed first, and adopted ones that need no record any more."""

    failed: tuple[StagedLoad, ...]
    adopted: tuple[StagedLoad, ...]


def plan_cleaning(loads: Iterable[StagedLoad], *, now_ms: int, grace_ms: int) -> CleaningPlan:
    """Decide at ``now_ms`` (epoch milliseconds).

    A failed load waits for the grace period, as orphans do: until then a commit that nobody told us about may still
    name its files.  An adopted one is protected for as long; then its files are in the table, or nobody's.
    """
    due: list[StagedLoad] = []
    files = 0
    known = sorted(loads, key=lambda load: (load.failed_since(now_ms) or 0, load.name))
    for load in known:
        if load.can_be_cleaned(now_ms, grace_ms) and (not due or files + load.file_count <= MAX_FILES):
            due.append(load)
            files += load.file_count
    adopted = (load for load in known if load.state is LoadState.ADOPTED and now_ms - load.changed_ms >= grace_ms)
    return CleaningPlan(tuple(due), tuple(adopted))


def may_be_staged(metadata: TableMetadata, path: str) -> bool:
    """Whether a recorded path is one that cleaning may delete at all: below a location that the table owns, no table
    metadata (some catalogs keep an incomplete log of it)."""
    return any(is_under(path, location) for location in owned_locations(metadata)) and not is_metadata_file(path)


def require_stageable(metadata: TableMetadata, files: Iterable[str], prefixes: Iterable[str]) -> None:
    """Raises PolicyError for a path that is not below the table's locations, or is table metadata."""
    owned = owned_locations(metadata)
    for path in files:
        if not may_be_staged(metadata, path):
            what = "is table metadata" if is_metadata_file(path) else f"is not below {' or '.join(owned)}"
            raise PolicyError(f"{path} {what}, so it cannot be a staged file of this table; nothing was recorded")
    for prefix in prefixes:
        if not any(is_under(prefix.rstrip("/"), location) for location in owned):
            raise PolicyError(f"{prefix} is not below {' or '.join(owned)}; nothing was recorded")
