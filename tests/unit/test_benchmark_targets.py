"""Limits in seconds or requests are for the whole table: nothing is said to be met on a part of it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.measure import Cost
from benchmarks.report import as_json, beside_last, target_lines
from benchmarks.row import Row, Target
from benchmarks.run_rows import RowFound
from benchmarks.tables.datasets import WARM_UP
from benchmarks.turns import Found

ROW = Row(
    "tiny",
    "a tiny table",
    WARM_UP,
    "compact",
    ("icekeeper", "java"),
    (
        Target("wall_s", "icekeeper", 60),
        Target("requests", "icekeeper", 101),
        Target("peak_mb", "icekeeper", 400),
        Target("wall_s", "icekeeper", 0.5, "java"),
    ),
)


def _told(scale: float) -> dict[str, Any]:
    ours = Found([Cost(1.0, 2.0, 3.0, 3.0, 3.0)], "right", {"requests": 29.0})
    theirs = Found([Cost(4.0, 4.0, 9.0, 1.0, 1.0)], "right")
    data = {"files": 1, "bytes": 1, "rows": 1}
    return as_json(RowFound(ROW, scale, data, {"icekeeper": ours, "java": theirs}), 1)


@pytest.mark.parametrize(("scale", "met"), [(1.0, [True, True, True, True]), (0.05, [None, None, True, True])])
def test_a_limit_that_grows_with_the_table_is_judged_at_full_size_only(scale: float, met: list[bool | None]) -> None:
    told = _told(scale)
    assert [target["met"] for target in told["targets"]] == met
    assert [target["measured"] for target in told["targets"]] == [1.0, 29.0, 3.0, 0.25]


def test_the_tables_say_so() -> None:
    rows = {"tiny": _told(0.05)}
    verdicts = [line.split("|")[-2].strip() for line in target_lines(rows)][2:]
    assert verdicts == ["only at full size", "only at full size", "met", "met"]
    assert [line.endswith("only at full size") for line in beside_last(rows, {})] == [True, True, False, False]
