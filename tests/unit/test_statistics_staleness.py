"""How far statistics are behind the head, by counters alone, and what detection and a pass make of it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest

from icekeeper.detection.assess import TableFindings, assess
from icekeeper.detection.proposal import Proposal
from icekeeper.detection.signals import statistics_signals
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.puffin import THETA_SKETCH
from icekeeper.operations.statistics.plan_statistics import (
    TYPE_KEY,
    Reading,
    StatisticsColumns,
    StatisticsPlan,
    StoredBlob,
    registered_blobs,
)
from icekeeper.operations.statistics.staleness import Staleness, staleness, why_not_yet
from icekeeper.policy import Policy
from icekeeper.state.store import LastSeen
from support.settings import NOW_MS, policy
from support.tables import new_document, snapshot

COMPUTES = {"operations": "compute_statistics"}
PARTITIONED = [{"spec-id": 0, "fields": [{"name": "p", "source-id": 1, "field-id": 1000, "transform": "identity"}]}]


def statistics_of(snapshot_id: int, *fields: int, kind: str | None = "long") -> dict[str, Any]:
    properties = {} if kind is None else {TYPE_KEY: kind}
    blobs = [
        {"type": THETA_SKETCH, "snapshot-id": 1, "sequence-number": 1, "fields": [one], "properties": properties}
        for one in fields
    ]
    return {
        "snapshot-id": snapshot_id,
        "statistics-path": f"{snapshot_id}.stats",
        "file-size-in-bytes": 9,
        "file-footer-size-in-bytes": 5,
        "blob-metadata": blobs,
    }


def added(rows: int, total: int, operation: str = "append", **more: int) -> dict[str, str]:
    counters = {"added-records": rows, "total-records": total, **{k.replace("_", "-"): v for k, v in more.items()}}
    return {"operation": operation, **{key: str(value) for key, value in counters.items()}}


def table(*summaries: Mapping[str, str], statistics: list[dict[str, Any]], **more: Any) -> TableMetadata:
    """Snapshots 1, 2, … one after the other, of a table with the long columns 1 and 2."""
    snapshots = [
        snapshot(i, format_version=2, sequence_number=i, parent_id=i - 1 or None, summary=dict(summary))
        for i, summary in enumerate(summaries, start=1)
    ]
    fields = [{"id": i, "name": f"c{i}", "required": False, "type": "long"} for i in (1, 2)]
    document = new_document(
        "s3://b/t",
        2,
        snapshots=snapshots,
        refs={"main": {"type": "branch", "snapshot-id": len(snapshots)}},
        statistics=statistics,
        **more,
    )
    return TableMetadata({**document, "schemas": [{"schema-id": 0, "type": "struct", "fields": fields}]})


def found(metadata: TableMetadata) -> Staleness:
    head = metadata.current_snapshot
    assert head is not None
    return staleness(metadata, head, StatisticsColumns({1: "long", 2: "long"}, 0))


def reasons(metadata: TableMetadata, **settings: str) -> list[str]:
    head = metadata.current_snapshot
    assert head is not None
    return [one.reason for one in statistics_signals(metadata, head, policy(**settings).policy)]


FIRST = added(1000, 1000)
BOTH = [statistics_of(1, 1, 2)]


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ([], Staleness(rows_changed=0, rows=1000)),
        ([added(9, 1009), added(1, 1010)], Staleness(rows_changed=10, rows=1010)),
        ([added(500, 1000, "replace", deleted_records=500)], Staleness(rows_changed=0, rows=1000)),
        ([added(7, 1000, "overwrite", deleted_records=7)], Staleness(rows_changed=14, rows=1000)),
        (
            [
                {
                    "operation": "delete",
                    "added-position-deletes": "3",
                    "added-equality-deletes": "2",
                    "total-records": "9",
                }
            ],
            Staleness(rows_changed=5, rows=9),
        ),
        # Nothing came: counters that are 0 may be left out.
        ([{"operation": "append", "total-records": "1000"}], Staleness(rows_changed=0, rows=1000)),
        ([{"operation": "append"}, added(9, 1009)], Staleness(rows_changed=None, rows=1009)),
        ([{"operation": "append", "added-records": "9"}], Staleness(rows_changed=9, rows=None)),
        ([{"operation": "append", "added-records": "many"}], Staleness(rows_changed=None, rows=None)),
    ],
)
def test_counters_tell_how_many_rows_changed(later: list[dict[str, str]], expected: Staleness) -> None:
    assert found(table(FIRST, *later, statistics=BOTH)) == expected


def test_the_oldest_statistics_in_use_count() -> None:
    summaries = [added(100, 100 * number) for number in range(1, 5)]
    assert found(table(*summaries, statistics=[])) == Staleness(columns_missing=2, rows_changed=0, rows=400)
    one = [statistics_of(1, 1)]
    assert found(table(*summaries, statistics=one)) == Staleness(columns_missing=1, rows_changed=300, rows=400)
    # Of each column the newest, and of both the older.
    two = [statistics_of(1, 1, 2), statistics_of(3, 1)]
    assert found(table(*summaries, statistics=two)).rows_changed == 300
    assert found(table(*summaries, statistics=[*two, statistics_of(2, 2)])).rows_changed == 200
    # Another writer's blob holds for the snapshot that it was computed from, whatever its file is registered for.
    others = [statistics_of(4, 1, 2, kind=None)]
    assert found(table(*summaries, statistics=others)).rows_changed == 300


def test_partitions_have_statistics_of_their_own() -> None:
    summaries = [FIRST, added(50, 1050), added(50, 1100)]
    partitioned: dict[str, Any] = {"partition-specs": PARTITIONED, "default-spec-id": 0}
    up_to_date = [statistics_of(3, 1, 2)]
    bare = TableMetadata({**table(*summaries, statistics=up_to_date).document, **partitioned})
    assert found(bare) == Staleness(partitions_missing=True, rows_changed=0, rows=1100)
    assert reasons(bare) == ["partitions have no statistics"]
    counted = {"partition-statistics": [{"snapshot-id": 2, "statistics-path": "p", "file-size-in-bytes": 1}]}
    assert found(TableMetadata({**bare.document, **counted})) == Staleness(rows_changed=50, rows=1100)


def test_detection_says_why_statistics_are_due() -> None:
    assert reasons(table(FIRST, statistics=[])) == ["2 columns have no statistics"]
    assert reasons(table(FIRST, statistics=[statistics_of(1, 1)])) == ["1 column has no statistics"]
    assert reasons(table(FIRST, statistics=[statistics_of(1, 1)]), statistics_columns="c1") == []
    assert reasons(table(FIRST, statistics=BOTH)) == []
    assert reasons(table(FIRST, added(100, 1100), statistics=BOTH)) == []
    grown = table(FIRST, added(120, 1120), statistics=BOTH)
    assert reasons(grown) == ["120 rows changed since statistics were computed, 10.7 % of 1120"]
    assert reasons(grown, statistics_min_changed_ratio="0.2") == []
    assert reasons(table(FIRST, added(0, 1000), statistics=BOTH), statistics_min_changed_ratio="0.0001") == []
    (unknown,) = reasons(table(FIRST, {"operation": "append"}, statistics=BOTH))
    assert unknown == "how many rows changed since statistics were computed is not known"


def proposal(metadata: TableMetadata, settings: Mapping[str, str], **seen: Any) -> tuple[str, ...]:
    resolved = policy(**settings)
    last = LastSeen(finished_ms=NOW_MS, fingerprint=resolved.fingerprint(), **seen) if seen else None
    answer = assess("ns.t", metadata, resolved, TableFindings(now_ms=NOW_MS, expirable=0, last_seen=last))
    return answer.reasons if isinstance(answer, Proposal) else ()


def test_only_a_policy_that_asks_for_statistics_has_tables_proposed_for_them() -> None:
    """What an idle pass saw is not proposed again: of counters that are not known nobody would ever tell more."""
    metadata = table({"operation": "append"}, statistics=[])
    assert proposal(metadata, {}) == ()
    assert proposal(metadata, COMPUTES) == ("2 columns have no statistics",)
    assert proposal(metadata, COMPUTES, snapshot_id=1, idle=True) == ()
    assert proposal(metadata, COMPUTES, snapshot_id=1, idle=False) != ()


def test_a_pass_that_nobody_asked_for_reads_columns_anew_only_once_enough_changed() -> None:
    metadata = table(FIRST, statistics=BOTH)
    (stored, _) = registered_blobs(metadata, list(metadata.ancestors(1)))

    def planned(base: Mapping[int, StoredBlob]) -> StatisticsPlan:
        return StatisticsPlan(1, 1, (), (Reading({1: "long"}, (), base),), False)

    few = Staleness(rows_changed=30, rows=1000)
    tenth = Policy().statistics_min_changed_ratio
    assert why_not_yet(planned({}), few, tenth) == (
        "30 rows changed since statistics were computed, 3 % of 1000; statistics_min_changed_ratio is 0.1"
    )
    # Those of appended files are cheap to complete, and those of the same rows to carry over.
    assert why_not_yet(planned({1: stored}), few, tenth) is None
    assert why_not_yet(StatisticsPlan(1, 1, (stored,), (), True), few, tenth) is None
    for due in (
        Staleness(rows_changed=100, rows=1000),
        Staleness(rows_changed=30, rows=0),
        Staleness(rows_changed=0, rows=1000),
        Staleness(rows_changed=None, rows=1000),
        Staleness(columns_missing=1, rows_changed=30, rows=1000),
        Staleness(partitions_missing=True, rows_changed=30, rows=1000),
    ):
        assert why_not_yet(planned({}), due, tenth) is None
    assert why_not_yet(planned({}), few, Fraction(3, 100)) is None
