"""What the state records about a table's data files: which are unreadable, and sizes and partitions for the report
page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from icekeeper.errors import TableUnsupported
from icekeeper.health.layout import LayoutTally
from icekeeper.metadata.document import TableMetadata, schema_digest
from icekeeper.model import LiveEntry
from icekeeper.operations.compaction.land.commit_groups import GroupOutcomes
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan
from icekeeper.operations.compaction.terms.output_names import partition_path
from icekeeper.pass_context.context import OperationContext

_MOST_TALLIED = 20_000
"""Sizes and partitions are recorded for tables with at most this many data files: it takes 20 ms of a plan's second."""


class RememberedFiles:
    """The data files of a table in a pass (rule: leave-out-unreadable-files); a dry run records nothing."""

    def __init__(self, context: OperationContext, metadata: TableMetadata) -> None:
        """Raises StorageError: the state cannot be read."""
        self._memory, self._metadata, self._records = context.memory, metadata, not context.dry_run
        self._schema_digest = schema_digest(metadata)
        self._unreadable = context.memory.unreadable_files()
        # The unreadable files that the table still has; complete once all entries were watched.
        self._live: set[str] = set()
        self._saw_all = False
        self._layout = LayoutTally()

    def waiting(self) -> dict[str, str]:
        """The unreadable files that this pass does not try again: path → a sentence that names it."""
        return self._memory.waiting_of(self._unreadable, self._schema_digest)

    def watch(self, entries: Iterable[LiveEntry]) -> Iterator[LiveEntry]:
        """Yield all ``entries`` of live data files unchanged, and record each."""
        for live in self._layout.watch(entries, _MOST_TALLIED) if self._records else entries:
            if live.entry.file.file_path in self._unreadable:
                self._live.add(live.entry.file.file_path)
            yield live
        self._saw_all = True

    def forget_gone(self, delete_files: Iterable[str]) -> None:
        """Forget files that the table no longer has; ``delete_files`` are the paths of all its live delete files."""
        if self._saw_all and self._records:
            self._forget(self._unreadable.keys() - self._live - set(delete_files))

    def note(self, plan: CompactionPlan, outcomes: GroupOutcomes) -> None:
        """Record unreadable files, delete the record of files that are readable again, and count outputs in place of
        inputs."""
        if outcomes.unreadable:
            self._memory.remember_unreadable(outcomes.unreadable, self._schema_digest)
        if self._unreadable:
            merged = [c for group in plan.groups if group.group_id in outcomes.committed for c in group.files]
            read = {c.file_path for c in merged} | {e.file.file_path for c in merged for e in c.deletes}
            self._forget(self._unreadable.keys() & read)
        for group in plan.groups if self._layout.is_whole else ():
            result = outcomes.committed.get(group.group_id)
            if result is not None:
                for merged_file in group.files:
                    self._layout.remove(merged_file.spec_id, merged_file.partition, merged_file.file_size_in_bytes)
                for file in result.written:
                    self._layout.add(group.spec_id if result.spec_id is None else result.spec_id, file)

    def record_layout(self) -> None:
        """Record sizes and partitions for the report page, except for large tables; delete files do not count, because
        the plan holds them without their specs."""
        specs, schemas = self._metadata.specs, self._metadata.schemas_current_first
        if self._layout.is_whole:
            with suppress(TableUnsupported):  # a partition transform without a text
                self._memory.remember_files(
                    self._layout.facts(lambda spec, values: partition_path(specs[spec], values, schemas))
                )

    def _forget(self, paths: Collection[str]) -> None:
        if paths:
            self._memory.forget_read(paths)
