"""The state of one table, as operations read and write it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.machine.clock import Clock
from icekeeper.metadata.document_files import is_metadata_file
from icekeeper.state.findings import (
    GONE,
    MOST_NEEDING,
    MOST_PROBLEMS,
    UNREADABLE,
    FileFinding,
    Part,
    RefusedExpiry,
    TableLayout,
    Verified,
)
from icekeeper.state.identity import TableIdentity
from icekeeper.state.staging import StagedLoad
from icekeeper.state.store import Pin, StateStore

log = logging.getLogger(__name__)

MOST_REMEMBERED = 10_000
"""The most unreadable files of a pass that are recorded."""
_LONGEST_REASON = 1000
_LONGEST_PATH = 4096  # an object's key has at most 1,024 bytes; metadata may hold any text


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
        protected = [load for load in loads if load.is_protected]
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

    def unreadable_files(self) -> Mapping[str, FileFinding]:
        """The files that passes could not read, by path."""
        found = self.store.findings.of_table(self.identity)
        return {path: file for path, file in found.items() if file.schema_digest}

    def waiting_unreadable(self, schema_digest: str) -> dict[str, str]:
        """Unreadable files that must not be tried yet: path → a sentence that names it
        (rule: leave-out-unreadable-files)."""
        return self.waiting_of(self.unreadable_files(), schema_digest)

    def waiting_of(self, known: Mapping[str, FileFinding], schema_digest: str) -> dict[str, str]:
        """As :meth:`waiting_unreadable`, for records that were read already."""
        now_ms = self.clock() if known else 0
        return {path: file.why for path, file in known.items() if file.waits(schema_digest, now_ms)}

    def remember_unreadable(self, files: Mapping[str, str], schema_digest: str) -> None:
        """Record files that cannot be read (path → why), at most :data:`MOST_REMEMBERED`.

        A failure is only logged, because the next pass finds the files again.
        """
        now_ms, store = self.clock(), self.store.findings
        try:
            known = store.of_table(self.identity)
            some = (
                FileFinding(path=path, why=why[:_LONGEST_REASON], schema_digest=schema_digest, tried_ms=now_ms)
                for path, why in islice(files.items(), MOST_REMEMBERED)
            )
            # What ``verify`` found stays.
            store.record(
                self.identity,
                (
                    replace(new, kind=old.kind, why=old.why, from_content=old.from_content)
                    if (old := known.get(new.path)) and old.kind != UNREADABLE
                    else new
                    for new in some
                ),
            )
        except StorageError as error:
            log.warning("files that cannot be read could not be recorded: %s", error)

    def forget_findings(self, paths: Iterable[str]) -> None:
        """Remove the findings of these files; a failure is only logged."""
        try:
            self.store.findings.forget(self.identity, paths)
        except StorageError as error:
            log.warning("findings about files are still recorded: %s", error)

    def forget_read(self, paths: Iterable[str]) -> None:
        """Remove what passes found about files that were read now; a failure is only logged."""
        read = frozenset(paths)
        self._forget_some(lambda file: file.kind == UNREADABLE and file.path in read)

    def forget_freed(self, paths: Iterable[str]) -> None:
        """Remove all findings of files that no retained snapshot references any more; a failure is only logged."""
        freed = frozenset(paths)
        self._forget_some(lambda file: file.path in freed)

    def forget_unreferenced(self, is_referenced: Callable[[str], bool], before_ms: int) -> None:
        """Remove older findings of files that a table, as it was loaded at ``before_ms`` or later, does not reference;
        a failure is only logged.

        A metadata file stands for its table, whose problem stays with newer ones.
        """
        self._forget_some(
            lambda file: file.tried_ms < before_ms and not is_metadata_file(file.path) and not is_referenced(file.path)
        )

    def _forget_some(self, is_meant: Callable[[FileFinding], bool]) -> None:
        try:
            known = self.store.findings.of_table(self.identity)
        except StorageError as error:
            log.warning("the findings about files cannot be read: %s", error)
            return
        if found := [path for path, file in known.items() if is_meant(file)]:
            self.forget_findings(found)

    def remember_verified(
        self,
        problems: Mapping[str, tuple[str, str, bool]],
        found: int,
        referenced: Set[str],
        read: Set[str] = frozenset(),
    ) -> None:
        """Record a ``verify`` that found ``found`` problems: path → kind, sentence, and whether the file's content has
        shown it; it replaces earlier findings.

        ``referenced``: the files that the table's snapshots reference, all of them if there is no problem.  ``read``:
        the files whose content ``verify`` has read.  What the content of other files has shown stays a finding as long
        as the file is referenced.

        Raises:
            StorageError: the state cannot be read or written.
        """
        now_ms, store = self.clock(), self.store.findings
        known = store.of_table(self.identity)
        new: dict[str, FileFinding] = {}
        short = ((path, problem) for path, problem in problems.items() if len(path) <= _LONGEST_PATH)
        for path, (kind, why, from_content) in islice(short, MOST_PROBLEMS):
            earlier = known.get(path) or FileFinding(path=path, why="", tried_ms=now_ms)
            new[path] = replace(earlier, kind=kind, why=why[:_LONGEST_REASON], from_content=from_content)
        kept = {
            path
            for path, file in known.items()
            if file.from_content and path not in read and (found or (path in referenced and GONE not in file.why))
        }
        store.record(self.identity, new.values())
        store.forget(self.identity, sorted(known.keys() - new.keys() - kept))
        store.record_verified(self.identity, Verified(at_ms=now_ms, problems=found))

    def refused_expiry(self) -> RefusedExpiry | None:
        """The last expiry, if unreadable metadata stopped it."""
        return self.store.refused_expiries.of_table(self.identity)

    def remember_refused_expiry(self, why: str, needed_by: Sequence[int], history: str) -> None:
        """Record that unreadable metadata stopped an expiry; a failure is only logged, because the next pass finds the
        problem again."""
        refused = RefusedExpiry(
            why=why[:_LONGEST_REASON], needed_by=tuple(needed_by[:MOST_NEEDING]), history=history, tried_ms=self.clock()
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
