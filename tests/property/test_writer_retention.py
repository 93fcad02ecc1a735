"""What stays for streaming writers: the way to each one's newest mark, for as long as that is young."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hypothesis import given

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.writer_marks import COMMITTED_KEY
from icekeeper.operations.expiry.retention import (
    ExpiryPlan,
    expiry_at,
)
from support.snapshot_histories import Case, cases, expire, expired, flink_mark, history


def last_commit(
    metadata: TableMetadata, job: str, head: int, *, without: Collection[int] = ()
) -> tuple[str, int] | None:
    """As ``SinkUtil.getMaxCommittedCheckpointId`` walks: the checkpoint of the job, and when it was committed."""
    snapshots = {s["snapshot-id"]: s for s in metadata.document["snapshots"] if s["snapshot-id"] not in without}
    at = snapshots.get(head)
    while at is not None:
        if at["summary"].get("flink.job-id") == job:
            committed = int(at["summary"].get(COMMITTED_KEY, at["timestamp-ms"]))
            return at["summary"]["flink.max-committed-checkpoint-id"], committed
        at = snapshots.get(at.get("parent-snapshot-id"))
    return None


@given(cases())
def test_a_writer_finds_its_last_commit_while_that_is_young(case: Case) -> None:
    """Whatever caps the count; and it never finds an older one."""
    planned = expire(case)
    horizon_ms = case.now_ms - case.settings.writer_mark_retention_ms
    for name, ref in case.metadata.refs.items():
        for job in "abc" if ref.type == "branch" and name not in planned.refs else "":
            before = last_commit(case.metadata, job, ref.snapshot_id)
            after = last_commit(case.metadata, job, ref.snapshot_id, without=planned.snapshot_ids)
            assert after in (before, None)
            if before is not None and before[1] >= horizon_ms and case.settings.writer_mark_retention_hours:
                assert after == before


@given(cases())
def test_the_cost_of_writers_is_told_exactly(case: Case) -> None:
    def planned(hours: int) -> ExpiryPlan:
        changes = {"writer_mark_retention_hours": hours, "snapshot_expire_limit": None}
        settings = case.settings.model_copy(update=changes)
        return expiry_at(case.metadata, settings, now_ms=case.now_ms, pinned=case.pinned)

    without, with_marks = planned(0), planned(200)
    assert set(with_marks.snapshot_ids) <= set(without.snapshot_ids)
    assert with_marks.kept_for_writers == len(without.snapshot_ids) - len(with_marks.snapshot_ids)
    assert without.kept_for_writers == 0


def test_the_way_to_each_writers_newest_mark_stays_and_nothing_before_it() -> None:
    ages = [9, 8, 7, 6, 5, 4, 3, 2, 1]
    marks = {2: flink_mark("a", 1), 3: flink_mark("a", 2), 5: flink_mark("b", 9), 6: flink_mark("b", 10)}
    metadata = history(ages, marks=marks)
    settings: dict[str, Any] = {"max_snapshots_to_keep": 1, "snapshot_retention_hours": 0, "snapshot_retain_max": 1}
    assert expired(metadata, **settings) == (1, 2)
    assert expired(metadata, **settings, writer_mark_retention_hours=6) == (1, 2, 3, 4, 5), "job a is taken for dead"
    assert expired(metadata, **settings, writer_mark_retention_hours=0) == (1, 2, 3, 4, 5, 6, 7, 8)


def test_a_carried_mark_is_as_old_as_the_commit_and_frees_what_lies_before_it() -> None:
    settings: dict[str, Any] = {"max_snapshots_to_keep": 1, "snapshot_retention_hours": 0}
    marks = {1: flink_mark("a", 1), 3: flink_mark("a", 1, carried_age_h=8)}
    metadata = history([8, 7, 6, 5], marks=marks)
    assert expired(metadata, **settings) == (1, 2)
    assert expired(metadata, **settings, writer_mark_retention_hours=7) == (1, 2, 3)
