"""A new footer is uniform: every optional field has a decision, and every decision is applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from icekeeper.model import DataFile
from icekeeper.row_group_copy import footer_structs
from icekeeper.row_group_copy.copyable import judge_file
from icekeeper.row_group_copy.footer import column_index, offset_index, read_footer
from icekeeper.row_group_copy.footer_decisions import DECISIONS, Decision
from icekeeper.row_group_copy.footer_structs import (
    BoundingBox,
    Empty,
    FileMetaData,
    GeospatialStatistics,
    KeyValue,
    NotCopyable,
    RowGroup,
    SortingColumn,
)
from support.copied import STORAGE, copied, entry_of, footer_of, mixed_fields, parquet_file, target_of, with_metadata
from support.rewrites import rows, struct

_FIELDS = Path(__file__).parents[1] / "support" / "parquet_footer_fields.txt"
FLAT = struct((1, "id", "long"), (2, "price", "double"), (3, "text", "string"))


class Field(NamedTuple):
    """A field of the format."""

    structure: str
    number: int
    is_required: bool
    name: str


def format_fields() -> Iterator[Field]:
    structure = ""
    for line in _FIELDS.read_text().splitlines():
        if line.startswith("  "):
            number, needed, _, name = line.split()
            yield Field(structure, int(number), needed == "required", name)
        elif line and not line.startswith("#"):
            structure = line


FIELDS = list(format_fields())
OPTIONAL = [field for field in FIELDS if not field.is_required]


def decision_of(field: Field) -> Decision | None:
    return DECISIONS.get(getattr(footer_structs, field.structure), {}).get(field.name)


def test_every_optional_field_of_the_format_has_a_decision() -> None:
    assert {f"{field.structure}.{field.name}" for field in OPTIONAL if decision_of(field) is None} == set()
    decided = {(kind.__name__, name) for kind, fields in DECISIONS.items() for name in fields}
    assert decided == {(field.structure, field.name) for field in OPTIONAL}


def test_structures_have_the_fields_of_the_format() -> None:
    """Files with any other field are refused, because a copy would lose the field
    (rule: copy-only-checked-footers)."""
    for field in FIELDS:
        known = getattr(footer_structs, field.structure).thrift_spec
        if field.number < len(known) and known[field.number] is not None:
            assert known[field.number][2] == field.name
        else:
            assert decision_of(field) is Decision.REFUSED


def flat_file(path: Path, first: int, price: Callable[[int], float | None] = float, **options: Any) -> Path:
    numbers = range(first, first + 50)
    texts = [f"t{n}" for n in numbers]
    values: dict[str, list[Any]] = {"id": list(numbers), "price": [price(n) for n in numbers], "text": texts}
    return parquet_file(path, rows(FLAT, values), **options)


def merged_footer(inputs: Sequence[Path | DataFile], folder: Path) -> FileMetaData:
    """The footer of a copy, which can itself be copied."""
    made = copied(inputs, folder / "copy.parquet", target_of(FLAT))
    assert isinstance(made, DataFile), str(made)
    footer = read_footer(made.file_path, STORAGE)
    judge_file(footer, target_of(FLAT))
    assert mixed_fields(footer.metadata()) == []
    return footer.metadata()


def structures(metadata: FileMetaData, name: str, group: RowGroup) -> list[Any]:
    """The structures of this name in a row group."""
    if name == "FileMetaData":
        return [metadata]
    if name == "RowGroup":
        return [group]
    found: dict[str, list[Any]] = {
        "ColumnChunk": group.columns,
        "ColumnMetaData": [chunk.meta_data for chunk in group.columns],
        "Statistics": [chunk.meta_data.statistics for chunk in group.columns],
        "SizeStatistics": [chunk.meta_data.size_statistics for chunk in group.columns],
    }
    return found[name]


_VALUES: dict[str, Any] = {
    "sorting_columns": [SortingColumn(0)],
    "key_value_metadata": [KeyValue(b"iceberg.schema", b"{}")],
    "file_path": b"there.parquet",
    "index_page_offset": 0,
    "distinct_count": 3,
    "nan_count": 0,
    "encryption_algorithm": Empty(),
    "is_max_value_exact": True,
    "is_min_value_exact": True,
    "unencoded_byte_array_data_bytes": 99,
    "geospatial_statistics": GeospatialStatistics(BoundingBox(0.0, 1.0, -1.0, 1.0), [1]),
}
"""Values for fields that Arrow does not write; other fields are removed."""
KNOWN = [field for field in OPTIONAL if field.name in getattr(footer_structs, field.structure).__slots__]


@pytest.mark.parametrize("field", KNOWN, ids=lambda field: f"{field.structure}.{field.name}")
def test_inputs_that_disagree_about_a_field_become_a_uniform_file(field: Field, tmp_path: Path) -> None:
    """The first of two files has a field that the second lacks."""
    paths = [flat_file(tmp_path / f"{n}.parquet", 50 * n) for n in range(2)]

    def put(value: Any, only: int | None = None) -> Callable[[FileMetaData], None]:
        def change(metadata: FileMetaData) -> None:
            for group in metadata.row_groups:
                for number, item in enumerate(structures(metadata, field.structure, group)):
                    if only in (None, number):
                        setattr(item, field.name, value)

        return change

    decision = decision_of(field)
    column = 2 if field.name == "unencoded_byte_array_data_bytes" else None
    if field.name in _VALUES:
        with_metadata(paths[0], put(_VALUES[field.name], column))
        with_metadata(paths[1], put(None))
    elif decision is not Decision.OWN and field.name not in ("meta_data", "created_by", "column_orders"):
        with_metadata(paths[0], put(None))
        if field.name.endswith(("_offset", "_length")) and field.structure == "ColumnChunk":
            name = field.name.replace("_offset", "_*").replace("_length", "_*")
            with_metadata(paths[0], lambda m: _without(m, name.removesuffix("_*")))
    if decision is Decision.REFUSED:
        assert isinstance(copied(paths, tmp_path / "copy.parquet", target_of(FLAT)), NotCopyable)
        return
    before = [_there(read, field) for path in paths for read in [footer_of(path)]]
    after = _there(merged_footer(paths, tmp_path), field)
    if decision is Decision.GIVEN:
        assert after
        assert all(after)
    elif decision is Decision.DROPPED:
        assert after
        assert not any(after)
    elif decision is Decision.AGREED:
        assert not any(after)  # the first input has no such field, the second has it everywhere
        assert all(before[1]) or field.name == "key_value_metadata"
    else:
        assert after == before[0] + before[1]


def _without(metadata: FileMetaData, index: str) -> None:
    """Remove a kind of page index, which has two fields."""
    for group in metadata.row_groups:
        for chunk in group.columns:
            setattr(chunk, f"{index}_offset", None)
            setattr(chunk, f"{index}_length", None)


def _there(metadata: FileMetaData, field: Field) -> list[bool]:
    """Whether each structure has the field, in order of row groups and columns."""
    return [
        item is not None and getattr(item, field.name) is not None
        for group in metadata.row_groups
        for item in structures(metadata, field.structure, group)
    ]


def stated(metadata: FileMetaData, column: int) -> list[tuple[bool, bool, bool]]:
    """Per row group: whether it states a column's bounds (also of pages), and its null count."""
    return [
        (
            chunk.meta_data.statistics is not None and chunk.meta_data.statistics.min_value is not None,
            column_index(chunk) is not None,
            chunk.meta_data.statistics is not None and chunk.meta_data.statistics.null_count is not None,
        )
        for chunk in (group.columns[column] for group in metadata.row_groups)
    ]


HIDDEN, STATED = (False, False, True), (True, True, True)


@pytest.mark.parametrize(
    ("value", "counts", "expected"),
    [
        # DataFusion takes the bounds of the others for the file's, and finds no row with the value of this row group.
        (0.0, None, [HIDDEN] * 4),
        (1.5, None, [HIDDEN] * 4),
        (math.nan, None, [HIDDEN] * 4),
        # The manifest does not count NaN.
        (1.5, {2: 0}, [STATED] * 4),
        (None, None, [(False, True, True)] * 2 + [STATED] * 2),
    ],
)
def test_no_row_group_states_bounds_that_another_must_hide(
    value: float | None, counts: dict[int, int] | None, expected: list[tuple[bool, bool, bool]], tmp_path: Path
) -> None:
    paths = [flat_file(tmp_path / "a.parquet", 0, lambda n: value), flat_file(tmp_path / "b.parquet", 50)]
    footer = merged_footer([entry_of(path, nan_value_counts=counts) for path in paths], tmp_path)
    assert stated(footer, 1) == expected
    assert stated(footer, 0) == stated(footer, 2) == [STATED] * 4


@pytest.mark.parametrize("columns", [False, ["id", "price"]])
def test_statistics_missing_in_an_input_are_dropped_from_all(columns: Any, tmp_path: Path) -> None:
    """Otherwise ``IS NULL`` and ``=`` would miss rows of the input without statistics."""
    paths = [flat_file(tmp_path / "a.parquet", 0, write_statistics=columns), flat_file(tmp_path / "b.parquet", 50)]
    footer = merged_footer(paths, tmp_path)
    assert stated(footer, 2) == [(False, False, False)] * 4
    assert stated(footer, 0) == [(bool(columns),) * 3] * 4


def test_a_page_index_missing_for_a_column_chunk_is_dropped_from_all(tmp_path: Path) -> None:
    """iceberg-rust reads a page index only if every column chunk has an offset index."""
    paths = [flat_file(tmp_path / f"{n}.parquet", 50 * n) for n in range(2)]

    def lose(metadata: FileMetaData) -> None:
        chunk = metadata.row_groups[1].columns[2]
        chunk.offset_index_offset = chunk.offset_index_length = None

    with_metadata(paths[1], lose)
    chunks = [chunk for group in merged_footer(paths, tmp_path).row_groups for chunk in group.columns]
    assert [(offset_index(chunk), column_index(chunk)) for chunk in chunks] == [(None, None)] * 12
