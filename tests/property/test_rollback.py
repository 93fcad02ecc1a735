"""Which snapshots a rollback takes from a branch, and what its commit leaves (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.errors import PlanStale, PolicyError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.updates import apply_updates, check_requirements
from icekeeper.model import Nothing
from icekeeper.operations.expiry.retention import aged_refs
from icekeeper.repair.rollback import Rollback, has_moved, plan_rollback, rollback_commit
from icekeeper.repair.way_back import tag_of
from support.examples import examples
from support.tables import new_document, snapshot

NOW_MS = 1_700_000_000_000


def history(parents: Mapping[int, int | None], heads: Mapping[str, int], *, version: int = 2) -> TableMetadata:
    """Snapshots with their parents, which may have expired, and branches."""
    raw = [
        snapshot(
            number,
            format_version=version,
            sequence_number=number,
            timestamp_ms=NOW_MS - (100 - number) * HOUR_MS,
            parent_id=parent,
            summary={"operation": "append", "added-records": "3"},
        )
        for number, parent in parents.items()
    ]
    document = new_document("s3://b/t", version, snapshots=raw)
    document["last-sequence-number"] = max(parents) if version > 1 else 0
    document["current-snapshot-id"] = heads["main"]
    if version > 1:
        document["refs"] = {
            name: {"type": "branch", "snapshot-id": head, "min-snapshots-to-keep": 7} for name, head in heads.items()
        }
    return TableMetadata(document)


@st.composite
def histories(draw: st.DrawFn) -> TableMetadata:
    count = draw(st.integers(1, 8))
    parents = {n: draw(st.one_of(st.none(), st.integers(1, n - 1))) if n > 1 else None for n in range(1, count + 1)}
    heads = {name: draw(st.integers(1, count)) for name in ("main", "audit")}
    gone = draw(st.sets(st.integers(1, count))) - set(heads.values())
    return history({n: parent for n, parent in parents.items() if n not in gone}, heads)


def line(metadata: TableMetadata, number: int | None) -> set[int]:
    """A snapshot and its ancestors that are still there."""
    if number is None or number not in metadata.snapshots:
        return set()
    return {number, *line(metadata, metadata.snapshots[number].parent_id)}


def planned(metadata: TableMetadata, branch: str, target: int) -> Rollback | Nothing:
    return plan_rollback(metadata, "ns.t", branch, str(target), not_ancestor=True)


def after(metadata: TableMetadata, plan: Rollback) -> TableMetadata:
    commit = rollback_commit(metadata, plan, NOW_MS)
    check_requirements(metadata, commit.requirements)
    return apply_updates(metadata, commit.updates, metadata_location="s3://b/t/metadata/1.json", now_ms=NOW_MS)


@given(histories(), st.sampled_from(["main", "audit"]), st.data())
@settings(max_examples=examples(200))
def test_a_branch_loses_what_only_its_old_line_has_and_can_be_set_back(
    metadata: TableMetadata, branch: str, data: st.DataObject
) -> None:
    target = data.draw(st.sampled_from(sorted(metadata.snapshots)))
    head = metadata.refs[branch].snapshot_id
    old, new = line(metadata, head), line(metadata, target)
    if target not in old:
        with pytest.raises(PolicyError, match="not known to be an ancestor"):
            plan_rollback(metadata, "ns.t", branch, str(target))
    plan = planned(metadata, branch, target)
    if target == head:
        assert isinstance(plan, Nothing)
        return
    assert isinstance(plan, Rollback)
    assert {s.snapshot_id for s in plan.leaving} == old - new
    assert {s.snapshot_id for s in plan.returning} == new - old
    assert not has_moved(metadata, plan)
    done = after(metadata, plan)
    assert has_moved(done, plan)
    assert line(done, done.refs[branch].snapshot_id) == new
    assert done.document["refs"][branch] == {**metadata.document["refs"][branch], "snapshot-id": target}
    assert {n: r for n, r in done.refs.items() if n not in (branch, tag_of(head))} == {
        n: r for n, r in metadata.refs.items() if n != branch
    }
    assert done.refs[tag_of(head)].snapshot_id == head
    assert done.snapshots.keys() == metadata.snapshots.keys()
    undone = planned(done, branch, head)
    assert isinstance(undone, Rollback)
    assert after(done, undone).refs[branch] == metadata.refs[branch]
    with pytest.raises(PlanStale):
        rollback_commit(done, plan, NOW_MS)


@given(histories(), st.data())
@settings(max_examples=examples(100))
def test_a_rollback_is_recognised_below_newer_commits(metadata: TableMetadata, data: st.DataObject) -> None:
    plan = planned(metadata, "main", data.draw(st.sampled_from(sorted(metadata.snapshots))))
    if isinstance(plan, Nothing):
        return
    newer = snapshot(99, format_version=2, sequence_number=99, timestamp_ms=NOW_MS, parent_id=plan.target.snapshot_id)
    on_top: list[dict[str, Any]] = [
        {"action": "add-snapshot", "snapshot": newer},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 99},
    ]
    assert has_moved(apply_updates(after(metadata, plan), on_top, metadata_location=None, now_ms=NOW_MS), plan)
    newer = {**newer, "parent-snapshot-id": plan.head.snapshot_id}
    on_old_head = [{"action": "add-snapshot", "snapshot": newer}, on_top[1]]
    lost = apply_updates(metadata, on_old_head, metadata_location=None, now_ms=NOW_MS)
    assert has_moved(lost, plan) is False


def test_the_tag_holds_for_thirty_days_whatever_the_age_of_its_snapshot() -> None:
    metadata = history({1: None, 2: 1}, {"main": 2})
    plan = planned(metadata, "main", 1)
    assert isinstance(plan, Rollback)
    done = after(metadata, plan)
    assert aged_refs(done, NOW_MS + 30 * 24 * HOUR_MS) == ()
    assert aged_refs(done, NOW_MS + 30 * 24 * HOUR_MS + 1) == (tag_of(2),)
    plain = after(metadata, replace(plan, no_tag="its metadata cannot be read"))
    assert plain.refs.keys() == {"main"}


def test_a_table_of_version_1_moves_its_current_snapshot() -> None:
    metadata = history({1: None, 2: 1}, {"main": 2}, version=1)
    plan = planned(metadata, "main", 1)
    assert isinstance(plan, Rollback)
    done = after(metadata, replace(plan, no_tag="tables of format version 1 cannot have tags"))
    assert (done.document["current-snapshot-id"], "refs" in done.document) == (1, "refs" in metadata.document)


def test_a_snapshot_is_named_by_its_id_a_tag_or_a_branch() -> None:
    metadata = history({1: None, 2: 1, 3: 2}, {"main": 3, "audit": 1})
    plans = [plan_rollback(metadata, "ns.t", "main", to) for to in ("1", "audit")]
    assert plans[0] == plans[1]
    for wrong in ("9", "no_such_tag", ""):
        with pytest.raises(PolicyError, match="icekeeper show lists them"):
            plan_rollback(metadata, "ns.t", "main", wrong)
    assert isinstance(plans[0], Rollback)
    assert plans[0].sentence == (
        "branch 'main' from snapshot 3 to 1; 2 snapshots that added 6 rows and deleted 0 left it"
    )
