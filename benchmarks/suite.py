"""The rows of the suite and their targets: what is measured, on which table, between whom, and what is wanted.

A target compares a figure of ours with the same figure of another contestant in the same run, or with a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ROWS", "Row", "Target", "rows_named"]

MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """``figure`` of ``ours`` is at most ``at_most`` times that of ``against``, or at most that many units."""

    figure: str
    ours: str
    at_most: float
    against: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; every entrant does the same operation on the same table."""

    key: str
    title: str
    dataset: str
    operation: str
    entrants: Sequence[str]
    targets: Sequence[Target]
    task: Mapping[str, Any] = field(default_factory=dict)
    """What every entrant is told."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Policy keys for Icekeeper."""
    most_files: int | None = None
    """A result with more data files has not done the work."""
    quick_scale: float | None = None
    """The scale in ``make bench-quick``; ``None``: not in it."""


def _against(ours: str, limits: Mapping[str, Mapping[str, float]]) -> tuple[Target, ...]:
    """Targets by contestant and figure."""
    return tuple(
        Target(figure, ours, at_most, against) for against, all_ in limits.items() for figure, at_most in all_.items()
    )


_ALL = ("cat", "pyarrow", "duckdb", "polars", "icekeeper_decoding", "icekeeper_spark", "rust", "zamboni", "java")
_ONE_OUTPUT: Mapping[str, Any] = {"target_bytes": 2048 * MB}
_ONE_OUTPUT_SETTINGS = {"target_file_size_mb": "2048", "rewrite_all": "true"}

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
        quick_scale=1 / 4,
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
