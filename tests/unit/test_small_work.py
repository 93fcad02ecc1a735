"""Many small groups: which of them start processes, and what is not worked out again for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from icekeeper.engines.engine import total_input_bytes
from icekeeper.engines.local_engine import SMALL_WORK_BYTES
from icekeeper.rows.arrow_schema import arrow_schema, leaf_columns, same_argument
from icekeeper.rows.project import Projection
from icekeeper.rows.read_task import InputFile, ReadTask

SCHEMA: Mapping[str, Any] = {
    "fields": [
        {"id": 1, "name": "a", "type": "long", "required": True},
        {"id": 2, "name": "b", "type": "long", "required": True},
    ]
}


def groups(count: int, files: int, size: int) -> list[ReadTask]:
    inputs = tuple(InputFile(f"/t/{number}.parquet", 300, size) for number in range(files))
    return [ReadTask(inputs=inputs, schema=SCHEMA, io_properties={})] * count


@pytest.mark.parametrize(
    ("tasks", "is_small"),
    [
        (groups(100, 2, 15_000), True),  # takes half a second, as long as workers take to start
        (groups(240, 2, 15_000), True),
        (groups(260, 2, 15_000), False),
        (groups(5_000, 2, 15_000), False),
        (groups(2, 4, 15_000_000), True),
        (groups(2, 8, 15_000_000), False),
    ],
)
def test_bytes_and_files_decide_whether_work_is_small(tasks: list[ReadTask], is_small: bool) -> None:
    size = total_input_bytes(tasks)
    assert size is not None
    assert (size < SMALL_WORK_BYTES) is is_small


def test_a_schema_is_translated_once_for_all_groups_of_a_table() -> None:
    assert arrow_schema(SCHEMA) is arrow_schema(SCHEMA)
    assert leaf_columns(SCHEMA) is leaf_columns(SCHEMA)


def test_an_equal_mapping_is_another_argument_and_few_are_kept() -> None:
    calls: list[Mapping[str, Any]] = []

    @same_argument
    def note(mapping: Mapping[str, Any]) -> int:
        calls.append(mapping)
        return len(calls)

    first, equal = {"a": 1}, {"a": 1}
    assert [note(first), note(equal), note(first), note(equal)] == [1, 2, 1, 2]
    others = [{"b": number} for number in range(8)]
    for other in others:
        note(other)
    assert note(first) == 11


def fields(first: int, second: int, *, nullable: bool = False) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, pa.int64(), nullable, {"PARQUET:field_id": str(field_id)})
            for name, field_id in (("a", first), ("b", second))
        ]
    )


@pytest.mark.parametrize("nullable", [False, True])
def test_columns_are_matched_by_id_where_a_file_has_the_names_of_the_table(nullable: bool) -> None:
    """Equal fields need no matching; with ids swapped they are not equal (rule 20)."""
    for written, expected in ((fields(1, 2, nullable=nullable), ["a", "b"]), (fields(2, 1), ["b", "a"])):
        batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], schema=written)
        projection = Projection(written, SCHEMA, {}, None)
        assert projection.file_columns == expected
        rows = projection.apply(batch)
        assert rows.schema.equals(arrow_schema(SCHEMA), check_metadata=True)
        assert rows.to_pydict() == {"a": batch[expected[0]].to_pylist(), "b": batch[expected[1]].to_pylist()}
