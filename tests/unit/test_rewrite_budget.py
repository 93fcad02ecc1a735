"""What a pass may rewrite: budgets, payback, and the cost of deletes to readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.delete_scope import DeleteIndexBuilder
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import EntryStatus, FileContent, LiveEntry, ManifestEntry, Nothing
from icekeeper.operations.compaction.plan.candidates import TableState, Tally, select_candidates
from icekeeper.operations.compaction.plan.payback import RewriteHistory
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan, NothingToCompact, plan_compaction
from icekeeper.policy import Policy
from support.paper_table import ROW_BYTES, Arrival, PaperTable
from support.plans import HEAD, HEAD_MS, MB, data_file, live_file, manifest, policy, position_delete, table, table_state
from support.tables import new_document, snapshot

# Rewrites only for deletes have a budget; passes have caps and an order of jobs.


def delete_entry(number: int = 60, *, rows: int = 1, content: FileContent, **more: Any) -> ManifestEntry:
    file = data_file(f"delete-{number}", 1000, records=rows, content=content, **more)
    return ManifestEntry(EntryStatus.ADDED, HEAD, number, number, file)


def global_equality_delete(number: int = 60, *, rows: int = 1) -> ManifestEntry:
    return delete_entry(number, rows=rows, content=FileContent.EQUALITY_DELETES, equality_ids=(1,))


def planned(files: list[LiveEntry], deletes: list[ManifestEntry], settings: Policy, *, new_mb: int) -> CompactionPlan:
    plan = plan_of(files, deletes, settings, new_mb=new_mb)
    assert isinstance(plan, CompactionPlan)
    return plan


def plan_of(
    files: list[LiveEntry], deletes: list[ManifestEntry], settings: Policy, *, new_mb: int
) -> CompactionPlan | Nothing:
    """The plan at a head that added ``new_mb`` after our last rewrite."""
    metadata = table()
    document = dict(metadata.document)
    ours = snapshot(HEAD - 1, format_version=2, sequence_number=49, timestamp_ms=HEAD_MS - 1)
    ours["summary"] = {"operation": "replace", "icekeeper.run-id": "r", "deleted-data-files": "3"}
    head = dict(document["snapshots"][0]) | {"parent-snapshot-id": HEAD - 1}
    head["summary"] = {"operation": "append", "added-files-size": str(new_mb * MB)}
    metadata = type(metadata)(document | {"snapshots": [ours, head]})
    return plan_compaction(table_state(files, deletes, metadata), settings, now_ms=HEAD_MS)


def large_files(count: int) -> list[LiveEntry]:
    return [live_file(data_file(f"f{n:03}", 200 * MB, records=1_000_000)) for n in range(count)]


def test_one_global_equality_delete_does_not_rewrite_the_table() -> None:
    """100 large files, 50 MB of new data, and a delete that may apply to all: at most 10 times the new bytes."""
    plan = planned(large_files(100), [global_equality_delete()], policy(), new_mb=50)
    assert [group.total_bytes for group in plan.groups] == [200 * MB, 200 * MB]
    assert plan.groups_waiting == 98


def test_a_pass_may_rewrite_a_single_file_larger_than_the_new_data() -> None:
    """The weekly budget must have room for it; otherwise such a file would never be rewritten."""
    plan = planned(large_files(3), [global_equality_delete()], policy(), new_mb=20)
    assert len(plan.groups) == 1
    assert plan.groups_waiting == 2


@pytest.mark.parametrize(("rows", "rewritten"), [(899_999, 0), (900_000, 3)])
def test_a_position_delete_file_of_several_files_adds_its_share_to_each(rows: int, rewritten: int) -> None:
    """A conversion in v2 writes such files; without a file name, the rows are spread over the whole partition."""
    delete = delete_entry(rows=rows, content=FileContent.POSITION_DELETES)
    found = plan_of(large_files(3), [delete], policy(convert_equality_deletes="true"), new_mb=1000)
    assert len(found.groups if isinstance(found, CompactionPlan) else ()) == rewritten


def test_without_new_data_few_deletes_cause_no_rewrite() -> None:
    """A file in every pass would be 240 MB an hour, in a CDC table 15 bytes per byte of new data."""
    found = plan_of(large_files(3), [global_equality_delete()], policy(), new_mb=0)
    assert isinstance(found, Nothing)
    waits = "3 file(s) under deletes wait until writers have added more data"
    assert found.reason == f"no files eligible for compaction ({waits})"


def test_the_most_indebted_file_comes_first() -> None:
    own = delete_entry(61, content=FileContent.POSITION_DELETES, referenced_data_file="f002")
    plan = planned(large_files(3), [global_equality_delete(), own], policy(), new_mb=20)
    assert plan.input_files == ("f002",)


def test_a_file_that_frees_enough_costs_no_budget() -> None:
    """A tenth of its rows are deleted: its rewrite amplifies by at most ten, the allowed factor."""
    own = [
        delete_entry(60 + n, rows=rows, content=FileContent.POSITION_DELETES, referenced_data_file=f"f00{n}")
        for n, rows in enumerate([100_000, 100_000, 100_000, 99_999, 99_999])
    ]
    plan = planned(large_files(5), own, policy(), new_mb=0)
    assert plan.input_files == ("f000", "f001", "f002")
    assert plan.groups_waiting == 2


def test_new_bytes_are_counted_back_to_our_own_last_rewrite() -> None:
    summaries = [
        {"operation": "append", "added-files-size": "1000"},
        {"operation": "replace", "added-files-size": "500", "deleted-data-files": "2", "icekeeper.run-id": "r"},
        {"operation": "append", "added-files-size": "30"},
        {"operation": "replace", "icekeeper.run-id": "manifests only"},
        {"operation": "overwrite", "added-files-size": "7"},
        {"operation": "delete"},
    ]
    snapshots = []
    for number, summary in enumerate(summaries, start=1):
        raw = snapshot(number, format_version=2, sequence_number=number, timestamp_ms=number)
        snapshots.append(raw | {"summary": summary, "parent-snapshot-id": number - 1 or None})
    metadata = type(table())(new_document("s3://b/t", 2) | {"snapshots": snapshots, "current-snapshot-id": 6})
    assert RewriteHistory.of(metadata, metadata.snapshots[6], 0).recent == 37
    assert RewriteHistory.of(metadata, metadata.snapshots[1], 0).recent == 1000


PARTITIONS = {"a": [3, 3, 3], "b": [1] * 6, "c": [40, 40], "d": [5, 5, 5, 5]}


def by_partition(**settings: object) -> list[str]:
    """Partitions in the order of their groups; sizes in MB as above."""
    files = [
        live_file(data_file(f"{name}{n}", size * MB, [name]))
        for name, sizes in PARTITIONS.items()
        for n, size in enumerate(sizes)
    ]
    plan = plan_compaction(table_state(files), policy(min_input_files=2, **settings), now_ms=HEAD_MS)
    return [] if isinstance(plan, Nothing) else [str(group.partition[0]) for group in plan.groups]


@pytest.mark.parametrize(
    ("order", "expected"),
    [("none", "badc"), ("bytes-asc", "badc"), ("bytes-desc", "cdab"), ("files-asc", "cadb"), ("files-desc", "bdac")],
)
def test_jobs_run_in_the_configured_order(order: str, expected: str) -> None:
    assert by_partition(rewrite_job_order=order) == list(expected)


def test_a_file_whose_deletes_are_encrypted_is_left_alone() -> None:
    """Its live rows cannot be distinguished from deleted rows; the group would fail in every pass
    (rule: read-faithfully-or-not-at-all)."""
    secret = delete_entry(70, content=FileContent.EQUALITY_DELETES, equality_ids=(1,), key_metadata=b"key")
    found = plan_of(large_files(2), [secret], policy(), new_mb=500)
    why = "2 file(s) stay unchanged: f000 needs delete file delete-70, which is encrypted"
    assert isinstance(found, Nothing)
    assert found.reason == f"no files eligible for compaction ({why})"


# Rewrites only for deletes: per week, for debts that cost readers much, and for small debts.

NOW_MS = 1_760_000_000_000
DAY_MS = 24 * HOUR_MS


def history(*commits: tuple[float, str, dict[str, int]]) -> TableMetadata:
    """Commits by age in days, operation and summary; commits with ``removed-files-size`` are ours."""
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


def test_the_budget_counts_the_last_week() -> None:
    metadata = history(
        (8, "append", {"added-files-size": 10_000}),
        (7.5, "replace", {"added-files-size": 100, "removed-files-size": 900}),
        (6, "append", {"added-files-size": 2000}),
        (5, "replace", {"added-files-size": 100, "removed-files-size": 300}),
        (4, "overwrite", {"added-files-size": 40}),
        (0, "append", {"added-files-size": 5}),
    )
    assert of(metadata) == (45, 2045, 300)


def test_data_older_than_the_oldest_delete_adds_no_budget() -> None:
    """Otherwise a load of 10 TB would allow a week of rewrites for a few deletes."""
    metadata = history((2, "append", {"added-files-size": 10_000}), (1, "overwrite", {"added-files-size": 40}))
    assert of(metadata, oldest_delete=2) == (10_040, 40, 0)


def test_rewrites_by_others_and_dropped_partitions_do_not_count() -> None:
    metadata = history(
        (3, "replace", {"added-files-size": 700}), (2, "delete", {"removed-files-size": 900}), (1, "append", {})
    )
    assert of(metadata) == (0, 0, 0)


def rewritten(deletes: int, *, sizes: Sequence[int], new_mb: int = 0, rows: int = 1, **settings: object) -> list[int]:
    """Sizes in MB of the files that are rewritten for this number of global equality deletes."""
    builder = DeleteIndexBuilder()
    for number in range(deletes):
        file = data_file(f"d{number}", 1000, records=rows, content=FileContent.EQUALITY_DELETES)
        entry = ManifestEntry(EntryStatus.ADDED, 1, 10 + number, 10 + number, replace(file, equality_ids=(1,)))
        builder.add(0, entry, is_unpartitioned=True)
    files = [live_file(data_file(f"f{n:03}", mb * MB, records=1_000_000), age=1) for n, mb in enumerate(sizes)]
    metadata = history((0, "overwrite", {"added-files-size": new_mb * MB}))
    state = TableState(metadata, metadata.snapshots[1], [manifest()], files, builder.build())
    plan = plan_compaction(state, policy(**settings), now_ms=NOW_MS)
    groups = plan.groups if isinstance(plan, CompactionPlan) else ()
    return sorted(group.total_bytes // MB for group in groups)


def test_a_small_total_debt_is_rewritten_at_once() -> None:
    """The limit is ten times the cost of opening a file: 40 MB."""
    assert rewritten(1, sizes=[40]) == [40]
    assert rewritten(1, sizes=[41]) == []


def test_files_whose_deletes_cost_readers_ten_times_their_size_are_rewritten_a_tenth_at_a_time() -> None:
    """A read of 200 MB costs as much as opening 50 files; otherwise deletes without new data would never be applied."""
    assert rewritten(500, sizes=[200] * 30) == []
    assert rewritten(501, sizes=[200] * 30) == [200] * 3
    assert rewritten(501, sizes=[200] * 2) == [200]


def test_files_with_many_deleted_rows_are_rewritten_beyond_the_budget() -> None:
    """Three tenths of their rows are deleted."""
    assert rewritten(1, sizes=[200] * 3, rows=3 * 299_999, new_mb=100) == [200] * 3  # within the budget
    assert rewritten(1, sizes=[300] * 9, rows=9 * 150_000, new_mb=100) == [300] * 3
    assert rewritten(1, sizes=[300] * 9, rows=9 * 300_000, new_mb=100) == [300] * 9


def test_a_cdc_table_keeps_within_its_amplification_and_its_debt_is_bounded() -> None:
    """Each hour, 8 MB and an equality delete replace rows all over 3 GB.

    Without a budget, a file per pass would amount to 30 bytes rewritten per new byte.
    """
    table = PaperTable(policy())
    table.write(NOW_MS, [Arrival("p", 240 * MB)] * 12)
    table.written, worst_deletes, worst_share = 0, 0, 0.0
    for hour in range(1, 200):
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


# The rows of an equality delete are spread over all files that it applied to at first, not over the remaining files.


def test_the_last_file_of_many_counts_only_its_share_of_the_deleted_rows() -> None:
    """Nine of ten files were rewritten since the delete; the last file has a tenth of its rows, not all."""
    delete = data_file("d", 1000, records=1000, content=FileContent.EQUALITY_DELETES, equality_ids=(1,))
    files = [live_file(data_file(f"f{i}", 200 * MB, records=1000), age=40 if i else 1) for i in range(10)]
    state = table_state(files, [ManifestEntry(EntryStatus.ADDED, HEAD, 30, 30, delete)])
    found = select_candidates(state, policy())
    assert found.counts.delete_needs == {("d", None): 1}
    assert found.spread == {("d", None): 10}


# A rewrite is planned if it saves readers more than it costs; the best rewrites come first.

# The cost of opening a file: two gets and a read of 4 MB.
OPEN = 2 * 0.0004 / 1000 + 4 / 1024 * 0.005


def payback_plan(*sizes_mb: int, partition: str = "p") -> list[LiveEntry]:
    return [live_file(data_file(f"{partition}{i}", size * MB, [partition]), age=i) for i, size in enumerate(sizes_mb)]


def plan(
    files: list[LiveEntry], settings: Policy, deletes: list[ManifestEntry] | None = None
) -> CompactionPlan | Nothing:
    return plan_compaction(table_state(files, deletes or [], is_unpartitioned=False), settings, now_ms=HEAD_MS)


def test_the_worth_of_a_group_is_the_saving_of_its_readers_and_its_cost() -> None:
    """Six files, 53 MB in all, become a single file: five opens in each of 200 scans, against 53 MB, 12 gets and a put.

    Four of the files, 45 MB, are copied.
    """
    planned = plan(payback_plan(10, 5, 8, 12, 3, 15), policy(min_row_group_copy_bytes=8 * MB))
    assert isinstance(planned, CompactionPlan)
    worth = planned.groups[0].worth
    assert (worth.bytes_saved, worth.bytes_rewritten, worth.requests) == (0, 53 * MB, 13)
    assert worth.saving == pytest.approx(200 * 5 * OPEN)
    assert worth.cost == pytest.approx((8 * 0.005 + 45 * 0.001) / 1024 + 12 * 0.0004 / 1000 + 0.005 / 1000)
    assert worth.pays


def test_a_merge_that_costs_more_than_it_saves_is_left_and_reported() -> None:
    """Three files of 190 MB become two: a saved open for 570 MB, which pays off after 138 scans if they are decoded."""
    files = payback_plan(*[190] * 6)
    assert isinstance(plan(files, policy(expected_scans=138, min_row_group_copy_bytes=None)), CompactionPlan)
    found = plan(files, policy(expected_scans=137, min_row_group_copy_bytes=None))
    assert isinstance(found, NothingToCompact)
    assert found.reason == "no files eligible for compaction (merging 6 file(s) costs more than it saves)"
    reason = "merging them costs more than it saves in expected_scans 137"
    assert found.left == {reason: Tally(6, 1140 * MB)}


def test_files_that_can_be_copied_pay_off_after_fewer_scans() -> None:
    """The same 570 MB costs a fifth; a file of small row groups beside them is decoded."""
    files = payback_plan(*[190] * 6)
    assert isinstance(plan(files, policy(expected_scans=28)), CompactionPlan)
    assert isinstance(plan(files, policy(expected_scans=27)), NothingToCompact)


def test_without_expected_scans_every_merge_is_planned() -> None:
    assert isinstance(plan(payback_plan(*[190] * 6), policy(expected_scans=20)), Nothing)
    assert isinstance(plan(payback_plan(*[190] * 6), policy(expected_scans=None)), CompactionPlan)


def test_rewrite_all_ignores_the_payback() -> None:
    assert isinstance(plan(payback_plan(*[190] * 6), policy(expected_scans=1, rewrite_all=True)), CompactionPlan)


def test_deletes_have_a_separate_budget() -> None:
    planned = plan(payback_plan(2000), policy(expected_scans=1), [position_delete("d", "p0", ["p"])])
    assert isinstance(planned, CompactionPlan)
    worth = planned.groups[0].worth
    assert worth.saving == pytest.approx(OPEN + worth.bytes_saved / 1024**3 * 0.005)


def test_groups_with_the_largest_saving_per_byte_come_first() -> None:
    files = [
        *payback_plan(*[40] * 6, partition="a"),
        *payback_plan(*[1] * 5, partition="b"),
        *payback_plan(*[8] * 5, partition="c"),
    ]

    def order(**settings: object) -> list[object]:
        planned = plan(files, policy(**settings))
        return [] if isinstance(planned, Nothing) else [group.partition[0] for group in planned.groups]

    assert order() == ["b", "c", "a"]
    assert order(max_files_to_rewrite=10) == ["b", "c"]
    assert order(max_bytes_to_rewrite=44 * MB) == ["b"]
    assert order(rewrite_job_order="bytes-desc") == ["a", "c", "b"]
