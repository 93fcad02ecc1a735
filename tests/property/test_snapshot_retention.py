"""Which snapshots expire, and which are kept for refs, writers and named requests."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.commit.attempt import RUN_ID_KEY, newest_run
from icekeeper.errors import OperationRefused, PolicyError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.writer_marks import COMMITTED_KEY
from icekeeper.model import Nothing
from icekeeper.operations.expiry.retention import (
    MAX_REF_AGE,
    ExpiryPlan,
    check_retention,
    expiry_at,
    refuse_broken_chains,
    refuse_protected,
)
from icekeeper.policy import Policy
from support.examples import examples
from support.plans import plan_expiry, policy
from support.tables import new_document, snapshot

# Histories of snapshots by their ages in hours, random or given, and the snapshots that expire.

NOW_MS = 1_700_000_000_000
DAY_H = 24


def history(
    ages_h: Sequence[float],
    *,
    refs: Mapping[str, Mapping[str, Any]] | None = None,
    parents: Sequence[int | None] | None = None,
    format_version: int = 2,
    marks: Mapping[int, Mapping[str, str]] | None = None,
) -> TableMetadata:
    """Snapshots 1, 2, … by age in hours, each the child of the previous snapshot unless ``parents`` names others;
    the last is current.  ``marks`` are the entries of streaming writers in summaries."""
    raw = [
        snapshot(
            number,
            format_version=format_version,
            sequence_number=number,
            timestamp_ms=NOW_MS - int(age * HOUR_MS),
            parent_id=(number - 1 or None) if parents is None else parents[number - 1],
            summary={"operation": "append", **(marks or {}).get(number, {})},
        )
        for number, age in enumerate(ages_h, start=1)
    ]
    document = new_document("s3://b/t", format_version, snapshots=raw)
    if raw:
        document["current-snapshot-id"] = len(raw)
        if format_version > 1:
            document["refs"] = {"main": {"type": "branch", "snapshot-id": len(raw)}, **(refs or {})}
    return TableMetadata(document)


@dataclass(frozen=True)
class Case:
    """A random history with random refs (from v2 on) and settings."""

    metadata: TableMetadata
    settings: Policy
    pinned: tuple[int, ...]
    now_ms: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    # Times are neither ordered nor unique, and some are in the future: clocks of writers differ.
    ages = draw(st.lists(st.integers(-5, 400), min_size=1, max_size=15))
    count = len(ages)
    ids = st.integers(1, count)
    parents = [None if n == 0 else draw(st.sampled_from([n, n, n, None, max(1, n - 1)])) for n in range(count)]
    settings = st.one_of(st.none(), st.integers(1, 6))
    hours = st.one_of(st.none(), st.integers(1, 300).map(lambda h: h * HOUR_MS))
    refs: dict[str, dict[str, Any]] = {}
    for number in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["tag", "branch"]))
        ref = {"type": kind, "snapshot-id": draw(ids), "max-ref-age-ms": draw(hours)}
        if kind == "branch":
            ref |= {"min-snapshots-to-keep": draw(settings), "max-snapshot-age-ms": draw(hours)}
        refs[f"r{number}"] = {key: value for key, value in ref.items() if value is not None}
    keep = draw(st.integers(1, 6))
    chosen = policy(
        max_snapshots_to_keep=keep,
        snapshot_retention_hours=draw(st.integers(0, 300)),
        snapshot_retain_max=draw(st.one_of(st.none(), st.integers(keep, 9))),
        snapshot_expire_limit=draw(st.one_of(st.none(), st.integers(1, 4))),
        writer_mark_retention_hours=draw(st.sampled_from([0, 24, 168, 500])),
    )
    pinned = tuple(draw(st.lists(st.integers(1, count + 2), max_size=2)))
    marks = {
        number: flink_mark(draw(st.sampled_from("abc")), number, carried_age_h=draw(st.none() | st.integers(0, 400)))
        for number in draw(st.sets(ids, max_size=6))
    }
    version = draw(st.sampled_from([1, 2]))
    return Case(
        history(ages, refs=refs, parents=parents, marks=marks, format_version=version),
        chosen,
        pinned,
        NOW_MS + draw(st.integers(-300, 300)) * HOUR_MS,
    )


def flink_mark(job: str, checkpoint: int, *, carried_age_h: int | None = None) -> dict[str, str]:
    """The mark of a Flink job; with an age, a copy of a mark that the job committed so long ago."""
    mark = {"flink.job-id": job, "flink.operator-id": "op", "flink.max-committed-checkpoint-id": str(checkpoint)}
    return mark if carried_age_h is None else {**mark, COMMITTED_KEY: str(NOW_MS - carried_age_h * HOUR_MS)}


def expire(case: Case, **changes: Any) -> ExpiryPlan:
    settings = case.settings.model_copy(update=changes)
    planned = plan_expiry(case.metadata, settings, now_ms=case.now_ms, pinned=case.pinned)
    return ExpiryPlan((), ()) if isinstance(planned, Nothing) else planned


def newest_first(case: Case) -> list[int]:
    """The snapshots by time, newest first; of equal times, the last commit is first."""
    snapshots = case.metadata.snapshots
    return sorted(committed_last_first(case), key=lambda i: snapshots[i].timestamp_ms, reverse=True)


def committed_last_first(case: Case) -> list[int]:
    """The snapshots by sequence number; in v1, by the latest time on the path to each, then by the path's length."""

    def order(snapshot_id: int) -> tuple[int, int, int]:
        way = list(case.metadata.ancestors(snapshot_id))
        return way[0].sequence_number, max(item.timestamp_ms for item in way), len(way)

    # The order in the document breaks ties.
    return sorted(case.metadata.snapshots, key=order)[::-1]


def expired(metadata: TableMetadata, *, pinned: Sequence[int] = (), **settings: object) -> tuple[int, ...]:
    planned = plan_expiry(metadata, policy(**settings), now_ms=NOW_MS, pinned=pinned)
    return () if isinstance(planned, Nothing) else planned.snapshot_ids


# Which snapshots never expire under any settings, and which expire exactly.

FEWER = settings(max_examples=examples(50))


@given(cases())
def test_no_setting_expires_protected_snapshots(case: Case) -> None:
    planned = expire(case)
    heads_and_newest_are_kept(case, planned)
    ancestors_are_kept_by_the_settings_of_branches(case, planned)
    nothing_at_or_above_a_pin_expires(case, planned)
    writers_find_their_last_commit(case, planned)


def heads_and_newest_are_kept(case: Case, planned: ExpiryPlan) -> None:
    kept = case.metadata.snapshots.keys() - set(planned.snapshot_ids)
    surviving = [ref for name, ref in case.metadata.refs.items() if name not in planned.refs]
    assert "main" not in planned.refs
    assert case.metadata.document["current-snapshot-id"] in kept
    assert {ref.snapshot_id for ref in surviving} <= kept
    for newest in newest_first(case), committed_last_first(case):
        assert set(newest[: case.settings.max_snapshots_to_keep]) <= kept
    if case.settings.snapshot_retain_max is None:
        age_of = {i: case.now_ms - s.timestamp_ms for i, s in case.metadata.snapshots.items()}
        assert {i for i, age in age_of.items() if age <= case.settings.snapshot_retention_ms} <= kept


def ancestors_are_kept_by_the_settings_of_branches(case: Case, planned: ExpiryPlan) -> None:
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


def kept_branch_by_branch(case: Case) -> set[int]:
    """The snapshots that branches keep, by walking each branch alone."""
    kept: set[int] = set()
    for ref in case.metadata.refs.values():
        least = max(ref.min_snapshots_to_keep or 1, case.settings.max_snapshots_to_keep) if ref.type == "branch" else 1
        age_ms = ref.max_snapshot_age_ms if ref.type == "branch" else None
        for distance, ancestor in enumerate(case.metadata.ancestors(ref.snapshot_id)):
            if distance >= least and (age_ms is None or case.now_ms - ancestor.timestamp_ms > age_ms):
                break
            kept.add(ancestor.snapshot_id)
    return kept


@FEWER
@given(cases())
def test_walking_branches_together_keeps_the_same_snapshots_as_walking_each(case: Case) -> None:
    document = {
        **case.metadata.document,
        "refs": {
            name: {key: value for key, value in ref.items() if key != "max-ref-age-ms"}
            for name, ref in case.metadata.document.get("refs", {}).items()
        },
    }
    case = Case(TableMetadata(document), case.settings, (), case.now_ms)
    changes = {"snapshot_retention_hours": -1_000, "writer_mark_retention_hours": 0, "snapshot_expire_limit": None}
    kept = kept_branch_by_branch(case)
    for newest in newest_first(case), committed_last_first(case):
        kept |= set(newest[: case.settings.max_snapshots_to_keep])
    assert set(expire(case, **changes).snapshot_ids) == case.metadata.snapshots.keys() - kept


@FEWER
@given(cases())
def test_too_many_branches_never_keep_fewer_snapshots(case: Case) -> None:
    unlimited = {"snapshot_expire_limit": None}
    exact = expire(case, **unlimited)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("icekeeper.operations.expiry.retention.MOST_STEPS", 0)
        together = expire(case, **unlimited)
    assert set(together.snapshot_ids) <= set(exact.snapshot_ids)
    assert together.refs == exact.refs


@pytest.mark.parametrize("of_branch", [{"max-snapshot-age-ms": 900 * HOUR_MS}, {"min-snapshots-to-keep": 1}])
def test_thousands_of_branches_are_planned_in_seconds(of_branch: dict[str, int]) -> None:
    """Each snapshot is visited once, not once per branch."""
    count = 3_000
    refs = {f"b{number}": {"type": "branch", "snapshot-id": count, **of_branch} for number in range(count)}
    refs |= {f"c{number}": {"type": "branch", "snapshot-id": number, "max-ref-age-ms": 1} for number in range(1, count)}
    metadata = history([800] * count, refs=refs, marks={5: flink_mark("a", 1, carried_age_h=1)})
    started_s = time.process_time()
    planned = plan_expiry(metadata, policy(max_snapshots_to_keep=1), now_ms=NOW_MS)
    assert time.process_time() - started_s < 5
    assert isinstance(planned, ExpiryPlan)
    assert planned.snapshot_ids == (() if "max-snapshot-age-ms" in of_branch else (1, 2, 3, 4))
    assert len(planned.refs) == count - 1


def nothing_at_or_above_a_pin_expires(case: Case, planned: ExpiryPlan) -> None:
    """Above by time, by sequence number, or as a descendant of a snapshot above."""
    snapshots = case.metadata.snapshots
    there = [snapshots[i] for i in case.pinned if i in snapshots]
    for snapshot_id in planned.snapshot_ids:
        assert snapshot_id not in case.pinned
        for ancestor in case.metadata.ancestors(snapshot_id):
            assert ancestor.parent_id not in case.pinned
            assert all(ancestor.timestamp_ms <= pinned.timestamp_ms for pinned in there)
            assert all(
                ancestor.sequence_number < pinned.sequence_number or not pinned.sequence_number for pinned in there
            )


@FEWER
@given(cases())
def test_limits_expire_the_oldest_first_and_caps_only_expire_more(case: Case) -> None:
    everything = expire(case, snapshot_expire_limit=None).snapshot_ids
    position = {snapshot_id: i for i, snapshot_id in enumerate(reversed(committed_last_first(case)))}
    assert list(everything) == sorted(everything, key=position.__getitem__)
    assert expire(case, snapshot_expire_limit=2).snapshot_ids == everything[:2]
    assert set(expire(case, snapshot_retain_max=None, snapshot_expire_limit=None).snapshot_ids) <= set(everything)


@FEWER
@given(cases(), st.integers(0, 300), st.integers(0, 5))
def test_more_retention_never_expires_more(case: Case, hours: int, count: int) -> None:
    unlimited = {"snapshot_expire_limit": None, "snapshot_retain_max": None}
    before = set(expire(case, **unlimited).snapshot_ids)
    longer = case.settings.snapshot_retention_hours + hours
    assert set(expire(case, **unlimited, snapshot_retention_hours=longer).snapshot_ids) <= before
    more = case.settings.max_snapshots_to_keep + count
    assert set(expire(case, **unlimited, max_snapshots_to_keep=more).snapshot_ids) <= before


@FEWER
@given(cases(), st.integers(0, 1000))
def test_a_clock_that_runs_backwards_expires_nothing_more(case: Case, hours: int) -> None:
    unlimited = {"snapshot_expire_limit": None}
    early = Case(case.metadata, case.settings, case.pinned, case.now_ms - hours * HOUR_MS)
    assert set(expire(early, **unlimited).snapshot_ids) <= set(expire(case, **unlimited).snapshot_ids)
    assert set(expire(early).refs) <= set(expire(case).refs)


EIGHT = [14 * DAY_H, 10 * DAY_H, 8 * DAY_H, 6 * DAY_H, 5 * DAY_H, 3 * DAY_H, 2 * DAY_H, 1]


def test_count_age_and_cap_decide_together() -> None:
    """The results of SeaweedFS's worker (rule: retention-keeps-if-anything-does), and Apache Paimon's
    ``snapshot.num-retained.max`` and ``snapshot.expire.limit``."""
    assert expired(history(EIGHT)) == expired(history(EIGHT, format_version=1)) == (1, 2, 3)
    assert expired(history([1] * 20)) == expired(history([168, *[1] * 20])) == ()
    assert expired(history([169, *[1] * 20])) == (1,)
    assert expired(history([3, 2, 1, 1, 1, 1, 1, 0]), snapshot_retain_max=6) == (1, 2)
    assert expired(history([3, 2, 1, 1, 1, 1, 1, 0]), snapshot_retain_max=6, snapshot_expire_limit=1) == (1,)
    # Write-audit-publish: staged snapshots do not yet have a ref.
    staged = history([500, 10, 1], parents=[None, 1, 1])
    assert expired(staged, max_snapshots_to_keep=1) == (1,)
    assert expired(staged, max_snapshots_to_keep=1, snapshot_retention_hours=5) == (1, 2)
    assert plan_expiry(history([]), policy(), now_ms=NOW_MS) == Nothing("no snapshots to expire")


def test_pins_are_horizons() -> None:
    """Readers of a pinned snapshot may also need any later snapshot (rule: pin-is-a-horizon)."""
    expected: dict[tuple[int, ...], tuple[int, ...]] = {(2,): (1,), (3, 8): (1, 2), (1,): (), (99,): (1, 2, 3)}
    for pinned, ids in expected.items():
        assert expired(history(EIGHT), pinned=pinned) == ids
    # A fast clock dated the pinned snapshot; later snapshots of another branch are not its descendants.
    line = history([900, 700, 800, 750, 1], parents=[None, 1, 1, 3, 4])
    assert expired(line, pinned=[2], max_snapshots_to_keep=1, snapshot_retention_hours=0) == (1,)


# A quarter of a minute in hours: Iceberg-Java's TableMetadata accepts a child that is dated up to a minute early.
SKEW_H = 1 / 240


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("pinned", [2, 99])
def test_a_pin_keeps_a_child_that_is_dated_before_its_parent(version: int, pinned: int) -> None:
    """Descendants of the pinned snapshot are kept, even if the snapshot itself is gone; times decide only ages."""
    ages = [900, 800, 800 + SKEW_H, 800 + 2 * SKEW_H, 3, 2, 1]
    line = history(ages, format_version=version, parents=[None, 1, pinned, 3, None, 5, 6])
    settings: dict[str, Any] = {"max_snapshots_to_keep": 1, "snapshot_retention_hours": 0}
    assert set(expired(line, **settings)) == {1, 2, 3, 4, 5, 6}
    assert expired(line, pinned=[pinned], **settings) == ((1,) if pinned == 2 else (1, 2, 5, 6))
    for named in (3, 4):
        with pytest.raises(OperationRefused, match=f"snapshot {named} of snapshot_expire_ids is pinned or newer"):
            refuse_protected(line, policy(snapshot_expire_ids=f"{named}"), [pinned])


def test_the_newest_snapshots_are_the_last_by_commit_and_by_time() -> None:
    """A clock a day ahead dated snapshot 2: the newest two include it by time, and snapshot 3 by its commit."""
    settings: dict[str, Any] = {"max_snapshots_to_keep": 2, "snapshot_retention_hours": 0}
    for version in (1, 2):
        fast = history([900, 1, 24, 23], parents=[None, 1, None, None], format_version=version)
        assert expired(fast, **settings) == ((1,) if version > 1 else (1, 3))
        # With parents, ancestry decides in v1, too.
        assert expired(history([900, 1, 24, 23], format_version=version), **settings) == (1,)
    assert expired(history([5, 4, 4.5, 3]), max_snapshots_to_keep=1, snapshot_retention_hours=0) == (1, 2, 3)


@pytest.mark.parametrize("version", [1, 2])
def test_parents_expire_before_their_children_regardless_of_times(version: int) -> None:
    line = history([800, 800 + SKEW_H, 800 + 2 * SKEW_H, 1], format_version=version)
    assert expired(line, max_snapshots_to_keep=1, snapshot_expire_limit=2) == (1, 2)
    assert [snapshot.snapshot_id for snapshot in line.in_commit_order] == [1, 2, 3, 4]
    runs = {2: {RUN_ID_KEY: "first"}, 3: {RUN_ID_KEY: "second"}}
    assert newest_run(history([9, 1, 1 + SKEW_H], marks=runs, format_version=version)) == (3, "second")


def test_a_circle_of_parents_does_not_stop_the_order_of_commits() -> None:
    """For forged metadata any order will do, but the search for it must end."""
    circle = history([3, 2, 1], parents=[3, 1, 2], format_version=1)
    assert {snapshot.snapshot_id for snapshot in circle.in_commit_order} == {1, 2, 3}
    assert expired(circle, pinned=[2], max_snapshots_to_keep=1, snapshot_retention_hours=0) == ()


def test_refs_expire_by_the_age_of_their_snapshot_and_main_never_expires() -> None:
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


def test_refs_without_a_maximum_age_use_the_age_of_the_table() -> None:
    """``history.expire.max-ref-age-ms`` applies; main never expires, and a ref's own setting wins."""
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


# Snapshots that a person names expire at any age, unless they are protected.

NAMED_REFS = {
    "main": {"type": "branch", "snapshot-id": 5, "max-ref-age-ms": 1},
    "old": {"type": "tag", "snapshot-id": 2, "max-ref-age-ms": 1},
}


def test_only_named_snapshots_expire_at_any_age() -> None:
    metadata = history([900, 800, 700, 2, 1], refs=NAMED_REFS)
    for ids, expected in (((4, 1), (1, 4)), ((3,), (3,))):
        settings = policy(snapshot_expire_ids=",".join(map(str, ids)))
        check_retention(metadata, settings)
        assert plan_expiry(metadata, settings, now_ms=NOW_MS) == ExpiryPlan(expected, ())
    # On a newer head, from which another writer has removed a named snapshot:
    assert plan_expiry(metadata, policy(snapshot_expire_ids="77,3"), now_ms=NOW_MS) == ExpiryPlan((3,), ())


@pytest.mark.parametrize(("ids", "what"), [("77", "not a snapshot of this table"), ("2", "tag 'old'"), ("5", "'main'")])
def test_named_snapshots_that_cannot_expire_are_bad_usage(ids: str, what: str) -> None:
    metadata, settings = history([900, 800, 700, 2, 1], refs=NAMED_REFS), policy(snapshot_expire_ids=f"3,{ids}")
    with pytest.raises(PolicyError, match=what):
        check_retention(metadata, settings)
    assert plan_expiry(metadata, settings, now_ms=NOW_MS) == ExpiryPlan((3,), ())


def test_named_snapshots_that_were_pinned_or_became_a_head_are_refused() -> None:
    """A pin is a horizon: snapshots newer than the pinned snapshot are kept, too."""
    metadata = history([900, 800, 700, 2, 1])
    for ids in ("3", "4"):
        settings = policy(snapshot_expire_ids=ids)
        with pytest.raises(OperationRefused, match=f"snapshot {ids} of snapshot_expire_ids is pinned"):
            refuse_protected(metadata, settings, [3])
        assert plan_expiry(metadata, settings, now_ms=NOW_MS, pinned=[3]) == Nothing("no snapshots to expire")
    refuse_protected(metadata, policy(snapshot_expire_ids="2,99"), [3])
    with pytest.raises(OperationRefused, match="has become the head of tag 'old'"):
        refuse_protected(history([900, 800, 700, 2, 1], refs=NAMED_REFS), policy(snapshot_expire_ids="2"), [])


@FEWER
@given(cases(), st.sets(st.integers(1, 15), max_size=4))
def test_named_snapshots_do_not_overrule_heads_and_pins(case: Case, ids: set[int]) -> None:
    planned = expire(case, snapshot_expire_ids=tuple(ids))
    heads = {ref.snapshot_id for ref in case.metadata.refs.values()}
    if ids:
        assert set(planned.snapshot_ids) <= ids - heads - set(case.pinned)
        assert planned.refs == ()


def test_a_named_snapshot_that_a_writer_needs_is_refused() -> None:
    metadata = history([9, 8, 7, 6], marks={2: flink_mark("a", 1)})
    settings = policy(snapshot_expire_ids="1,3")
    with pytest.raises(
        OperationRefused, match=r"Flink job a, operator op needs snapshot 3 of snapshot_expire_ids to find"
    ):
        refuse_broken_chains(metadata, settings, NOW_MS)
    assert plan_expiry(metadata, settings, now_ms=NOW_MS) == ExpiryPlan((1,), ())
    refuse_broken_chains(metadata, policy(snapshot_expire_ids="1"), NOW_MS)
    gone = policy(snapshot_expire_ids="3", writer_mark_retention_hours=0)
    refuse_broken_chains(metadata, gone, NOW_MS)
    assert plan_expiry(metadata, gone, now_ms=NOW_MS) == ExpiryPlan((3,), ())


# Streaming writers keep the path to their newest mark while it is young.


def last_commit(
    metadata: TableMetadata, job: str, head: int, *, without: Collection[int] = ()
) -> tuple[str, int] | None:
    """The last checkpoint of the job and its commit time, as ``SinkUtil.getMaxCommittedCheckpointId`` finds it."""
    snapshots = {s["snapshot-id"]: s for s in metadata.document["snapshots"] if s["snapshot-id"] not in without}
    at = snapshots.get(head)
    while at is not None:
        if at["summary"].get("flink.job-id") == job:
            committed = int(at["summary"].get(COMMITTED_KEY, at["timestamp-ms"]))
            return at["summary"]["flink.max-committed-checkpoint-id"], committed
        at = snapshots.get(at.get("parent-snapshot-id"))
    return None


def writers_find_their_last_commit(case: Case, planned: ExpiryPlan) -> None:
    """This holds while the commit is young, for any cap; a writer never finds an older commit."""
    horizon_ms = case.now_ms - case.settings.writer_mark_retention_ms
    for name, ref in case.metadata.refs.items():
        for job in "abc" if ref.type == "branch" and name not in planned.refs else "":
            before = last_commit(case.metadata, job, ref.snapshot_id)
            after = last_commit(case.metadata, job, ref.snapshot_id, without=planned.snapshot_ids)
            assert after in (before, None)
            if before is not None and before[1] >= horizon_ms and case.settings.writer_mark_retention_hours:
                assert after == before


@FEWER
@given(cases())
def test_the_plan_counts_snapshots_kept_for_writers(case: Case) -> None:
    def planned(hours: int) -> ExpiryPlan:
        changes = {"writer_mark_retention_hours": hours, "snapshot_expire_limit": None}
        settings = case.settings.model_copy(update=changes)
        return expiry_at(case.metadata, settings, now_ms=case.now_ms, pinned=case.pinned)

    without, with_marks = planned(0), planned(200)
    assert set(with_marks.snapshot_ids) <= set(without.snapshot_ids)
    assert with_marks.kept_for_writers == len(without.snapshot_ids) - len(with_marks.snapshot_ids)
    assert without.kept_for_writers == 0


def test_only_the_path_to_each_writers_newest_mark_is_kept() -> None:
    """The path from the head to a streaming writer's last commit is kept (rule: carry-streaming-marks)."""
    ages = [9, 8, 7, 6, 5, 4, 3, 2, 1]
    marks = {2: flink_mark("a", 1), 3: flink_mark("a", 2), 5: flink_mark("b", 9), 6: flink_mark("b", 10)}
    metadata = history(ages, marks=marks)
    settings: dict[str, Any] = {"max_snapshots_to_keep": 1, "snapshot_retention_hours": 0, "snapshot_retain_max": 1}
    assert expired(metadata, **settings) == (1, 2)
    assert expired(metadata, **settings, writer_mark_retention_hours=6) == (1, 2, 3, 4, 5), "job a counts as dead"
    assert expired(metadata, **settings, writer_mark_retention_hours=0) == (1, 2, 3, 4, 5, 6, 7, 8)


def test_a_carried_mark_has_the_age_of_its_commit_and_frees_earlier_snapshots() -> None:
    settings: dict[str, Any] = {"max_snapshots_to_keep": 1, "snapshot_retention_hours": 0}
    marks = {1: flink_mark("a", 1), 3: flink_mark("a", 1, carried_age_h=8)}
    metadata = history([8, 7, 6, 5], marks=marks)
    assert expired(metadata, **settings) == (1, 2)
    assert expired(metadata, **settings, writer_mark_retention_hours=7) == (1, 2, 3)
