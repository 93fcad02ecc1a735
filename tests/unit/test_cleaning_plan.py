"""Which recorded loads a pass settles, and which paths can be recorded."""

from __future__ import annotations

import pytest

from icekeeper.cli.arguments import time_ms
from icekeeper.errors import PolicyError
from icekeeper.machine.clock import iso_utc
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import CatalogId, TableName
from icekeeper.operations.overdue_loads import MAX_FILES, may_be_staged, plan_cleaning, require_stageable
from icekeeper.state.identity import TableIdentity
from icekeeper.state.staging import LoadOrigin, LoadState, StagedLoad

IDENTITY = TableIdentity(CatalogId("C", "w"), TableName(("ns",), "t"), "u")
NOW_MS, GRACE_MS = 1_000_000, 1_000
HOME = "s3://bucket/ns/t"


def load(name: str, state: LoadState, age_ms: int, *, lease_ms: int | None = None, files: int = 1) -> StagedLoad:
    """A load that changed ``age_ms`` ago; a job's lease ends ``lease_ms`` from now."""
    return StagedLoad(
        identity=IDENTITY,
        name=name,
        origin=LoadOrigin.USER if lease_ms is None else LoadOrigin.JOB,
        state=state,
        changed_ms=NOW_MS - age_ms,
        expires_ms=None if lease_ms is None else NOW_MS + lease_ms,
        file_count=files,
    )


def settled(*loads: StagedLoad) -> tuple[list[str], list[str]]:
    failed, adopted = plan_cleaning(loads, now_ms=NOW_MS, grace_ms=GRACE_MS)
    return [found.name for found in failed], [found.name for found in adopted]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (load("L", LoadState.FAILED, GRACE_MS), (["L"], [])),
        (load("L", LoadState.FAILED, GRACE_MS - 1), ([], [])),
        (load("L", LoadState.FAILED, -10 * GRACE_MS), ([], [])),
        (load("L", LoadState.ADOPTED, GRACE_MS), ([], ["L"])),
        (load("L", LoadState.ADOPTED, GRACE_MS - 1), ([], [])),
        (load("L", LoadState.PENDING, 100 * GRACE_MS), ([], [])),
        # A job's grace period begins at the end of its lease, not at its start.
        (load("L", LoadState.PENDING, 100 * GRACE_MS, lease_ms=1), ([], [])),
        (load("L", LoadState.PENDING, 100 * GRACE_MS, lease_ms=1 - GRACE_MS), ([], [])),
        (load("L", LoadState.PENDING, 100 * GRACE_MS, lease_ms=-GRACE_MS), (["L"], [])),
        (load("L", LoadState.FAILED, 0, lease_ms=-GRACE_MS), ([], [])),
    ],
)
def test_the_grace_period_counts_from_the_failure(found: StagedLoad, expected: tuple[list[str], list[str]]) -> None:
    assert settled(found) == expected


def test_a_pass_cleans_the_oldest_failures_first_and_never_divides_a_load() -> None:
    loads = [
        load("c", LoadState.FAILED, 3 * GRACE_MS, files=2),
        load("b", LoadState.FAILED, 4 * GRACE_MS, files=MAX_FILES - 1),
        load("a", LoadState.FAILED, 2 * GRACE_MS, files=1),
    ]
    assert settled(*loads) == (["b", "a"], [])
    huge = load("huge", LoadState.FAILED, 9 * GRACE_MS, files=10 * MAX_FILES)
    assert settled(*loads, huge) == (["huge"], [])


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (f"{HOME}/data/f.parquet", True),
        ("s3a://bucket/ns/t/data/f.parquet", True),
        ("s3://elsewhere/d/f.parquet", True),
        (HOME, False),
        (f"{HOME}2/data/f.parquet", False),
        (f"{HOME}/../u/f.parquet", False),
        ("s3://other/ns/t/data/f.parquet", False),
        ("/ns/t/data/f.parquet", False),
        (f"{HOME}/metadata/v1.metadata.json", False),
        (f"{HOME}/metadata/v1.metadata.json.gz", False),
        (f"{HOME}/metadata/v1.gz.metadata.json", False),
    ],
)
def test_only_files_below_the_tables_own_locations_can_be_staged(path: str, allowed: bool) -> None:
    metadata = TableMetadata(
        {"format-version": 2, "location": HOME, "properties": {"write.data.path": "s3://elsewhere/d"}}
    )
    assert may_be_staged(metadata, path) is allowed
    if allowed:
        require_stageable(metadata, [path], [])
    else:
        with pytest.raises(PolicyError) as caught:
            require_stageable(metadata, [path], [])
        assert str(caught.value).startswith(f"{path} is ")


@pytest.mark.parametrize("prefix", [HOME, f"{HOME}/", "s3://bucket/ns", f"{HOME}/a/../.."])
def test_a_prefix_must_also_be_below_the_location(prefix: str) -> None:
    metadata = TableMetadata({"format-version": 2, "location": HOME})
    require_stageable(metadata, [], [f"{HOME}/data/", f"{HOME}/data/load"])
    with pytest.raises(PolicyError):
        require_stageable(metadata, [], [prefix])


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("6h", 21_600), (" 7d ", 604_800), ("366d", 31_622_400)]
)
def test_times_to_live_are_parsed(text: str, seconds: int) -> None:
    assert time_ms(text, "--ttl") == seconds * 1000


@pytest.mark.parametrize("text", ["", "6", "h", "0s", "-1h", "1.5h", "6H", "1h30m", "367d", "99999999999999s", "٣h"])
def test_a_malformed_time_to_live_is_bad_usage(text: str) -> None:
    with pytest.raises(PolicyError, match=r"^--ttl takes a time like 90s, 30m, 6h or 7d, at most 366d, not '"):
        time_ms(text, "--ttl")


def test_times_are_printed_in_utc_to_the_second() -> None:
    assert iso_utc(1_769_860_800_999) == "2026-01-31T12:00:00Z"
