"""After a look, a table is left alone until enough files were added or a day has passed; and the reasons in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.detection.assess import assess
from icekeeper.detection.looked_at import time_has_come
from icekeeper.detection.proposal import Proposal
from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import PartitionValue
from icekeeper.policy import ResolvedPolicy
from icekeeper.state.store import SeenTable
from support.growing_table import GrowingTable, idle
from support.plans import HEAD_MS, MB
from support.settings import policy

NOW_MS = HEAD_MS + HOUR_MS
ONLY_COMPACTION = {"operations": "compact"}
UNCHANGED = "nothing came since the last pass"
UNKNOWN = ("the snapshots do not show what was added since the last pass",)
TIME = ("time alone may have brought work since the last pass",)


def of(*megabytes: float, partition: PartitionValue = "p") -> list[tuple[int, PartitionValue]]:
    return [(int(size * MB), partition) for size in megabytes]


def answer_of(
    found: GrowingTable, last: SeenTable | None, resolved: ResolvedPolicy, now_ms: int = NOW_MS, **more: Any
) -> tuple[str, ...] | str:
    """The reasons for a pass, or the reason against it."""
    answer = assess("ns.t", found.metadata, resolved, now_ms=now_ms, expirable=0, seen=last, **more)
    return answer.reasons if isinstance(answer, Proposal) else answer.reason


def test_a_pass_looks_again_after_min_input_files_new_data_files() -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(*[300] * 6))
    assert answer_of(found, None, resolved) == ("no pass under these settings has looked at the 6 data files",)
    last = idle(found, resolved)
    assert answer_of(found, last, resolved) == UNCHANGED
    found.commit(of(300, 300, 300))
    assert answer_of(found, last, resolved) == "3 data files came since the last pass, fewer than 5"
    found.commit([*of(300), *of(300, partition="q")])
    assert answer_of(found, last, resolved) == ("5 data files came since the last pass",)


def test_delete_files_count_like_data_files() -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(*[300] * 6))
    last = idle(found, resolved)
    deletes = {"added-delete-files": "4", "total-delete-files": "4"}
    found.commit(more=deletes)
    assert answer_of(found, last, resolved) == "4 delete files came since the last pass, fewer than 5"
    blocked = policy(**ONLY_COMPACTION, apply_deletes="false")
    found.commit(more={**deletes, "total-delete-files": "8"})
    assert "8 delete files with 0 deletes" in answer_of(found, last, resolved)
    assert isinstance(answer_of(found, idle(found, blocked), blocked), str)


def test_position_delete_files_are_counted_for_the_operation_that_merges_them() -> None:
    resolved, found = policy(operations="rewrite_position_deletes", min_input_files=3), GrowingTable()
    found.commit(of(300), more={"total-delete-files": "4"})
    last = idle(found, resolved)
    found.commit(of(1, 1, 1), more={"added-delete-files": "2", "total-delete-files": "6"})
    assert answer_of(found, last, resolved) == "2 delete files came since the last pass, fewer than 3"
    found.commit(more={"added-delete-files": "1", "total-delete-files": "7"})
    assert answer_of(found, last, resolved) == ("7 delete files with 0 deletes",)


def test_a_pass_looks_at_manifests_after_enough_commits() -> None:
    resolved, found = policy(operations="rewrite_manifests"), GrowingTable()
    listed = {"manifests-created": "1", "manifests-kept": "8"}
    found.commit(of(300), more=listed)
    last = idle(found, resolved)
    for number in range(1, 5):
        found.commit(of(300), more=listed)
        commits = "1 commit" if number == 1 else f"{number} commits"
        assert answer_of(found, last, resolved) == f"{commits} came since the last pass, fewer than 5"
    found.commit(of(300), more=listed)
    assert answer_of(found, last, resolved) == ("9 manifests reach min_manifests_to_rewrite 5",)


@pytest.mark.parametrize("run_id", ["that of the pass", "of another rhythm"])
def test_our_own_rewrites_do_not_count_as_new_work(run_id: str) -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(*[300] * 6))
    last = idle(found, resolved)
    found.commit(of(*[300] * 5), found.files[:5], more={RUN_ID_KEY: run_id}, is_rewrite=True)
    assert answer_of(found, last, resolved) == UNCHANGED
    found.commit(of(*[300] * 5))
    assert answer_of(found, last, resolved) == ("5 data files came since the last pass",)


@pytest.mark.parametrize(
    ("settings", "looked_hours", "now_hours", "expected"),
    [
        # After a day at rest; without commits, when the head is twice as old as at the last look.
        ({}, 1, 23.9, False),
        ({}, 1, 24, True),
        ({}, 24, 47.9, False),
        ({}, 24, 48, True),
        ({}, 1000, 1999, False),
        ({}, 1000, 2000, True),
        ({"partition_rest_hours": "7"}, 1, 6.9, False),
        ({"partition_rest_hours": "7"}, 1, 7, True),
        ({"partition_rest_hours": "7"}, 7, 30.9, False),
        ({"partition_rest_hours": "700"}, 1, 24.9, False),
        ({"partition_rest_hours": "700"}, 1, 25, True),
        # Partitions may reach the minimum age, and ``where`` may match more.
        ({"min_partition_age_hours": "100"}, 25, 49.9, False),
        ({"min_partition_age_hours": "100"}, 25, 50, True),
        ({"where": "ts < now() - interval '30 hours'"}, 25, 50, True),
        # After a commit since the look: a day, for any age of the head.
        ({}, -1000, 0, True),
        ({}, -20, 3.9, False),
        ({}, -20, 4, True),
    ],
)
def test_time_alone_is_a_reason_to_look_again(
    settings: dict[str, str], looked_hours: int, now_hours: float, expected: bool
) -> None:
    found = GrowingTable()
    found.commit(of(1))
    looked_ms, now_ms = (HEAD_MS + int(hours * HOUR_MS) for hours in (looked_hours, now_hours))
    assert time_has_come(found.head, policy(**settings).policy, looked_ms, now_ms) is expected


def test_after_a_day_a_pass_looks_regardless_of_counts() -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(*[300] * 6))
    last = idle(found, resolved)
    assert answer_of(found, last, resolved, HEAD_MS + 24 * HOUR_MS - 1) == UNCHANGED
    assert answer_of(found, last, resolved, HEAD_MS + 24 * HOUR_MS) == TIME
    found.commit(of(1), time_ms=NOW_MS + 9 * HOUR_MS)
    assert isinstance(answer_of(found, last, resolved, NOW_MS + 24 * HOUR_MS - 1), str)
    assert answer_of(found, last, resolved, NOW_MS + 24 * HOUR_MS) == TIME


@pytest.mark.parametrize("omitted", ["total-data-files", "all"])
def test_a_summary_without_counts_causes_a_look(omitted: str) -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(1))
    last = idle(found, resolved)
    found.omitted = frozenset({omitted})
    found.commit(of(1))
    if omitted == "all":
        found.snapshots[-1]["summary"] = {}
    assert answer_of(found, last, resolved) == UNKNOWN


def test_expired_history_causes_a_look() -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(1))
    last = idle(found, resolved)
    for _ in range(3):
        found.commit(of(1))
    del found.snapshots[0]  # the snapshot of the look; all later snapshots remain
    assert isinstance(answer_of(found, last, resolved), str)
    del found.snapshots[0]
    assert answer_of(found, last, resolved) == UNKNOWN


def test_new_settings_of_the_table_cause_a_look() -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(*[300] * 6))
    last = idle(found, resolved)
    found.properties["write.parquet.compression-codec"] = "zstd"
    assert answer_of(found, last, resolved) == ("no pass under these settings has looked at the 6 data files",)


@pytest.mark.parametrize(
    "settings", [{"rewrite_all": "true"}, {"rewrite_reason": "codec"}], ids=lambda settings: next(iter(settings))
)
def test_a_single_file_is_enough_if_every_file_is_rewritten(settings: dict[str, str]) -> None:
    resolved, found = policy(**ONLY_COMPACTION, **settings), GrowingTable()
    found.commit(of(*[300] * 6))
    last = idle(found, resolved)
    assert answer_of(found, last, resolved) == UNCHANGED
    found.commit(of(300))
    assert answer_of(found, last, resolved) == ("1 data file came since the last pass",)


def test_disabled_work_is_not_counted() -> None:
    resolved = policy(**ONLY_COMPACTION, rewrite_enabled="false", apply_deletes="false")
    found = GrowingTable()
    found.commit(of(1))
    last = idle(found, resolved)
    found.commit(of(*[1] * 9))
    assert answer_of(found, last, resolved) == UNCHANGED


def test_each_digest_of_settings_has_its_own_look() -> None:
    """Clustered files are not new work; whether other settings would rewrite them is unknown."""
    settings = {**ONLY_COMPACTION, "sort_order": "id"}
    before, after = policy(**settings), policy(**settings, min_input_files=3)
    found = GrowingTable()
    found.commit(of(300, 300, 300))
    last = idle(found, before)
    assert answer_of(found, last, before, clustering="r") == UNCHANGED
    found.snapshots[-1]["summary"]["icekeeper.recipe"] = "r"
    assert answer_of(found, last, after, clustering="r") == (
        "no pass under these settings has looked at the 3 data files",
    )
    both = SeenTable(passes={**last.passes, **idle(found, after).passes})
    assert answer_of(found, both, after, clustering="r") == answer_of(found, both, before, clustering="r") == UNCHANGED


def test_a_pass_that_left_work_is_followed_by_another_pass() -> None:
    resolved, found = policy(**ONLY_COMPACTION), GrowingTable()
    found.commit(of(*[300] * 6))
    ((digest, seen),) = idle(found, resolved).passes.items()
    last = SeenTable(passes={digest: replace(seen, is_done=False)})
    assert answer_of(found, last, resolved) == ("the last pass left work",)
