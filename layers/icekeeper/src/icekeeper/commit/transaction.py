"""The compare-and-swap loop: prepare on the newest head, swap, and on a lost swap try again.

Seed 000, "Commit Protocol"; the resolution of unknown outcomes is DESIGN 6.2 and iceberg 5752, 13443: staged files
are never removed while the commit that names them may have landed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.errors import (
    CommitConflict,
    CommitStateUnknown,
    MaintenanceError,
    MetadataUnreadable,
    PolicyError,
    StorageError,
)
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.updates import check_requirements
from icekeeper.model import Nothing

__all__ = ["Committed", "PreparedCommit", "backoff_seconds", "commit_with_retries"]

# Seed 000, "Commit Protocol": 50 ms, 100 ms, 200 ms, ... capped at 5 s.
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 5.0
# How often an unknown outcome is looked up before giving up; the waits add up to about six seconds.
_RESOLVE_ATTEMPTS = 7


@dataclass(frozen=True, slots=True)
class PreparedCommit:
    """One attempt on one head."""

    requirements: Sequence[Mapping[str, Any]]
    updates: Sequence[Mapping[str, Any]]
    landed: Callable[[TableMetadata], bool]
    """Does this document show that the attempt landed?  By snapshot id, or by the state that was asked for."""
    staged: Sequence[str] = ()
    """Files written for this attempt only; removed when the attempt certainly did not land."""
    snapshot_id: int | None = None
    cannot_have_landed: Callable[[TableMetadata], bool] = lambda metadata: True
    """Asked of a document that does not show the attempt: could it have landed, been built upon and expired?"""


@dataclass(frozen=True, slots=True)
class Committed:
    """The table after the commit, and the attempt that landed."""

    table: LoadedTable
    prepared: PreparedCommit
    attempts: int


def backoff_seconds(attempt: int) -> float:
    """Wait before retry ``attempt`` (0 first), with jitter between half and the whole of the step."""
    step = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0**attempt)
    return step * random.uniform(0.5, 1.0)


def commit_with_retries(
    catalog: Catalog,
    head: LoadedTable,
    prepare: Callable[[LoadedTable], PreparedCommit | Nothing],
    *,
    max_retries: int,
    discard: Callable[[Sequence[str]], None],
    pinned_metadata: Callable[[], Iterable[str]],
    sleep: Callable[[float], None] = time.sleep,
) -> Committed | Nothing:
    """Prepare and swap until it lands; ``prepare`` is called anew on every head and may answer ``Nothing``.

    ``pinned_metadata`` is asked just before each swap: those metadata files stay, whatever the table's log drops.

    Raises:
        CommitConflict: ``max_retries`` retries were lost to other writers; nothing changed.
        StorageError: the swap could not be sent; nothing changed.
        CommitStateUnknown: the outcome could not be found out; staged files are kept.
        PlanStale: from ``prepare``, the table moved where the plan cannot follow.
    """
    attempt = 0
    while True:
        prepared = prepare(head)
        if isinstance(prepared, Nothing):
            return prepared
        try:
            base = replace(head, pinned_metadata=frozenset(pinned_metadata()))
            after = catalog.commit(base, prepared.requirements, prepared.updates)
            return Committed(after, prepared, attempt + 1)
        except CommitConflict as conflict:
            seen = _after_conflict(catalog, head, conflict)
            if prepared.landed(seen.metadata):
                return Committed(seen, prepared, attempt + 1)
            if not prepared.cannot_have_landed(seen.metadata):
                raise CommitStateUnknown(_maybe_expired(head)) from conflict
            discard(prepared.staged)
            if attempt >= max_retries:
                raise
            sleep(backoff_seconds(attempt))
            head = catalog.load(head.name)
        # Whoever answers a commit with something that is no table metadata may have made it.
        except (CommitStateUnknown, MetadataUnreadable) as unknown:
            resolved = _resolve(catalog, head, prepared, unknown, sleep)
            if prepared.landed(resolved.metadata):
                return Committed(resolved, prepared, attempt + 1)
            discard(prepared.staged)
            if attempt >= max_retries:
                raise CommitConflict(f"{head.name}: another commit landed first, {attempt + 1} times") from unknown
            head = resolved
        except (StorageError, PolicyError):
            discard(prepared.staged)  # by its contract the swap was not sent
            raise
        attempt += 1


def _maybe_expired(base: LoadedTable) -> str:
    return (
        f"{base.name}: whether the commit landed cannot be told, because snapshots that came after its base have "
        "expired already; its files were kept"
    )


def _after_conflict(catalog: Catalog, base: LoadedTable, conflict: CommitConflict) -> LoadedTable:
    """The newest head: a client that repeats requests by itself may hear "conflict" about its own success."""
    try:
        return catalog.load(base.name)
    except MaintenanceError as error:
        raise CommitStateUnknown(f"{conflict}; the table cannot be read to make sure of it: {error}") from error


def _resolve(
    catalog: Catalog,
    base: LoadedTable,
    prepared: PreparedCommit,
    unknown: MaintenanceError,
    sleep: Callable[[float], None],
) -> LoadedTable:
    """Reload until the attempt is seen, or until what it requires no longer holds, which proves that it lost.

    A token that merely moved proves nothing: a REST catalog that is still busy with the attempt compares only the
    requirements, and an unrelated change of the table leaves those alone.
    """
    for attempt in range(_RESOLVE_ATTEMPTS):
        sleep(backoff_seconds(attempt))
        try:
            now = catalog.load(base.name)
        except MaintenanceError:  # not even a table that is gone proves that the attempt never landed
            continue
        if prepared.landed(now.metadata):
            return now
        try:
            check_requirements(now.metadata, prepared.requirements)
        except CommitConflict:
            if not prepared.cannot_have_landed(now.metadata):
                raise CommitStateUnknown(_maybe_expired(base)) from unknown
            return now
    raise unknown if isinstance(unknown, CommitStateUnknown) else CommitStateUnknown(str(unknown)) from unknown
