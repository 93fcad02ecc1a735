"""What a pass may rewrite: deletes alone on a budget, caps, and the order of jobs."""

from __future__ import annotations

import pytest

from icekeeper.metadata.delete_scope import DeleteIndexBuilder
from icekeeper.model import EntryStatus, FileContent, LiveEntry, ManifestEntry, Nothing
from icekeeper.operations.compaction.candidates import TableState
from icekeeper.operations.compaction.payback import RewriteHistory
from icekeeper.operations.compaction.plan_groups import CompactionPlan, plan_compaction
from icekeeper.policy import Policy
from support.plans import HEAD, HEAD_MS, MB, data_file, live_file, manifest, policy, table
from support.tables import new_document, snapshot

NEW = HEAD + 1


def delete_entry(number: int = 60, *, rows: int = 1, content: FileContent, **more: object) -> ManifestEntry:
    file = data_file(f"delete-{number}", 1000, (), records=rows)
    values = {name: getattr(file, name) for name in file.__slots__} | {"content": content} | more
    return ManifestEntry(EntryStatus.ADDED, HEAD, number, number, type(file)(**values))


def global_equality_delete(number: int = 60, *, rows: int = 1) -> ManifestEntry:
    return delete_entry(number, rows=rows, content=FileContent.EQUALITY_DELETES, equality_ids=(1,))


def planned(files: list[LiveEntry], deletes: list[ManifestEntry], settings: Policy, *, new_mb: int) -> CompactionPlan:
    plan = plan_of(files, deletes, settings, new_mb=new_mb)
    assert isinstance(plan, CompactionPlan)
    return plan


def plan_of(
    files: list[LiveEntry], deletes: list[ManifestEntry], settings: Policy, *, new_mb: int
) -> CompactionPlan | Nothing:
    """At a head that brought ``new_mb`` after our last rewrite."""
    metadata = table()
    document = dict(metadata.document)
    ours = snapshot(HEAD - 1, format_version=2, sequence_number=49, timestamp_ms=HEAD_MS - 1)
    ours["summary"] = {"operation": "replace", "icekeeper.run-id": "r", "deleted-data-files": "3"}
    head = dict(document["snapshots"][0]) | {"parent-snapshot-id": HEAD - 1}
    head["summary"] = {"operation": "append", "added-files-size": str(new_mb * MB)}
    metadata = type(metadata)(document | {"snapshots": [ours, head]})
    builder = DeleteIndexBuilder()
    for entry in deletes:
        builder.add(0, entry, is_unpartitioned=True)
    state = TableState(metadata, metadata.snapshots[HEAD], [manifest()], files, builder.build())
    return plan_compaction(state, settings, now_ms=HEAD_MS)


def large_files(count: int) -> list[LiveEntry]:
    return [live_file(data_file(f"f{n:03}", 200 * MB, records=1_000_000)) for n in range(count)]


def test_one_global_equality_delete_does_not_rewrite_the_table() -> None:
    """100 large files, 50 MB new, one delete that may reach all: at most 10 times the new bytes are rewritten."""
    plan = planned(large_files(100), [global_equality_delete()], policy(), new_mb=50)
    assert [group.total_bytes for group in plan.groups] == [200 * MB, 200 * MB]
    assert plan.groups_waiting == 98


def test_a_pass_takes_one_file_that_is_larger_than_what_came_since_the_last() -> None:
    """As long as the budget of the week has room for it; else it would never be its turn."""
    plan = planned(large_files(3), [global_equality_delete()], policy(max_write_amplification=4), new_mb=50)
    assert len(plan.groups) == 1
    assert plan.groups_waiting == 2


def test_without_new_data_nothing_is_rewritten_for_few_deletes() -> None:
    """One a pass whatever came would be 240 MB an hour, in a CDC table 15 bytes per byte of new data."""
    found = plan_of(large_files(3), [global_equality_delete()], policy(), new_mb=0)
    assert isinstance(found, Nothing)
    waits = "3 file(s) under deletes wait, as max_write_amplification asks"
    assert found.reason == f"no files eligible for compaction ({waits})"


def test_the_most_indebted_file_comes_first() -> None:
    own = delete_entry(61, content=FileContent.POSITION_DELETES, referenced_data_file="f002")
    plan = planned(large_files(3), [global_equality_delete(), own], policy(), new_mb=20)
    assert plan.input_files == ("f002",)


def test_a_file_that_frees_enough_costs_no_budget() -> None:
    """A tenth of its rows are deleted: rewriting it amplifies by ten at most, which is what is allowed."""
    own = [
        delete_entry(60 + n, rows=rows, content=FileContent.POSITION_DELETES, referenced_data_file=f"f00{n}")
        for n, rows in enumerate([100_000, 100_000, 100_000, 99_999, 99_999])
    ]
    plan = planned(large_files(5), own, policy(), new_mb=0)
    assert plan.input_files == ("f000", "f001", "f002")
    assert plan.groups_waiting == 2


def test_small_files_merge_whatever_deletes_cost() -> None:
    """The budget is for deletes alone: enough small files are a reason of their own."""
    small = [live_file(data_file(f"s{n}", MB)) for n in range(5)]
    plan = planned([*large_files(1), *small], [global_equality_delete()], policy(), new_mb=0)
    assert [len(group.files) for group in plan.groups] == [5]


def test_rewrite_all_knows_no_budget() -> None:
    plan = planned(large_files(4), [global_equality_delete()], policy(rewrite_all=True), new_mb=0)
    assert len(plan.groups) == 4


@pytest.mark.parametrize(("deleted", "chosen"), [(299_999, False), (300_000, True)])
def test_a_share_of_deleted_rows_is_debt(deleted: int, chosen: bool) -> None:
    """Known deletes of three tenths of a file's rows make it a candidate, however few delete files they are in."""
    entry = delete_entry(rows=deleted, content=FileContent.POSITION_DELETES, referenced_data_file="f000")
    builder = DeleteIndexBuilder()
    builder.add(0, entry, is_unpartitioned=True)
    state = TableState(table(), table().snapshots[HEAD], [manifest()], large_files(1), builder.build())
    plan = plan_compaction(state, policy(delete_compaction_min_deletes=5), now_ms=HEAD_MS)
    assert isinstance(plan, CompactionPlan) is chosen


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
    state = TableState(table(), table().snapshots[HEAD], [manifest()], files)
    plan = plan_compaction(state, policy(min_input_files=2, **settings), now_ms=HEAD_MS)
    return [] if isinstance(plan, Nothing) else [str(group.partition[0]) for group in plan.groups]


@pytest.mark.parametrize(
    ("order", "expected"),
    [("none", "badc"), ("bytes-asc", "badc"), ("bytes-desc", "cdab"), ("files-asc", "cadb"), ("files-desc", "bdac")],
)
def test_jobs_run_in_the_order_asked_for(order: str, expected: str) -> None:
    assert by_partition(rewrite_job_order=order) == list(expected)


def test_caps_take_what_comes_first_in_the_order_asked_for() -> None:
    assert by_partition(max_files_to_rewrite=6) == ["b"]
    assert by_partition(max_files_to_rewrite=6, rewrite_job_order="bytes-desc") == ["c", "d"]
    assert by_partition(max_bytes_to_rewrite=30 * MB, rewrite_job_order="bytes-asc") == ["b", "a"]


def test_a_file_whose_deletes_are_encrypted_is_left_alone() -> None:
    """Its rows cannot be told from deleted ones; the group would fail in every pass (rule 23)."""
    secret = delete_entry(70, content=FileContent.EQUALITY_DELETES, equality_ids=(1,), key_metadata=b"key")
    found = plan_of(large_files(2), [secret], policy(), new_mb=500)
    why = "2 file(s) are left alone: f000 needs delete file delete-70, which is encrypted"
    assert isinstance(found, Nothing)
    assert found.reason == f"no files eligible for compaction ({why})"
