"""The marks in snapshot summaries by which streaming writers find their last commit
(rule: carry-streaming-marks) (pure).

After a restart such a writer follows the parents from the head of its branch until it finds its mark, and continues
after that commit.  If a parent is missing, it finds no mark and commits everything again, so rows are duplicated.  So a
snapshot that adds no rows copies its parent's marks, and expiry keeps all snapshots from the head to the newest mark.

These marks are known:

* Flink, ``SinkUtil.getMaxCommittedCheckpointId``: the checkpoint id of a job and, since 1.0, of an operator.
* Kafka Connect, ``Coordinator.lastCommittedOffsetsForTable``: the offsets of the control topic and group that the key
  names.  Other keys contain commit id, task id and the time up to which the table is complete.
* Spark Structured Streaming, ``SparkWrite.findLastCommittedEpochId``: the epoch of a query.
* Redpanda, ``get_iceberg_committed_offset``: the offset of a cluster, as JSON.
* Tiering services (Fluss, Modak) look for the last snapshot of their ``commit-user``, and use that snapshot's id.  A
  copy would give them the wrong id, so this mark is never copied.

``wap.id`` and ``published-wap-id`` are not marks: they describe a single staged or published snapshot (Iceberg-Java,
``WapUtil``), so a copy would be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache

from icekeeper.metadata.document import Snapshot

COMMITTED_KEY = "icekeeper.writer-marks-committed-ms"
"""Stored with copied marks: the time at which the writer committed them, in epoch milliseconds."""

# A key of every mark contains one of these.
_WORDS = ("flink.job-id", "kafka.connect.", "spark.sql.streaming.queryId", "redpanda.commit-metadata", "commit-user")
# Prefixes of keys; the first versions of the sink, by Tabular, used the second prefix.
_OFFSETS = ("kafka.connect.offsets.", "kafka.connect.control.offsets.")


def marks_of(snapshot: Snapshot) -> dict[str, int]:
    """The marks in a snapshot's summary: description of the writer → when it committed, in epoch milliseconds.

    Copied marks keep the time of the writer's commit.
    """
    if not _may_hold_marks(tuple(snapshot.summary.keys())):
        return {}
    writers = [writer for writer, _ in _writers(snapshot.summary)]
    return dict.fromkeys(writers, _committed_ms(snapshot)) if writers else {}


@lru_cache(maxsize=1024)
def _may_hold_marks(keys: tuple[str, ...]) -> bool:
    """Whether a summary with these keys may contain marks.

    The result is cached: detection reads the summaries of all snapshots, most of which have no marks, and all summaries
    of a writer have the same keys.
    """
    names = " ".join(keys)
    return any(word in names for word in _WORDS)


def carried_marks(parent: Snapshot) -> dict[str, str]:
    """The summary entries that a snapshot without new rows copies unchanged from its parent."""
    beginnings = tuple(start for _, starts in _writers(parent.summary) for start in starts)
    carried = {key: value for key, value in parent.summary.items() if key.startswith(beginnings)}
    return {**carried, COMMITTED_KEY: str(_committed_ms(parent))} if carried else {}


def _committed_ms(snapshot: Snapshot) -> int:
    carried = snapshot.summary.get(COMMITTED_KEY, "")
    return int(carried) if carried.isdecimal() else snapshot.timestamp_ms


def _writers(summary: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The description of each writer with a mark, and the prefixes of the keys to copy; empty: it is never copied."""
    job = summary.get("flink.job-id")
    if job is not None and "flink.max-committed-checkpoint-id" in summary:
        operator = summary.get("flink.operator-id")
        writer = f"Flink job {job}" if operator is None else f"Flink job {job}, operator {operator}"
        # Whole keys, because a job may set other properties under the same prefix.
        yield writer, ("flink.max-committed-checkpoint-id", "flink.job-id", "flink.operator-id")
    for key in summary:
        for beginning in _OFFSETS:
            if key.startswith(beginning):
                # The names differ by version: "commit-id" was "commitId", "valid-through-ts" was "vtts".
                yield f"Kafka Connect sink {key.removeprefix(beginning)}", ("kafka.connect.",)
    query = summary.get("spark.sql.streaming.queryId")
    if query is not None and "spark.sql.streaming.epochId" in summary:
        yield f"Spark query {query}", ("spark.sql.streaming.queryId", "spark.sql.streaming.epochId")
    mark = summary.get("redpanda.commit-metadata")
    if mark is not None:
        try:
            cluster = json.loads(mark).get("cluster")
        except (ValueError, AttributeError, RecursionError):
            cluster = None
        writer = "Redpanda" if cluster is None else f"Redpanda cluster {cluster}"
        yield writer, ("redpanda.commit-metadata",)
    user = summary.get("commit-user")
    if user is not None:
        yield f"commit user {user}", ()
