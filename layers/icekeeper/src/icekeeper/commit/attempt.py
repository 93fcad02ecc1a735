"""One attempt at a commit, and what a state of the table proves about it (pure).

Only the table's metadata decide.  A state that shows the attempt proves that it landed.  A state proves that the
attempt did not land if it does not show it, is no older than the attempt's base, and no longer meets the attempt's
requirements.  A state from before the attempt proves nothing: a lagging replica returns it even after a success.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import CommitConflict
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.updates import check_requirements
from icekeeper.model import ManifestContent, ManifestFile

_NAMES_FILES = frozenset({"add-snapshot", "set-statistics", "set-partition-statistics"})


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """One attempt to commit on one head."""

    requirements: Sequence[Mapping[str, Any]]
    updates: Sequence[Mapping[str, Any]]
    landed: Callable[[TableMetadata], bool]
    """Whether a metadata document shows the attempt: it has the attempt's snapshot id, or the requested state."""
    staged: Sequence[str] = ()
    """Files that only this attempt needs.  They are removed once it is certain that the attempt did not land."""
    snapshot_id: int | None = None
    cannot_have_landed: Callable[[TableMetadata], bool] = lambda metadata: True
    """Called with a document that does not show the attempt; ``False``: its snapshot may have landed and expired."""

    @property
    def names_files(self) -> bool:
        """Whether the committed table references staged files.  If not, believing a false refusal loses nothing."""
        return any(update["action"] in _NAMES_FILES for update in self.updates)


class Verdict(Enum):
    """What a state of the table proves about an attempt."""

    LANDED = "landed"
    LOST = "lost"
    """It did not land and never will: its requirements are no longer met."""
    MAYBE_EXPIRED = "maybe expired"
    """Snapshots newer than the base have expired, and the attempt's snapshot may be among them."""
    OPEN = "open"


def verdict(now: LoadedTable, base: LoadedTable, prepared: PreparedCommit) -> Verdict:
    """What the state ``now`` proves about an attempt on ``base``."""
    if shows(now, base, prepared):
        return Verdict.LANDED
    if is_older(now, base):
        return Verdict.OPEN
    if not prepared.cannot_have_landed(now.metadata):
        return Verdict.MAYBE_EXPIRED
    try:
        check_requirements(now.metadata, prepared.requirements)
    except CommitConflict:
        return Verdict.LOST
    # A changed metadata location alone proves nothing: a REST catalog compares only the requirements.
    return Verdict.OPEN


def shows(now: LoadedTable, base: LoadedTable, prepared: PreparedCommit) -> bool:
    """Whether the state ``now`` shows the attempt."""
    same_table = base.metadata.uuid in (None, now.metadata.uuid)
    return same_table and prepared.landed(now.metadata) and not is_older(now, base)


def is_as_before(now: LoadedTable, base: LoadedTable) -> bool:
    """Whether ``now`` is the attempt's base or older, as on a lagging replica: it explains no conflict."""
    return is_older(now, base) or now.metadata.document == base.metadata.document


def is_older(now: LoadedTable, base: LoadedTable) -> bool:
    """Whether ``now`` is older than ``base``, because a replica lags."""
    if now.metadata.uuid != base.metadata.uuid:
        return False
    before_base = {entry["metadata-file"] for entry in base.metadata.metadata_log} - {base.metadata_location}
    went_back = 0 < now.metadata.last_sequence_number < base.metadata.last_sequence_number
    return went_back or now.metadata_location in before_base or _lacks_head(now.metadata, base.metadata)


def _lacks_head(now: TableMetadata, base: TableMetadata) -> bool:
    """Whether ``now`` is from before the base's head, for tables without sequence numbers (v1) and metadata log.

    If the head was rolled back and has expired instead, ``last-updated-ms`` is later than the base's.
    """
    head, before = base.current_snapshot, base.snapshots.keys()
    return (
        head is not None
        and head.snapshot_id not in now.snapshots
        and now.snapshots.keys() <= before
        and now.last_updated_ms < base.last_updated_ms
    )


# What snapshots prove about a commit whose response was lost.  A snapshot may land, get children and expire before the
# table is read again; its children still list its manifests.

RUN_ID_KEY = "icekeeper.run-id"
"""Snapshot summary: the run that committed it."""
OPERATION_KEY = "icekeeper.operation"
"""Snapshot summary: the operation of the run."""


def newest_run(metadata: TableMetadata) -> tuple[int, str] | None:
    """The newest snapshot that a run committed, and the run's id; ``None``: no snapshot has a run id."""
    newest_first = reversed(metadata.in_commit_order)
    return next(((s.snapshot_id, s.summary[RUN_ID_KEY]) for s in newest_first if RUN_ID_KEY in s.summary), None)


def snapshots_of_run(run_id: str, metadata: TableMetadata) -> tuple[int, ...]:
    """Ids of the snapshots that a run committed and that have not expired."""
    return tuple(i for i, snapshot in metadata.snapshots.items() if snapshot.summary.get(RUN_ID_KEY) == run_id)


def operations_of_run(run_id: str, metadata: TableMetadata) -> dict[int, str | None]:
    """The operation that committed each of :func:`snapshots_of_run`; ``None``: the summary does not name it."""
    return {i: metadata.snapshots[i].summary.get(OPERATION_KEY) for i in snapshots_of_run(run_id, metadata)}


def shows_snapshot(snapshot_id: int, metadata: TableMetadata) -> bool:
    """Whether the snapshot certainly landed: it or a child of it exists."""
    return any(snapshot_id in (i, snapshot.parent_id) for i, snapshot in metadata.snapshots.items())


def shows_every_commit_since(base: Collection[int], metadata: TableMetadata) -> bool:
    """Whether no snapshot newer than ``base`` can have expired: all parents of newer snapshots are known.

    ``base`` has the snapshot ids of an earlier state.  Some writers remove the parent's id when the parent expires, so
    a newer snapshot without a parent proves nothing.
    """
    known = {*base, *metadata.snapshots}
    return all(s.parent_id in known for i, s in metadata.snapshots.items() if i not in base)


def assign_row_ids(manifests: Sequence[ManifestFile], next_row_id: int) -> tuple[list[ManifestFile], int]:
    """Give every data manifest of a v3 snapshot its first row id; also returns the next free id.

    A manifest that already has a first row id keeps it.  All others, including those from before an upgrade to v3, get
    ids for all their live rows, because the manifest list does not show which entries have ids of their own.  Row
    counts must be known.
    Source: specification, "First Row ID Assignment"; Java's ``ManifestListWriter.V3Writer``
    (rule: rows-keep-their-lineage).
    """
    assigned = []
    for manifest in manifests:
        if manifest.content is ManifestContent.DATA and manifest.first_row_id is None:
            manifest = replace(manifest, first_row_id=next_row_id)
            next_row_id += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
        assigned.append(manifest)
    return assigned, next_row_id
