"""What deletes alone may have rewritten: over a week, for debts that readers pay dearly, and for small ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.delete_scope import DeleteIndexBuilder
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import EntryStatus, FileContent, ManifestEntry, Nothing
from icekeeper.operations.compaction.candidates import TableState
from icekeeper.operations.compaction.payback import RewriteHistory
from icekeeper.operations.compaction.plan_groups import CompactionPlan, plan_compaction
from support.paper_table import ROW_BYTES, Arrival, PaperTable
from support.plans import MB, data_file, live_file, manifest, policy
from support.tables import new_document, snapshot

NOW_MS = 1_760_000_000_000
DAY_MS = 24 * HOUR_MS


def history(*commits: tuple[float, str, dict[str, int]]) -> TableMetadata:
    """Commits by age in days, operation and summary; those with ``removed-files-size`` are ours."""
    raws = []
    for number, (days, operation, counters) in enumerate(commits, start=1):
        at_ms = int(NOW_MS - days * DAY_MS)
        raw = snapshot(number, format_version=2, sequence_number=number, timestamp_ms=at_ms, parent_id=number - 1)
        ours = {"icekeeper.run-id": "r", "deleted-data-files": "1"} if "removed-files-size" in counters else {}
        raw["summary"] = {"operation": operation, **ours, **{key: str(n) for key, n in counters.items()}}
        raws.append(raw)
    return TableMetadata(new_document("s3://b/t", 2) | {"snapshots": raws, "current-snapshot-id": len(raws)})


def of(metadata: TableMetadata, oldest_delete: int = 0) -> tuple[int, int, int]:
    found = RewriteHistory.of(metadata, metadata.snapshots[len(metadata.snapshots)], oldest_delete)
    return found.recent, found.received, found.rewritten


def test_a_week_counts_and_no_more() -> None:
    metadata = history(
        (8, "append", {"added-files-size": 10_000}),
        (7.5, "replace", {"added-files-size": 100, "removed-files-size": 900}),
        (6, "append", {"added-files-size": 2000}),
        (5, "replace", {"added-files-size": 100, "removed-files-size": 300}),
        (4, "overwrite", {"added-files-size": 40}),
        (0, "append", {"added-files-size": 5}),
    )
    assert of(metadata) == (45, 2045, 300)


def test_what_came_before_the_oldest_delete_pays_for_none() -> None:
    """A load of 10 TB would otherwise pay for a week of rewrites that a few deletes ask for."""
    metadata = history((2, "append", {"added-files-size": 10_000}), (1, "overwrite", {"added-files-size": 40}))
    assert of(metadata, oldest_delete=2) == (10_040, 40, 0)


def test_rewrites_of_others_are_no_new_data_and_dropped_partitions_no_rewrite() -> None:
    metadata = history(
        (3, "replace", {"added-files-size": 700}),
        (2, "delete", {"removed-files-size": 900}),
        (1, "append", {}),
    )
    assert of(metadata) == (0, 0, 0)


def rewritten(deletes: int, *, sizes: Sequence[int], new_mb: int = 0, rows: int = 1, **settings: object) -> list[int]:
    """Sizes in MB of the files that are rewritten under so many global equality deletes."""
    builder = DeleteIndexBuilder()
    for number in range(deletes):
        file = replace(data_file(f"d{number}", 1000, records=rows), content=FileContent.EQUALITY_DELETES)
        entry = ManifestEntry(EntryStatus.ADDED, 1, 10 + number, 10 + number, replace(file, equality_ids=(1,)))
        builder.add(0, entry, is_unpartitioned=True)
    files = [live_file(data_file(f"f{n:03}", mb * MB, records=1_000_000), age=1) for n, mb in enumerate(sizes)]
    metadata = history((0, "overwrite", {"added-files-size": new_mb * MB}))
    state = TableState(metadata, metadata.snapshots[1], [manifest()], files, builder.build())
    plan = plan_compaction(state, policy(**settings), now_ms=NOW_MS)
    groups = plan.groups if isinstance(plan, CompactionPlan) else ()
    return sorted(group.total_bytes // MB for group in groups)


def test_debts_that_are_small_altogether_are_paid_at_once() -> None:
    """Ten times what opening one file costs: 40 MB."""
    assert rewritten(1, sizes=[40]) == [40]
    assert rewritten(1, sizes=[41]) == []


def test_files_whose_deletes_cost_readers_ten_times_the_file_are_rewritten_a_tenth_at_a_time() -> None:
    """A file of 200 MB costs as much to read as 50 to open; else deletes without new data would never be applied."""
    assert rewritten(500, sizes=[200] * 30) == []
    assert rewritten(501, sizes=[200] * 30) == [200] * 3
    assert rewritten(501, sizes=[200] * 2) == [200]


def test_mostly_dead_files_are_rewritten_whatever_was_spent() -> None:
    """Three tenths of the rows of each: they free as much as a third of what they take."""
    assert rewritten(1, sizes=[200] * 3, rows=3 * 299_999, new_mb=100) == [200] * 3  # within the budget
    assert rewritten(1, sizes=[300] * 9, rows=9 * 150_000, new_mb=100) == [300] * 3
    assert rewritten(1, sizes=[300] * 9, rows=9 * 300_000, new_mb=100) == [300] * 9


def test_a_cdc_table_keeps_within_its_amplification_and_its_debt_is_bounded() -> None:
    """8 MB an hour that replace rows all over 3 GB, by an equality delete each (rule 51).

    With one indebted file a pass, whatever it costs, 30 bytes would be rewritten for each that came.
    """
    table = PaperTable(policy())
    table.write(NOW_MS, [Arrival("p", 240 * MB)] * 12)
    table.written, worst_deletes, worst_share = 0, 0, 0.0
    for hour in range(1, 350):
        now_ms = NOW_MS + hour * HOUR_MS
        table.write(now_ms, [Arrival("p", 8 * MB)], deleted_rows=8 * MB // ROW_BYTES)
        if not isinstance(plan := table.plan(now_ms), Nothing):
            table.carry_out(plan, now_ms)
        table.forget_snapshots(now_ms - 7 * DAY_MS)
        worst_deletes = max(worst_deletes, len(table.deletes))
        worst_share = max(worst_share, worst_dead_share(table))
    assert table.rewritten <= 10 * table.written
    assert worst_deletes <= 110
    assert worst_share <= 0.3


def worst_dead_share(table: PaperTable) -> float:
    shares = (dead / table.files[path].entry.file.record_count for path, dead in table.dead_rows.items())
    return max(shares, default=0.0)
