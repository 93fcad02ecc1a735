"""The rows of the suite and their targets: what is measured, on which table, between whom, and what is wanted.

A target compares a figure of ours with the same figure of another contestant in the same run, or with a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.row import Row, Target

__all__ = ["ROWS", "rows_named"]

MB = 1024 * 1024


def _against(ours: str, limits: Mapping[str, Mapping[str, float]]) -> tuple[Target, ...]:
    """Targets by contestant and figure."""
    return tuple(
        Target(figure, ours, at_most, against) for against, all_ in limits.items() for figure, at_most in all_.items()
    )


_ALL = ("cat", "pyarrow", "duckdb", "polars", "icekeeper_decoding", "icekeeper_spark", "rust", "zamboni", "java")
_ONE_OUTPUT: Mapping[str, Any] = {"target_bytes": 2048 * MB}
_WHOLE_PASS = "compact,rewrite_position_deletes,expire_snapshots,remove_orphans,rewrite_manifests"
# All files at once, as small ones of a partition at rest; rewrite_all would decode them all.
_ONE_OUTPUT_SETTINGS = {
    "target_file_size_mb": "2048",
    "min_input_files": "2",
    "partition_rest_hours": "0",
    "expected_scans": "none",
}


def _deletes(key: str, title: str, of_java: float, peers: Sequence[str]) -> Row:
    """A rewrite that applies deletes; the dataset has the row's name."""
    return Row(
        key,
        title,
        key,
        "compact",
        ("icekeeper", *peers),
        (
            Target("wall_s", "icekeeper", of_java, "java"),
            Target("cpu_s", "icekeeper", of_java, "java"),
            Target("peak_mb_beside_java", "icekeeper", 400),
        ),
        task=_ONE_OUTPUT,
        settings=_ONE_OUTPUT_SETTINGS,
        most_files=1,
        quick_scale={"deletes_spread": 1 / 6, "cdc": 1 / 4}.get(key),
    )


def _clustering(operation: str, settings: Mapping[str, str], entrants: Sequence[str]) -> Row:
    """A rewrite of everything in an order of two columns."""
    return Row(
        operation,
        f"{'z-order' if operation == 'zorder' else operation} by two columns",
        "append_only",
        operation,
        entrants,
        (
            Target("wall_s", "icekeeper", 0.5, "java"),
            Target("cpu_s", "icekeeper", 0.5, "java"),
            Target("files_opened", "icekeeper", 1.0, "java"),
            Target("peak_mb_beside_java", "icekeeper", 400),
        ),
        task={"target_bytes": 32 * MB, "columns": ["user_id", "at"]},
        settings={"target_file_size_mb": "32", "rewrite_all": "true", **settings},
        predicates=_PREDICATES,
        quick_scale=1 / 8 if operation == "sort" else None,
    )


def _on_store(key: str, title: str, data: str, entrant: str, targets: Sequence[Target]) -> Row:
    """A rewrite in a table bucket, 20 ms before every request."""
    return Row(
        key,
        title,
        data,
        "compact",
        (entrant,),
        targets,
        settings=_ONE_OUTPUT_SETTINGS,
        most_files=1,
        store_delay_ms=20,
    )


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


_PREDICATES = (
    *(f"user_id == {value}" for value in (7, 123_456, 500_000, 777_777, 999_999)),
    "user_id >= 250000 and user_id < 260000",
    "user_id >= 600000 and user_id < 700000",
    "at >= '2023-11-15T04:00:00+00:00' and at < '2023-11-15T04:10:00+00:00'",
    "user_id >= 100000 and user_id < 200000 and at >= '2023-11-15T04:00:00+00:00' and at < '2023-11-15T06:00:00+00:00'",
)

ROWS: Sequence[Row] = (
    Row(
        "append_only_decode",
        "append-only, decoding path",
        "append_only",
        "compact",
        _ALL,
        (
            *_against("icekeeper_decoding", {"java": {"wall_s": 0.35, "cpu_s": 0.35}, "rust": {"cpu_s": 1.0}}),
            *_against("icekeeper_decoding", {"pyarrow": {"cpu_s": 1.15}}),
            *_against("icekeeper_spark", {"pyarrow": {"cpu_s": 1.15}}),
            Target("peak_mb_beside_java", "icekeeper_decoding", 400),
        ),
        task=_ONE_OUTPUT,
        settings=_ONE_OUTPUT_SETTINGS,
        most_files=1,
        quick_scale=1 / 8,
    ),
    Row(
        "append_only_copy",
        "append-only, files of 16 MB and more, copy path",
        "append_only_16mb",
        "compact",
        ("cat", "icekeeper_copy", "rust", "java"),
        (
            *_against("icekeeper_copy", {"cat": {"wall_s": 4.0}, "java": {"wall_s": 0.05, "cpu_s": 0.05}}),
            *_against("icekeeper_copy", {"rust": {"wall_s": 0.125, "cpu_s": 0.125}}),
            Target("peak_mb_beside_java", "icekeeper_copy", 150),
        ),
        task=_ONE_OUTPUT,
        settings=_ONE_OUTPUT_SETTINGS,
        most_files=1,
        quick_scale=1 / 4,
    ),
    _deletes("deletes_clustered", "1 % position deletes, clustered", 0.15, ("rust", "zamboni", "java")),
    _deletes("deletes_spread", "1 % position deletes, spread", 0.35, ("rust", "zamboni", "java")),
    _deletes("vectors_clustered", "1 % deletion vectors, clustered", 0.15, ("zamboni", "java")),
    _deletes("vectors_spread", "1 % deletion vectors, spread", 0.35, ("zamboni", "java")),
    _deletes("cdc", "CDC equality deletes, 20 files of 10,000 keys", 0.3, ("rust", "zamboni", "java")),
    _clustering("sort", {"strategy": "sort", "sort_order": "user_id, at"}, ("icekeeper", "zamboni", "java")),
    _clustering("zorder", {"strategy": "zorder", "zorder_columns": "user_id,at"}, ("icekeeper", "java")),
    _on_store(
        "store_decode",
        "append-only on SeaweedFS, decoding",
        "append_only",
        "icekeeper_decoding",
        (Target("peak_mb_beside_java", "icekeeper_decoding", 400),),
    ),
    _on_store(
        "store_copy",
        "files of 16 MB and more on SeaweedFS, copied by the store",
        "append_only_16mb",
        "icekeeper_copy",
        (Target("bytes_ratio", "icekeeper_copy", 0.02), Target("peak_mb_beside_java", "icekeeper_copy", 150)),
    ),
    Row(
        "two_executors",
        "two Spark executors against one, 5 GB in 160 groups",
        "many_groups",
        "compact",
        ("icekeeper_one_executor", "icekeeper_two_executors"),
        (Target("wall_s", "icekeeper_two_executors", 1 / 1.8, "icekeeper_one_executor"),),
        settings=_ONE_OUTPUT_SETTINGS,
        most_share=1 / 16,
    ),
    Row(
        "many_partitions",
        "5,000 partitions of two tiny files",
        "many_partitions",
        "compact",
        ("icekeeper", "zamboni", "java"),
        (Target("wall_s", "icekeeper", 0.35, "java"), Target("peak_mb_beside_java", "icekeeper", 400)),
        task=_ONE_OUTPUT,
        settings={**_ONE_OUTPUT_SETTINGS, "min_input_files": "2"},
        most_share=1 / 2,
    ),
    Row(
        "tiny_files",
        "2,000 files of 50 KB",
        "tiny_files",
        "compact",
        ("cat", "pyarrow", "icekeeper", "rust", "zamboni", "java"),
        (Target("wall_s", "icekeeper", 0.35, "java"), Target("cpu_s", "icekeeper", 0.35, "java")),
        task=_ONE_OUTPUT,
        settings=_ONE_OUTPUT_SETTINGS,
        most_files=1,
    ),
    Row(
        "wide",
        "2,000 columns",
        "wide",
        "compact",
        ("cat", "pyarrow", "icekeeper", "rust", "zamboni", "java"),
        (Target("wall_s", "icekeeper", 0.35, "java"), Target("cpu_s", "icekeeper", 0.35, "java")),
        task=_ONE_OUTPUT,
        settings=_ONE_OUTPUT_SETTINGS,
        most_files=1,
    ),
    Row(
        "small_table",
        "a small table's whole pass, 60 files",
        "small_table",
        _WHOLE_PASS,
        ("icekeeper",),
        (Target("wall_s", "icekeeper", 1.0),),
        quick_scale=1,
    ),
    Row(
        "small_table_store",
        "a small table's whole pass on SeaweedFS, 60 files",
        "small_table",
        _WHOLE_PASS,
        ("icekeeper",),
        # One for each file and for its one manifest, and 40 more; the catalog's are not among them.
        (Target("requests", "icekeeper", 60 + 1 + 40),),
        store_delay_ms=20,
    ),
    Row(
        "rewrite_manifests",
        "rewrite 1,000 manifests of 500 entries",
        "many_manifests",
        "rewrite_manifests",
        ("icekeeper", "rust", "java"),
        (*_against("icekeeper", {"java": {"wall_s": 0.5}}), Target("peak_mb_beside_java", "icekeeper", 400)),
        proof="live_files",
        warm_up=("many_manifests", 0.01),
        quick_scale=1 / 20,
    ),
    Row(
        "plan_million_files",
        "plan of 1 M live data files",
        "million_files",
        "compact",
        ("icekeeper",),
        (Target("wall_s", "icekeeper", 60), Target("peak_mb_beside_java", "icekeeper", 1024)),
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
        (*_against("icekeeper", {"java": {"wall_s": 0.3}}), Target("peak_mb_beside_java", "icekeeper", 400)),
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
        (*_against("icekeeper", {"java": {"wall_s": 0.7}}), Target("peak_mb_beside_java", "icekeeper", 300)),
        task={
            "dry_run": True,
            "listing": "{table_folder}/listing.parquet",
            "view": "listing",
            "view_query": "select file_path, last_modified from parquet.`{table_folder}/listing.parquet`",
        },
        settings={"orphan_max_delete_ratio": "1"},
        proof="orphans",
        warm_up=("orphans", 0.01),
        quick_scale=1 / 20,
    ),
    _detection("detect_first", "detect 10,000 tables, first scan", 20, seen=False),
    _detection("detect_next", "detect 10,000 tables, next scan", 10, seen=True),
)


def rows_named(keys: Sequence[str]) -> list[Row]:
    """The rows with these keys, all of them where there are none.

    Raises:
        SystemExit: there is no such row.
    """
    known = {row.key: row for row in ROWS}
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise SystemExit(f"there is no row {', '.join(unknown)}; rows are {', '.join(known)}")
    return [known[key] for key in keys] if keys else list(ROWS)
