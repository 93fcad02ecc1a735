"""Finds out whether a commit landed: reads the table until the outcome is known, or certain to stay unknown.

A server may commit and still answer "no", and a client or proxy that repeats a request may get "conflict" because of
its own success.  So a "no" is compared with the newest head.  An unchanged head agrees with a refusal, but a lagging
replica may show it even after a success.  So the head is read again, at growing intervals.  Finally the store is read,
which does not lag: a catalog that made the commit has written a metadata file that shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.commit.attempt import PreparedCommit, Verdict, is_as_before, is_older, shows, verdict
from icekeeper.commit.retry import REFUSAL_LOOKS, RESOLVE_LOOKS, SLOW, backoff_seconds
from icekeeper.errors import CatalogBusy, CommitConflict, CommitRefused, CommitStateUnknown, MaintenanceError
from icekeeper.metadata.document import TableMetadata

Traces = Callable[[LoadedTable], Iterable[TableMetadata]]
"""Reads the metadata files stored after a state of the table, including files that the catalog does not show."""


class Undecided(MaintenanceError):
    """The catalog answered "no", but the table is unchanged: the same commit may be sent again, on ``head``."""

    def __init__(self, no: CommitConflict | CatalogBusy, head: LoadedTable) -> None:
        super().__init__(f"{no}, but the table is as it was before")
        self.no = no
        self.head = head


@dataclass(frozen=True, slots=True)
class OutcomeResolver:
    """Finds out whether attempts landed.  Each method returns the table once it shows the attempt, or the reason why
    the attempt certainly did not land.

    Raises:
        CommitStateUnknown: the outcome is not certain.
    """

    catalog: Catalog
    sleep: Callable[[float], None]
    traces: Traces

    def after_no(
        self, base: LoadedTable, prepared: PreparedCommit, no: CommitConflict | CommitRefused, *, is_repeated: bool
    ) -> LoadedTable | MaintenanceError:
        """``is_repeated``: the same attempt was sent before, so it may conflict with itself."""
        now = self._load(base, no)
        found = verdict(now, base, prepared)
        if found is not Verdict.OPEN:
            return _decided(found, now, base, no)
        if is_as_before(now, base) and isinstance(no, CommitConflict | CatalogBusy):
            return Undecided(no, base if is_older(now, base) else now)
        if isinstance(no, CommitConflict) and not is_repeated:
            return no  # the table has changed, which explains the conflict
        if isinstance(no, CommitRefused) and not (prepared.names_files or no.left):
            return no
        return self.settle(base, prepared, no)

    def settle(
        self, base: LoadedTable, prepared: PreparedCommit, no: MaintenanceError
    ) -> LoadedTable | MaintenanceError:
        """Read the head a few more times while it proves nothing.  Then believe a refusal that left no trace in the
        store."""
        now = base
        for attempt in range(REFUSAL_LOOKS):
            self.sleep(backoff_seconds(SLOW + attempt))
            now = self._load(base, no)
            found = verdict(now, base, prepared)
            if found is not Verdict.OPEN:
                return _decided(found, now, base, no)
        if is_older(now, base):
            raise CommitStateUnknown(f"{no}; the catalog shows an older state of the table, which proves nothing")
        # A refused swap that staged files itself (``no.left``) has left its metadata file in the store in any case.
        if not (isinstance(no, CommitRefused) and no.left):
            self._require_no_trace(now, prepared, no)
        return no

    def after_yes(self, base: LoadedTable, prepared: PreparedCommit) -> LoadedTable:
        """Reload until the table shows the attempt: the catalog reported success, but its response does not show it."""
        for attempt in range(RESOLVE_LOOKS):
            with suppress(MaintenanceError):
                now = self.catalog.load(base.name)
                if shows(now, base, prepared):
                    return now
            self.sleep(backoff_seconds(attempt))
        raise CommitStateUnknown(
            f"{base.name}: catalog {self.catalog.id} answered that the commit landed, but the table's metadata do not"
            " show the commit; its files were kept"
        )

    def after_silence(
        self, base: LoadedTable, prepared: PreparedCommit, unknown: MaintenanceError
    ) -> LoadedTable | MaintenanceError:
        """Reload until the table shows the attempt, or no longer meets its requirements: then the attempt has lost."""
        for attempt in range(RESOLVE_LOOKS):
            self.sleep(backoff_seconds(attempt))
            try:
                now = self.catalog.load(base.name)
            except MaintenanceError:  # even a missing table does not prove that the attempt failed to land
                continue
            found = verdict(now, base, prepared)
            if found is not Verdict.OPEN:
                lost = CommitConflict(f"{base.name}: another commit landed first, after {unknown}")
                return _decided(found, now, base, lost, unknown)
        raise unknown if isinstance(unknown, CommitStateUnknown) else CommitStateUnknown(str(unknown)) from unknown

    def _load(self, base: LoadedTable, no: MaintenanceError) -> LoadedTable:
        try:
            return self.catalog.load(base.name)
        except MaintenanceError as error:
            raise CommitStateUnknown(f"{no}; the table cannot be read to confirm this: {error}") from error

    def _require_no_trace(self, now: LoadedTable, prepared: PreparedCommit, no: MaintenanceError) -> None:
        try:
            found = any(_may_be_head(trace, now) and prepared.landed(trace) for trace in self.traces(now))
        except MaintenanceError as error:
            raise CommitStateUnknown(f"{no}; the store cannot be read to confirm this: {error}") from error
        if found:
            raise CommitStateUnknown(
                f"{no}; but a metadata file in the store shows the commit, so it is unknown whether it landed"
            ) from no


def _may_be_head(trace: TableMetadata, now: LoadedTable) -> bool:
    """Whether the metadata may be newer than the catalog's.  Metadata based on an older state have lost their swap."""
    left_behind = {entry["metadata-file"] for entry in now.metadata.metadata_log}
    made_of = [entry["metadata-file"] for entry in trace.metadata_log[-1:]]
    return trace.uuid == now.metadata.uuid and left_behind.isdisjoint(made_of)


def _decided(
    found: Verdict, now: LoadedTable, base: LoadedTable, no: MaintenanceError, cause: MaintenanceError | None = None
) -> LoadedTable | MaintenanceError:
    if found is Verdict.LANDED:
        return now
    if found is Verdict.MAYBE_EXPIRED:
        if base.metadata.uuid not in (None, now.metadata.uuid):
            raise CommitStateUnknown(
                f"{now.name} was replaced by another table just now; the files of the commit were kept; run the pass "
                "again"
            ) from cause or no
        raise CommitStateUnknown(
            f"{now.name}: it is unknown whether the commit landed, because snapshots that came after its base have "
            "already expired; its files were kept"
        ) from cause or no
    return no
