"""The compare-and-swap loop: prepare on the newest head, swap, and on a lost swap try again.

What a catalog answers is a hint; the table's metadata decide (``commit/attempt.py``), and are looked at until they do
(``commit/resolve_outcome.py``).  Staged files are never removed while the commit that names them may have landed
(rule: keep-files-while-commit-may-land; iceberg 5752, 13443).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.commit.attempt import PreparedCommit, shows
from icekeeper.commit.resolve_outcome import SLOW, OutcomeResolver, Traces, Undecided, backoff_seconds
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
from icekeeper.model import Nothing
from icekeeper.report.activity import swap_lost

# Within these bounds a rewrite's commit is tried for as long as the rewrite took.
_LEAST_PATIENCE_S = 30.0
_MOST_PATIENCE_S = 15 * 60.0
# What a process that is going to be ended keeps for one more attempt, for removing what it wrote, and for its report.
_TIME_TO_END_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTerms:
    """How often a commit is tried, and what is called on the way."""

    max_retries: int
    """How many lost swaps are followed by another attempt, whatever the time."""
    patience_s: float = 0.0
    """For how many seconds lost swaps are followed by another attempt, whatever their number."""
    discard: Callable[[Sequence[str]], object]
    """Removes the files that an attempt staged which certainly did not land."""
    pinned_metadata: Callable[[], Iterable[str]]
    """Asked just before each swap: these metadata files stay, whatever the table's log drops."""
    renew: Callable[[], None] = lambda: None
    """Called just before each swap; raises when what is to be committed is no longer ours."""
    traces: Traces = lambda base: ()
    """Metadata that the store holds; read where a refusal may hide a commit that landed."""
    sleep: Callable[[float], None] = time.sleep
    monotonic_s: Callable[[], float] = steady_s


@dataclass(frozen=True, slots=True)
class Committed:
    """The table after the commit, and the attempt that landed."""

    table: LoadedTable
    prepared: PreparedCommit
    attempts: int


def patience_of(work_s: float, left_s: float | None) -> float:
    """How many seconds to go on trying to commit work that took ``work_s`` seconds (rule: commit-on-newest-head).

    ``left_s`` is how many seconds this process will live on; ``None``: as long as the work takes.
    """
    worth_s = min(max(work_s, _LEAST_PATIENCE_S), _MOST_PATIENCE_S)
    return worth_s if left_s is None else max(0.0, min(worth_s, left_s - _TIME_TO_END_S))


def commit_with_retries(
    catalog: Catalog,
    head: LoadedTable,
    prepare: Callable[[LoadedTable], PreparedCommit | Nothing],
    terms: CommitTerms,
) -> Committed | Nothing:
    """Prepare and swap until it lands; ``prepare`` is called anew on every head and may answer ``Nothing``.

    Raises:
        CommitConflict: all tries that ``terms`` allow were lost to other writers; nothing changed.
        StorageError: the swap could not be sent, or the catalog refused it, in its own words; nothing changed.
        CommitStateUnknown: the outcome could not be found out; staged files are kept.
        PlanStale: by ``prepare``, the table moved where the plan cannot follow; by ``terms.renew``, the files are gone.
    """
    resolver = OutcomeResolver(catalog, terms.sleep, terms.traces)
    until_s = terms.monotonic_s() + terms.patience_s
    sent: PreparedCommit | None = None
    left: list[str] = []
    is_unexplained = False
    for attempt in itertools.count():
        prepared = sent or prepare(head)
        if isinstance(prepared, Nothing):
            return prepared
        outcome = _swap(catalog, head, prepared, terms, resolver, is_repeated=sent is not None)
        is_last = attempt >= terms.max_retries and terms.monotonic_s() >= until_s
        busy = _busy(outcome)
        left += _left(outcome)
        if isinstance(outcome, Undecided):
            # The same commit again: it lands once at most, because what it requires holds once at most.
            sent, head = prepared, outcome.head
            is_unexplained = is_unexplained or not busy
            if not is_last:
                _wait(head, attempt, outcome, terms)
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
            raise _told(outcome)
        sent, left, is_unexplained = None, [], False
        _wait(head, attempt, outcome, terms)
        head = catalog.load(head.name)
    raise AssertionError("counting never ends")


def _wait(head: LoadedTable, attempt: int, why: MaintenanceError, terms: CommitTerms) -> None:
    seconds = backoff_seconds(attempt + (SLOW if _busy(why) else 0))
    swap_lost(str(head.name), attempt + 1, str(why), seconds)
    terms.sleep(seconds)


def _swap(
    catalog: Catalog,
    base: LoadedTable,
    prepared: PreparedCommit,
    terms: CommitTerms,
    resolver: OutcomeResolver,
    *,
    is_repeated: bool,
) -> LoadedTable | MaintenanceError:
    """The table once it shows the attempt, why the attempt certainly did not land, or :class:`Undecided`.

    Raises:
        CommitStateUnknown: neither is certain.
    """
    try:
        pinned = replace(base, pinned_metadata=frozenset(terms.pinned_metadata()))
        terms.renew()
        after = catalog.commit(pinned, prepared.requirements, prepared.updates)
    except (CommitConflict, CommitRefused) as no:
        return resolver.after_no(base, prepared, no, is_repeated=is_repeated)
    # Whoever answers a commit with something that is no table metadata may have made it.
    except (CommitStateUnknown, MetadataUnreadable) as unknown:
        return resolver.after_silence(base, prepared, unknown)
    except (StorageError, PolicyError, OperationRefused, PlanStale) as never_sent:  # by the catalog's contract
        return never_sent
    return after if shows(after, base, prepared) else resolver.after_yes(base, prepared)


def _disproves(outcome: LoadedTable | MaintenanceError, is_unexplained: bool) -> bool:
    """Whether what came of an attempt that was sent before holds for every time that it was sent.

    A refusal that was looked into says that the attempt is not in the table.  After a conflict that nothing explained
    only another one that the table explains says so.
    """
    return isinstance(outcome, LoadedTable | CommitConflict | (CommitConflict if is_unexplained else CommitRefused))


def _busy(outcome: LoadedTable | MaintenanceError) -> bool:
    return isinstance(outcome.no if isinstance(outcome, Undecided) else outcome, CatalogBusy)


def _left(outcome: LoadedTable | MaintenanceError) -> Sequence[str]:
    """What a refused swap staged itself, and may be the table."""
    no = outcome.no if isinstance(outcome, Undecided) else outcome
    return no.left if isinstance(no, CommitRefused) else ()


def _unknown(why: LoadedTable | MaintenanceError) -> CommitStateUnknown:
    unknown = CommitStateUnknown(f"{why}; whether the commit landed is not known")
    unknown.__cause__ = why if isinstance(why, MaintenanceError) else None
    return unknown


def _told(why: MaintenanceError) -> MaintenanceError:
    """A refusal that the head has confirmed is a failure like any other, in the catalog's own words."""
    if not isinstance(why, CommitRefused):
        return why
    told = StorageError(str(why))
    told.__cause__ = why
    return told
