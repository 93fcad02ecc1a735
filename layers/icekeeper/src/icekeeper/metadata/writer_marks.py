"""The marks in snapshot summaries by which streaming writers find their last commit
(rule: carry-streaming-marks) (pure).

After a restart such a writer walks from the head of its branch over the parents until it finds its mark, and continues
after that commit.  If a parent is missing, it finds no mark and commits everything again: duplicates.  So a snapshot
that adds no rows copies its parent's marks, and expiry keeps all snapshots from the head to the newest mark.

These marks are known:

* Flink, ``SinkUtil.getMaxCommittedCheckpointId``: the checkpoint id of a job and, since 1.0, of an operator.
* Kafka Connect, ``Coordinator.lastCommittedOffsetsForTable``: the offsets of the control topic and group that the key
  names.  Other keys hold commit id, task id and the time up to which the table is complete.
* Spark Structured Streaming, ``SparkWrite.findLastCommittedEpochId``: the epoch of a query.
* Redpanda, ``get_iceberg_committed_offset``: the offset of a cluster, as JSON.
* Tiering services (Fluss, Modak) look for the last snapshot of their ``commit-user``, and use that snapshot's id.  A
  copy would give them the wrong id, so this mark is never copied.

``wap.id`` and ``published-wap-id`` are no marks: they describe one staged or published snapshot (Iceberg-Java,
``WapUtil``), so a copy would be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from icekeeper.metadata.document import Snapshot

COMMITTED_KEY = "icekeeper.writer-marks-committed-ms"
"""Stored with copied marks: when the writer committed them, in epoch milliseconds."""

_Summary = Mapping[str, str]
_OFFSETS = ("kafka.connect.offsets.", "kafka.connect.control.offsets.")
"""Prefixes of keys; the second is that of the sink's first versions, by Tabular."""


@dataclass(frozen=True, slots=True)
class WriterMark:
    """The mark of one writer's commit in a snapshot."""

    writer: str
    """The writer in words, equal for all marks of one writer."""
    committed_ms: int
    """When the writer committed it, in epoch milliseconds; copies keep this time."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of writer."""

    word: str
    """A key of every such mark contains it."""
    writers: Callable[[_Summary], Iterator[str]]
    carried: tuple[str, ...] = ()
    """Prefixes of the keys to copy; none: the mark is never copied."""


def marks_of(snapshot: Snapshot) -> tuple[WriterMark, ...]:
    """The marks in a snapshot's summary, own and copied ones."""
    summary = snapshot.summary
    if not _may_hold_marks(tuple(summary.keys())):
        return ()
    writers = [writer for kind in _KINDS for writer in kind.writers(summary)]
    if not writers:
        return ()
    committed_ms = _committed_ms(snapshot)
    return tuple(WriterMark(writer, committed_ms) for writer in writers)


@lru_cache(maxsize=1024)
def _may_hold_marks(keys: tuple[str, ...]) -> bool:
    """Whether a summary with these keys may hold marks.

    Detection reads the summaries of all snapshots.  Most have no marks, and one writer's have the same keys.
    """
    names = " ".join(keys)
    return any(kind.word in names for kind in _KINDS)


def carried_marks(parent: Snapshot) -> dict[str, str]:
    """The summary entries that a snapshot without new rows copies unchanged from its parent."""
    summary = parent.summary
    beginnings = tuple(start for kind in _KINDS if any(kind.writers(summary)) for start in kind.carried)
    carried = {key: value for key, value in summary.items() if key.startswith(beginnings)}
    return {**carried, COMMITTED_KEY: str(_committed_ms(parent))} if carried else {}


def _committed_ms(snapshot: Snapshot) -> int:
    """When the marks of a snapshot were committed; copied marks have that time in the summary."""
    carried = snapshot.summary.get(COMMITTED_KEY, "")
    return int(carried) if carried.isdecimal() else snapshot.timestamp_ms


def _flink(summary: _Summary) -> Iterator[str]:
    job = summary.get("flink.job-id")
    if job is not None and "flink.max-committed-checkpoint-id" in summary:
        operator = summary.get("flink.operator-id")
        yield f"Flink job {job}" if operator is None else f"Flink job {job}, operator {operator}"


def _kafka_connect(summary: _Summary) -> Iterator[str]:
    for key in summary:
        for beginning in _OFFSETS:
            if key.startswith(beginning):
                yield f"Kafka Connect sink {key.removeprefix(beginning)}"


def _spark(summary: _Summary) -> Iterator[str]:
    query = summary.get("spark.sql.streaming.queryId")
    if query is not None and "spark.sql.streaming.epochId" in summary:
        yield f"Spark query {query}"


def _redpanda(summary: _Summary) -> Iterator[str]:
    mark = summary.get("redpanda.commit-metadata")
    if mark is None:
        return
    try:
        cluster = json.loads(mark).get("cluster")
    except (ValueError, AttributeError, RecursionError):
        cluster = None
    yield "Redpanda" if cluster is None else f"Redpanda cluster {cluster}"


def _commit_user(summary: _Summary) -> Iterator[str]:
    user = summary.get("commit-user")
    if user is not None:
        yield f"commit user {user}"


_KINDS = (
    # Whole keys: a job may set properties of its own under the same prefix.
    _Kind("flink.job-id", _flink, ("flink.max-committed-checkpoint-id", "flink.job-id", "flink.operator-id")),
    # The names differ by version: "commit-id" was "commitId", "valid-through-ts" was "vtts".
    _Kind("kafka.connect.", _kafka_connect, ("kafka.connect.",)),
    _Kind("spark.sql.streaming.queryId", _spark, ("spark.sql.streaming.queryId", "spark.sql.streaming.epochId")),
    _Kind("redpanda.commit-metadata", _redpanda, ("redpanda.commit-metadata",)),
    _Kind("commit-user", _commit_user),
)
