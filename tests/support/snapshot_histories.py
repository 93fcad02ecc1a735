"""Histories of snapshots by their ages in hours, drawn or given, and what of them expires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.writer_marks import COMMITTED_KEY
from icekeeper.model import Nothing
from icekeeper.operations.expiry.retention import (
    ExpiryPlan,
    plan_expiry,
)
from icekeeper.policy import Policy
from support.plans import policy
from support.tables import new_document, snapshot

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
    """Snapshots 1, 2, … of these ages in hours, each the child of the one before unless ``parents`` says otherwise;
    the last one is current.  ``marks`` are what writers left in the summaries of some."""
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
    """A random history with random refs and settings."""

    metadata: TableMetadata
    settings: Policy
    pinned: tuple[int, ...]
    now_ms: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    # Times are neither ordered nor unique, and some lie ahead: clocks of writers differ.
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
    return Case(
        history(ages, refs=refs, parents=parents, marks=marks),
        chosen,
        pinned,
        NOW_MS + draw(st.integers(-300, 300)) * HOUR_MS,
    )


def flink_mark(job: str, checkpoint: int, *, carried_age_h: int | None = None) -> dict[str, str]:
    """With an age: a copy of what the job committed so long ago."""
    mark = {"flink.job-id": job, "flink.operator-id": "op", "flink.max-committed-checkpoint-id": str(checkpoint)}
    return mark if carried_age_h is None else {**mark, COMMITTED_KEY: str(NOW_MS - carried_age_h * HOUR_MS)}


def expire(case: Case, **changes: Any) -> ExpiryPlan:
    settings = case.settings.model_copy(update=changes)
    planned = plan_expiry(case.metadata, settings, now_ms=case.now_ms, pinned=case.pinned)
    return ExpiryPlan((), ()) if isinstance(planned, Nothing) else planned


def newest_first(case: Case) -> list[int]:
    found = case.metadata.snapshots.values()
    return [s.snapshot_id for s in sorted(found, key=lambda s: (s.timestamp_ms, s.sequence_number), reverse=True)]


def expired(metadata: TableMetadata, *, pinned: Sequence[int] = (), **settings: object) -> tuple[int, ...]:
    planned = plan_expiry(metadata, policy(**settings), now_ms=NOW_MS, pinned=pinned)
    return () if isinstance(planned, Nothing) else planned.snapshot_ids
