"""Rows that read and write metadata only, and whole passes over little data."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.row import Row, Target, against
from benchmarks.suite.settings import WHOLE_PASS


def _detection(key: str, title: str, seconds: float, *, seen: bool) -> Row:
    """A scan of a fleet; ``seen``: not the first one."""
    return Row(
        key,
        title,
        "fleet",
        "detect",
        ("icekeeper_detect",),
        (Target("wall_s", "icekeeper_detect", seconds), Target("peak_mb", "icekeeper_detect", 512)),
        task={"seen": seen},
        proof="detected",
        warm_up=("fleet", 0.01),
    )


METADATA: Sequence[Row] = (
    Row(
        "small_table",
        "a small table's whole pass, 60 files",
        "small_table",
        WHOLE_PASS,
        ("icekeeper",),
        (Target("wall_s", "icekeeper", 1.0),),
        quick_scale=1,
    ),
    Row(
        "rewrite_manifests",
        "rewrite 1,000 manifests of 500 entries",
        "many_manifests",
        "rewrite_manifests",
        ("icekeeper", "rust", "java"),
        (*against("icekeeper", {"java": {"wall_s": 0.5}}), Target("peak_mb_of_worker", "icekeeper", 400)),
        proof="live_files",
        warm_up=("many_manifests", 0.01),
        quick_scale=1 / 20,
    ),
    Row(
        "plan_million_files",
        "plan of 1 M live data files, all of them small",
        "million_files",
        "compact",
        ("icekeeper",),
        (Target("wall_s", "icekeeper", 20), Target("peak_mb_of_worker", "icekeeper", 550)),
        task={"dry_run": True},
        proof="plan",
        warm_up=("many_manifests", 0.01),
    ),
    Row(
        "expire_snapshots",
        "expire 2,000 of 2,100 snapshots, 100,000 files",
        "long_history",
        "expire_snapshots",
        ("icekeeper", "rust", "java"),
        (*against("icekeeper", {"java": {"wall_s": 0.3}}), Target("peak_mb_of_worker", "icekeeper", 400)),
        task={"keep": 100},
        settings={"snapshot_retention_hours": "0", "max_snapshots_to_keep": "100"},
        proof="history",
        warm_up=("long_history", 0.06),
        quick_scale=1 / 10,
    ),
    Row(
        "remove_orphans",
        "orphans, 1 M listed files against 1 M references (dry run)",
        "orphans",
        "remove_orphans",
        ("icekeeper", "java"),
        (*against("icekeeper", {"java": {"wall_s": 0.7}}), Target("peak_mb_beside_java", "icekeeper", 300)),
        task={"dry_run": True},
        settings={"orphan_max_delete_ratio": "1"},
        proof="orphans",
        warm_up=("orphans", 0.01),
        quick_scale=1 / 20,
    ),
    _detection("detect_first", "detect 10,000 tables, first scan", 20, seen=False),
    _detection("detect_next", "detect 10,000 tables, next scan", 10, seen=True),
)
