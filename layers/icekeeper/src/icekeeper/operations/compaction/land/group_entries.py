"""Read the manifest entries of file groups again when the groups are rewritten, because plans hold no column
metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile
from icekeeper.operations.compaction.plan.bins import FileGroup
from icekeeper.operations.compaction.plan.candidate import Candidate
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan
from icekeeper.rows.arrow_schema import leaf_columns

OVERTAKEN = "the manifest of an input file no longer has the planned entry"

# The entries of a group are kept in memory together with those of the next groups, because a manifest has files of many
# groups and should be read once for all of them.  An entry takes about _ENTRY_BYTES, and _COLUMN_BYTES more for each
# column.
_HELD_BYTES = 128 * 1024 * 1024
_ENTRY_BYTES = 600
_COLUMN_BYTES = 40


class GroupEntries:
    """The entries of a plan's groups, read from the manifests in which the plan found them."""

    def __init__(self, reader: TableReader, plan: CompactionPlan) -> None:
        columns = len(leaf_columns(reader.metadata.current_schema))
        self._most_files = _HELD_BYTES // (_ENTRY_BYTES + _COLUMN_BYTES * columns)
        self._reader, self._snapshot_id, self._groups = reader, plan.snapshot_id, plan.groups
        self._held: Mapping[str, DataFile] = {}
        self._known: Set[int] = frozenset()
        """Ids of the groups whose entries are held."""

    def of(self, groups: Sequence[FileGroup]) -> Mapping[str, DataFile]:
        """Path → entry of the files of these groups (and of others), without entries that differ from the plan.

        Raises:
            MetadataUnreadable: a manifest is missing or damaged.
        """
        if not {group.group_id for group in groups} <= self._known:
            self._read([*groups, *self._following(groups)])
        return self._held

    def _following(self, groups: Sequence[FileGroup]) -> list[FileGroup]:
        """As many of the next groups as fit into memory together with these."""
        room = self._most_files - sum(len(group.files) for group in groups)
        found: list[FileGroup] = []
        for group in self._groups[max(group.group_id for group in groups) + 1 :]:
            room -= len(group.files)
            if room < 0:
                break
            found.append(group)
        return found

    def _read(self, groups: Sequence[FileGroup]) -> None:
        self._held, self._known = {}, frozenset()  # free the memory before reading others
        planned = {c.file_path: c for group in groups for c in group.files}
        asked = {c.manifest_path for c in planned.values()}
        manifests = self._reader.manifests(self._reader.metadata.snapshots[self._snapshot_id])
        self._held = {
            entry.file.file_path: _with_row_id(entry.file, candidate)
            for _, entry in self._reader.live_entries([m for m in manifests if m.manifest_path in asked])
            if (candidate := planned.get(entry.file.file_path)) is not None
            and candidate.identity == entry.identity
            and entry.file.first_row_id in (None, candidate.first_row_id)
        }
        self._known = {group.group_id for group in groups}


def _with_row_id(file: DataFile, candidate: Candidate) -> DataFile:
    """The file with the row id that an earlier commit of this rewrite has given to its first row since planning."""
    is_same = file.first_row_id == candidate.first_row_id
    return file if is_same else replace(file, first_row_id=candidate.first_row_id)
