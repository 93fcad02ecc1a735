"""Tables that PyIceberg writes once per test process; every later test gets a copy at another location.

A copy has a new UUID and new times.  Its snapshot ids, file names and rows are those of the original.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from sqlalchemy import text

from icekeeper.metadata.avro_values import avro_long, read_long

_DEFLATED = b"\x14avro.codec\x0edeflate"
_SYNC_BYTES = 16
_OWN = ("table-uuid", "location", "last-updated-ms")
_MOVE = text(
    "UPDATE iceberg_tables SET metadata_location = :new, previous_metadata_location = :old "
    "WHERE metadata_location = :first"
)


@dataclass(frozen=True)
class _Ready:
    """The files of a table by their paths below its location, and the values in them that a copy replaces."""

    files: dict[str, bytes]
    location: str
    uuid: str
    first: str
    """The name of the table's first metadata file, which every copy already has."""
    names: tuple[str, str]
    """The names of the newest metadata file and of its predecessor."""
    written_ms: int


_known: dict[Hashable, _Ready] = {}


def fill(catalog: SqlCatalog, table: Table, key: Hashable, write: Callable[[], None]) -> None:
    """Give a new table the rows that ``write`` appends: call it, or copy the files that it wrote under this key.

    ``key`` identifies the rows; the table's schema, specs and properties are added to it.
    """
    elsewhere = {"write.metadata.path", "write.data.path"} & table.properties.keys()
    if elsewhere or not table.metadata.location.startswith("file://"):
        write()  # files are outside the table's location, or not on this disk
        return
    empty = {name: value for name, value in json.loads(table.metadata.model_dump_json()).items() if name not in _OWN}
    # A test that makes PyArrow write other files neither uses nor provides tables of other tests.
    writer = repr(pq.ParquetWriter), getattr(pq.ParquetWriter, "write_table", None)
    key = key, json.dumps(empty, sort_keys=True), writer
    if key in _known:
        _copy(catalog, table, _known[key])
    else:
        first = table.metadata_location
        write()
        ready = _read(table.refresh(), first)
        if ready is not None:
            _known[key] = ready


def _read(table: Table, first: str) -> _Ready | None:
    """The files of a table; ``None`` if it is empty or contains links."""
    location = table.metadata.location
    folder = Path(location.removeprefix("file://"))
    found = list(folder.rglob("*"))
    if not table.metadata.snapshots or any(path.is_symlink() for path in found):
        return None
    files = {str(path.relative_to(folder)): path.read_bytes() for path in found if path.is_file()}
    name = first.rpartition("/")[2]
    files.pop(f"metadata/{name}")
    newest, before = table.metadata_location, table.metadata.metadata_log[-1].metadata_file
    names = newest.rpartition("/")[2], before.rpartition("/")[2]
    return _Ready(files, location, str(table.metadata.table_uuid), name, names, table.metadata.last_updated_ms)


def _copy(catalog: SqlCatalog, table: Table, ready: _Ready) -> None:
    location, first = table.metadata.location, table.metadata_location
    folder, first_name = Path(location.removeprefix("file://")), first.rpartition("/")[2]
    renamed = ((ready.location, location), (ready.uuid, str(table.metadata.table_uuid)), (ready.first, first_name))
    later_ms = int(time.time() * 1000) - ready.written_ms
    lengths: dict[bytes, int] = {}
    # Manifests first, because manifest lists have their lengths.
    for name, data in sorted(ready.files.items(), key=lambda item: "/snap-" in item[0]):
        # At the original's location, PyIceberg may have cached manifests by path, so they are not changed.
        if name.endswith(".avro") and location != ready.location:
            data = b"".join(_moved(data, ready.location.encode(), location.encode(), lengths))
            lengths[f"{location}/{name}".encode()] = len(data)
        elif name.endswith(".metadata.json"):
            document = data.decode()
            for old, new in renamed:
                document = document.replace(old, new)
            data = json.dumps(_later(json.loads(document), later_ms)).encode()
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    newest, before = (f"{location}/metadata/{name}" for name in ready.names)
    before = before.replace(ready.first, first_name)
    with catalog.engine.begin() as connection:
        connection.execute(_MOVE, {"new": newest, "old": before, "first": first})


def _later(document: Any, by_ms: int) -> Any:
    """The document with all times shifted."""
    if isinstance(document, list):
        return [_later(item, by_ms) for item in document]
    if not isinstance(document, dict):
        return document
    moved = {"timestamp-ms", "last-updated-ms"}
    return {k: v + by_ms if k in moved else _later(v, by_ms) for k, v in document.items()}


def _moved(data: bytes, old: bytes, new: bytes, lengths: dict[bytes, int]) -> Iterator[bytes]:
    """An Avro file with another location at the start of its paths; a manifest's length follows its path."""
    sync = data[-_SYNC_BYTES:]
    header, *_ = data.partition(sync)
    deflated = _DEFLATED in header
    yield header + sync
    place = len(header) + _SYNC_BYTES
    while place < len(data):
        count, place = read_long(data, place)
        size, place = read_long(data, place)
        block = data[place : place + size]
        place += size + _SYNC_BYTES
        block = _relocated(zlib.decompress(block, -15) if deflated else block, old, new, lengths)
        if deflated:
            packer = zlib.compressobj(wbits=-15)
            block = packer.compress(block) + packer.flush()
        yield avro_long(count) + avro_long(len(block)) + block + sync


def _relocated(block: bytes, old: bytes, new: bytes, lengths: dict[bytes, int]) -> bytes:
    parts, done = list[bytes](), 0
    for found in re.finditer(re.escape(old), block):
        at = found.start() - 2  # a path of 64 to 8,191 bytes has its length in two
        size, begin = read_long(block, at)
        assert begin == found.start(), "a path whose length does not take two bytes"
        path = new + block[found.end() : begin + size]
        parts += block[done:at], avro_long(len(path)), path
        done = begin + size
        if path in lengths:
            _, done = read_long(block, done)
            parts.append(avro_long(lengths[path]))
    return b"".join([*parts, block[done:]])
