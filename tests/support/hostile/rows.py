"""Data and delete files, and who reads their rows."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from support.hostile.avro import avro_bombs, avro_file, avro_text, encoded


def avro_rows(folder: Path) -> Any:
    schema = {"type": "record", "name": "t", "fields": [{"name": "id", "type": "long", "field-id": 1}]}
    record = encoded(schema, {"id": 1})
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 0}
    price = {**schema, "fields": [{"name": "id", "type": decimal, "field-id": 1}]}
    return partial(read_rows, folder, "AVRO", "decimal(9,0)"), {
        **avro_bombs(schema, record),
        "a decimal of 30 MB": lambda: avro_file(price, [(1, avro_text(b"\x7f" * 30_000_000))]),
    }


def read_rows(folder: Path, file_format: str, kind: str, data: bytes) -> None:
    from icekeeper.rows.file_rows import projected_rows
    from icekeeper.rows.read_task import ReadableFile
    from icekeeper.storage.storage import Storage

    path = folder / "f"
    path.write_bytes(data)
    column = {"id": 1, "name": "id", "required": False, "type": kind if data.find(b"decimal") > 0 else "long"}
    wanted = {"type": "struct", "fields": [column]}
    for batch in projected_rows(ReadableFile(str(path), file_format), wanted, Storage({})):
        assert batch.num_columns == 1


SCHEMA = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1", "iceberg.id": "1"})])
TABLE = pa.table([pa.array(range(1000), pa.int64())], schema=SCHEMA)


def parquet_file(**options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, **options)
    return sink.getvalue()


def with_footer(footer: bytes) -> bytes:
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def varint(number: int) -> bytes:
    """As Thrift's compact protocol has numbers without a sign."""
    encoded = b""
    while number > 127:
        encoded += bytes([number & 127 | 128])
        number >>= 7
    return encoded + bytes([number])


def footers() -> dict[str, Callable[[], bytes]]:
    """Attacks on whoever reads a footer: its fields are version, schema, rows and row groups, in this order."""
    version = b"\x15\x02"
    return {
        "2,000,000 empty row groups": lambda: with_footer(
            version + b"\x39\xfc" + varint(2_000_000) + bytes(2_000_000) + b"\0"
        ),
        "a list of 2^31 columns": lambda: with_footer(version + b"\x19\xfc" + varint(2**31 - 1)),
        "a text of 2^31 bytes": lambda: with_footer(version + b"\x58" + varint(2**31 - 1) + b"x"),
        "unknown structs in each other": lambda: with_footer(version + b"\xcc" + b"\x1c" * 1_000_000),
        "a number without end": lambda: with_footer(b"\x15" + b"\xff" * 1_000_000),
        "a footer of 4 GB": lambda: b"PAR1" + b"\xff\xff\xff\xff" + b"PAR1",
        "nothing but its marks": lambda: with_footer(b""),
        "nothing": lambda: b"",
    }


def pages(data: bytes, offset: int) -> bytes:
    """A sound file with other bytes where its first page begins."""
    return data[:offset] + b"\x15\x00\x15" + varint(2 * (2**31 - 1)) + data[offset + 8 :]


def parquet_rows(folder: Path) -> Any:
    return partial(read_rows, folder, "PARQUET", "long"), {
        **footers(),
        "a page that claims 2 GB": lambda: pages(parquet_file(compression="zstd"), 4),
        "a cut file": lambda: parquet_file()[:-100],
    }


def parquet_footer(folder: Path) -> Any:
    from icekeeper.row_group_copy.footer import Footer, read_footer
    from icekeeper.row_group_copy.footer_structs import CannotCopy
    from icekeeper.storage.storage import Storage

    path = folder / "f.parquet"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        found = read_footer(str(path), Storage({}))
        if not isinstance(found, Footer):
            raise CannotCopy(found.reason)
        found.metadata()

    return read, footers()


def orc_rows(folder: Path) -> Any:
    sink = io.BytesIO()
    orc.write_table(TABLE, sink)
    sound = sink.getvalue()
    return partial(read_rows, folder, "ORC", "long"), {
        "a cut file": lambda: sound[:-50],
        "another postscript": lambda: sound[:-20] + b"\xff" * 19 + sound[-1:],
        "a postscript of 255 bytes": lambda: sound[:-1] + b"\xff",
        "nothing": lambda: b"",
    }
