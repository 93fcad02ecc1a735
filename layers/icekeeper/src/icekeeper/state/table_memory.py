"""The state of one table, as operations read and write it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.machine.clock import Clock
from icekeeper.state.findings import MOST_NEEDING, Part, RefusedExpiry, TableLayout, UnreadableFile
from icekeeper.state.identity import TableIdentity
from icekeeper.state.staging import StagedLoad
from icekeeper.state.store import Pin, StateStore

log = logging.getLogger(__name__)

MOST_REMEMBERED = 10_000
"""The most unreadable files of a pass that are recorded."""
_LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True)
class TableMemory:
    """The state of one table; each method raises StorageError when the store fails, unless it says otherwise."""

    store: StateStore
    identity: TableIdentity
    clock: Clock

    def pins(self) -> Sequence[Pin]:
        """The pins in force, read again with each call."""
        return self.store.pins(self.identity, now_ms=self.clock())

    def forget_expired_pins(self) -> None:
        """As :meth:`.StateStore.forget_expired_pins`, by the clock of the table's store, which decides about pins."""
        self.store.forget_expired_pins(self.identity, now_ms=self.clock())

    def pinned_metadata(self) -> Iterator[str]:
        """The metadata files that pins keep now."""
        return (pin.metadata_location for pin in self.pins())

    def staged_loads(self) -> tuple[StagedLoad, ...]:
        """All loads on record, in any state."""
        return self.store.staging.loads(self.identity)

    def staged_paths(self) -> tuple[str, ...]:
        """Files and prefixes of loads that are pending or adopted: never to be deleted."""
        return self.staged_paths_of(self.staged_loads())

    def staged_paths_of(self, loads: Iterable[StagedLoad]) -> tuple[str, ...]:
        """As :meth:`staged_paths`, for loads that were read already."""
        now_ms = self.clock()
        protected = [load for load in loads if load.is_protected(now_ms)]
        return tuple(chain.from_iterable((*load.prefixes, *self.staged_files(load)) for load in protected))

    def staged_files(self, load: StagedLoad) -> Iterator[str]:
        """The files of one load."""
        return chain.from_iterable(self.store.staging.files(self.identity, load.name))

    def unfinished_deletions(self) -> tuple[str, ...]:
        """The names of the lists of files that runs have not finished deleting."""
        return self.store.pending_deletions.lists(self.identity)

    def files_to_delete(self, name: str) -> Iterator[str]:
        """The files of one such list."""
        return chain.from_iterable(self.store.pending_deletions.paths(self.identity, name))

    def expect_deletions(self, name: str, paths: Iterable[str]) -> None:
        """Record files that are about to be deleted, replacing the list of this name."""
        self.store.pending_deletions.expect(self.identity, name, paths)

    def forget_deletions(self, name: str) -> None:
        """Remove a list whose files are deleted; a failure is only logged, because a later pass removes it too."""
        try:
            self.store.pending_deletions.forget(self.identity, name)
        except StorageError as error:
            log.warning("the finished list of deletions %s could not be removed: %s", name, error)

    def unreadable_files(self) -> Mapping[str, UnreadableFile]:
        """The files that passes could not read, by path."""
        return self.store.unreadable_files.of_table(self.identity)

    def waiting_unreadable(self, schema_digest: str) -> dict[str, str]:
        """Unreadable files that must not be tried yet: path → a sentence that names it
        (rule: leave-out-unreadable-files)."""
        return self.waiting_of(self.unreadable_files(), schema_digest)

    def waiting_of(self, known: Mapping[str, UnreadableFile], schema_digest: str) -> dict[str, str]:
        """As :meth:`waiting_unreadable`, for records that were read already."""
        now_ms = self.clock() if known else 0
        return {path: file.why for path, file in known.items() if file.waits(schema_digest, now_ms)}

    def remember_unreadable(self, files: Mapping[str, str], schema_digest: str) -> None:
        """Record files that cannot be read (path → why), at most :data:`MOST_REMEMBERED`.

        A failure is only logged, because the next pass finds the files again.
        """
        now_ms = self.clock()
        some = (
            UnreadableFile(path=path, why=why[:_LONGEST_REASON], schema_digest=schema_digest, tried_ms=now_ms)
            for path, why in islice(files.items(), MOST_REMEMBERED)
        )
        try:
            self.store.unreadable_files.record(self.identity, some)
        except StorageError as error:
            log.warning("files that cannot be read could not be recorded: %s", error)

    def forget_unreadable(self, paths: Iterable[str]) -> None:
        """Remove files that were read, or are no longer in the table; a failure is only logged."""
        try:
            self.store.unreadable_files.forget(self.identity, paths)
        except StorageError as error:
            log.warning("files that could not be read are still recorded: %s", error)

    def forget_read(self, paths: Iterable[str]) -> None:
        """Remove the records of files that were read now; a failure is only logged."""
        try:
            known = self.unreadable_files()
        except StorageError as error:
            log.warning("the records of unreadable files cannot be read: %s", error)
            return
        if found := sorted(known.keys() & set(paths)):
            self.forget_unreadable(found)

    def refused_expiry(self) -> RefusedExpiry | None:
        """The last expiry, if unreadable metadata stopped it."""
        return self.store.refused_expiries.of_table(self.identity)

    def remember_refused_expiry(self, why: str, needed_by: Sequence[int], history: str) -> None:
        """Record that unreadable metadata stopped an expiry; a failure is only logged, because the next pass finds the
        problem again."""
        refused = RefusedExpiry(
            why=why[:_LONGEST_REASON],
            needed_by=tuple(needed_by[:MOST_NEEDING]),
            history=history,
            tried_ms=self.clock(),
        )
        try:
            self.store.refused_expiries.record(self.identity, refused)
        except StorageError as error:
            log.warning("the refusal of the expiry could not be recorded: %s", error)

    def forget_refused_expiry(self) -> None:
        """Remove that record; a failure is only logged."""
        try:
            self.store.refused_expiries.forget(self.identity)
        except StorageError as error:
            log.warning("the refusal of an earlier expiry is still recorded: %s", error)

    def remember_files(self, facts: Mapping[str, Any]) -> None:
        """Record sizes and partitions of the table's files for the report page; a failure is only logged."""
        layout = TableLayout(identity=self.identity, observed_ms=self.clock(), part=Part.FILES, facts=facts)
        try:
            self.store.layouts.record(layout)
        except StorageError as error:
            log.warning("sizes and partitions could not be recorded: %s", error)

    def clustered_by(self, recipe: str) -> frozenset[int]:
        """The snapshots whose added files are clustered by a recipe (order or z-order, as text)."""
        return self.store.clustered_snapshots(self.identity, recipe)

    def remember_clustering(self, snapshot_id: int, recipe: str) -> None:
        """Record a commit of clustered files; a failure is only logged, because the commit has landed."""
        try:
            self.store.record_clustering(self.identity, snapshot_id, recipe)
        except StorageError as error:
            # Until the snapshot expires, its summary names the recipe.
            log.warning("the clustering of snapshot %s could not be recorded: %s", snapshot_id, error)
