"""The compare-and-swap loop: prepare on the newest head, swap, and try again after a lost swap (``commit/retry.py``).

A catalog's answer is only a hint: the table's metadata are read until they decide whether the commit landed
(``commit/attempt.py``, ``commit/resolve_outcome.py``).  Staged files are kept while the commit may have landed
(rule: keep-files-while-commit-may-land; iceberg 5752, 13443).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.commit.attempt import PreparedCommit, shows
from icekeeper.commit.resolve_outcome import OutcomeResolver, Traces, Undecided
from icekeeper.commit.retry import Retries
from icekeeper.errors import (
    CatalogBusy,
    CommitConflict,
    CommitRefused,
    CommitStateUnknown,
    MaintenanceError,
    MetadataUnreadable,
    OperationRefused,
    PlanStale,
    PolicyError,
    StorageError,
)
from icekeeper.machine.clock import steady_s
from icekeeper.machine.interrupts import uninterrupted
from icekeeper.model import Nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTerms:
    """How often a commit is tried, and the functions that it calls."""

    max_retries: int
    """Lost swaps are retried at least this often, however long that takes."""
    patience_s: float = 0.0
    """Lost swaps are retried at least for this long, however often."""
    discard: Callable[[Sequence[str]], object]
    """Removes the staged files of an attempt that certainly did not land."""
    pinned_metadata: Callable[[], Iterable[str]]
    """Called just before each swap; returns metadata files to keep even if the table's log drops them."""
    permit: Callable[[LoadedTable], None] = lambda head: None
    """Called with each head before the commit is prepared on it; raises if that head forbids the commit."""
    renew: Callable[[], None] = lambda: None
    """Called just before each swap; raises if the lease was lost, so that the files to commit may be deleted."""
    traces: Traces = lambda base: ()
    """Reads metadata files in the store, which show a commit that landed although the catalog refused it."""
    sleep: Callable[[float], None] = time.sleep
    monotonic_s: Callable[[], float] = steady_s


@dataclass(frozen=True, slots=True)
class Committed:
    """The table after the commit, and the attempt that landed."""

    table: LoadedTable
    prepared: PreparedCommit
    attempts: int


def commit_with_retries(
    catalog: Catalog, head: LoadedTable, prepare: Callable[[LoadedTable], PreparedCommit | Nothing], terms: CommitTerms
) -> Committed | Nothing:
    """Prepare and swap until a swap lands; ``prepare`` is called on every new head and may return ``Nothing``.

    Raises:
        CommitConflict: other writers won against all attempts that ``terms`` allow; nothing changed.
        StorageError: the swap could not be sent, or the catalog refused it (in its own words); nothing changed.
        CommitStateUnknown: the outcome could not be determined; staged files are kept.
        PlanStale: from ``prepare``: the plan does not fit the new head; from ``terms.renew``: the files are gone.
        SwitchedOff: from ``terms.permit``; nothing changed.
    """
    resolver = OutcomeResolver(catalog, terms.sleep, terms.traces)
    retries = Retries(terms.max_retries, terms.patience_s, terms.sleep, terms.monotonic_s)
    sent: PreparedCommit | None = None
    left: list[str] = []
    is_unexplained = False
    for attempt in itertools.count():
        retries.begin()
        if sent is None:
            terms.permit(head)
        prepared = sent or prepare(head)
        if isinstance(prepared, Nothing):
            return prepared
        outcome = _swap(catalog, head, prepared, terms, resolver, is_repeated=sent is not None)
        is_last = retries.is_last(attempt)
        busy = _busy(outcome)
        left += _left(outcome)
        if isinstance(outcome, Undecided):
            # Send the same commit again: it lands at most once, because its requirements are met at most once.
            sent, head = prepared, outcome.head
            is_unexplained = is_unexplained or not busy
            if not is_last:
                retries.wait(head, attempt, outcome, is_busy=busy)
                continue
            if is_unexplained:
                outcome = resolver.after_silence(head, prepared, _unknown(outcome))
            else:
                outcome = resolver.settle(head, prepared, outcome.no)
        elif sent is not None and not _disproves(outcome, is_unexplained):
            outcome = _unknown(outcome)
        if isinstance(outcome, LoadedTable):
            return Committed(outcome, prepared, attempt + 1)
        if isinstance(outcome, CommitStateUnknown):
            raise outcome
        terms.discard([*prepared.staged, *left])
        if is_last or not isinstance(outcome, CommitConflict | CatalogBusy):
            raise _failure(outcome)
        sent, left, is_unexplained = None, [], False
        head = retries.newest_head(catalog, head, attempt, outcome, is_busy=busy)
    raise AssertionError("counting never ends")


def _swap(
    catalog: Catalog,
    base: LoadedTable,
    prepared: PreparedCommit,
    terms: CommitTerms,
    resolver: OutcomeResolver,
    *,
    is_repeated: bool,
) -> LoadedTable | MaintenanceError:
    """The table that shows the attempt, the reason why the attempt certainly did not land, or :class:`Undecided`.

    Raises:
        CommitStateUnknown: the outcome is not certain.
    """
    try:
        pinned = replace(base, pinned_metadata=frozenset(terms.pinned_metadata()))
        terms.renew()
        with uninterrupted():
            after = catalog.commit(pinned, prepared.requirements, prepared.updates)
    except (CommitConflict, CommitRefused) as no:
        return resolver.after_no(base, prepared, no, is_repeated=is_repeated)
    # A catalog whose response is not valid table metadata may still have made the commit.
    except (CommitStateUnknown, MetadataUnreadable) as unknown:
        return resolver.after_silence(base, prepared, unknown)
    except (StorageError, PolicyError, OperationRefused, PlanStale) as never_sent:  # by the catalog's contract
        return never_sent
    return after if shows(after, base, prepared) else resolver.after_yes(base, prepared)


def _disproves(outcome: LoadedTable | MaintenanceError, is_unexplained: bool) -> bool:
    """Whether the outcome of the last request decides an attempt that was sent several times.

    A refusal that agrees with the table proves that no request landed.  After an unexplained conflict, only a conflict
    that the table explains proves it.
    """
    return isinstance(outcome, LoadedTable | CommitConflict | (CommitConflict if is_unexplained else CommitRefused))


def _busy(outcome: LoadedTable | MaintenanceError) -> bool:
    return isinstance(outcome.no if isinstance(outcome, Undecided) else outcome, CatalogBusy)


def _left(outcome: LoadedTable | MaintenanceError) -> Sequence[str]:
    """The files that a refused swap staged itself, and that the table may reference."""
    no = outcome.no if isinstance(outcome, Undecided) else outcome
    return no.left if isinstance(no, CommitRefused) else ()


def _unknown(why: LoadedTable | MaintenanceError) -> CommitStateUnknown:
    unknown = CommitStateUnknown(f"{why}; it is unknown whether the commit landed")
    unknown.__cause__ = why if isinstance(why, MaintenanceError) else None
    return unknown


def _failure(why: MaintenanceError) -> MaintenanceError:
    """A refusal that the head confirmed becomes a ``StorageError`` in the catalog's own words."""
    if not isinstance(why, CommitRefused):
        return why
    failure = StorageError(str(why))
    failure.__cause__ = why
    return failure
