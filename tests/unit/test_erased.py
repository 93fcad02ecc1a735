"""Traces in metadata, and the day on which a place is gone."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from icekeeper.erasure.places import Holder, Place, PlaceKey, Terms, What
from icekeeper.erasure.row_filter import RowFilter, Wanted
from icekeeper.erasure.traces import Trace, entry_trace, partition_names, shortest_bound, text_trace
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile
from icekeeper.policy import Policy
from icekeeper.state.identity import TableIdentity
from icekeeper.state.staging import LoadOrigin, LoadState, StagedLoad
from support.plans import data_file
from support.tables import CREATED_MS, new_document, snapshot

FIELDS = [
    {"id": 1, "name": "user_id", "required": False, "type": "long"},
    {"id": 2, "name": "mail", "required": False, "type": "string"},
    {"id": 3, "name": "day", "required": False, "type": "date"},
]
SCHEMA = {"type": "struct", "schema-id": 0, "fields": FIELDS}
SPEC = {
    "spec-id": 0,
    "fields": [
        {"source-id": 1, "field-id": 1000, "name": "user", "transform": "identity"},
        {"source-id": 2, "field-id": 1001, "name": "mail_bucket", "transform": "bucket[4]"},
    ],
}
NOTHING: tuple[Any, ...] = (None, None)
MAIL = "jane.doe@example.org"


def judge(where: str) -> RowFilter:
    return RowFilter(Wanted(where), SCHEMA, 0)


def number(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def bounds(field_id: int, low: bytes, high: bytes, partition: tuple[Any, ...] = (8, 0)) -> DataFile:
    return data_file("s3://b/t/f.parquet", 1, partition, lower_bounds={field_id: low}, upper_bounds={field_id: high})


@pytest.mark.parametrize(
    ("where", "file", "trace"),
    [
        ("user_id = 5", bounds(1, number(5), number(9)), Trace.CERTAIN),
        ("user_id = 5", bounds(1, number(1), number(5)), Trace.CERTAIN),
        ("user_id = 5", bounds(1, number(1), number(9)), Trace.NONE),
        ("user_id = 5", data_file("f", 1, (5, 0)), Trace.CERTAIN),
        ("user_id = 5", data_file("f", 1, (6, 0)), Trace.NONE),
        ("user_id is null", data_file("f", 1, NOTHING), Trace.CERTAIN),
        ("user_id between 4 and 6", bounds(1, number(5), number(9)), Trace.CERTAIN),
        # A bucket shows no value.
        ("mail = 'x'", data_file("f", 1, (8, 0)), Trace.NONE),
        # Truncated to 16 characters, and rounded up.
        (f"mail = '{MAIL}'", bounds(2, MAIL[:16].encode(), b"z"), Trace.POSSIBLE),
        (f"mail = '{MAIL}'", bounds(2, b"a", (MAIL[:15] + chr(ord(MAIL[15]) + 1)).encode()), Trace.POSSIBLE),
        (f"mail = '{MAIL}'", bounds(2, MAIL[:15].encode(), b"z"), Trace.NONE),
        (f"mail = '{MAIL}'", bounds(2, MAIL.encode(), b"z"), Trace.CERTAIN),
        # Values of several columns may be of different rows.
        ("user_id = 5 and day = '2026-01-01'", bounds(1, number(5), number(9)), Trace.POSSIBLE),
        ("user_id = 5 or day = '2026-01-01'", bounds(1, number(5), number(9)), Trace.POSSIBLE),
        ("user_id = 5 or day = '2026-01-01'", bounds(1, number(4), number(9)), Trace.NONE),
    ],
)
def test_values_in_manifest_entries(where: str, file: DataFile, trace: Trace) -> None:
    spec = {"fields": []} if file.partition == (8, 0) and file.lower_bounds else SPEC
    assert entry_trace(judge(where), file, spec, 16) is trace


def test_values_in_names_and_texts() -> None:
    metadata = TableMetadata(new_document("s3://b/t", 2, schemas=[SCHEMA], **{"partition-specs": [SPEC]}))
    one, two = judge("user_id = 5"), judge("user_id = 5 and day = '2026-01-01'")
    found = {
        text: (
            text_trace(one, partition_names(metadata, one), text),
            text_trace(two, partition_names(metadata, two), text),
        )
        for text in (
            "data/user=5/day=2026-01-01/f.parquet",
            "data/user=5/mail_bucket=5/f.parquet",
            "partitions.user=5",
            "deleted where user_id = 5",
            "user%3D5/f",
            "data/user=55/f.parquet",
            "mail_bucket=5",
            "added-records=5",
            "5",
        )
    }
    assert list(found.values()) == [(True, True), *[(True, False)] * 4, *[(False, False)] * 4]
    assert shortest_bound(metadata) == 16
    shorter = {"write.metadata.metrics.default": "truncate(32)", "write.metadata.metrics.column.mail": "truncate(4)"}
    assert shortest_bound(TableMetadata({**metadata.document, "properties": shorter})) == 4


DAY_MS = 86_400_000
NOW_MS = CREATED_MS + 10 * DAY_MS


def terms(policy: Policy, pinned: Sequence[tuple[int, int]] = (), **loads: StagedLoad) -> Terms:
    """Snapshots 1 to 3 of the last three days, each the parent of the next; a tag of five days on the first."""
    snapshots = [
        snapshot(
            i, format_version=2, sequence_number=i, timestamp_ms=NOW_MS - (4 - i) * DAY_MS, parent_id=i - 1 or None
        )
        for i in (1, 2, 3)
    ]
    refs = {
        "main": {"snapshot-id": 3, "type": "branch"},
        "kept": {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": 5 * DAY_MS},
        "ever": {"snapshot-id": 2, "type": "tag"},
    }
    document = new_document("s3://b/t", 2, snapshots=snapshots, refs=refs, **{"current-snapshot-id": 3})
    return Terms("ns.t", "C", TableMetadata(document), policy, NOW_MS, pinned, loads, Wanted("id = 5"))


def days(found: int | None) -> int | None:
    return None if found is None else (found - NOW_MS) // DAY_MS


def test_the_day_on_which_a_place_is_gone() -> None:
    policy = Policy(max_snapshots_to_keep=1, snapshot_retention_hours=Fraction(48))
    now = terms(policy)

    def day(
        holder: Holder, name: str = "", *snapshot_ids: int, terms: Terms = now, written_ms: int | None = None
    ) -> Any:
        place = Place(snapshot_ids=set(snapshot_ids), newest_ms=written_ms)
        return days(terms.gone_ms(PlaceKey(holder, name, What.ROWS), place))

    assert day(Holder.REF, "main", 3) is None
    assert [day(Holder.REF, name) for name in ("kept", "ever")] == [3, None]
    # Snapshot 1 is 3 days old, and its tag ends in 3 days; snapshot 2 has a tag for ever.
    assert day(Holder.SNAPSHOTS, "", 1) == 3
    assert day(Holder.SNAPSHOTS, "", 2) is None
    pinned = terms(policy, [(1, NOW_MS + 9 * DAY_MS)])
    assert day(Holder.SNAPSHOTS, "", 1, terms=pinned) == 9
    off = terms(policy.model_copy(update={"snapshot_expiry_enabled": False}))
    assert day(Holder.SNAPSHOTS, "", 1, terms=off) is None
    assert day(Holder.ORPHAN, written_ms=NOW_MS - DAY_MS) == 2
    assert day(Holder.ORPHAN, written_ms=NOW_MS - 9 * DAY_MS) == 0
    assert day(Holder.ORPHAN) is None
    assert day(Holder.DELETION, "run-1") == 0
    assert [day(holder) for holder in (Holder.LOG, Holder.CURRENT, Holder.VERSION)] == [None] * 3


def test_the_day_of_a_staged_load() -> None:
    identity = TableIdentity.__new__(TableIdentity)  # no record is read
    made = {
        "pending": StagedLoad(identity=identity, name="pending", changed_ms=NOW_MS),
        "failed": StagedLoad(identity=identity, name="failed", state=LoadState.FAILED, changed_ms=NOW_MS - DAY_MS),
        "job": StagedLoad(
            identity=identity, name="job", origin=LoadOrigin.JOB, changed_ms=NOW_MS, expires_ms=NOW_MS + DAY_MS
        ),
    }
    now = terms(Policy(), (), **made)
    keys = {name: PlaceKey(Holder.STAGED, name, What.ROWS) for name in made}
    found = {name: days(now.gone_ms(key, Place())) for name, key in keys.items()}
    assert found == {"pending": None, "failed": 2, "job": 4}
    steps = {name: [text.split()[1:3] for _, text in sorted(now.sooner(key))] for name, key in keys.items()}
    sweep = ["maintain", "ns.t"]
    assert steps == {"pending": [["stage", "failed"], sweep], "failed": [sweep], "job": [sweep]}
