"""Rows of whole commands: what a user waits for, from the start of a process to its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.row import Row
from benchmarks.suite.settings import MB, ONE_OUTPUT, ONE_OUTPUT_SETTINGS

_EVERYBODY = ("icekeeper_command", "pyarrow", "duckdb", "polars", "rust", "zamboni", "java")


def _whole(
    key: str,
    title: str,
    data: str,
    operation: str,
    entrants: Sequence[str],
    task: Mapping[str, Any],
    settings: Mapping[str, str],
    most_files: int | None = None,
) -> Row:
    return Row(
        f"whole_{key}",
        f"whole command: {title}",
        data,
        operation,
        entrants,
        (),
        task=task,
        settings=settings,
        most_files=most_files,
        is_whole=True,
    )


COMMANDS: Sequence[Row] = (
    _whole("small", "60 tiny files into one", "small_table", "compact", _EVERYBODY, ONE_OUTPUT, ONE_OUTPUT_SETTINGS, 1),
    _whole("decode", "200 files into one", "append_only", "compact", _EVERYBODY, ONE_OUTPUT, ONE_OUTPUT_SETTINGS, 1),
    _whole(
        "sort",
        "sort by two columns",
        "append_only",
        "sort",
        ("icekeeper_command", "zamboni", "java"),
        {"target_bytes": 32 * MB, "columns": ["user_id", "at"]},
        {"target_file_size_mb": "32", "rewrite_all": "true", "strategy": "sort", "sort_order": "user_id, at"},
    ),
)
