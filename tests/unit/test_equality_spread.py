"""The rows of an equality delete are spread over all files that it was meant for, not over those that need it still."""

from __future__ import annotations

from dataclasses import replace

from icekeeper.metadata.delete_scope import DeleteIndexBuilder
from icekeeper.model import EntryStatus, FileContent, ManifestEntry
from icekeeper.operations.compaction.candidates import TableState, select_candidates
from support.plans import HEAD, HEAD_MS, MB, data_file, live_file, manifest, policy, table


def test_the_last_file_of_many_is_not_taken_for_full_of_deleted_rows() -> None:
    """Nine of ten files were rewritten since the delete came; a tenth of its rows, not all, are in the one left."""
    delete = replace(data_file("d", 1000, (), records=1000), content=FileContent.EQUALITY_DELETES, equality_ids=(1,))
    builder = DeleteIndexBuilder()
    builder.add(0, ManifestEntry(EntryStatus.ADDED, HEAD, 30, 30, delete), is_unpartitioned=True)
    files = [live_file(data_file(f"f{i}", 200 * MB, records=1000), age=40 if i else 1) for i in range(10)]
    state = TableState(table(), table().snapshots[HEAD], [manifest()], files, builder.build())
    found = select_candidates(state, policy(), now_ms=HEAD_MS)
    assert found.delete_needs == {("d", None): 1}
    assert found.spread == {("d", None): 10}
