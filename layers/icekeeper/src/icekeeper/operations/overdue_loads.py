"""Which recorded loads this pass cleans up.  Reads no files.

As in Modak, staged files of failed loads are deleted after the grace period, by their record and without a listing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from icekeeper.deletion.neighbours import owned_locations
from icekeeper.errors import PolicyError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import is_metadata_file
from icekeeper.state.staging import LoadState, StagedLoad
from icekeeper.storage.paths import is_under

# The most files that a pass cleans, to bound memory; a load is never divided.
MAX_FILES = 100_000


def plan_cleaning(
    loads: Iterable[StagedLoad], *, now_ms: int, grace_ms: int
) -> tuple[Sequence[StagedLoad], Sequence[StagedLoad]]:
    """Failed loads whose files may be deleted at ``now_ms`` (epoch milliseconds), earliest failure first; and adopted
    loads whose record may be removed.

    A failed load waits for the grace period, as orphans do: until then a commit of unknown outcome may still add its
    files.  An adopted load is protected for the same time; afterwards its files are in the table, or orphans.
    """
    due: list[StagedLoad] = []
    files = 0
    known = sorted(loads, key=lambda load: (load.failed_since(now_ms) or 0, load.name))
    for load in known:
        if load.can_be_cleaned(now_ms, grace_ms) and (not due or files + load.file_count <= MAX_FILES):
            due.append(load)
            files += load.file_count
    return due, [load for load in known if load.state is LoadState.ADOPTED and now_ms - load.changed_ms >= grace_ms]


def may_be_staged(metadata: TableMetadata, path: str) -> bool:
    """Whether cleaning may delete the path: it is below the table's locations and is not a metadata file.

    Metadata files are excluded because some catalogs keep an incomplete metadata log.
    """
    return any(is_under(path, location) for location in owned_locations(metadata)) and not is_metadata_file(path)


def require_stageable(metadata: TableMetadata, files: Iterable[str], prefixes: Iterable[str]) -> None:
    """Raise PolicyError for a path that is not below the table's locations or is a metadata file."""
    owned = owned_locations(metadata)
    for path in files:
        if not may_be_staged(metadata, path):
            what = "is table metadata" if is_metadata_file(path) else f"is not below {' or '.join(owned)}"
            raise PolicyError(f"{path} {what}, so it cannot be a staged file of this table; nothing was recorded")
    for prefix in prefixes:
        if not any(is_under(prefix.rstrip("/"), location) for location in owned):
            raise PolicyError(f"{prefix} is not below {' or '.join(owned)}; nothing was recorded")
