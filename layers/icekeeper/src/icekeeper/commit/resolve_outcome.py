"""Finds out whether a commit landed: looks at the table until that is known, or certain never to be known.

A server may act and answer "no", and a client or proxy that repeats a request may hear "conflict" about its own
success.  So a "no" is compared with the newest head.  A head that is as it was before fits a refusal, but a replica
that lags shows it after our success, too.  It is therefore looked at again, at growing intervals, and then the store is
asked, which does not lag: a catalog that has carried a commit out has written a metadata file that shows it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.commit.attempt import PreparedCommit, Verdict, is_as_before, is_older, shows, verdict
from icekeeper.errors import CatalogBusy, CommitConflict, CommitRefused, CommitStateUnknown, MaintenanceError
from icekeeper.metadata.document import TableMetadata

Traces = Callable[[LoadedTable], Iterable[TableMetadata]]
"""Reads the metadata files that the store has received since a state of the table, also those the catalog hides."""

# 50 ms, 100 ms, 200 ms, ... capped at 5 s, as SeaweedFS's worker waits (rule: commit-on-newest-head).
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 5.0
SLOW = 4
"""Where seconds matter, waits begin as if so many swaps had been lost already (0.8 s): after "too many requests", and
between looks at a table that may lag."""
# How often an unknown outcome is looked up before giving up; the waits add up to about six seconds.
_RESOLVE_LOOKS = 7
# How often a refusal is compared with the head again, while that is as it was before; about six seconds as well.
_REFUSAL_LOOKS = 3


def backoff_seconds(attempt: int) -> float:
    """Wait before retry ``attempt`` (0 first), with jitter between half and the whole of the step."""
    step = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2.0**attempt)
    return step * random.uniform(0.5, 1.0)


class Undecided(MaintenanceError):
    """The catalog said no, but the table is as it was before: the same commit may be sent again, on ``head``."""

    def __init__(self, no: CommitConflict | CatalogBusy, head: LoadedTable) -> None:
        super().__init__(f"{no}, but the table is as it was before")
        self.no = no
        self.head = head


@dataclass(frozen=True, slots=True)
class OutcomeResolver:
    """Finds out what became of attempts.  Each method answers with the table once it shows the attempt, or with why the
    attempt certainly did not land.

    Raises:
        CommitStateUnknown: neither is certain.
    """

    catalog: Catalog
    sleep: Callable[[float], None]
    traces: Traces

    def after_no(
        self, base: LoadedTable, prepared: PreparedCommit, no: CommitConflict | CommitRefused, *, is_repeated: bool
    ) -> LoadedTable | MaintenanceError:
        """``is_repeated``: the same attempt was sent before, so that a conflict may be one with itself."""
        now = self._load(base, no)
        found = verdict(now, base, prepared)
        if found is not Verdict.OPEN:
            return _decided(found, now, no)
        if is_as_before(now, base) and isinstance(no, CommitConflict | CatalogBusy):
            return Undecided(no, base if is_older(now, base) else now)
        if isinstance(no, CommitConflict) and not is_repeated:
            return no  # whatever moved the table explains it
        if isinstance(no, CommitRefused) and not (prepared.names_files or no.left):
            return no
        return self.settle(base, prepared, no)

    def settle(
        self, base: LoadedTable, prepared: PreparedCommit, no: MaintenanceError
    ) -> LoadedTable | MaintenanceError:
        """Look again, a few times, at a head that proves nothing; then a refusal that left no trace is believed."""
        now = base
        for attempt in range(_REFUSAL_LOOKS):
            self.sleep(backoff_seconds(SLOW + attempt))
            now = self._load(base, no)
            found = verdict(now, base, prepared)
            if found is not Verdict.OPEN:
                return _decided(found, now, no)
        if is_older(now, base):
            raise CommitStateUnknown(f"{no}; the catalog shows an older state of the table, which proves nothing")
        # What the swap itself has staged is there in any case.
        if not (isinstance(no, CommitRefused) and no.left):
            self._require_no_trace(now, prepared, no)
        return no

    def after_yes(self, base: LoadedTable, prepared: PreparedCommit) -> LoadedTable:
        """Reload until the attempt is seen: the answer was success, but its metadata do not show it."""
        for attempt in range(_RESOLVE_LOOKS):
            with suppress(MaintenanceError):
                now = self.catalog.load(base.name)
                if shows(now, base, prepared):
                    return now
            self.sleep(backoff_seconds(attempt))
        raise CommitStateUnknown(
            f"{base.name}: catalog {self.catalog.name} answered that the commit landed, but the table's metadata do not"
            " show it; its files were kept"
        )

    def after_silence(
        self, base: LoadedTable, prepared: PreparedCommit, unknown: MaintenanceError
    ) -> LoadedTable | MaintenanceError:
        """Reload until the attempt is seen, or until what it requires no longer holds, which proves that it lost."""
        for attempt in range(_RESOLVE_LOOKS):
            self.sleep(backoff_seconds(attempt))
            try:
                now = self.catalog.load(base.name)
            except MaintenanceError:  # not even a table that is gone proves that the attempt never landed
                continue
            found = verdict(now, base, prepared)
            if found is not Verdict.OPEN:
                lost = CommitConflict(f"{base.name}: another commit landed first, after {unknown}")
                return _decided(found, now, lost, unknown)
        raise unknown if isinstance(unknown, CommitStateUnknown) else CommitStateUnknown(str(unknown)) from unknown

    def _load(self, base: LoadedTable, no: MaintenanceError) -> LoadedTable:
        try:
            return self.catalog.load(base.name)
        except MaintenanceError as error:
            raise CommitStateUnknown(f"{no}; the table cannot be read to make sure of it: {error}") from error

    def _require_no_trace(self, now: LoadedTable, prepared: PreparedCommit, no: MaintenanceError) -> None:
        try:
            found = any(_may_be_head(trace, now) and prepared.landed(trace) for trace in self.traces(now))
        except MaintenanceError as error:
            raise CommitStateUnknown(f"{no}; the store cannot be asked to make sure of it: {error}") from error
        if found:
            raise CommitStateUnknown(
                f"{no}; but a metadata file in the store shows the commit, so that whether it landed is not known"
            ) from no


def _may_be_head(trace: TableMetadata, now: LoadedTable) -> bool:
    """Whether metadata may be newer than what the catalog shows; what was made of an older state has lost its swap."""
    left_behind = {entry["metadata-file"] for entry in now.metadata.metadata_log}
    made_of = [entry["metadata-file"] for entry in trace.metadata_log[-1:]]
    return trace.uuid == now.metadata.uuid and left_behind.isdisjoint(made_of)


def _decided(
    found: Verdict, now: LoadedTable, no: MaintenanceError, cause: MaintenanceError | None = None
) -> LoadedTable | MaintenanceError:
    if found is Verdict.LANDED:
        return now
    if found is Verdict.MAYBE_EXPIRED:
        raise CommitStateUnknown(
            f"{now.name}: whether the commit landed cannot be told, because snapshots that came after its base have "
            "expired already; its files were kept"
        ) from cause or no
    return no
