"""The z-order curve: every bit halves the rows, so skewed and dependent columns cluster like uniform columns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.operations.compaction.terms.recipe import KeyColumn
from icekeeper.operations.compaction.work.sort_keys import CURVE_BITS, SortKeys, fit_curve
from icekeeper.rows.arrow_schema import arrow_schema
from property.test_sort_keys import TYPES, batch_of, plain_key, schema_of

ROWS = 20_000
FILES = 64
COLUMNS = (KeyColumn(1), KeyColumn(2))


@given(st.data())
def test_a_curve_over_one_column_rises_with_its_values(data: st.DataObject) -> None:
    """For every type, a larger value never precedes a smaller value, and nulls are first."""
    kind = data.draw(st.sampled_from(sorted(TYPES)))
    values = data.draw(st.lists(st.none() | TYPES[kind], max_size=30))
    sample = data.draw(st.lists(st.none() | TYPES[kind], max_size=30))
    keys = SortKeys([KeyColumn(1)], schema_of([kind]))
    curve = fit_curve(keys.of(batch_of([kind], [(v,) for v in sample])))
    found = curve.keys(keys.of(batch_of([kind], [(v,) for v in values]))).to_pylist()
    for i, left in enumerate(values):
        for j, right in enumerate(values):
            if left is None or (right is not None and plain(kind, left) <= plain(kind, right)):
                assert found[i] <= found[j] or right is None


def plain(kind: str, value: Any) -> Any:
    return plain_key(kind, "identity", value)


@pytest.mark.parametrize("count", [1, 2, 5, 31])
def test_equal_columns_fill_the_curve(count: int) -> None:
    """Every bit halves the remaining rows, so no bit is wasted on a column that depends on another."""
    values = pa.array([*range(4096)], pa.int64())
    cells = fit_curve([values] * count).keys([values] * count).to_pylist()
    assert cells == sorted(cells)
    assert cells[0] == 0
    assert cells[-1] >= 2**CURVE_BITS - 4
    assert len(set(cells)) == 1024  # the number of ranks


def _pair(kind: str, rng: random.Random) -> tuple[int, int]:
    """A row of two columns."""
    first, second = rng.randrange(10**6), rng.randrange(10**6)
    match kind:
        case "skewed":
            return int(10**9 * rng.random() ** 9), second
        case "dependent":
            return first, 3 * first + second // 10
        case "few values":
            return first % 10, second
    return first, second


@pytest.mark.parametrize("kind", ["even", "skewed", "dependent", "few values"])
@pytest.mark.parametrize("files", [2, 16])
def test_an_even_part_of_the_curve_overlaps_no_other(kind: str, files: int) -> None:
    """Neither skew nor dependence makes the parts uneven, and no row is within the bounds of two parts."""
    rng = random.Random(files)
    rows = [_pair(kind, rng) for _ in range(ROWS)]
    cells = z_cells([list(column) for column in zip(*rows, strict=True)])
    parts: list[list[tuple[int, int]]] = [[] for _ in range(files)]
    for row, cell in zip(rows, cells, strict=True):
        parts[cell * files >> CURVE_BITS].append(row)
    assert all(0.75 * ROWS / files < len(part) < 1.25 * ROWS / files for part in parts)
    boxes = [[(min(column), max(column)) for column in zip(*part, strict=True)] for part in parts]
    for left, right in combinations(boxes, 2):
        assert any(a[1] < b[0] or b[1] < a[0] for a, b in zip(left, right, strict=True))


def touched(columns: Sequence[Sequence[int]], order: Sequence[int]) -> list[float]:
    """Per column: the average share of files whose bounds overlap a range of a twentieth of the rows."""
    size = len(order) // FILES
    shares = []
    for values in columns:
        files = [[values[row] for row in order[i * size : (i + 1) * size]] for i in range(FILES)]
        bounds = [(min(file), max(file)) for file in files]
        ranks = sorted(values)
        step = len(ranks) // 20
        ranges = [(ranks[i], ranks[min(len(ranks) - 1, i + step - 1)]) for i in range(0, len(ranks) - step, step)]
        hits = [sum(low <= b and a <= high for a, b in bounds) / FILES for low, high in ranges]
        shares.append(sum(hits) / len(hits))
    return shares


def z_cells(columns: Sequence[Sequence[int]]) -> list[int]:
    schema = {"fields": [{"id": i, "name": f"c{i}", "required": True, "type": "long"} for i in (1, 2)]}
    batch = pa.RecordBatch.from_arrays([pa.array(c, pa.int64()) for c in columns], schema=arrow_schema(schema))
    values = SortKeys(COLUMNS, schema).of(batch)
    cells: list[int] = fit_curve([array.take(pa.arange(0, ROWS, 4)) for array in values]).keys(values).to_pylist()
    return cells


def z_order(columns: Sequence[Sequence[int]]) -> list[int]:
    cells = z_cells(columns)
    return sorted(range(ROWS), key=cells.__getitem__)


def test_a_skewed_column_clusters_as_well_as_a_uniform_column() -> None:
    """A range on either column touches few files, in unsorted files all; skew costs nothing."""
    rng = random.Random(7)
    even = [[rng.randrange(10**12) for _ in range(ROWS)] for _ in range(2)]
    # Values of all magnitudes: nine tenths of them are in the lowest ten-thousandth of the range.
    skewed = [[int(10 ** (12 * rng.random() ** 3)) + rng.randrange(10) for _ in range(ROWS)] for _ in range(2)]
    unsorted_shares = touched(skewed, range(ROWS))
    assert min(unsorted_shares) > 0.9
    even_shares, skewed_shares = touched(even, z_order(even)), touched(skewed, z_order(skewed))
    # Of eight by eight cells a range overlaps one or two, and files begin and end within cells.
    assert max(even_shares) < 0.3
    assert max(skewed_shares) < 0.3
    assert max(skewed_shares) < 1.2 * max(even_shares)
    by_first = sorted(range(ROWS), key=lambda row: skewed[0][row])
    assert touched(skewed, by_first)[1] > 0.9  # the result of a sort by the first column
