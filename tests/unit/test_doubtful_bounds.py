"""Bounds that cannot be believed never become narrow ones: of a copy, of a part, or of the rows that keys may be in."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path

import pytest

from icekeeper.metadata.single_value import encode
from icekeeper.model import DataFile
from support.copied import copied, entry_of, parquet_file, target_of
from support.rewrites import rows, struct

FLOATS = struct((1, "x", "double"))


def file_of(path: Path, values: list[float], bounds: tuple[float, float]) -> DataFile:
    parquet_file(path, rows(FLOATS, {"x": values}))
    return entry_of(
        path,
        value_counts={1: len(values)},
        null_value_counts={1: 0},
        nan_value_counts={1: sum(map(math.isnan, values))},
        lower_bounds={1: encode("double", bounds[0])},
        upper_bounds={1: encode("double", bounds[1])},
    )


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_bounds_that_are_nan_bound_nothing(order: tuple[int, ...], tmp_path: Path) -> None:
    """Some writers give them to files that hold NaN and other values; Iceberg-Java then leaves no file out (rule 25)."""
    inputs = [
        file_of(tmp_path / "a.parquet", [3.0, 4.0], (3.0, 4.0)),
        file_of(tmp_path / "b.parquet", [math.nan, -9.0, 99.0], (math.nan, math.nan)),
        file_of(tmp_path / "c.parquet", [5.0, 6.0], (5.0, 6.0)),
    ]
    made = copied([inputs[i] for i in order], tmp_path / "copy.parquet", target_of(FLOATS, mode="full"))
    assert str(made) == f"{tmp_path / 'b.parquet'} has a manifest entry without bounds of column x"
