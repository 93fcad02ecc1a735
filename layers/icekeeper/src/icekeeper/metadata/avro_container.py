"""Takes an Avro container file apart that lies in memory: its header, and its blocks decompressed.

fastavro parses the schema of every file anew, which takes longer than to read a small manifest or manifest list; here
nothing is parsed but the header's texts.  Codecs that manifests are hardly ever written with are left to fastavro.
Source: Apache Avro 1.12 specification, "Object Container Files".
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro

from icekeeper.metadata.avro_values import read_bytes, read_long, read_string, require_possible

__all__ = ["SYNC_BYTES", "AvroContainer", "open_container"]

SYNC_BYTES = 16
"""The length of the marker behind each block, with which a file's header ends too."""

_MAGIC = b"Obj\x01"
_DECOMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "null": lambda data: data,
    "deflate": lambda data: zlib.decompressobj(-zlib.MAX_WBITS).decompress(data),
}


@dataclass(frozen=True, slots=True)
class AvroContainer:
    """A container file."""

    data: bytes
    header: Mapping[str, str]
    blocks_at: int
    """Where the first block begins."""

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """The number of records of each block, and their bytes.

        Raises:
            Exception: the file is damaged or truncated.
        """
        decompress = _DECOMPRESS.get(self.header.get("avro.codec", "null"))
        if decompress is None:
            other: Any  # its type lacks the bytes
            for other in fastavro.block_reader(io.BytesIO(self.data)):
                records = other.bytes_.getvalue()
                yield require_possible(other.num_records, len(records)), records
            return
        data, at, size = self.data, self.blocks_at, len(self.data)
        marker = data[at - SYNC_BYTES : at]
        while at < size:
            count, at = read_long(data, at)
            block, at = read_bytes(data, at)
            if not data.startswith(marker, at):
                raise EOFError("a block does not end with the file's marker")
            at += SYNC_BYTES
            records = decompress(block)
            yield require_possible(count, len(records)), records


def open_container(data: bytes) -> AvroContainer:
    """Read the header.

    Raises:
        Exception: the bytes are not an Avro file.
    """
    if not data.startswith(_MAGIC):
        raise ValueError("it does not begin as one")
    header: dict[str, str] = {}
    count, at = read_long(data, len(_MAGIC))
    while count:
        if count < 0:  # the size of these pairs in bytes follows
            _, at = read_long(data, at)
        for _ in range(abs(count)):
            key, at = read_string(data, at)
            header[key], at = read_string(data, at)
        count, at = read_long(data, at)
    if at + SYNC_BYTES > len(data):
        raise EOFError("its header is cut off")
    return AvroContainer(data, header, at + SYNC_BYTES)
