"""One attempt at a commit, and what a table's state and its snapshots prove about it (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import CommitConflict
from icekeeper.metadata.document import TableMetadata, check_requirements
from icekeeper.model import ManifestContent, ManifestFile

# One attempt at a commit, and what a state of the table proves about it (pure).
#
# Only the table's metadata decide.  A state that shows the attempt proves that it landed; one that does not show it, is
# no older than what the attempt was made on, and no longer meets what the attempt requires, proves that it did not.  A
# state from before the attempt proves nothing: a replica that lags shows it after our own success.

_NAMES_FILES = frozenset({"add-snapshot", "set-statistics", "set-partition-statistics"})


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """One attempt to commit on one head."""

    requirements: Sequence[Mapping[str, Any]]
    updates: Sequence[Mapping[str, Any]]
    landed: Callable[[TableMetadata], bool]
    """Whether this document shows that the attempt landed, by its snapshot id or by the state that it asked for."""
    staged: Sequence[str] = ()
    """Files written for this attempt only; removed when the attempt certainly did not land."""
    snapshot_id: int | None = None
    cannot_have_landed: Callable[[TableMetadata], bool] = lambda metadata: True
    """Asked of a document that does not show the attempt: ``False`` if it may have landed, and expired since."""

    @property
    def names_files(self) -> bool:
        """Whether the table needs files of ours once the attempt has landed; else a refusal that is believed by mistake
        costs nothing."""
        return any(update["action"] in _NAMES_FILES for update in self.updates)


class Verdict(Enum):
    """What a state of the table proves about an attempt."""

    LANDED = "landed"
    LOST = "lost"
    """Neither landed nor ever will: what it requires holds no more."""
    MAYBE_EXPIRED = "maybe expired"
    """Snapshots are gone that came after the base; the attempt's may be one of them."""
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
    # A token that merely moved proves nothing: a REST catalog compares only the requirements.
    return Verdict.OPEN


def shows(now: LoadedTable, base: LoadedTable, prepared: PreparedCommit) -> bool:
    """Whether a state of the table, as it is now, shows the attempt."""
    same_table = base.metadata.uuid in (None, now.metadata.uuid)
    return same_table and prepared.landed(now.metadata) and not is_older(now, base)


def is_as_before(now: LoadedTable, base: LoadedTable) -> bool:
    """Whether a state is the attempt's base or older: it explains no conflict, and a replica that lags shows it."""
    return is_older(now, base) or now.metadata.document == base.metadata.document


def is_older(now: LoadedTable, base: LoadedTable) -> bool:
    """Whether a state comes before another one of the same table: some replica lags."""
    if now.metadata.uuid != base.metadata.uuid:
        return False
    before_base = {entry["metadata-file"] for entry in base.metadata.metadata_log} - {base.metadata_location}
    went_back = 0 < now.metadata.last_sequence_number < base.metadata.last_sequence_number
    return went_back or now.metadata_location in before_base or _lacks_head(now.metadata, base.metadata)


def _lacks_head(now: TableMetadata, base: TableMetadata) -> bool:
    """Where neither sequence numbers (format version 1) nor the log (some catalogs keep none) tell: whether the base's
    newest snapshot has not been there yet.  One that was rolled back and expired since makes the table younger."""
    head, before = base.current_snapshot, base.snapshots.keys()
    return (
        head is not None
        and head.snapshot_id not in now.snapshots
        and now.snapshots.keys() <= before
        and now.last_updated_ms < base.last_updated_ms
    )


# What the snapshots of a table prove about commits whose answer was lost (pure).
#
# A snapshot may land, be built upon and expire before anybody looks: its manifests live on in its children.

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


# Row ids of a commit: which manifest starts where (pure).
#
# Specification, "First Row ID Assignment"; Java's ``ManifestListWriter.V3Writer`` (rule: assign-row-ids-per-attempt).


def assign_row_ids(manifests: Sequence[ManifestFile], next_row_id: int) -> tuple[list[ManifestFile], int]:
    """The manifests of a v3 snapshot, each data manifest with its first row id, and the first id that is still free.

    A manifest that has one keeps it.  The others, those from before an upgrade to v3 among them, get the next free
    ids, enough for every live row: which of their entries have ids of their own the manifest list does not tell.
    Counts must be known.
    """
    assigned = []
    for manifest in manifests:
        if manifest.content is ManifestContent.DATA and manifest.first_row_id is None:
            manifest = replace(manifest, first_row_id=next_row_id)
            next_row_id += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
        assigned.append(manifest)
    return assigned, next_row_id
