"""Zeros, and NaN beside one value, are found in our files by readers that take equal bounds in a footer for a value."""

from __future__ import annotations

import struct as binary
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from icekeeper.model import DataFile, FileContent
from icekeeper.operations.compaction.recipe import ClusterRecipe, KeyColumn
from icekeeper.operations.compaction.write_properties import misread_columns
from icekeeper.policy import Strategy
from icekeeper.rows.arrow_schema import leaf_columns
from support.rewrites import rewritten, rows, struct, written

NAN = float("nan")
FLOATS = struct(
    (1, "id", "int"),
    (2, "value", "double"),
    (3, "inner", struct((4, "value", "float"))),
)
BY_ID = ClusterRecipe(Strategy.SORT, (KeyColumn(1),), 512 * 1024 * 1024, 384 * 1024 * 1024)


def table(values: list[float | None], first: int = 0) -> pa.Table:
    return rows(
        FLOATS, {"id": range(first, first + len(values)), "value": values, "inner": [{"value": v} for v in values]}
    )


def found(path: str, condition: Any) -> list[int]:
    return sorted(ds.dataset(path).to_table(filter=condition)["id"].to_pylist())


def statistics(path: str, row_group: int = 0) -> list[bool]:
    footer = pq.read_metadata(path).row_group(row_group)
    return [footer.column(i).is_stats_set for i in range(3)]


@pytest.mark.parametrize("recipe", [None, BY_ID], ids=["merged", "sorted"])
@pytest.mark.parametrize("proof", ["counts", "full"])
@pytest.mark.parametrize(
    ("values", "silent"),
    [
        ([0.0, -0.0, 0.0], True),
        ([0.0, None, -0.0], True),
        ([1.5, NAN, 1.5], True),
        ([1.5, NAN, None], True),
        ([1.5, 1.5, None], False),
        ([0.0, 1.5, NAN], False),
        ([NAN, None, NAN], False),
    ],
    ids=str,
)
def test_rows_of_one_value_are_found(
    values: list[float | None], silent: bool, proof: str, recipe: ClusterRecipe | None, tmp_path: Path
) -> None:
    tables = [table(values[:2]), table(values[2:], 2)]
    file = written(rewritten(FLOATS, tables, tmp_path, proof=proof, recipe=recipe))
    whole = pa.concat_tables(tables)
    for column in (pc.field("value"), pc.field("inner", "value")):
        for condition in (
            column.isin([0.0, 7.0]),
            column.isin([-0.0, 7.0]),
            column.is_nan(),
            column != 1.5,
            column == 0.0,
            ~column.isin([1.5, 3.0]),
        ):
            assert found(file.file_path, condition) == whole.filter(condition)["id"].to_pylist(), str(condition)
    assert statistics(file.file_path) == [True, not silent, not silent]


def test_the_manifest_keeps_their_bounds_and_counts(tmp_path: Path) -> None:
    file = written(rewritten(FLOATS, [table([0.0, None]), table([NAN, 0.0])], tmp_path))
    assert file.lower_bounds is not None
    assert file.upper_bounds is not None
    assert (file.lower_bounds[2], file.upper_bounds[2]) == (binary.pack("<d", -0.0), binary.pack("<d", 0.0))
    assert (file.lower_bounds[4], file.upper_bounds[4]) == (binary.pack("<f", -0.0), binary.pack("<f", 0.0))
    assert (file.null_value_counts or {})[2] == 1
    assert (file.nan_value_counts or {})[2] == 1
    assert (file.value_counts or {})[4] == 4


def test_later_row_groups_are_known_by_the_inputs(tmp_path: Path) -> None:
    """The first row group shows nothing of the zeros that come after it; their file's manifest entry does."""
    tables = [table([1.0, 2.0]), table([0.0, -0.0], 2)]
    files = []
    for number, content in enumerate(tables):
        folder = tmp_path / str(number)
        folder.mkdir()
        files.append(written(rewritten(FLOATS, [content], folder)))
    known = misread_columns(files, leaf_columns(FLOATS))
    assert known == {2, 4}
    assert misread_columns(files[:1], leaf_columns(FLOATS)) == frozenset()
    properties = {"write.parquet.row-group-size-bytes": "1"}
    file = written(rewritten(FLOATS, tables, tmp_path, table_properties=properties, misread_columns=known))
    assert pq.read_metadata(file.file_path).num_row_groups == 2
    for column in (pc.field("value"), pc.field("inner", "value")):
        assert found(file.file_path, column.isin([0.0, 7.0])) == [2]


def test_bounds_of_a_narrower_type_are_read_by_their_width() -> None:
    """Manifests keep those of a ``float`` column that became a ``double``; what is no number says nothing."""
    leaves = leaf_columns(FLOATS)
    narrow = {2: binary.pack("<f", 0.0), 4: b"?"}
    file = DataFile(
        content=FileContent.DATA,
        file_path="a",
        file_format="PARQUET",
        partition=(),
        record_count=1,
        file_size_in_bytes=1,
        lower_bounds=narrow,
        upper_bounds=narrow,
    )
    assert misread_columns([file], leaves) == {2}
    assert misread_columns([replace(file, lower_bounds=None)], leaves) == frozenset()
