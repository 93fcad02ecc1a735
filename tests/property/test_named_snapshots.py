"""Snapshots that a person names: they expire whatever their age, unless something that protects them refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.errors import OperationRefused, PolicyError
from icekeeper.model import Nothing
from icekeeper.operations.expiry.retention import (
    ExpiryPlan,
    check_retention,
    plan_expiry,
    refuse_broken_chains,
    refuse_protected,
)
from support.plans import policy
from support.snapshot_histories import NOW_MS, Case, cases, expire, flink_mark, history

NAMED_REFS = {
    "main": {"type": "branch", "snapshot-id": 5, "max-ref-age-ms": 1},
    "old": {"type": "tag", "snapshot-id": 2, "max-ref-age-ms": 1},
}


def test_named_snapshots_expire_whatever_their_age_and_nothing_else_does() -> None:
    metadata = history([900, 800, 700, 2, 1], refs=NAMED_REFS)
    for ids, expected in (((4, 1), (1, 4)), ((3,), (3,))):
        settings = policy(snapshot_expire_ids=",".join(map(str, ids)))
        check_retention(metadata, settings)
        assert plan_expiry(metadata, settings, now_ms=NOW_MS) == ExpiryPlan(expected, ())
    # On a newer head that lost one of them to somebody else:
    assert plan_expiry(metadata, policy(snapshot_expire_ids="77,3"), now_ms=NOW_MS) == ExpiryPlan((3,), ())


@pytest.mark.parametrize(("ids", "what"), [("77", "no snapshot of this table"), ("2", "tag 'old'"), ("5", "'main'")])
def test_named_snapshots_that_cannot_expire_are_bad_usage(ids: str, what: str) -> None:
    metadata, settings = history([900, 800, 700, 2, 1], refs=NAMED_REFS), policy(snapshot_expire_ids=f"3,{ids}")
    with pytest.raises(PolicyError, match=what):
        check_retention(metadata, settings)
    assert plan_expiry(metadata, settings, now_ms=NOW_MS) == ExpiryPlan((3,), ())


def test_named_snapshots_that_are_pinned_are_refused() -> None:
    """A pin is a horizon: also what is newer than the pinned snapshot stays."""
    metadata = history([900, 800, 700, 2, 1])
    for ids in ("3", "4"):
        settings = policy(snapshot_expire_ids=ids)
        with pytest.raises(OperationRefused, match=f"snapshot {ids} of snapshot_expire_ids is pinned"):
            refuse_protected(metadata, settings, [3])
        assert plan_expiry(metadata, settings, now_ms=NOW_MS, pinned=[3]) == Nothing("no snapshots to expire")
    refuse_protected(metadata, policy(snapshot_expire_ids="2,99"), [3])


def test_a_named_snapshot_that_became_a_head_meanwhile_is_refused() -> None:
    metadata = history([900, 800, 700, 2, 1], refs=NAMED_REFS)
    with pytest.raises(OperationRefused, match="has become the head of tag 'old'"):
        refuse_protected(metadata, policy(snapshot_expire_ids="2"), [])


@given(cases(), st.sets(st.integers(1, 15), max_size=4))
def test_no_name_overrules_heads_and_pins(case: Case, ids: set[int]) -> None:
    planned = expire(case, snapshot_expire_ids=tuple(ids))
    heads = {ref.snapshot_id for ref in case.metadata.refs.values()}
    if ids:
        assert set(planned.snapshot_ids) <= ids - heads - set(case.pinned)
        assert planned.refs == ()


def test_a_named_snapshot_on_a_writers_way_is_refused() -> None:
    metadata = history([9, 8, 7, 6], marks={2: flink_mark("a", 1)})
    settings = policy(snapshot_expire_ids="1,3")
    with pytest.raises(
        OperationRefused, match=r"snapshot 3 of snapshot_expire_ids is one by which Flink job a, operat"
    ):
        refuse_broken_chains(metadata, settings, NOW_MS)
    assert plan_expiry(metadata, settings, now_ms=NOW_MS) == ExpiryPlan((1,), ())
    refuse_broken_chains(metadata, policy(snapshot_expire_ids="1"), NOW_MS)
    gone = policy(snapshot_expire_ids="3", writer_mark_retention_hours=0)
    refuse_broken_chains(metadata, gone, NOW_MS)
    assert plan_expiry(metadata, gone, now_ms=NOW_MS) == ExpiryPlan((3,), ())
