"""The compare-and-swap loop: prepare on the newest head, swap, and on a lost swap try again.

What a catalog answers is a hint; the table's metadata decide.  A success is believed when they show it, a refusal or a
conflict when the newest head does not show the attempt, and could not hide it.  A head that is where the attempt began,
or before that, explains no conflict: a replica that lags shows it after our own success.  Staged files are never
removed while the commit that names them may have landed (rule 65; iceberg 5752, 13443).
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.errors import (
    CatalogBusy,
    CommitConflict,
    CommitRefused,
    CommitStateUnknown,
    MaintenanceError,
    MetadataUnreadable,
    OperationRefused,
    PolicyError,
    StorageError,
)
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.updates import check_requirements
from icekeeper.model import Nothing

__all__ = ["Committed", "PreparedCommit", "backoff_seconds", "commit_with_retries"]

# 50 ms, 100 ms, 200 ms, ... capped at 5 s, as SeaweedFS's worker waits (rule 59).
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 5.0
# Who says "too many requests" means seconds: the waits begin as if so many swaps had been lost already (0.8 s).
_BUSY_ATTEMPTS = 4
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


class _Unexplained(CommitConflict):
    """A conflict, though the head is what the attempt was made on, or older."""

    def __init__(self, no: CommitConflict, head: LoadedTable) -> None:
        super().__init__(f"{no}, but the table is as it was before")
        self.head = head


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
        StorageError: the swap could not be sent, or the catalog refused it, in its own words; nothing changed.
        CommitStateUnknown: the outcome could not be found out; staged files are kept.
        PlanStale: from ``prepare``, the table moved where the plan cannot follow.
    """
    doubtful: PreparedCommit | None = None
    for attempt in itertools.count():
        prepared = doubtful or prepare(head)
        if isinstance(prepared, Nothing):
            return prepared
        outcome = _swap(catalog, head, prepared, pinned_metadata, sleep)
        if isinstance(outcome, LoadedTable):
            return Committed(outcome, prepared, attempt + 1)
        if isinstance(outcome, _Unexplained) or (doubtful and not isinstance(outcome, CommitConflict)):
            # The same commit again: it lands once at most, because what it requires holds once at most.
            if attempt >= max_retries or not isinstance(outcome, _Unexplained | CatalogBusy):
                raise CommitStateUnknown(f"{outcome}; whether the commit landed is not known") from outcome
            doubtful, head = prepared, outcome.head if isinstance(outcome, _Unexplained) else head
            sleep(backoff_seconds(attempt))
            continue
        doubtful = None
        discard(prepared.staged)
        if attempt >= max_retries or not isinstance(outcome, CommitConflict | CatalogBusy):
            raise _told(outcome)
        sleep(backoff_seconds(attempt + (_BUSY_ATTEMPTS if isinstance(outcome, CatalogBusy) else 0)))
        head = catalog.load(head.name)
    raise AssertionError("counting never ends")


def _swap(
    catalog: Catalog,
    base: LoadedTable,
    prepared: PreparedCommit,
    pinned_metadata: Callable[[], Iterable[str]],
    sleep: Callable[[float], None],
) -> LoadedTable | MaintenanceError:
    """The table once it shows the attempt, or why the attempt certainly did not land.

    Raises:
        CommitStateUnknown: neither is certain.
    """
    try:
        pinned = replace(base, pinned_metadata=frozenset(pinned_metadata()))
        after = catalog.commit(pinned, prepared.requirements, prepared.updates)
    except (CommitConflict, CommitRefused) as no:
        return _after_no(catalog, base, prepared, no)
    # Whoever answers a commit with something that is no table metadata may have made it.
    except (CommitStateUnknown, MetadataUnreadable) as unknown:
        return _resolve(catalog, base, prepared, unknown, sleep)
    except (StorageError, PolicyError, OperationRefused) as never_sent:  # by the catalog's contract
        return never_sent
    return after if _shows(after, base, prepared) else _after_yes(catalog, base, prepared, sleep)


def _told(why: MaintenanceError) -> MaintenanceError:
    """A refusal that the head has confirmed is a failure like any other, in the catalog's own words."""
    if not isinstance(why, CommitRefused):
        return why
    told = StorageError(str(why))
    told.__cause__ = why
    return told


def _shows(now: LoadedTable, base: LoadedTable, prepared: PreparedCommit) -> bool:
    same_table = base.metadata.uuid in (None, now.metadata.uuid)
    return same_table and prepared.landed(now.metadata) and not _is_older(now, base)


def _maybe_expired(base: LoadedTable) -> str:
    return (
        f"{base.name}: whether the commit landed cannot be told, because snapshots that came after its base have "
        "expired already; its files were kept"
    )


def _after_no(
    catalog: Catalog, base: LoadedTable, prepared: PreparedCommit, no: CommitConflict | CommitRefused
) -> LoadedTable | MaintenanceError:
    """Look once at the newest head: a server may act and answer "no", and a client or proxy that repeats a request may
    hear "conflict" about its own success."""
    try:
        now = catalog.load(base.name)
    except MaintenanceError as error:
        raise CommitStateUnknown(f"{no}; the table cannot be read to make sure of it: {error}") from error
    if _shows(now, base, prepared):
        return now
    if not prepared.cannot_have_landed(now.metadata):
        raise CommitStateUnknown(_maybe_expired(base)) from no
    is_older = _is_older(now, base)
    if isinstance(no, CommitConflict) and (is_older or now.metadata.document == base.metadata.document):
        return _Unexplained(no, base if is_older else now)
    if is_older:
        raise CommitStateUnknown(f"{no}; the catalog shows an older state of the table, which proves nothing") from no
    return no


def _is_older(now: LoadedTable, base: LoadedTable) -> bool:
    """Whether a state comes before another one of the same table: some replica lags."""
    if now.metadata.uuid != base.metadata.uuid:
        return False
    before_base = {entry["metadata-file"] for entry in base.metadata.metadata_log} - {base.metadata_location}
    went_back = 0 < now.metadata.last_sequence_number < base.metadata.last_sequence_number
    return went_back or now.metadata_location in before_base


def _after_yes(
    catalog: Catalog, base: LoadedTable, prepared: PreparedCommit, sleep: Callable[[float], None]
) -> LoadedTable:
    """Reload until the attempt is seen: the answer was success, but its metadata do not show it."""
    for attempt in range(_RESOLVE_ATTEMPTS):
        with suppress(MaintenanceError):
            now = catalog.load(base.name)
            if _shows(now, base, prepared):
                return now
        sleep(backoff_seconds(attempt))
    raise CommitStateUnknown(
        f"{base.name}: catalog {catalog.name} answered that the commit landed, but the table's metadata do not show it;"
        " its files were kept"
    )


def _resolve(
    catalog: Catalog,
    base: LoadedTable,
    prepared: PreparedCommit,
    unknown: MaintenanceError,
    sleep: Callable[[float], None],
) -> LoadedTable | MaintenanceError:
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
        if _shows(now, base, prepared):
            return now
        if _is_older(now, base):
            continue
        try:
            check_requirements(now.metadata, prepared.requirements)
        except CommitConflict:
            if not prepared.cannot_have_landed(now.metadata):
                raise CommitStateUnknown(_maybe_expired(base)) from unknown
            return CommitConflict(f"{base.name}: another commit landed first, after {unknown}")
    raise unknown if isinstance(unknown, CommitStateUnknown) else CommitStateUnknown(str(unknown)) from unknown
