"""``delete_compaction_enabled`` means what it says: without it no file that deletes may reach is rewritten."""

from __future__ import annotations

from dataclasses import replace

from icekeeper.metadata.delete_scope import DeleteIndexBuilder
from icekeeper.model import EntryStatus, FileContent, ManifestEntry
from icekeeper.operations.compaction.candidates import TableState
from icekeeper.operations.compaction.plan_groups import CompactionPlan, plan_compaction
from support.plans import HEAD, HEAD_MS, MB, data_file, live_file, manifest, policy, table


def rewritten(**settings: object) -> set[str]:
    """Of twelve small files, two of which have a delete file each."""
    builder = DeleteIndexBuilder()
    for path in ("f0", "f7"):
        delete = replace(data_file(f"d-{path}", 1000), content=FileContent.POSITION_DELETES, referenced_data_file=path)
        builder.add(0, ManifestEntry(EntryStatus.ADDED, HEAD, 60, 60, delete), is_unpartitioned=True)
    files = [live_file(data_file(f"f{i}", MB), age=i) for i in range(12)]
    state = TableState(table(), table().snapshots[HEAD], [manifest()], files, builder.build())
    plan = plan_compaction(state, policy(**settings), now_ms=HEAD_MS)
    assert isinstance(plan, CompactionPlan)
    left = [(part.reason, part.files) for part in plan.left]
    expected = [("deletes apply to them, and delete_compaction_enabled is false", 2)]
    assert left == ([] if len(plan.input_files) == 12 else expected)
    return set(plan.input_files)


def test_small_files_under_deletes_are_left_alone_when_that_is_switched_off() -> None:
    assert len(rewritten()) == 12
    assert {f"f{i}" for i in range(12)} - rewritten(delete_compaction_enabled=False) == {"f0", "f7"}


def test_rewrite_all_means_all() -> None:
    assert len(rewritten(delete_compaction_enabled=False, rewrite_all=True)) == 12
