"""Takes an Avro container file apart that lies in memory: its header, and its blocks decompressed.

fastavro parses the schema of every file anew, which takes longer than to read a small manifest or manifest list; here
nothing is parsed but the header's texts.
Source: Apache Avro 1.12 specification, "Object Container Files".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from icekeeper.machine.foreign_bytes import FileLimits
from icekeeper.metadata.avro_values import read_bytes, read_long, read_string, require_possible

__all__ = ["SYNC_BYTES", "AvroContainer", "open_container"]

SYNC_BYTES = 16
"""The length of the marker behind each block, with which a file's header ends too."""

_MAGIC = b"Obj\x01"
# What becomes of an entry or of a line of a manifest list, path and numbers included; some writers' take more.
_RECORD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class AvroContainer:
    """A container file."""

    data: bytes
    header: Mapping[str, str]
    blocks_at: int
    """Where the first block begins."""
    limits: FileLimits
    """What the file may still unfold to."""

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """The number of records of each block, and their bytes.

        Raises:
            MetadataUnreadable: the file unfolds to more than it may.
            Exception: the file is damaged or truncated.
        """
        codec, limits = self.header.get("avro.codec", "null"), self.limits
        data, at, size = self.data, self.blocks_at, len(self.data)
        marker = data[at - SYNC_BYTES : at]
        while at < size:
            count, at = read_long(data, at)
            block, at = read_bytes(data, at)
            if not data.startswith(marker, at):
                raise EOFError("a block does not end with the file's marker")
            at += SYNC_BYTES
            records = limits.unpack(codec, block)
            limits.hold(_RECORD_BYTES * require_possible(count, len(records)))
            yield count, records


def open_container(data: bytes, path: str) -> AvroContainer:
    """Read the header.

    Raises:
        PolicyError: the setting of what files may unfold to is malformed.
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
    return AvroContainer(data, header, at + SYNC_BYTES, FileLimits(path, len(data)))
