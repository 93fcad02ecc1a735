"""What the run must come to, exactly; every difference is a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from icekeeper.demo.tables import NAMESPACE
from local_stack.pipeline_run.lake import BROKEN, BUCKET
from local_stack.pipeline_run.run import PipelineRun

_NO_DELETES = ("skipped", "no position delete files eligible for merging")
_NO_ORPHANS = ("succeeded", "removed 0 orphan file(s)")
_ONE_LEFT = ("succeeded", "rewrote 2 manifests into 1 (1 entries)")


def _pass(compact: str, expire: str, manifests: tuple[str, str]) -> Mapping[str, tuple[str, str]]:
    return {
        "compact": ("succeeded", compact),
        "rewrite_position_deletes": _NO_DELETES,
        "expire_snapshots": ("succeeded", expire),
        "remove_orphans": _NO_ORPHANS,
        "rewrite_manifests": manifests,
    }


PASSES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    f"{NAMESPACE}.clicks": _pass(
        "compacted 60 files into 1 (across 1 bins)",
        "expired 60 snapshot(s), deleted 180 unreferenced file(s)",
        _ONE_LEFT,
    ),
    f"{NAMESPACE}.events": _pass(
        "compacted 40 files into 1 (across 1 bins)",
        "expired 39 snapshot(s), deleted 79 unreferenced file(s)",
        _ONE_LEFT,
    ),
    f"{NAMESPACE}.customers": _pass(
        "compacted 8 files into 1 (across 1 bins)", "expired 8 snapshot(s), deleted 24 unreferenced file(s)", _ONE_LEFT
    ),
    f"{NAMESPACE}.{BROKEN}": {
        **_pass(
            "",
            "expired 6 snapshot(s), deleted 6 unreferenced file(s)",
            ("succeeded", "rewrote 7 manifests into 1 (7 entries)"),
        ),
        # The store refuses one of its files, which says nothing of the file: nothing is merged without it.
        "compact": (
            "failed",
            "1 bin(s) failed: StorageError: … cannot be accessed: access is denied to these credentials",
        ),
    },
}
_STATUSES = {name: "partial" if name.endswith(f".{BROKEN}") else "succeeded" for name in PASSES}
_DATA_FILES = {
    f"{NAMESPACE}.clicks": 1,
    f"{NAMESPACE}.events": 1,
    f"{NAMESPACE}.customers": 1,
    f"{NAMESPACE}.orders": 7,
}
_JOBS = {
    "compact_data_files": ["SUCCEEDED"],
    "expire_snapshots": ["SUCCEEDED"],
    "rewrite_manifests": ["SUCCEEDED"],
    "remove_orphans": [],
}
_LINE = [
    *("Detect", "AnyTables", "PlanTables", "Gather", "AnySmall", "CompactSmallTables", "AnyCompaction"),
    *("CompactDataFiles", "AnySweep", "ExpireAndSweep", "AnyLargeExpiry", "ExpireManySnapshots", "AnyLargeOrphans"),
    *(
        "AnyAfterJobs",
        "SweepAfterJobs",
        "AnyLargeManifests",
        "RewriteLargeManifests",
        "AnyStaged",
        "Report",
        "HowItWent",
        "Done",
    ),
]
_STAGES = {
    "small": {f"{NAMESPACE}.events", f"{NAMESPACE}.customers", f"{NAMESPACE}.{BROKEN}"},
    "compaction": {f"{NAMESPACE}.clicks"},
    "expiry": {f"{NAMESPACE}.clicks"},
    "sweep": set(PASSES) - {f"{NAMESPACE}.clicks"},
    "after_jobs": {f"{NAMESPACE}.clicks"},
    "manifests": {f"{NAMESPACE}.clicks", f"{NAMESPACE}.events"},
}
"""The tables of every stage that had work."""
_ASKED_LAKE = {
    f"{role}Role" for role in ("ReadFunction", "CommitFunction", "ExpireFunction", "ExpireSnapshotsJob", "GlueJob")
}
# What the rewrite that fails has begun to write: it may not delete that (rule: least-privilege-roles), orphan removal
# will.
_DENIED = [f"CommitFunctionRole may not s3:DeleteObject on arn:aws:s3:::{BUCKET}/{NAMESPACE}/{BROKEN}/…"]
_TOTALS = {
    "TablesScanned": 4,
    "TablesProposed": 4,
    "TablesNotReached": 0,
    "TablesNotReadable": 0,
    "PassesSucceeded": 3,
    "PassesPartial": 1,
    "PassesFailed": 0,
    "OrphanRemovalsRefused": 0,
}
_MERGED = {"clicks": 60, "events": 40, "customers": 8}


def surprises(run: PipelineRun) -> Iterator[str]:
    """What is not as it should be."""
    yield from _differs("the execution", run.execution.status, "SUCCEEDED")
    yield from _differs("its states", run.execution.names, _LINE)
    yield from _differs("the run", run.report["status"], "partial")
    yield from _differs("the report", {one["table"]: one["status"] for one in run.report["results"]}, _STATUSES)
    yield from _differs("the journal", {name: record.status for name, record in run.journal.items()}, _STATUSES)
    for name, expected in PASSES.items():
        parts = run.passes.get(name, {}).get("operations", ())
        found = {part["operation"]: (part["status"], _without_path(part["summary"])) for part in parts}
        yield from _differs(f"the pass over {name}", found, expected)
        if name in run.journal:
            yield from _differs(
                f"the journal of {name}", run.journal[name].summary, run.passes.get(name, {}).get("summary")
            )
    yield from _differs("the tables of each stage", {name: set(of) for name, of in run.stages.items()}, _STAGES)
    yield from _differs("Glue", {role: [one.state for one in runs] for role, runs in run.jobs.items()}, _JOBS)
    of_all = [metric for metric in run.metrics if "table" not in metric.dimensions]
    totals = {name: sum(m.value for m in of_all if m.name == name) for name in _TOTALS}
    yield from _differs("the metrics", totals, _TOTALS)
    by_table = [metric for metric in run.metrics if "table" in metric.dimensions]
    merged = {m.dimensions["table"]: m.value for m in by_table if m.name == "compact.files_merged"}
    yield from _differs("files merged", merged, {f"{NAMESPACE}.{name}": count for name, count in _MERGED.items()})
    yield from _differs("roles that asked the lake", run.asked_lake, _ASKED_LAKE)
    denied = [re.sub(rf"({BROKEN}/)data/region=us/compact-\S+\.parquet$", r"\1…", one) for one in run.denied]
    yield from _differs("what was denied", denied, _DENIED)
    yield from _differs("leases that were not given back", run.leases, ())
    yield from _differs("data files", {name: after.data_files for name, (_, after) in run.figures.items()}, _DATA_FILES)
    yield from (f"rows of {name} changed" for name, (was, now) in run.rows.items() if was != now)


def _differs(what: str, found: Any, expected: Any) -> Iterator[str]:
    if found != expected:
        yield f"{what}: {found}, where {expected} was expected"


def _without_path(summary: str) -> str:
    """Which file it was, and the advice about keys, are left out."""
    return re.sub(r" s3://\S+ cannot", " … cannot", summary).partition("; ")[0]
