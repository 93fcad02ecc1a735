"""NaN has many bit patterns: x86 computes one with a sign, Java writes one without, both are one key (rule 180).

Source: Java's ``Double.equals`` and ``Double.hashCode``, by which ``StructLikeSet`` and ``StructLikeMap`` compare.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest

from icekeeper.metadata.delete_scope import partition_key
from icekeeper.model import FileContent
from icekeeper.rows.equality_deletes import EqualityLookup, deleted_rows
from support.deletes import commit_deletes, compacted
from support.maintained_table import maintained_table
from support.readers import duckdb_rows

NAN = 0x7FF8000000000000
OF_X86 = 0xFFF8000000000000
WITH_PAYLOAD = 0x7FF8000000000001
FIELDS = {pa.float64(): ("<Q", NAN, OF_X86), pa.float32(): ("<I", 0x7FC00000, 0xFFC00000)}


def floats(kind: pa.DataType, code: str, *bits: int) -> pa.Array:
    data = b"".join(struct.pack(code, one) for one in bits)
    return pa.Array.from_buffers(kind, len(bits), [None, pa.py_buffer(data)])


@pytest.mark.parametrize("kind", list(FIELDS), ids=str)
def test_a_deleted_nan_deletes_every_nan(kind: pa.DataType) -> None:
    code, written, of_x86 = FIELDS[kind]
    zero, minus_zero = 0, 1 << (kind.bit_width - 1)
    keys = floats(kind, code, written, minus_zero)
    lookup = EqualityLookup.build([1], [keys], pa.array([5, 5], pa.int64()))
    rows = floats(kind, code, of_x86, written + 1, written, zero, minus_zero)
    assert deleted_rows([(lookup, [rows])], 1, 5).to_pylist() == [True, True, True, False, True]


def test_rows_of_a_deleted_nan_do_not_come_back(tmp_path: Path) -> None:
    with maintained_table(tmp_path) as table:
        table.create(pa.schema([("id", pa.int64()), ("x", pa.float64())]), properties={"format-version": "2"})
        for start in (0, 3):
            values = floats(pa.float64(), "<Q", OF_X86, WITH_PAYLOAD, 0)
            table.table.append(pa.table({"id": [start, start + 1, start + 2], "x": values}))
        field = pa.field("x", pa.float64(), metadata={b"PARQUET:field_id": b"2"})
        key = pa.table([floats(pa.float64(), "<Q", NAN)], schema=pa.schema([field]))
        more = {"content": FileContent.EQUALITY_DELETES, "equality_ids": (2,), "partition": ()}
        commit_deletes(table, [(key, more)])
        before = sorted(row["id"] for row in duckdb_rows(table.metadata_location))
        compacted(table)
        assert before == [2, 5] == table.readers_agree()


def test_a_partition_of_nan_is_one_partition() -> None:
    values = [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (NAN, OF_X86, WITH_PAYLOAD)]
    assert len({partition_key(0, (value,)) for value in values}) == 1
    assert partition_key(0, (0.0,)) != partition_key(0, (-0.0,))
