"""Rows that rewrite data files on this machine's disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.row import Row, Target, against
from benchmarks.suite.settings import MB, ONE_OUTPUT, ONE_OUTPUT_SETTINGS

_ALL = ("cat", "pyarrow", "duckdb", "polars", "icekeeper_decoding", "icekeeper_spark", "rust", "zamboni", "java")


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
            Target("peak_mb_of_worker", "icekeeper", 400),
        ),
        task=ONE_OUTPUT,
        settings=ONE_OUTPUT_SETTINGS,
        most_files=1,
        quick_scale={"deletes_spread": 1 / 6, "cdc": 1 / 4}.get(key),
    )


def _large(way: str, data: str, ours: str, of_java: float, peer: str) -> Row:
    """More than 4 GB in a single rewrite."""
    return Row(
        f"large_{way}",
        f"4 GB, {way} path",
        data,
        "compact",
        (peer, ours, "java"),
        (*against(ours, {"java": {"wall_s": of_java, "cpu_s": of_java}}), Target("peak_mb_of_worker", ours, 400)),
        task=ONE_OUTPUT,
        settings=ONE_OUTPUT_SETTINGS,
        most_files=4,
    )


def _small_inputs(key: str, title: str) -> Row:
    """A merge of files with little in each column; the dataset has the row's name."""
    return Row(
        key,
        title,
        key,
        "compact",
        ("cat", "pyarrow", "icekeeper", "rust", "zamboni", "java"),
        (
            *against("icekeeper", {"java": {"wall_s": 0.35, "cpu_s": 0.35}}),
            Target("peak_mb_of_worker", "icekeeper", 400),
        ),
        task=ONE_OUTPUT,
        settings=ONE_OUTPUT_SETTINGS,
        most_files=1,
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
            Target("peak_mb_of_worker", "icekeeper", 400),
        ),
        task={"target_bytes": 32 * MB, "columns": ["user_id", "at"]},
        settings={"target_file_size_mb": "32", "rewrite_all": "true", **settings},
        predicates=_PREDICATES,
        quick_scale=1 / 8 if operation == "sort" else None,
    )


_PREDICATES = (
    *(f"user_id == {value}" for value in (7, 123_456, 500_000, 777_777, 999_999)),
    "user_id >= 250000 and user_id < 260000",
    "user_id >= 600000 and user_id < 700000",
    "at >= '2023-11-15T04:00:00+00:00' and at < '2023-11-15T04:10:00+00:00'",
    "user_id >= 100000 and user_id < 200000 and at >= '2023-11-15T04:00:00+00:00' and at < '2023-11-15T06:00:00+00:00'",
)

REWRITES: Sequence[Row] = (
    Row(
        "append_only_decode",
        "append-only, decoding path",
        "append_only",
        "compact",
        _ALL,
        (
            *against("icekeeper_decoding", {"java": {"wall_s": 0.35, "cpu_s": 0.35}, "rust": {"cpu_s": 1.0}}),
            *against("icekeeper_decoding", {"pyarrow": {"cpu_s": 1.15}}),
            *against("icekeeper_spark", {"pyarrow": {"cpu_s": 1.15}}),
            Target("peak_mb_of_worker", "icekeeper_decoding", 400),
        ),
        task=ONE_OUTPUT,
        settings=ONE_OUTPUT_SETTINGS,
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
            *against("icekeeper_copy", {"cat": {"wall_s": 4.0}, "java": {"wall_s": 0.05, "cpu_s": 0.05}}),
            *against("icekeeper_copy", {"rust": {"wall_s": 0.125, "cpu_s": 0.125}}),
            Target("peak_mb_of_worker", "icekeeper_copy", 150),
        ),
        task=ONE_OUTPUT,
        settings=ONE_OUTPUT_SETTINGS,
        most_files=1,
        quick_scale=1 / 4,
    ),
    _large("decode", "append_only_4gb", "icekeeper_decoding", 0.35, "duckdb"),
    _large("copy", "append_only_16mb_4gb", "icekeeper_copy", 0.05, "cat"),
    _deletes("deletes_clustered", "1 % position deletes, clustered", 0.15, ("rust", "zamboni", "java")),
    _deletes("deletes_spread", "1 % position deletes, spread", 0.35, ("rust", "zamboni", "java")),
    _deletes("vectors_clustered", "1 % deletion vectors, clustered", 0.15, ("zamboni", "java")),
    _deletes("vectors_spread", "1 % deletion vectors, spread", 0.35, ("zamboni", "java")),
    _deletes("cdc", "CDC equality deletes, 20 files of 10,000 keys", 0.3, ("rust", "zamboni", "java")),
    _clustering("sort", {"strategy": "sort", "sort_order": "user_id, at"}, ("icekeeper", "zamboni", "java")),
    _clustering("zorder", {"strategy": "zorder", "sort_order": "user_id,at"}, ("icekeeper", "java")),
    Row(
        "two_executors",
        "two Spark executors against one, 5 GB in 160 groups",
        "many_groups",
        "compact",
        ("icekeeper_one_executor", "icekeeper_two_executors"),
        (Target("wall_s", "icekeeper_two_executors", 1 / 1.75, "icekeeper_one_executor"),),
        settings=ONE_OUTPUT_SETTINGS,
        most_share=1 / 16,
    ),
    Row(
        "many_partitions",
        "5,000 partitions of two tiny files",
        "many_partitions",
        "compact",
        ("icekeeper", "zamboni", "java"),
        (Target("wall_s", "icekeeper", 0.35, "java"), Target("peak_mb_of_worker", "icekeeper", 400)),
        task=ONE_OUTPUT,
        settings={**ONE_OUTPUT_SETTINGS, "min_input_files": "2"},
        most_share=1 / 2,
    ),
    _small_inputs("tiny_files", "2,000 files of 50 KB"),
    _small_inputs("wide", "2,000 columns"),
)
