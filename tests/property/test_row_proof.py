"""Proof before commit, over random rows of every type: kept rows are proven, and lost or changed rows are detected."""

from __future__ import annotations

import datetime
import decimal
import math
import random
import struct as binary
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.operations.compaction.terms.write_properties import metrics_modes
from icekeeper.operations.compaction.work.file_entry import float_range
from icekeeper.operations.compaction.work.proof import COUNTS, FULL, Evidence, RowProof, proof_of_file, row_checksum
from icekeeper.operations.compaction.work.write_file import write_data_file
from icekeeper.rows.arrow_schema import StoredVariant, leaf_columns
from icekeeper.storage.storage import Storage
from support.examples import examples
from support.rewrites import rows, struct, task

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
# A single NaN pattern, drawn often: the tests compare printed values.
FLOATS, DOUBLES = (st.just(math.nan) | st.floats(width=width, allow_nan=False) for width in (32, 64))
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": INT64,
    "float": FLOATS,
    "double": DOUBLES,
    "date": st.integers(-700_000, 2_900_000),
    "time": st.integers(0, 86_400 * 10**6 - 1),
    "timestamp": INT64,
    "timestamptz": INT64,
    "timestamp_ns": INT64,
    "timestamptz_ns": INT64,
    "string": TEXT,
    "binary": st.binary(max_size=40),
    "uuid": st.binary(min_size=16, max_size=16),
    "fixed[3]": st.binary(min_size=3, max_size=3),
    "decimal(9,2)": st.decimals(-(10**7) + 1, 10**7 - 1, places=2),
    "decimal(18,4)": st.decimals(-(10**14) + 1, 10**14 - 1, places=4),
    "decimal(38,10)": st.decimals(-(10**28) + 1, 10**28 - 1, places=10),
}
# Arrow's conversion from Python does not support nested extension types.
INSIDE = {"x": ("int", PRIMITIVES["int"]), "t": ("string", TEXT), "at": ("timestamp_ns", INT64)}
INNER = struct((101, "x", "int"), (102, "t", "string"), (103, "at", "timestamp_ns"))
LIST = {"type": "list", "element-id": 104, "element": struct((105, "y", "double")), "element-required": False}
MAP = {
    "type": "map",
    "key-id": 106,
    "key": "string",
    "value-id": 107,
    "value": {"type": "list", "element-id": 108, "element": "long", "element-required": False},
    "value-required": False,
}
SHREDDED: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "tiny": (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    "small": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "float": (pa.float32(), FLOATS),
    "flag": (pa.bool_(), st.booleans()),
    "many": (pa.list_(pa.struct([("value", pa.binary())])), st.just([{"value": b"x"}, {"value": None}])),
}
"""Fields of a variant with their typed values."""
TYPED = pa.struct(
    [(n, pa.struct([("value", pa.binary()), ("typed_value", kind)])) for n, (kind, _) in SHREDDED.items()]
)
VARIANT = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", TYPED)])
SCHEMA = struct(
    *((number, f"c{number}", kind) for number, kind in enumerate(PRIMITIVES, start=1)),
    (50, "point", INNER),
    (51, "points", LIST),
    (52, "by_name", MAP),
    (53, "variant", StoredVariant(VARIANT)),
)
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    **{f"c{number}": st.none() | values for number, values in enumerate(PRIMITIVES.values(), start=1)},
    "point": st.none() | st.fixed_dictionaries({name: st.none() | values for name, (_, values) in INSIDE.items()}),
    "points": st.none() | st.lists(st.none() | st.fixed_dictionaries({"y": st.none() | DOUBLES}), max_size=3),
    "by_name": st.none()
    | st.lists(
        st.tuples(TEXT, st.none() | st.lists(st.none() | INT64, max_size=2)), max_size=2, unique_by=lambda e: e[0]
    ),
    "variant": st.none()
    | st.fixed_dictionaries(
        {
            "metadata": st.binary(max_size=3),
            "value": st.none() | st.binary(max_size=3),
            "typed_value": st.none()
            | st.fixed_dictionaries(
                {
                    name: st.fixed_dictionaries({"value": st.none() | st.just(b"0"), "typed_value": st.none() | values})
                    for name, (_, values) in SHREDDED.items()
                }
            ),
        }
    ),
}
LEAVES = leaf_columns(SCHEMA)


@st.composite
def tables(draw: st.DrawFn, min_rows: int = 1) -> pa.Table:
    count = draw(st.integers(min_rows, 12))
    return rows(SCHEMA, {n: draw(st.lists(s, min_size=count, max_size=count)) for n, s in COLUMNS.items()})


def batches(table: pa.Table, size: int) -> list[pa.RecordBatch]:
    """Slices of a single batch, so that offsets are not 0."""
    (whole,) = table.combine_chunks().to_batches()
    return [whole.slice(start, size) for start in range(0, whole.num_rows, size)]


def evidence(parts: list[pa.RecordBatch], level: str = FULL) -> Evidence:
    proof = RowProof(SCHEMA, level)
    for part in parts:
        proof.add(part)
    return proof.evidence


@settings(max_examples=examples(15))
@given(tables(), st.integers(1, 5), st.sampled_from(["1", "100000000"]), st.sampled_from(["truncate(2)", "full"]))
def test_files_hold_the_written_rows_and_bounds_contain_them(table: pa.Table, size: int, group: str, mode: str) -> None:
    """This holds at both levels of proof; metrics of the entry are exact, and no bound excludes a value."""
    properties = {"write.parquet.row-group-size-bytes": group, "write.metadata.metrics.default": mode}
    parts = batches(table, size)
    with TemporaryDirectory() as folder:
        path = f"{folder}/out.parquet"
        work = task(SCHEMA, [], Path(folder), table_properties=properties)
        file = write_data_file(path, parts, work, Storage({}))
        assert file is not None
        # Readers disagree on the order of uuids, so footers state no bounds of uuids.
        uuids = [n for n, leaf in enumerate(LEAVES) if leaf.iceberg_type == "uuid"]
        assert [pq.read_metadata(path).row_group(0).column(n).is_stats_set for n in uuids] == [False]
        for level in (COUNTS, FULL):
            found = proof_of_file(path, SCHEMA, Storage({}), level)
            assert evidence(parts, level).contradiction(found) is None
            assert evidence(parts, level).contradiction(found + found) is not None
            if found.checksum is not None:
                other = replace(found, checksum=found.checksum ^ 1)
                assert found.contradiction(other) == "the checksums of the rows before and after writing differ"
    assert set(metrics_modes(SCHEMA, properties).values()) == {mode}
    plain = {leaf.field_id: leaf.iceberg_type for leaf in LEAVES if not leaf.repeated}
    for field_id, kind in plain.items():
        values = column(table, field_id)
        present = [ordered(kind, v) for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]
        assert (file.null_value_counts or {})[field_id] == sum(value is None for value in values)
        assert (file.value_counts or {})[field_id] == len(values)
        if kind in ("float", "double"):
            assert (file.nan_value_counts or {})[field_id] == len(values) - values.count(None) - len(present)
        low, high = ((bounds or {}).get(field_id) for bounds in (file.lower_bounds, file.upper_bounds))
        if present and low is not None:
            assert decoded(kind, low) <= min(present)
        if present and high is not None:
            assert decoded(kind, high) >= max(present)
        if present and mode == "full":
            assert (low is None) == (high is None)
            if low is not None and high is not None:  # Parquet widens a bound of 0.0 to the zero of the outer sign
                exact = decoded(kind, low), decoded(kind, high)
                assert exact == (min(present), max(present)) or [v[0] for v in exact] == [
                    min(present)[0],
                    max(present)[0],
                ]
            # Uuids never have bounds; floats have none if a row group contains only NaN.
            assert (low is None) if kind == "uuid" else (low is not None or kind in ("float", "double"))


def column(table: pa.Table, field_id: int) -> list[Any]:
    inside = {101: "x", 102: "t", 103: "at"}
    array = table.column("point" if field_id in inside else f"c{field_id}").combine_chunks()
    if field_id in inside:
        array = pa.compute.struct_field(array, inside[field_id])
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return list(array.to_pylist())


def ordered(kind: str, value: Any) -> Any:
    """The value in the order of the specification, "Bounds"."""
    if kind in ("float", "double"):
        return value, math.copysign(1, value)
    return value.encode() if isinstance(value, str) else value


def decoded(kind: str, bound: bytes) -> Any:
    """The value of a bound (specification, appendix D)."""
    if kind in ("int", "date"):
        return binary.unpack("<i", bound)[0]
    if kind in ("long", "time") or kind.startswith("timestamp"):
        return binary.unpack("<q", bound)[0]
    if kind in ("float", "double"):
        return ordered(kind, binary.unpack("<f" if kind == "float" else "<d", bound)[0])
    if kind == "boolean":
        return bound == b"\x01"
    if kind.startswith("decimal"):
        unscaled = decimal.Decimal(int.from_bytes(bound, "big", signed=True))
        return unscaled.scaleb(-int(kind[:-1].rpartition(",")[2]), decimal.Context(prec=60))
    return bound


@settings(max_examples=examples(10))
@given(tables(min_rows=2), st.integers(1, 5), st.randoms(use_true_random=False))
def test_evidence_adds_up_in_any_order_and_grouping(table: pa.Table, size: int, chance: random.Random) -> None:
    """Several tasks, or a shuffle between reading and writing, can therefore be proven together."""
    whole = evidence(batches(table, table.num_rows))
    order = list(range(table.num_rows))
    chance.shuffle(order)
    shuffled = batches(table.take(order), size)
    assert evidence(shuffled) == whole
    assert sum((evidence([part]) for part in shuffled), Evidence()) == whole


@settings(max_examples=examples(15))
@given(tables(), st.data())
def test_a_changed_value_changes_the_checksum(table: pa.Table, data: st.DataObject) -> None:
    """This holds in any column, also nested; 0.0 and -0.0 are different values."""
    name = data.draw(st.sampled_from(sorted(COLUMNS)))
    row = data.draw(st.integers(0, table.num_rows - 1))
    other = rows(SCHEMA, {n: [data.draw(s)] if n == name else [None] for n, s in COLUMNS.items()}).column(name)
    index = table.schema.get_field_index(name)
    old = table.column(index).combine_chunks()
    new = pa.concat_arrays([old.slice(0, row), other.combine_chunks(), old.slice(row + 1)])
    changed = table.set_column(index, table.schema.field(index), new)
    is_same = str(old.slice(row, 1)) == str(new.slice(row, 1))
    (before,), (after,) = table.combine_chunks().to_batches(), changed.combine_chunks().to_batches()
    assert (row_checksum(before) == row_checksum(after)) == is_same


def test_texts_too_long_for_footer_bounds_do_not_fail_the_proof(tmp_path: Path) -> None:
    """It is none either if only one of two row groups, or one of two files, has bounds."""
    schema = struct((1, "b", "string"))
    tables = [rows(schema, {"b": [text]}) for text in ("a", "x" * 10_000)]
    properties = {"write.parquet.row-group-size-bytes": "1"}
    work = task(schema, [], tmp_path, table_properties=properties)
    proof, found = RowProof(schema, COUNTS), Evidence()
    for number, chosen in enumerate(([0], [1], [0, 1])):
        parts = [batch for index in chosen for batch in tables[index].to_batches()]
        path = str(tmp_path / f"{number}.parquet")
        write_data_file(path, proof.watch(iter(parts)), work, Storage({}))
        found += proof_of_file(path, schema, Storage({}), COUNTS)
    assert proof.evidence.contradiction(found) is None


def test_values_exchanged_between_rows_are_detected() -> None:
    """Every column holds the same values as before, but two rows have exchanged a value."""
    schema = struct((1, "a", "int"), (2, "b", "string"))
    (first,) = rows(schema, {"a": [1, 2], "b": ["x", "y"]}).to_batches()
    (second,) = rows(schema, {"a": [1, 2], "b": ["y", "x"]}).to_batches()
    (columns,) = rows(schema, {"a": [2, 1], "b": ["y", "x"]}).to_batches()
    assert row_checksum(first) == row_checksum(columns)
    assert row_checksum(first) != row_checksum(second)


def test_a_long_value_is_hashed_completely() -> None:
    """This holds beside any other value, and wherever the last byte differs."""
    schema = struct((1, "b", "string"))
    values = ["x" * 70_000, "y", None, "x" * 69_999 + "y"]
    (batch,) = rows(schema, {"b": values}).to_batches()
    parts = [row_checksum(batch.slice(n, 1)) for n in range(4)]
    assert len(set(parts)) == 4
    assert sum(parts) % 2**64 == row_checksum(batch)


def test_the_checksum_is_the_same_in_every_process() -> None:
    """The tasks of a rewrite run in different processes."""
    schema = struct((1, "a", "long"), (2, "b", "string"), (3, "day", "date"))
    day = (datetime.date(2024, 2, 29) - datetime.date(1970, 1, 1)).days
    (batch,) = rows(schema, {"a": [1, None], "b": ["x", "länger als acht"], "day": [None, day]}).to_batches()
    assert row_checksum(batch) == CHECKSUM


CHECKSUM = 10214873489588209338


@settings(max_examples=examples(200))
@given(st.data(), st.sampled_from([32, 64]))
def test_the_range_of_floats_has_all_but_nan(data: st.DataObject, width: Any) -> None:
    """With any sign and any bits of NaN; a zero is either zero."""
    values = data.draw(st.lists(st.none() | st.floats(width=width) | st.floats(0, 2, width=width)))
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    found = float_range(pa.array(values, pa.float32() if width == 32 else pa.float64()))
    assert found == ((min(numbers), max(numbers)) if numbers else None)
