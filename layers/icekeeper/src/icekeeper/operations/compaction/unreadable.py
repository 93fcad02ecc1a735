"""What earlier passes could not read of a table, and what this one finds out about it (rule 216)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from icekeeper.metadata.document import TableMetadata, schema_digest
from icekeeper.model import LiveEntry
from icekeeper.operations.compaction.commit_results import GroupOutcomes
from icekeeper.operations.compaction.plan import CompactionPlan
from icekeeper.state.table_memory import TableMemory
from icekeeper.state.unreadable_files import UnreadableFile

__all__ = ["UnreadableFiles"]


@dataclass(slots=True)
class UnreadableFiles:
    """The files of one table that are known to be unreadable; made by :meth:`of`."""

    memory: TableMemory
    schema_digest: str
    known: Mapping[str, UnreadableFile]
    live: set[str] = field(default_factory=set)
    """Those of them that the table still has, once all of its files were looked at."""
    saw_all: bool = False

    @classmethod
    def of(cls, memory: TableMemory, metadata: TableMetadata) -> UnreadableFiles:
        """What is remembered of a table.

        Raises:
            StorageError: the state cannot be read.
        """
        return cls(memory, schema_digest(metadata), memory.unreadable_files())

    def waiting(self) -> dict[str, str]:
        """The files that are not yet to be tried again: path → a sentence that names it."""
        return self.memory.waiting_of(self.known, self.schema_digest)

    def watch(self, entries: Iterable[LiveEntry]) -> Iterable[LiveEntry]:
        """The live entries of data files, all of them; those of known files are noted."""
        return self._noting(entries) if self.known else entries

    def _noting(self, entries: Iterable[LiveEntry]) -> Iterator[LiveEntry]:
        for live in entries:
            if live.entry.file.file_path in self.known:
                self.live.add(live.entry.file.file_path)
            yield live
        self.saw_all = True

    def forget_gone(self, delete_files: Iterable[str]) -> None:
        """Forget what the table has no more; ``delete_files`` are the paths of all of its live delete files."""
        if self.saw_all:
            self._forget(self.known.keys() - self.live - set(delete_files))

    def note(self, plan: CompactionPlan, outcomes: GroupOutcomes) -> None:
        """Remember what could not be read, and forget what was, after all."""
        if outcomes.unreadable:
            self.memory.remember_unreadable(outcomes.unreadable, self.schema_digest)
        if self.known:
            merged = [c for group in plan.groups if group.group_id in outcomes.outputs for c in group.files]
            read = {c.file.file_path for c in merged} | {e.file.file_path for c in merged for e in c.deletes}
            self._forget(self.known.keys() & read)

    def _forget(self, paths: Iterable[str]) -> None:
        found = sorted(paths)
        if found:
            self.memory.forget_unreadable(found)
