"""Signs that files want clustering or partitions have passed their retention, and when they fall silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from icekeeper.commit.snapshot import RECIPE_KEY
from icekeeper.detection.assess import TableFindings, assess
from icekeeper.detection.proposal import Proposal, Skip
from icekeeper.detection.signals import wanted_clustering
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.policy import ResolvedPolicy
from icekeeper.state.store import LastSeen
from support.settings import MB, NOW_MS, policy, table
from support.tables import new_document

RECIPE = "sort(1 identity asc nulls-first) target=268435456"
CAME = "{} data files came since files were last clustered"


def history(*summaries: Mapping[str, str]) -> TableMetadata:
    """One snapshot after the other, ids from 1, of large files."""
    document = dict(table(snapshots=len(summaries)).document)
    snapshots = [
        {**raw, "summary": dict(summary)} | ({"parent-snapshot-id": number} if number else {})
        for number, (raw, summary) in enumerate(zip(document["snapshots"], summaries, strict=True))
    ]
    return TableMetadata({**document, "snapshots": snapshots})


def added(files: int, megabytes: int = 1, recipe: str | None = None) -> dict[str, str]:
    clustered = {} if recipe is None else {RECIPE_KEY: recipe}
    return {"added-data-files": str(files), "added-files-size": str(files * megabytes * MB), **clustered}


def reasons(metadata: TableMetadata, resolved: ResolvedPolicy | None = None, **more: Any) -> tuple[str, ...]:
    found = assess("ns.t", metadata, resolved or policy(), TableFindings(now_ms=NOW_MS, expirable=0, **more))
    return found.reasons if isinstance(found, Proposal) else ()


def seen(snapshot_id: int, resolved: ResolvedPolicy, *, idle: bool = True, hours_ago: int = 0) -> LastSeen:
    finished_ms = NOW_MS - hours_ago * HOUR_MS
    return LastSeen(snapshot_id=snapshot_id, fingerprint=resolved.fingerprint(), finished_ms=finished_ms, idle=idle)


@pytest.mark.parametrize(
    ("summaries", "expected"),
    [
        ([added(5)], (CAME.format(5),)),
        ([added(4)], ()),
        ([added(3), added(2)], (CAME.format(5),)),
        ([added(1, megabytes=256)], ("1 data file came since files were last clustered",)),
        ([added(9), added(1, recipe=RECIPE)], ()),
        ([added(9), added(1, recipe=RECIPE), added(6)], (CAME.format(6),)),
        ([added(9), added(1, recipe="another")], (CAME.format(10),)),
        ([{}], ()),
        # Most of what came is gone again.
        ([added(9), {"total-data-files": "3"}], ()),
    ],
)
def test_files_that_came_since_the_last_clustering_are_a_reason(
    summaries: list[dict[str, str]], expected: tuple[str, ...]
) -> None:
    assert reasons(history(*summaries), clustering=RECIPE) == expected
    assert reasons(history(*summaries)) == ()


def test_clustering_that_would_not_run_is_no_reason() -> None:
    metadata = history(added(9))
    for resolved in (policy(rewrite_enabled="false"), policy(operations="expire_snapshots")):
        assert reasons(metadata, resolved, clustering=RECIPE) == ()


def test_after_a_pass_that_found_nothing_only_what_came_since_counts() -> None:
    """The clustering snapshot may have expired: then a pass looks once, and not after every further commit."""
    metadata = history(added(9), added(4), added(1))
    assert reasons(metadata, clustering=RECIPE) == (CAME.format(14),)
    assert reasons(metadata, clustering=RECIPE, last_seen=seen(1, policy())) == (CAME.format(5),)
    assert reasons(metadata, clustering=RECIPE, last_seen=seen(2, policy())) == ()
    assert reasons(metadata, clustering=RECIPE, last_seen=seen(2, policy(), idle=False)) == (CAME.format(14),)
    other = seen(2, policy(target_file_size_mb="128"))
    assert reasons(metadata, clustering=RECIPE, last_seen=other) == (CAME.format(14),)


def test_the_clustering_of_a_policy_is_that_of_compaction() -> None:
    plain = TableMetadata(new_document("s3://b/t", 2))
    order = {"order-id": 1, "fields": [_ascending(1)]}
    ordered = TableMetadata({**plain.document, "sort-orders": [order], "default-sort-order-id": 1})
    assert wanted_clustering(plain, policy().policy) is None
    assert wanted_clustering(ordered, policy().policy) == RECIPE
    assert wanted_clustering(ordered, policy(strategy="binpack").policy) is None
    assert wanted_clustering(plain, policy(sort_order="id").policy) == RECIPE
    zorder = wanted_clustering(plain, policy(strategy="zorder", zorder_columns="id").policy)
    assert zorder == "zorder(1) target=268435456"
    unknown = {"order-id": 1, "fields": [_ascending(99)]}
    unsupported = TableMetadata({**plain.document, "sort-orders": [unknown], "default-sort-order-id": 1})
    assert wanted_clustering(unsupported, policy(strategy="sort").policy) is None


def _ascending(source_id: int) -> dict[str, Any]:
    return {"source-id": source_id, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}


def partitioned(*transforms: str) -> TableMetadata:
    fields = [{"field-id": 1000 + n, "source-id": 1, "name": f"p{n}", "transform": t} for n, t in enumerate(transforms)]
    return TableMetadata({**table().document, "partition-specs": [{"spec-id": 0, "fields": fields}]})


EXPIRING: Mapping[str, object] = {"operations": "expire_partitions", "partition_retention_hours": "720"}
PAST = ("partitions may be past partition_retention_hours 720",)


def test_partitions_are_looked_at_once_a_day_or_once_an_hour_where_they_end_so_often() -> None:
    resolved = policy(**EXPIRING)
    daily, hourly = partitioned("day"), partitioned("bucket[4]", "hour")
    assert reasons(daily, resolved) == PAST
    for metadata, hours in ((daily, 24), (hourly, 1)):
        assert reasons(metadata, resolved, last_seen=seen(1, resolved, hours_ago=hours)) == PAST
        just_before = seen(1, resolved, hours_ago=hours - 1)
        assert reasons(metadata, resolved, last_seen=just_before) == ()
    # A pass under other settings did perhaps not look.
    assert reasons(daily, resolved, last_seen=seen(1, policy())) == PAST


def test_partitions_are_no_reason_unless_they_are_to_expire() -> None:
    assert reasons(partitioned("day")) == ()
    assert reasons(partitioned("day"), policy(operations="expire_partitions")) == ()
    assert reasons(partitioned("day"), policy(partition_retention_hours="720")) == ()
    assert reasons(partitioned("void"), policy(**EXPIRING)) == ()
    assert reasons(partitioned(), policy(**EXPIRING)) == ()
    empty = TableMetadata({**partitioned("day").document, "snapshots": [], "current-snapshot-id": -1})
    assert assess("ns.t", empty, policy(**EXPIRING), TableFindings(now_ms=NOW_MS, expirable=0)) == Skip(
        "ns.t", "no current snapshot"
    )
