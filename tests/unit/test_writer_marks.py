"""What streaming writers find their last commit by: whose mark it is, how old, and what is carried on."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from icekeeper.commit.snapshot import snapshot_summary
from icekeeper.metadata.document import Snapshot
from icekeeper.metadata.writer_marks import COMMITTED_KEY, WriterMark, carried_marks, marks_of
from support.tables import snapshot

FLINK = {"flink.job-id": "j", "flink.operator-id": "o", "flink.max-committed-checkpoint-id": "7"}
KAFKA = {
    "kafka.connect.offsets.control.group": '{"0":12}',
    "kafka.connect.commit-id": "c",
    "kafka.connect.task-id": "sink-0",
    "kafka.connect.valid-through-ts": "2026-01-01T00:00Z",
}
TABULAR = {"kafka.connect.control.offsets.t.g": "{}", "kafka.connect.commitId": "c", "kafka.connect.vtts": "1"}
SPARK = {"spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "3"}
REDPANDA = {"redpanda.commit-metadata": '{"offset":5,"cluster":"r"}'}


def made(summary: Mapping[str, str], *, at_ms: int = 1000) -> Snapshot:
    return Snapshot(snapshot(1, format_version=2, timestamp_ms=at_ms, summary={"operation": "append", **summary}))


@pytest.mark.parametrize(
    ("mark", "writer"),
    [
        (FLINK, "Flink job j, operator o"),
        ({key: value for key, value in FLINK.items() if key != "flink.operator-id"}, "Flink job j"),
        (KAFKA, "Kafka Connect sink control.group"),
        (TABULAR, "Kafka Connect sink t.g"),
        (SPARK, "Spark query q"),
        (REDPANDA, "Redpanda cluster r"),
        ({"redpanda.commit-metadata": '{"offset":5}'}, "Redpanda"),
        ({"redpanda.commit-metadata": "not json"}, "Redpanda"),
    ],
)
def test_marks_are_carried_to_the_letter_with_the_time_of_their_writers_commit(
    mark: Mapping[str, str], writer: str
) -> None:
    parent = made({**mark, "engine-name": "x", "total-records": "5", "app-id": "y"})
    assert marks_of(parent) == (WriterMark(writer, 1000),)
    carried = carried_marks(parent)
    assert carried == {**mark, COMMITTED_KEY: "1000"}
    child = made(carried, at_ms=2000)
    assert marks_of(child) == (WriterMark(writer, 1000),), "a copy is as old as the original"
    assert carried_marks(child) == carried


@pytest.mark.parametrize(
    "summary",
    [
        {},
        {"wap.id": "w"},
        {"published-wap-id": "w", "source-snapshot-id": "4"},
        {"flink.job-id": "j"},
        {"flink.max-committed-checkpoint-id": "7"},
        {"spark.sql.streaming.queryId": "q"},
        {"spark.app.id": "a"},
        {"kafka.connect.commit-id": "c"},
    ],
)
def test_what_is_no_mark_is_not_carried(summary: Mapping[str, str]) -> None:
    assert marks_of(made(summary)) == ()
    assert carried_marks(made(summary)) == {}


def test_only_the_mark_goes_along_and_not_what_stands_beside_it() -> None:
    parent = made({**FLINK, "flink.rows-of-checkpoint": "9", "wap.id": "w", "published-wap-id": "v"})
    assert carried_marks(parent) == {**FLINK, COMMITTED_KEY: "1000"}


def test_the_last_snapshot_of_a_tiering_service_is_kept_and_never_copied() -> None:
    """It takes the snapshot's id besides, and fails on a copy that lacks its offsets."""
    parent = made({"commit-user": "__fluss_lake_tiering", "fluss-offsets": "[]"})
    assert marks_of(parent) == (WriterMark("commit user __fluss_lake_tiering", 1000),)
    assert carried_marks(parent) == {}


def test_marks_of_several_writers_in_one_snapshot() -> None:
    parent = made({**SPARK, **KAFKA, "kafka.connect.offsets.other.group": "{}"})
    assert {mark.writer for mark in marks_of(parent)} == {
        "Spark query q",
        "Kafka Connect sink control.group",
        "Kafka Connect sink other.group",
    }


def test_a_malformed_time_counts_as_that_of_the_snapshot() -> None:
    assert marks_of(made({**FLINK, COMMITTED_KEY: "soon"})) == (WriterMark("Flink job j, operator o", 1000),)


@pytest.mark.parametrize("operation", ["replace", "delete"])
def test_snapshots_of_ours_bear_their_parents_marks(operation: str) -> None:
    summary = snapshot_summary(operation, made(FLINK), (), (), {"icekeeper.run-id": "r"}, {})
    assert summary == {"operation": operation, **FLINK, COMMITTED_KEY: "1000", "icekeeper.run-id": "r"}
