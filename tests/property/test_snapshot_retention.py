"""Which snapshots expire: what must never, whatever the settings, and what must, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.errors import PolicyError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import Nothing
from icekeeper.operations.expiry.retention import (
    MAX_REF_AGE,
    ExpiryPlan,
    check_retention,
    plan_expiry,
)
from support.plans import policy
from support.snapshot_histories import DAY_H, NOW_MS, Case, cases, expire, expired, history, newest_first


@given(cases())
def test_what_no_setting_may_expire(case: Case) -> None:
    planned = expire(case)
    kept = case.metadata.snapshots.keys() - set(planned.snapshot_ids)
    surviving = [ref for name, ref in case.metadata.refs.items() if name not in planned.refs]
    assert "main" not in planned.refs
    assert case.metadata.document["current-snapshot-id"] in kept
    assert {ref.snapshot_id for ref in surviving} <= kept
    assert set(newest_first(case)[: case.settings.max_snapshots_to_keep]) <= kept
    if case.settings.snapshot_retain_max is None:
        age_of = {i: case.now_ms - s.timestamp_ms for i, s in case.metadata.snapshots.items()}
        assert {i for i, age in age_of.items() if age <= case.settings.snapshot_retention_ms} <= kept


@given(cases())
def test_branch_settings_keep_their_ancestors(case: Case) -> None:
    planned = expire(case)
    for name, ref in case.metadata.refs.items():
        if ref.type != "branch" or name in planned.refs:
            continue
        for distance, ancestor in enumerate(case.metadata.ancestors(ref.snapshot_id)):
            young = (
                ref.max_snapshot_age_ms is not None and case.now_ms - ancestor.timestamp_ms <= ref.max_snapshot_age_ms
            )
            if distance >= (ref.min_snapshots_to_keep or 1) and not young:
                break
            assert ancestor.snapshot_id not in planned.snapshot_ids


@given(cases())
def test_nothing_at_or_above_the_oldest_pin_expires(case: Case) -> None:
    horizons = [case.metadata.snapshots[i].timestamp_ms for i in case.pinned if i in case.metadata.snapshots]
    if horizons:
        expired = expire(case).snapshot_ids
        assert all(case.metadata.snapshots[i].timestamp_ms <= min(horizons) for i in expired)
        assert not set(case.pinned) & set(expired)


@given(cases())
def test_limits_take_the_oldest_first_and_caps_only_expire_more(case: Case) -> None:
    everything = expire(case, snapshot_expire_limit=None).snapshot_ids
    position = {snapshot_id: i for i, snapshot_id in enumerate(reversed(newest_first(case)))}
    assert list(everything) == sorted(everything, key=position.__getitem__)
    assert expire(case, snapshot_expire_limit=2).snapshot_ids == everything[:2]
    assert set(expire(case, snapshot_retain_max=None, snapshot_expire_limit=None).snapshot_ids) <= set(everything)


@given(cases(), st.integers(0, 300), st.integers(0, 5))
def test_more_retention_never_expires_more(case: Case, hours: int, count: int) -> None:
    unlimited = {"snapshot_expire_limit": None, "snapshot_retain_max": None}
    before = set(expire(case, **unlimited).snapshot_ids)
    longer = case.settings.snapshot_retention_hours + hours
    assert set(expire(case, **unlimited, snapshot_retention_hours=longer).snapshot_ids) <= before
    more = case.settings.max_snapshots_to_keep + count
    assert set(expire(case, **unlimited, max_snapshots_to_keep=more).snapshot_ids) <= before


@given(cases(), st.integers(0, 1000))
def test_a_clock_that_runs_backwards_expires_nothing_more(case: Case, hours: int) -> None:
    unlimited = {"snapshot_expire_limit": None}
    early = Case(case.metadata, case.settings, case.pinned, case.now_ms - hours * HOUR_MS)
    assert set(expire(early, **unlimited).snapshot_ids) <= set(expire(case, **unlimited).snapshot_ids)
    assert set(expire(early).refs) <= set(expire(case).refs)


EIGHT = [14 * DAY_H, 10 * DAY_H, 8 * DAY_H, 6 * DAY_H, 5 * DAY_H, 3 * DAY_H, 2 * DAY_H, 1]


def test_eight_snapshots_become_five() -> None:
    """SeaweedFS's worker, before and after (rule 71)."""
    assert expired(history(EIGHT)) == (1, 2, 3)
    assert expired(history(EIGHT, format_version=1)) == (1, 2, 3)


def test_the_young_are_kept_beyond_the_count() -> None:
    assert expired(history([1] * 20)) == ()
    assert expired(history([169, *[1] * 20])) == (1,)
    assert expired(history([168, *[1] * 20])) == ()


def test_the_cap_expires_the_young_as_well() -> None:
    """Apache Paimon, ``snapshot.num-retained.max`` and ``snapshot.expire.limit`` (rule 73)."""
    assert expired(history([3, 2, 1, 1, 1, 1, 1, 0]), snapshot_retain_max=6) == (1, 2)
    assert expired(history([3, 2, 1, 1, 1, 1, 1, 0]), snapshot_retain_max=6, snapshot_expire_limit=1) == (1,)


def test_pins_are_horizons() -> None:
    """Readers of a pinned snapshot may come from any later one (rule 74)."""
    assert expired(history(EIGHT), pinned=[2]) == (1,)
    assert expired(history(EIGHT), pinned=[3, 8]) == (1, 2)
    assert expired(history(EIGHT), pinned=[1]) == ()
    assert expired(history(EIGHT), pinned=[99]) == (1, 2, 3)


def test_refs_age_by_their_snapshot_and_main_never_does() -> None:
    old = {"max-ref-age-ms": 100 * HOUR_MS}
    refs = {
        "main": {"type": "branch", "snapshot-id": 3, **old},
        "audited": {"type": "tag", "snapshot-id": 1, **old},
        "release": {"type": "tag", "snapshot-id": 2},
    }
    metadata = history([900, 800, 700], refs=refs)
    planned = plan_expiry(metadata, policy(max_snapshots_to_keep=1), now_ms=NOW_MS)
    assert planned == ExpiryPlan((1,), ("audited",))
    again = plan_expiry(metadata, policy(max_snapshots_to_keep=1), now_ms=NOW_MS - 800 * HOUR_MS)
    assert again == Nothing("no snapshots to expire")


def test_snapshots_of_no_ref_are_kept_while_young() -> None:
    """Write-audit-publish: staged snapshots have no ref yet."""
    metadata = history([500, 10, 1], parents=[None, 1, 1])
    assert expired(metadata, max_snapshots_to_keep=1) == (1,)
    assert expired(metadata, max_snapshots_to_keep=1, snapshot_retention_hours=5) == (1, 2)


def test_a_table_without_snapshots_has_none_to_expire() -> None:
    assert plan_expiry(history([]), policy(), now_ms=NOW_MS) == Nothing("no snapshots to expire")


def test_refs_without_an_age_of_their_own_follow_the_table() -> None:
    """``history.expire.max-ref-age-ms``; main never ages, and a ref's own setting wins."""
    refs = {
        "main": {"type": "branch", "snapshot-id": 3},
        "own": {"type": "tag", "snapshot-id": 1, "max-ref-age-ms": 1000 * HOUR_MS},
        "old": {"type": "branch", "snapshot-id": 1},
        "young": {"type": "tag", "snapshot-id": 2},
    }

    def dropped(age_ms: int | None) -> tuple[str, ...]:
        metadata = history([900, 800, 700], refs=refs)
        document = {**metadata.document, "properties": {} if age_ms is None else {MAX_REF_AGE: str(age_ms)}}
        planned = plan_expiry(TableMetadata(document), policy(max_snapshots_to_keep=1), now_ms=NOW_MS)
        return () if isinstance(planned, Nothing) else planned.refs

    assert dropped(None) == ()
    assert dropped(2**63 - 1) == ()
    assert dropped(800 * HOUR_MS) == ("old",), "as old as that is young"
    assert dropped(800 * HOUR_MS - 1) == ("old", "young")


@pytest.mark.parametrize("value", ["0", "-5", "a week"])
def test_a_malformed_age_of_refs_is_bad_usage(value: str) -> None:
    metadata = TableMetadata({**history([1]).document, "properties": {MAX_REF_AGE: value}})
    with pytest.raises(PolicyError, match=MAX_REF_AGE):
        check_retention(metadata, policy())


def test_a_table_last_written_in_the_future_expires_nothing_early() -> None:
    """The clock of this machine lags behind the writers'."""
    metadata = history([14 * DAY_H, 10 * DAY_H, -DAY_H])
    for lag in (0, 3 * DAY_H, 9 * DAY_H, 30 * DAY_H):
        planned = plan_expiry(metadata, policy(max_snapshots_to_keep=1), now_ms=NOW_MS - lag * HOUR_MS)
        ids = () if isinstance(planned, Nothing) else planned.snapshot_ids
        assert ids == {0: (1, 2), 3 * DAY_H: (1,), 9 * DAY_H: (), 30 * DAY_H: ()}[lag]
