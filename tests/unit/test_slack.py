"""What the last pass lacked, and whether that is reason enough for another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from icekeeper.detection.assess import TableFindings, assess
from icekeeper.detection.proposal import Proposal
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata, table_digest
from icekeeper.model import ManifestFile, PartitionValue
from icekeeper.operations.compaction.plan_groups import CompactionPlan, NothingToCompact
from icekeeper.operations.manifests.plan_manifests import NothingToRewrite
from icekeeper.policy import Operation, ResolvedPolicy
from icekeeper.state.slack import Slack
from icekeeper.state.store import LastSeen
from support.growing_table import DAYS, GrowingTable, day_manifest, planned
from support.plans import HEAD_MS, MB, manifest, table
from support.settings import policy

# How many new manifests a plan lacks that finds nothing, exactly.

PLAIN = table()


def lacking(metadata: TableMetadata, manifests: Sequence[ManifestFile]) -> int | None:
    found = planned(metadata, manifests, 5)
    assert isinstance(found, NothingToRewrite)
    return found.slack.manifests


def of_sizes(*megabytes: float) -> list[ManifestFile]:
    return [manifest(f"m{number}", length=int(size * MB)) for number, size in enumerate(megabytes)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], 5),
        ([1, 1, 1], 2),
        ([1, 1, 1, 1], 1),
        # Oldest large ones are settled: new ones wait until there are enough.
        ([8, 8, 8, 8, 8], 5),
        ([8, 8, 8, 8, 8, 1], 4),
        ([8, 8, 8, 8, 8, 1, 8, 8], 2),
    ],
)
def test_without_partitions(sizes: list[float], expected: int) -> None:
    assert lacking(PLAIN, of_sizes(*sizes)) == expected


def test_with_partitions_a_new_manifest_may_unsettle_others() -> None:
    # Two that unsettle three full ones, which are five: 3 hold them.
    assert lacking(DAYS, [day_manifest(day, day, day) for day in range(40)]) == 2
    # Half full ones would be half as many, once they are unsettled.
    assert lacking(DAYS, [day_manifest(day, day, day, 4) for day in range(40)]) == 1
    # Of six that meet at their ends, planners open two, and one more that spans all days.
    assert lacking(DAYS, [day_manifest(day, day, day + 1) for day in range(6)]) == 1


# What the last pass lacked, what came since, and whether that is reason enough for another pass, in words.

NOW_MS = HEAD_MS + HOUR_MS
ONLY_COMPACTION = {"operations": "compact"}


def of(*megabytes: float, partition: PartitionValue = "p") -> list[tuple[int, PartitionValue]]:
    return [(int(size * MB), partition) for size in megabytes]


def idle(found: GrowingTable, resolved: ResolvedPolicy, now_ms: int = NOW_MS) -> LastSeen:
    """What a pass remembers that looks now and finds nothing for compaction."""
    planned = found.plan(resolved.policy, now_ms=now_ms)
    assert isinstance(planned, NothingToCompact)
    assert planned.slack is not None
    return LastSeen(
        snapshot_id=found.head.snapshot_id,
        fingerprint=resolved.fingerprint(),
        finished_ms=now_ms,
        idle=True,
        slack={Operation.COMPACT.value: planned.slack},
    )


def told(
    found: GrowingTable, last: LastSeen | None, resolved: ResolvedPolicy, now_ms: int = NOW_MS, **more: Any
) -> tuple[str, ...] | str:
    """The reasons for a pass, or why there is none."""
    findings = TableFindings(now_ms=now_ms, expirable=0, last_seen=last, **more)
    answer = assess("ns.t", found.metadata, resolved, findings)
    return answer.reasons if isinstance(answer, Proposal) else answer.reason


def test_small_files_in_many_partitions_are_proposed_when_one_of_them_has_enough() -> None:
    """Averages ask for a pass after every commit; compaction merges within partitions, where files are few."""
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit([*of(1), *of(1, partition="q"), *of(1, partition="r"), *of(1, partition="s"), *of(1, partition="t")])
    assert told(found, None, resolved) == ("5 data files of 1 MB on average are below 192 MB",)
    last = idle(found, resolved)
    assert told(found, last, resolved) == "unchanged since the last pass found nothing to do"
    found.commit(of(1, 1, 1))
    assert told(found, last, resolved) == (
        "3 data files came since the last pass, fewer than the 4 that a partition lacks"
    )
    found.commit([*of(1, partition="q"), *of(1, partition="r")])
    assert told(found, last, resolved) == ("10 data files of 1 MB on average are below 192 MB",)


def test_files_in_as_many_partitions_are_not_enough_for_one() -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(1))
    last = idle(found, resolved)
    found.commit([file for partition in "abcdef" for file in of(1, partition=partition)])
    assert told(found, last, resolved) == (
        "6 data files came since the last pass, at most 1 into one partition, which lacks 4"
    )
    found.omitted = frozenset({"changed-partition-count"})
    found.commit(of(1, 1))
    assert told(found, last, resolved) == (
        "8 data files came since the last pass, at most 3 into one partition, which lacks 4"
    )
    found.commit(of(1))
    assert isinstance(told(found, last, resolved), tuple)


def test_a_partition_that_waits_for_bytes_is_looked_at_when_they_may_have_come() -> None:
    """60 MB outweigh 5 + 4 × 1: 0.3 of 131 MB are what they may be."""
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(60, 30, 15, 7, 3))
    last = idle(found, resolved)
    found.commit(of(2))
    assert told(found, last, resolved) == "1 data file of 2 MB came since the last pass, less than a partition lacks"
    found.commit(of(90))
    assert isinstance(told(found, last, resolved), tuple)


def test_work_that_averages_hide_is_seen() -> None:
    """A thousand large files, and five small ones in one partition."""
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(*[512] * 100))
    assert told(found, None, resolved) == ("no pass under these settings has looked at the 100 data files",)
    last = idle(found, resolved)
    found.commit(of(1, 1, 1, 1))
    assert told(found, last, resolved) == (
        "4 data files came since the last pass, fewer than the 5 that a partition lacks"
    )
    found.commit(of(1))
    assert told(found, last, resolved) == ("5 data files came since the last pass, after which a partition lacked 5",)


def test_a_partition_at_rest_is_looked_at_without_a_commit() -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(60, 30, 15, 7, 3))
    last = idle(found, resolved)
    due_ms = HEAD_MS + 24 * HOUR_MS
    assert told(found, last, resolved, due_ms - 1) == "unchanged since the last pass found nothing to do"
    assert isinstance(told(found, last, resolved, due_ms), tuple)
    # Of four files a fifth makes a partition that is merged once it is at rest.
    few = GrowingTable()
    few.commit(of(60, 30, 15, 7))
    last = idle(few, resolved)
    few.commit(of(3), time_ms=NOW_MS)
    assert isinstance(told(few, last, resolved, NOW_MS), str)
    assert isinstance(told(few, last, resolved, NOW_MS + 24 * HOUR_MS), tuple)


def test_files_that_go_hide_no_bin() -> None:
    """Together they are too large for one output and too small for two; without the second they fill one."""
    resolved, found = policy(**ONLY_COMPACTION, min_input_files=3), GrowingTable()
    found.commit(of(190, 140, 0.5, 40))
    last = idle(found, resolved)
    found.commit((), found.files[1:2], time_ms=NOW_MS)
    assert isinstance(found.plan(resolved.policy, now_ms=NOW_MS), CompactionPlan)
    assert isinstance(told(found, last, resolved), tuple)
    # Where no files could fill one, those that go change nothing, and say nothing.
    small = GrowingTable()
    small.commit(of(1, 2, 3))
    last = idle(small, policy(**ONLY_COMPACTION))
    small.commit(of(1), small.files[:1], time_ms=NOW_MS)
    assert told(small, last, policy(**ONLY_COMPACTION)) == (
        "1 data file came since the last pass, fewer than the 2 that a partition lacks"
    )


@pytest.mark.parametrize("omitted", ["total-data-files", "added-data-files", "total-files-size", "total-delete-files"])
def test_what_a_summary_leaves_out_is_looked_at(omitted: str) -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(1))
    last = idle(found, resolved)
    found.omitted = frozenset({omitted})
    found.commit(of(1))
    assert told(found, last, resolved) == ("what came since the last pass cannot be told from the snapshots",)


def test_history_that_is_gone_is_looked_at() -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(1))
    last = idle(found, resolved)
    found.commit(of(1))
    del found.snapshots[0]
    assert told(found, last, resolved) == ("what came since the last pass cannot be told from the snapshots",)


def test_delete_files_are_looked_at_and_counters_that_say_nothing_of_data_are_not() -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(1))
    last = idle(found, resolved)
    found.commit(more={"manifests-created": "1", "manifests-kept": "0", "manifests-replaced": "1"})
    assert told(found, last, resolved) == "no data file came since the last pass"
    deletes = {"added-delete-files": "1", "total-delete-files": "1", "added-position-deletes": "2"}
    found.commit(more={**deletes, "total-position-deletes": "2"})
    assert told(found, last, resolved) == ("1 delete file with 2 deletes",)


def test_new_settings_of_the_table_are_looked_at() -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(1))
    last = idle(found, resolved)
    changed = {name: replace(one, table_digest="another") for name, one in last.slack.items()}
    assert told(found, replace(last, slack=changed), resolved) == (
        "the table's own settings changed since the last pass",
    )


def test_files_that_were_too_young_count_once_they_are_old_enough() -> None:
    resolved, found = policy(**ONLY_COMPACTION, min_data_age_hours=2), GrowingTable()
    found.commit(of(1), time_ms=HEAD_MS - 9 * HOUR_MS)
    found.commit(of(1, 1, 1, 1), time_ms=HEAD_MS)
    last = idle(found, resolved)
    found.commit(of(1), time_ms=NOW_MS)
    assert isinstance(told(found, last, resolved, NOW_MS), str)
    assert isinstance(told(found, last, resolved, NOW_MS + HOUR_MS), tuple)


def test_a_lowered_depth_limit_is_looked_at_once() -> None:
    """Files that were clustered before are no news; what lies over one another under the old limit is not known."""
    settings = {**ONLY_COMPACTION, "sort_order": "id"}
    before, after = policy(**settings), policy(**settings, max_clustering_depth=2)
    found = GrowingTable()
    found.commit(of(300, 300, 300))
    last = LastSeen(snapshot_id=100, fingerprint=before.fingerprint(), finished_ms=NOW_MS, idle=True)
    assert told(found, last, before, clustering="r") == "unchanged since the last pass found nothing to do"
    found.snapshots[-1]["summary"]["icekeeper.recipe"] = "r"
    assert told(found, last, after, clustering="r") == ("no pass under these settings has looked at the 3 data files",)
    assert told(found, replace(last, fingerprint=after.fingerprint()), after, clustering="r") == (
        "unchanged since the last pass found nothing to do"
    )


def test_manifests_and_delete_files_are_counted_too() -> None:
    found = GrowingTable()
    counters = {"manifests-created": "1", "manifests-kept": "5"}
    found.commit(of(300), more=counters)
    lacking = Slack(snapshot_id=found.head.snapshot_id, table_digest=table_digest(found.metadata))
    slack = {
        "rewrite_manifests": replace(lacking, manifests=2),
        "rewrite_position_deletes": replace(lacking, delete_files=2),
    }
    resolved = policy(operations="rewrite_manifests,rewrite_position_deletes", min_input_files=2)
    last = LastSeen(snapshot_id=1, fingerprint=resolved.fingerprint(), finished_ms=NOW_MS, idle=True, slack=slack)
    assert told(found, replace(last, slack={}), resolved) == ("6 manifests reach min_manifests_to_rewrite 5",)
    deletes = {"added-delete-files": "1", "total-delete-files": "1", "added-position-deletes": "1"}
    found.commit(more={**counters, **deletes})
    assert told(found, last, resolved) == (
        "1 delete file came since the last pass, fewer than the 2 that a partition lacks"
    )
    found.commit(more={**counters, **deletes, "total-delete-files": "2"})
    assert told(found, last, resolved) == (
        "2 delete files with 0 deletes",
        "6 manifests reach min_manifests_to_rewrite 5",
    )
