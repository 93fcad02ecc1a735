"""Tables that detection proposes, with their reasons and priority."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from icekeeper.commit.snapshot import RECIPE_KEY
from icekeeper.detection.assess import assess
from icekeeper.detection.proposal import Proposal, Skip
from icekeeper.detection.signals import wanted_clustering
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import ResolvedPolicy
from icekeeper.state.store import SeenTable
from support.settings import MB, NOW_MS, policy, small_files, table
from support.state_stores import look, looks
from support.tables import new_document

# Tables that are proposed, with the text of the reason and the priority, and tables that are skipped.


def check(
    metadata: TableMetadata, resolved: ResolvedPolicy | None = None, *, expirable: int = 0, **more: Any
) -> Proposal | Skip:
    return assess("ns.t", metadata, resolved or policy(), now_ms=NOW_MS, expirable=expirable, **more)


def reasons(*args: Any, **more: Any) -> tuple[str, ...]:
    result = check(*args, **more)
    return result.reasons if isinstance(result, Proposal) else ()


QUIET = Skip("ns.t", "no sign of work")


def test_snapshots_to_expire_are_proposed_by_number_and_by_age() -> None:
    assert check(table(snapshots=60, age_hours=150), expirable=42) == Proposal(
        "ns.t",
        ("60 snapshots exceed max_snapshots_to_keep 5", "41 snapshots are older than snapshot_retention_hours 168"),
        0.8936,
    )


def test_expiry_that_would_delete_nothing_is_no_reason() -> None:
    """Thresholds alone do not count: a table whose snapshots are all pinned or tagged must not be proposed hourly."""
    assert check(table(snapshots=60, age_hours=200), expirable=0) == QUIET
    for settings in ({"snapshot_expiry_enabled": "false"}, {"operations": "compact"}):
        assert check(table(snapshots=60), policy(**settings), expirable=55) == QUIET
    assert check(table(snapshots=60, gc_enabled="false"), expirable=55) == QUIET


def test_refs_past_their_maximum_age_are_a_reason() -> None:
    assert check(table(), expirable_refs=1) == Proposal("ns.t", ("1 branch or tag is past max-ref-age-ms",), 0.5)
    assert reasons(table(), expirable_refs=2) == ("2 branches or tags are past max-ref-age-ms",)


def test_a_small_average_file_size_is_a_reason_if_compaction_runs() -> None:
    small = table(small_files(400, 1.2 * MB))
    assert check(small) == Proposal("ns.t", ("400 data files of 1.2 MB on average are below 192 MB",), 0.9876)
    for count, average, words in ((6, 100, "100 B"), (6, 2048, "2 KB")):
        expected = (f"{count} data files of {words} on average are below 192 MB",)
        assert reasons(table(small_files(count, average))) == expected
    assert reasons(table(small_files(5, 192 * MB))) == reasons(table(small_files(4, 100))) == ()
    assert reasons(small, policy(rewrite_enabled="false")) == ()
    assert reasons(small, policy(operations="expire_snapshots")) == ()


def test_a_reason_says_may_where_a_summary_cannot_show_that_small_files_can_be_merged() -> None:
    may = "; a partition may have 5 to merge"
    assert reasons(partitioned("identity", summary=small_files(40, 2048))) == (
        "40 data files of 2 KB on average are below 192 MB" + may,
    )
    # One of five files may be large, so that four are small.
    assert reasons(table(small_files(5, 192 * MB - 1))) == ("5 data files of 192 MB on average are below 192 MB" + may,)
    assert reasons(table(small_files(9, 80 * MB))) == ("9 data files of 80 MB on average are below 192 MB",)


def test_an_average_file_size_far_above_a_configured_target_is_a_reason() -> None:
    """A pass splits such files."""
    large = table(small_files(3, 12 * MB))
    far_above = "3 data files of 12 MB on average are far above target_file_size_mb 2"
    assert reasons(large, policy(target_file_size_mb="2")) == (far_above,)
    for settings in (
        {"target_file_size_mb": "7"},  # 12 MB are less than 1.8 times this
        {"target_file_size_mb": "2", "rewrite_enabled": "false"},
        {"target_file_size_mb": "2", "min_row_group_copy_bytes": "none"},
    ):
        assert check(large, policy(**settings)) == QUIET
    assert far_above not in reasons(large, policy(target_file_size_mb="2"), clustering="k")  # a sorted table
    assert check(table(small_files(3, 1000 * MB))) == QUIET  # no configured target


def test_a_table_that_compaction_cannot_rewrite_is_not_proposed_for_it() -> None:
    """Every pass would end without a change, and every scan would propose the table again
    (rule: read-faithfully-or-not-at-all)."""
    small = table(small_files(400, 1.2 * MB))
    fields = [{"id": 1, "name": "v", "type": "interval", "required": False}]
    odd = TableMetadata({**small.document, "schema": {"type": "struct", "fields": fields}})
    assert check(odd, policy(operations="compact")) == Skip(
        "ns.t", "column v is of type interval, which this version of Icekeeper cannot rewrite; the table was left alone"
    )
    counters = {**small_files(400, 1.2 * MB), "manifests-created": "1", "manifests-kept": "4999"}
    many = TableMetadata({**odd.document, "snapshots": table(counters).document["snapshots"]})
    manifests = reasons(many)  # manifests can be rewritten
    assert manifests == ("5000 manifests reach min_manifests_to_rewrite 5",)
    of_java = {"write.location-provider.impl": "com.example.Here"}
    placed = TableMetadata({**small.document, "properties": of_java})
    found = check(placed, policy(operations="compact"))
    assert isinstance(found, Skip)
    assert "names the Java class com.example.Here" in found.reason


def test_delete_debt_is_a_reason_with_its_share_of_rows_unless_apply_deletes_is_false() -> None:
    counts = {"delete-files": "3", "position-deletes": "1000", "equality-deletes": "200", "records": "100000"}
    found = check(table({f"total-{what}": count for what, count in counts.items()}))
    assert found == Proposal("ns.t", ("3 delete files with 1200 deletes, 1.2 % of 100000 records",), 0.4186)
    assert reasons(table({"total-delete-files": "1"})) == ("1 delete file with 0 deletes",)
    both = table({**small_files(400, MB), "total-delete-files": "3"})
    assert len(reasons(both)) == 2
    assert reasons(both, policy(apply_deletes="false")) == ()


def test_manifests_are_counted_by_the_summary_or_else_the_manifest_list() -> None:
    partial = {"manifests-created": "1"}
    counted, few = {**partial, "manifests-kept": "11"}, {**partial, "manifests-kept": "3"}
    expected = Proposal("ns.t", ("12 manifests reach min_manifests_to_rewrite 5",), 0.7059)
    assert check(table(counted)) == check(table({}), manifests=12) == check(table(partial), manifests=12) == expected
    assert check(table(few)) == check(table(few), manifests=12) == check(table({}), manifests=4) == QUIET
    assert check(table({"manifests-created": "12"})) == QUIET
    assert check(table(counted), policy(manifest_rewrite_enabled="false")) == QUIET


@pytest.mark.parametrize(
    "summary",
    [
        None,
        {},
        [],
        "append",
        {"total-data-files": "many", "total-files-size": "9"},
        {"total-data-files": "-9", "total-files-size": "9", "total-delete-files": "-3"},
        {"total-data-files": "100", "total-files-size": None},
        {"total-data-files": "²³", "total-files-size": "9"},
        {"total-data-files": "9" * 5000, "total-files-size": "9"},
        {"total-delete-files": "NaN", "manifests-created": "1e9", "manifests-kept": "3"},
    ],
)
def test_a_missing_or_malformed_summary_is_no_reason(summary: object) -> None:
    """Detection reads only metadata documents, and does not guess missing counters."""
    assert check(table(summary)) == QUIET


def test_after_an_idle_pass_the_summary_is_no_reason_until_snapshot_or_policy_change() -> None:
    metadata = table(small_files(400, MB), snapshots=60)
    digest = policy().digest_over(metadata)
    idle = looks(look(NOW_MS, snapshot_id=60), digest)
    assert check(metadata, seen=idle) == Skip("ns.t", "nothing came since the last pass")
    assert reasons(metadata, expirable=1, seen=idle) == ("60 snapshots exceed max_snapshots_to_keep 5",)
    for seen in (
        looks(look(NOW_MS, snapshot_id=59), digest),
        looks(look(NOW_MS, snapshot_id=60), "of another policy"),
        looks(look(NOW_MS, snapshot_id=60, is_done=False), digest),
        None,
    ):
        assert len(reasons(metadata, seen=seen)) == 1


def test_disabled_maintenance_proposes_nothing_and_names_the_setting() -> None:
    assert check(table(snapshots=60), policy(maintenance_enabled="false"), expirable=55) == Skip(
        "ns.t", "maintenance is disabled (this call)"
    )


def test_failed_loads_are_a_reason_also_if_maintenance_is_disabled() -> None:
    """Their files are cleaned up, unless the deployment or the table forbids deletions."""
    disabled = policy(maintenance_enabled="false")
    assert reasons(table(), failed_loads=2) == ("files of 2 failed loads can be cleaned",)
    assert reasons(table(), disabled, failed_loads=1) == ("files of 1 failed load can be cleaned",)
    assert reasons(table(), replace(disabled, is_stopped=True), failed_loads=1) == ()
    assert reasons(table(gc_enabled="false"), failed_loads=1) == ()
    assert reasons(table()) == reasons(table(), disabled) == ()


def test_empty_tables_and_tables_of_a_newer_format_are_skipped() -> None:
    assert check(table(snapshots=0)) == Skip("ns.t", "no current snapshot")
    for version in (4, 5):
        reason = f"format version {version} is not maintained by this version"
        assert check(table(small_files(400, MB), version=version), expirable=9) == Skip("ns.t", reason)


def test_priority_grows_with_need_and_with_every_further_need() -> None:
    def priority(summary: Mapping[str, str], expirable: int = 0) -> float:
        result = check(table(summary, snapshots=60), expirable=expirable)
        assert isinstance(result, Proposal)
        return result.priority

    few, many = small_files(10, MB), small_files(1000, MB)
    assert 0 < priority(few) < priority(many) < priority(many, 1) < priority(many, 50) <= 1
    assert priority(few) < priority({**few, "total-delete-files": "1"})


# Reasons to cluster files or to expire partitions, and how long they hold.

RECIPE = "sort(1 identity asc nulls-first) target=268435456"
CAME = "{} data files came since files were last clustered"


def history(*summaries: Mapping[str, str]) -> TableMetadata:
    """A line of snapshots of large files, with ids from 1."""
    document = dict(table(snapshots=len(summaries)).document)
    snapshots = [
        {**raw, "summary": dict(summary)} | ({"parent-snapshot-id": number} if number else {})
        for number, (raw, summary) in enumerate(zip(document["snapshots"], summaries, strict=True))
    ]
    return TableMetadata({**document, "snapshots": snapshots})


def added(files: int, megabytes: int = 1, recipe: str | None = None) -> dict[str, str]:
    clustered = {} if recipe is None else {RECIPE_KEY: recipe}
    return {"added-data-files": str(files), "added-files-size": str(files * megabytes * MB), **clustered}


def seen(
    snapshot_id: int, metadata: TableMetadata, resolved: ResolvedPolicy, *, is_done: bool = True, hours_ago: int = 0
) -> SeenTable:
    last = look(NOW_MS - hours_ago * HOUR_MS, snapshot_id=snapshot_id, is_done=is_done)
    return looks(last, resolved.digest_over(metadata))


@pytest.mark.parametrize(
    ("summaries", "came"),
    [
        ([added(5)], 5),
        ([added(4)], None),
        ([added(3), added(2)], 5),
        ([added(9), added(1, recipe=RECIPE)], None),
        ([added(9), added(1, recipe=RECIPE), added(6)], 6),
        ([added(9), added(1, recipe="another")], 10),
        ([{}], None),
        ([added(9), {"total-data-files": "3"}], None),  # most added files are gone
    ],
)
def test_files_added_since_the_last_clustering_are_a_reason(summaries: list[dict[str, str]], came: int | None) -> None:
    metadata = history(*summaries)
    assert reasons(metadata, clustering=RECIPE) == (() if came is None else (CAME.format(came),))
    large = ("1 data file came since files were last clustered",)
    assert reasons(history(added(1, megabytes=256)), clustering=RECIPE) == large, "a large file"
    assert reasons(metadata) == ()
    for off in (policy(rewrite_enabled="false"), policy(operations="expire_snapshots")):
        assert reasons(metadata, off, clustering=RECIPE) == ()


def test_after_an_idle_pass_only_newer_files_count() -> None:
    """If the clustering snapshot has expired, a pass looks once, and not after every later commit."""
    total = {"total-data-files": "14"}
    metadata = history(added(9) | total, added(4) | total, added(1) | total)
    assert reasons(metadata, clustering=RECIPE) == (CAME.format(14),)
    assert reasons(metadata, clustering=RECIPE, seen=seen(1, metadata, policy())) == (CAME.format(5),)
    assert reasons(metadata, clustering=RECIPE, seen=seen(2, metadata, policy())) == ()
    assert reasons(metadata, clustering=RECIPE, seen=seen(2, metadata, policy(), is_done=False)) == (CAME.format(14),)
    other = seen(2, metadata, policy(target_file_size_mb="128"))
    assert reasons(metadata, clustering=RECIPE, seen=other) == (CAME.format(14),)


def test_detection_uses_the_clustering_recipe_of_compaction() -> None:
    plain = TableMetadata(new_document("s3://b/t", 2))
    order = {"order-id": 1, "fields": [_ascending(1)]}
    ordered = TableMetadata({**plain.document, "sort-orders": [order], "default-sort-order-id": 1})
    assert wanted_clustering(plain, policy().policy) is None
    assert wanted_clustering(ordered, policy().policy) == RECIPE
    assert wanted_clustering(ordered, policy(strategy="binpack").policy) is None
    assert wanted_clustering(plain, policy(sort_order="id").policy) == RECIPE
    zorder = wanted_clustering(plain, policy(strategy="zorder", sort_order="id").policy)
    assert zorder == "zorder(1) target=268435456"
    unknown = {"order-id": 1, "fields": [_ascending(99)]}
    unsupported = TableMetadata({**plain.document, "sort-orders": [unknown], "default-sort-order-id": 1})
    assert wanted_clustering(unsupported, policy(strategy="sort").policy) is None


def _ascending(source_id: int) -> dict[str, Any]:
    return {"source-id": source_id, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}


def partitioned(*transforms: str, summary: object = None) -> TableMetadata:
    fields = [{"field-id": 1000 + n, "source-id": 1, "name": f"p{n}", "transform": t} for n, t in enumerate(transforms)]
    return TableMetadata({**table(summary).document, "partition-specs": [{"spec-id": 0, "fields": fields}]})


EXPIRING: Mapping[str, object] = {"operations": "expire_partitions", "partition_retention_hours": "720"}
PAST = ("partitions may be past partition_retention_hours 720",)


def test_partitions_are_checked_daily_or_hourly_by_their_transform() -> None:
    resolved = policy(**EXPIRING)
    daily, hourly = partitioned("day"), partitioned("bucket[4]", "hour")
    assert reasons(daily, resolved) == PAST
    for metadata, hours in ((daily, 24), (hourly, 1)):
        assert reasons(metadata, resolved, seen=seen(1, metadata, resolved, hours_ago=hours)) == PAST
        just_before = seen(1, metadata, resolved, hours_ago=hours - 1)
        assert reasons(metadata, resolved, seen=just_before) == ()
    # A pass with other settings may not have checked partitions.
    assert reasons(daily, resolved, seen=seen(1, daily, policy())) == PAST


def test_partitions_are_a_reason_only_if_the_policy_expires_them() -> None:
    assert reasons(partitioned("day")) == ()
    assert reasons(partitioned("day"), policy(operations="expire_partitions")) == ()
    assert reasons(partitioned("day"), policy(partition_retention_hours="720")) == ()
    assert reasons(partitioned("void"), policy(**EXPIRING)) == ()
    assert reasons(partitioned(), policy(**EXPIRING)) == ()
    empty = TableMetadata({**partitioned("day").document, "snapshots": [], "current-snapshot-id": -1})
    assert assess("ns.t", empty, policy(**EXPIRING), now_ms=NOW_MS, expirable=0) == Skip("ns.t", "no current snapshot")
