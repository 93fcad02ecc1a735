"""The vocabulary of outcomes, and the exact JSON that programs read."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from icekeeper.errors import StorageError
from icekeeper.maintenance.begin_and_end_pass import with_warnings
from icekeeper.policy import Operation
from icekeeper.report.outcome import (
    OperationOutcome,
    PassOutcome,
    Status,
    failed,
    listing_in,
    refused,
    skipped,
    succeeded,
)

COMPACTED = succeeded(
    Operation.COMPACT,
    "compacted 15 files into 3 (across 3 bins)",
    snapshot_ids=[11, 12],
    metrics={"compact.files_merged": 15, "compact.files_written": 3, "compact.bins": 3},
    files_planned=["s3://b/data/1.parquet", "s3://b/data/2.parquet"],
)
EXPIRED = succeeded(
    Operation.EXPIRE_SNAPSHOTS,
    "expired 2 snapshot(s), deleted 1 unreferenced file(s)",
    metrics={"expire_snapshots.snapshots_expired": 2},
    files_planned=["s3://b/data/0.parquet"],
    files_deleted=["s3://b/data/0.parquet"],
)
SKIPPED = skipped(Operation.REWRITE_MANIFESTS, "only 1 data manifests, below threshold of 5")
SWEPT = succeeded(Operation.REMOVE_ORPHANS, "removed 0 orphan file(s)", metrics={"remove_orphans.orphans_removed": 0})
FAILED = failed(Operation.COMPACT, "the bucket did not answer")
REFUSED = refused(Operation.COMPACT, "the table has delete files")


def make_pass(*operations: OperationOutcome, dry_run: bool = False) -> PassOutcome:
    return PassOutcome(table="ns.t", catalog="C", run_id="run-1", dry_run=dry_run, operations=operations)


def no_listing(name: str, files: object) -> str:
    raise AssertionError("nothing here is long enough for a listing")


def test_the_summary_joins_every_operations_sentence() -> None:
    assert make_pass(COMPACTED, EXPIRED, SKIPPED).summary == (
        "compact: compacted 15 files into 3 (across 3 bins); "
        "expire_snapshots: expired 2 snapshot(s), deleted 1 unreferenced file(s); "
        "rewrite_manifests: only 1 data manifests, below threshold of 5"
    )


@pytest.mark.parametrize(
    ("operations", "status"),
    [
        ([], "succeeded"),
        ([SKIPPED], "succeeded"),
        ([COMPACTED, SKIPPED], "succeeded"),
        ([FAILED], "failed"),
        ([FAILED, SKIPPED], "failed"),
        ([FAILED, EXPIRED], "partial"),
        ([FAILED, REFUSED], "partial"),
        ([REFUSED], "partial"),
        ([REFUSED, EXPIRED], "partial"),
    ],
)
def test_the_status_of_a_pass(operations: list[OperationOutcome], status: str) -> None:
    """Failed when all attempted failed, partial when any failed or was refused; skipping is success."""
    assert make_pass(*operations).status.value == status


def test_the_json_document_is_exactly_the_contract() -> None:
    assert make_pass(COMPACTED, EXPIRED, SKIPPED, dry_run=True).to_json(no_listing) == {
        "table": "ns.t",
        "catalog": "C",
        "run_id": "run-1",
        "dry_run": True,
        "status": "succeeded",
        "operations": [
            {
                "operation": "compact",
                "status": "succeeded",
                "reason": None,
                "summary": "compacted 15 files into 3 (across 3 bins)",
                "snapshot_id": 12,
                "snapshot_ids": [11, 12],
                "metrics": {"compact.files_merged": 15, "compact.files_written": 3, "compact.bins": 3},
                "files": {"planned": ["s3://b/data/1.parquet", "s3://b/data/2.parquet"], "deleted": []},
            },
            {
                "operation": "expire_snapshots",
                "status": "succeeded",
                "reason": None,
                "summary": "expired 2 snapshot(s), deleted 1 unreferenced file(s)",
                "snapshot_id": None,
                "snapshot_ids": [],
                "metrics": {"expire_snapshots.snapshots_expired": 2},
                "files": {"planned": ["s3://b/data/0.parquet"], "deleted": ["s3://b/data/0.parquet"]},
            },
            {
                "operation": "rewrite_manifests",
                "status": "skipped",
                "reason": "only 1 data manifests, below threshold of 5",
                "summary": "only 1 data manifests, below threshold of 5",
                "snapshot_id": None,
                "snapshot_ids": [],
                "metrics": {},
                "files": {"planned": [], "deleted": []},
            },
        ],
        "summary": make_pass(COMPACTED, EXPIRED, SKIPPED).summary,
        "metrics": {
            "compact.files_merged": 15,
            "compact.files_written": 3,
            "compact.bins": 3,
            "expire_snapshots.snapshots_expired": 2,
        },
    }


def test_ten_thousand_paths_stay_inline() -> None:
    paths = [f"f{n}" for n in range(10_000)]
    outcome = succeeded(Operation.REMOVE_ORPHANS, "removed", files_planned=paths, files_deleted=paths)
    assert outcome.to_json("r", no_listing)["files"] == {"planned": paths, "deleted": paths}


def test_more_paths_go_to_a_listing_file(tmp_path: Path) -> None:
    paths = [f"f{n}" for n in range(10_001)]
    outcome = succeeded(Operation.REMOVE_ORPHANS, "removed", files_planned=paths, files_deleted=paths[:3])
    listing = tmp_path / "new" / "r-remove_orphans.files.json"
    assert outcome.to_json("r", listing_in(tmp_path / "new"))["files"] == {
        "listing": str(listing),
        "planned_count": 10_001,
        "deleted_count": 3,
    }
    assert json.loads(listing.read_text()) == {"planned": paths, "deleted": paths[:3]}


def test_a_listing_is_for_its_owner_only_and_lies_in_its_folder(tmp_path: Path) -> None:
    """A table's name may be a path (rule 286)."""
    folder, before = tmp_path / "state" / "listings", os.umask(0o022)
    try:
        written = Path(listing_in(folder)(f"{tmp_path}/ns.t-staged", {"staged": ["f"]}))
    finally:
        os.umask(before)
    assert [*tmp_path.rglob("*")] == [folder.parent, folder, written]
    modes = [stat.filemode(path.stat().st_mode) for path in (folder.parent, folder, written)]
    assert modes == ["drwx------", "drwx------", "-rw-------"]


def test_a_listing_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"^the list of files cannot be written to .*/file/x\.files\.json: "):
        listing_in(tmp_path / "file")("x", {})


@pytest.mark.parametrize(
    ("operations", "idle"),
    [
        ([SKIPPED, SWEPT], True),
        ([SKIPPED, REFUSED], True),
        ([SKIPPED, COMPACTED], False),
        ([EXPIRED], False),
        ([succeeded(Operation.EXPIRE_SNAPSHOTS, "expired 1 snapshot(s), deleted 0 unreferenced file(s)")], False),
        ([SKIPPED, FAILED], False),
    ],
)
def test_a_pass_is_idle_when_it_changed_nothing_and_nothing_failed(
    operations: list[OperationOutcome], idle: bool
) -> None:
    assert make_pass(*operations).is_idle is idle


def test_every_unsuccessful_outcome_says_why() -> None:
    for outcome, status in ((SKIPPED, Status.SKIPPED), (REFUSED, Status.REFUSED), (FAILED, Status.FAILED)):
        assert outcome.status is status
        assert outcome.reason == outcome.summary


def test_a_wrong_clock_is_told_once_by_the_largest_difference_that_was_met() -> None:
    parts = [
        succeeded(Operation.EXPIRE_SNAPSHOTS, "s", metrics={"clock.skew_s": 61}),
        refused(Operation.REMOVE_ORPHANS, "r", metrics={"clock.skew_s": -172_800}),
        skipped(Operation.COMPACT, "c"),
    ]
    (warning,) = with_warnings(make_pass(*parts)).warnings
    assert warning == (
        "this machine's clock is 172800 s behind the clock of the table's store, by which ages are judged; set it right"
    )
    assert with_warnings(make_pass(parts[2])).warnings == ()
