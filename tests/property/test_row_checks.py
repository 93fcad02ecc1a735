"""The checks of ``verify --deep``: sound entries pass, for values of every type, and each wrong statement is found."""

from __future__ import annotations

import datetime
import decimal
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType
from pyroaring import BitMap64

from icekeeper.metadata.types import FLOATS, comparable, encode, truncated_lower, truncated_upper
from icekeeper.model import DataFile, FileContent
from icekeeper.rows.arrow_schema import arrow_schema, arrow_type
from icekeeper.rows.read_task import InputFile, ReadTask
from icekeeper.verification.checks import ProblemKind
from icekeeper.verification.deep import RowIds
from icekeeper.verification.read_files import FilesToRead, read_files
from icekeeper.verification.row_checks import ColumnFacts, metric_notes, noted, vector_notes
from support.values import DOMAINS

EPOCH = datetime.datetime(1970, 1, 1)
KINDS = sorted(set(DOMAINS) - {"uuid"})  # readers disagree on the order of uuids


def raw(value: Any) -> Any:
    """A value as data files store it."""
    if isinstance(value, datetime.datetime):
        return (value.replace(tzinfo=None) - EPOCH) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date):
        return (value - EPOCH.date()).days
    if isinstance(value, datetime.time):
        return (datetime.datetime.combine(EPOCH, value) - EPOCH) // datetime.timedelta(microseconds=1)
    if isinstance(value, decimal.Decimal):
        return int(value.scaleb(-int(value.as_tuple().exponent)))
    return value.bytes if isinstance(value, uuid.UUID) else value


def data_file(rows: int, **more: Any) -> DataFile:
    return DataFile(
        **{
            "content": FileContent.DATA,
            "file_path": "f",
            "file_format": "PARQUET",
            "partition": (),
            "record_count": rows,
            "file_size_in_bytes": 1,
            **more,
        }
    )


@given(st.data(), st.sampled_from(KINDS))
def test_sound_metrics_pass_and_each_wrong_one_is_found(data: st.DataObject, kind: str) -> None:
    values = data.draw(st.lists(st.sampled_from(DOMAINS[kind]) | st.none(), min_size=1, max_size=9))
    facts = ColumnFacts("c", kind)
    cut = data.draw(st.integers(0, len(values)))
    for part in (values[:cut], values[cut:]):
        facts.add(pa.array(part, arrow_type(kind)))
    present = [raw(value) for value in values if value is not None]
    nans = sum(value != value for value in present)
    ordered = sorted((v for v in present if v == v), key=lambda v: comparable(kind, v))
    counts: dict[str, Any] = {
        "value_counts": {1: len(values)},
        "null_value_counts": {1: len(values) - len(present)},
        "nan_value_counts": {1: nans} if kind in FLOATS else {},
    }
    bounds: dict[str, Any] = {}
    if ordered:
        length = data.draw(st.integers(1, 20))
        upper = truncated_upper(kind, encode(kind, ordered[-1]), length)
        bounds["lower_bounds"] = {1: truncated_lower(kind, encode(kind, ordered[0]), length)}
        bounds["upper_bounds"] = {} if upper is None else {1: upper}

    def notes(**wrong: Any) -> list[str]:
        return list(metric_notes(data_file(len(values), **{**counts, **bounds, **wrong}), len(values), {1: facts}))

    assert notes() == []
    assert len(notes(record_count=len(values) + 1)) == 1
    for name, stated in counts.items():
        for field_id, count in stated.items():
            assert len(notes(**{name: {field_id: count + 1}})) == 1
    if ordered and ordered[0] != ordered[-1]:
        assert notes(lower_bounds={1: encode(kind, ordered[-1])}) == [
            "its lower bound of column c excludes a value that it holds"
        ]
        assert notes(upper_bounds={1: encode(kind, ordered[0])}) == [
            "its upper bound of column c excludes a value that it holds"
        ]


def test_the_boxes_of_shapes_are_no_bounds_of_their_bytes() -> None:
    facts = ColumnFacts("c", "geometry(srid:3857)")
    facts.add(pa.array([b"\x01\x01", None], pa.binary()))
    boxes = {"lower_bounds": {1: b"\x40" * 16}, "upper_bounds": {1: b"\x00" * 16}}
    assert list(metric_notes(data_file(2, null_value_counts={1: 1}, **boxes), 2, {1: facts})) == []


@given(nulls=st.integers(0, 5), stated=st.integers(0, 5))
def test_null_counts_of_columns_in_structs_count_if_readers_skip_by_them(nulls: int, stated: int) -> None:
    facts = ColumnFacts("s.c", "long", is_nested=True, nulls=nulls)
    is_skipped = (stated == 0 and nulls > 0) or (stated == 5 and nulls < 5)
    assert bool(list(metric_notes(data_file(5, null_value_counts={1: stated}), 5, {1: facts}))) is is_skipped


TRANSFORMS: dict[str, Any] = {
    "identity": lambda value: value,
    "truncate[10]": lambda value: value - value % 10,
    "bucket[4]": BucketTransform(4).transform(LongType()),
    "void": lambda value: None,
}


@given(
    st.sampled_from(sorted(TRANSFORMS)),
    st.lists(st.integers(-25, 25) | st.none(), min_size=1, max_size=12),
    st.booleans(),
)
def test_rows_are_in_the_partition_of_their_file_or_counted(
    transform: str, values: list[int | None], has_column: bool
) -> None:
    """A file that lacks the column has the value of its partition."""
    schema = {
        "type": "struct",
        "fields": [
            {"id": 1, "name": "a", "type": "long", "required": False},
            {"id": 2, "name": "b", "type": "long", "required": False},
        ],
    }
    spec = {"fields": [{"source-id": 1, "field-id": 1000, "name": "p", "transform": transform}]}
    partitions = [None if value is None else TRANSFORMS[transform](value) for value in values]
    content = pa.table({"a": values, "b": values}, schema=arrow_schema(schema))
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "f.parquet")
        pq.write_table(content if has_column else content.select(["b"]), path)
        size = Path(path).stat().st_size
        file = data_file(len(values), file_path=path, partition=(partitions[0],), file_size_in_bytes=size)
        source = InputFile(path, len(values), size)
        read = ReadTask(inputs=(source,), schema=schema, io_properties={})
        (found,) = read_files(FilesToRead(read=read, files=(file,), specs=(spec,), rows_of={}))
    strangers = sum(partition != partitions[0] for partition in partitions) if has_column else 0
    expected = [f"{strangers} of its rows belong to another partition"] if strangers else []
    assert [*found.problems] == noted(ProblemKind.WRONG_PARTITION, path, expected)
    assert (found.rows, found.failure) == (len(values), "")


@given(st.lists(st.sets(st.integers(0, 2**40), max_size=5), max_size=6))
def test_row_ids_that_files_share_are_counted(files: list[set[int]]) -> None:
    seen, known = set[int](), RowIds()
    for number, ids in enumerate(files):
        found = known.add(f"f{number}", BitMap64(ids).serialize())
        assert [p.detail for p in found] == [
            f"{count} of its live rows have the row id of a row in another file" for count in [len(ids & seen)] if count
        ]
        seen |= ids


def test_row_ids_are_dropped_beyond_the_limit() -> None:
    known = RowIds(most_bytes=1000)
    scattered = BitMap64(range(0, 2**24, 2**12)).serialize()
    assert known.add("a", BitMap64([1]).serialize()) == known.add("b", scattered) == []
    assert known.add("c", scattered) == []
    assert known.left_out == 1


@given(st.integers(1, 9), st.integers(0, 9), st.booleans())
def test_a_vector_agrees_with_its_entry_its_file_and_its_footer(count: int, highest: int, is_named: bool) -> None:
    file = data_file(count, referenced_data_file="d", content_offset=4)
    blob = {"referenced-data-file": "d" if is_named else "e", "cardinality": str(count)}
    assert len(list(vector_notes(file, count, highest, 5, blob))) == (highest >= 5) + (not is_named)
    assert len(list(vector_notes(file, count + 1, highest, None, {}))) == 1
    assert len(list(vector_notes(file, count, None, 5, None))) == 1
