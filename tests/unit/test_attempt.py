"""What a state of the table proves about an attempt."""

from __future__ import annotations

from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit, Verdict, is_older, verdict
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from support.tables import CREATED_MS, new_document, snapshot

UUID = "00000000-0000-0000-0000-000000000001"


def state(at: str, snapshot_ids: list[int], *, version: int = 1, updated_ms: int | None = None) -> LoadedTable:
    """A table whose main branch is at the last of the snapshots."""
    raw = [
        snapshot(i, format_version=version, sequence_number=n + 1, timestamp_ms=CREATED_MS + i)
        for n, i in enumerate(snapshot_ids)
    ]
    document: dict[str, Any] = new_document("s3://b/t", version, **{"table-uuid": UUID})
    document |= {
        "snapshots": raw,
        "current-snapshot-id": snapshot_ids[-1],
        "last-updated-ms": updated_ms or CREATED_MS + max(snapshot_ids),
    }
    if version > 1:
        document |= {
            "last-sequence-number": max(snapshot_ids),
            "refs": {"main": {"type": "branch", "snapshot-id": snapshot_ids[-1]}},
        }
    return LoadedTable(TableName(("ns",), "t"), TableMetadata(document), at, at, {})


def attempt(on: int) -> PreparedCommit:
    return PreparedCommit(
        requirements=[{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": on}],
        updates=[],
        landed=lambda metadata: 9 in metadata.snapshots,
    )


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (state("v3", [1, 2, 9]), Verdict.LANDED),
        (state("v3", [1, 2, 3]), Verdict.LOST),
        (state("v3", [1, 2]), Verdict.OPEN),
        # A catalog that keeps no log, and format version 1 without sequence numbers: what lacks the base's newest
        # snapshot, has nothing new and is younger by no clock comes from a replica that lags.
        (state("v1", [1]), Verdict.OPEN),
        # Rolled back and expired since: later, by the table's own clock.
        (state("v3", [1], updated_ms=CREATED_MS + 50), Verdict.LOST),
    ],
)
def test_a_state_proves_what_it_can(now: LoadedTable, expected: Verdict) -> None:
    assert verdict(now, state("v2", [1, 2]), attempt(on=2)) is expected


def test_an_expiry_by_a_server_whose_clock_is_behind_is_no_older_state() -> None:
    base = state("v2", [1, 2], version=2)
    expired = state("v3", [2], version=2, updated_ms=CREATED_MS - 10)
    assert not is_older(expired, base)
    assert is_older(state("v1", [1], version=2), base)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("add-snapshot", True),
        ("set-statistics", True),
        ("set-partition-statistics", True),
        ("remove-snapshots", False),
        ("set-properties", False),
        ("set-snapshot-ref", False),
    ],
)
def test_what_an_attempt_adds_tells_whether_its_files_are_needed(action: str, expected: bool) -> None:
    prepared = PreparedCommit(requirements=[], updates=[{"action": action}], landed=lambda metadata: False)
    assert prepared.names_files is expected
