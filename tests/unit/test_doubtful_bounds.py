"""Bounds that cannot be believed never become narrow ones: of a copy, of a part, or of the rows that keys may be in."""

from __future__ import annotations

import math
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from struct import pack
from typing import Any

import pyarrow.parquet as pq
import pytest

from icekeeper.metadata.single_value import encode
from icekeeper.model import DataFile
from icekeeper.operations.compaction.copy_row_groups import column_ranges
from icekeeper.row_group_copy.copyable import CopyableFile
from icekeeper.row_group_copy.footer_decisions import hides_bounds
from icekeeper.row_group_copy.footer_structs import ColumnMetaData, FileMetaData, Statistics
from icekeeper.row_group_copy.merge_files import copyable_file, copyable_part
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.equality_deletes import ColumnRange
from support.copied import STORAGE, copied, entry_of, parquet_file, target_of, with_metadata
from support.rewrites import rows, struct

FLOATS = struct((1, "x", "double"))


def file_of(path: Path, values: list[float], bounds: tuple[float, float], **options: Any) -> DataFile:
    parquet_file(path, rows(FLOATS, {"x": values}), **options)
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
    """Some writers give them to files that hold NaN beside other values: then they tell nothing (rule 25).

    Those of the footer do, if it has any.
    """
    inputs = [
        file_of(tmp_path / "a.parquet", [3.0, 4.0], (3.0, 4.0)),
        file_of(tmp_path / "b.parquet", [math.nan, -9.0, 99.0], (math.nan, math.nan)),
        file_of(tmp_path / "c.parquet", [5.0, 6.0], (5.0, 6.0)),
    ]
    made = copied([inputs[i] for i in order], tmp_path / "copy.parquet", target_of(FLOATS, mode="full"))
    assert isinstance(made, DataFile), str(made)
    assert (made.lower_bounds, made.upper_bounds) == ({1: encode("double", -9.0)}, {1: encode("double", 99.0)})
    inputs[1] = file_of(tmp_path / "b.parquet", [math.nan, -9.0, 99.0], (math.nan, math.nan), write_statistics=False)
    blind = copied([inputs[i] for i in order], tmp_path / "copy.parquet", target_of(FLOATS, mode="full"))
    assert str(blind) == f"{tmp_path / 'b.parquet'} has a manifest entry without bounds of column x"


TEXTS = struct((1, "id", "long"), (2, "name", "string"), (3, "x", "double"), (4, "price", "decimal(9,2)"))


def with_turned_bounds(path: Path) -> Path:
    """The statistics of the first row group say the least value where the greatest belongs, and the other way round."""
    prices = [Decimal("-1.25"), Decimal("3.50"), Decimal("7.00"), Decimal("8.00")]
    values: dict[str, Any] = {
        "id": [1, 9, 20, 21],
        "name": ["a", "z", "b", "c"],
        "x": [-1.0, 2.0, 3.0, 4.0],
        "price": prices,
    }
    parquet_file(path, rows(TEXTS, values), row_group_size=2)

    def turn(footer: FileMetaData) -> None:
        for chunk in footer.row_groups[0].columns:
            told = chunk.meta_data.statistics
            assert told is not None
            told.min_value, told.max_value = told.max_value, told.min_value

    return with_metadata(path, turn)


def test_turned_statistics_leave_no_key_out(tmp_path: Path) -> None:
    """A writer that compares otherwise is no reason to let deleted rows come back (rule 151)."""
    footer = pq.read_metadata(with_turned_bounds(tmp_path / "a.parquet"))
    first, second = (column_ranges(footer.row_group(number), leaf_columns(TEXTS)) for number in range(2))
    assert set(first.values()) == {ColumnRange(may_be_null=False)}
    assert (second[1].least, second[1].most, second[2].least) == (20, 21, b"b")


def test_a_part_is_not_described_by_turned_statistics(tmp_path: Path) -> None:
    path = with_turned_bounds(tmp_path / "a.parquet")
    nothing = dict.fromkeys(range(1, 5), 0)
    entry = entry_of(path, value_counts=dict.fromkeys(nothing, 4), null_value_counts=nothing, nan_value_counts=nothing)
    target = target_of(TEXTS, mode="counts")
    file = copyable_file(entry, target, STORAGE)
    assert isinstance(file, CopyableFile), str(file)
    full = target_of(TEXTS, mode="full")
    assert str(copyable_part(entry, file, [0], full)).endswith("bounds of column id in some of its row groups alone")
    assert isinstance(copyable_part(entry, file, [1], full), CopyableFile)


def packed(value: float | None) -> bytes | None:
    return None if value is None else pack("<d", value)


@pytest.mark.parametrize(
    ("least", "most", "hidden"),
    [
        (None, None, False),
        (None, 1.0, False),
        (1.0, None, False),
        (1.0, 2.0, False),
        (1.0, 1.0, True),
        (-0.0, 0.0, True),
        (2.0, 1.0, True),
        (math.nan, math.nan, True),
        (math.nan, 1.0, True),
    ],
)
@pytest.mark.parametrize("deprecated", [False, True])
def test_bounds_of_floats_are_told_only_if_one_is_above_the_other(
    least: float | None, most: float | None, hidden: bool, deprecated: bool
) -> None:
    """Of a single bound no reader makes a single value (rule 122)."""
    told = Statistics(min=packed(least), max=packed(most))
    if not deprecated:
        told = Statistics(min_value=packed(least), max_value=packed(most))
    (leaf,) = leaf_columns(FLOATS)
    assert hides_bounds(ColumnMetaData(statistics=told), leaf) is hidden
    # Where no value is NaN, equal ones are the only value, but for zeros, which have two signs.
    is_one_number = least == most != 0
    assert hides_bounds(ColumnMetaData(statistics=told), leaf, may_be_nan=False) is (hidden and not is_one_number)
    assert not hides_bounds(ColumnMetaData(statistics=None), leaf)
