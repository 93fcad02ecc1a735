"""Puffin files and the deletion vectors in them.

Source: Puffin specification ("File structure", "Footer", blob type ``deletion-vector-v1``); ICEBERG-RULES 8.  A
deletion vector is big-endian length and CRC around a magic number and a portable 64-bit Roaring bitmap.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyroaring import BitMap64

from icekeeper.errors import MetadataUnreadable

__all__ = ["PuffinBlob", "PuffinFile", "decode_deletion_vector", "encode_deletion_vector", "encode_puffin"]

MAGIC = b"PFA1"
_VECTOR_MAGIC = bytes.fromhex("d1d33964")
_VECTOR_TYPE = "deletion-vector-v1"
# Reserved field id of the row position (specification, "Reserved Field IDs").
_POSITION_ID = 2147483645
# A bitmap's upper 32 bits select one of at most 2^31 - 1 smaller ones (Java's RoaringPositionBitmap).
_MAX_POSITION = 0x7FFFFFFE_80000000


@dataclass(frozen=True, slots=True)
class PuffinBlob:
    """Where a blob lies in its file, in bytes."""

    offset: int
    length: int
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PuffinFile:
    """A whole file, with its blobs in the order given."""

    data: bytes
    blobs: tuple[PuffinBlob, ...]


def decode_deletion_vector(blob: bytes, path: str) -> BitMap64:
    """The deleted row positions of a ``deletion-vector-v1`` blob.

    Raises:
        MetadataUnreadable: length, magic number, checksum or bitmap are wrong.
    """

    def damaged(what: str) -> MetadataUnreadable:
        return MetadataUnreadable(f"the deletion vector in {path} is damaged: {what}")

    if len(blob) < 12:
        raise damaged("it is too short")
    (length,) = struct.unpack(">I", blob[:4])
    if length + 8 != len(blob):
        raise damaged(f"it says {length} bytes and has {len(blob) - 8}")
    body = blob[4:-4]
    if body[:4] != _VECTOR_MAGIC:
        raise damaged("the magic number is wrong")
    if struct.unpack(">I", blob[-4:])[0] != zlib.crc32(body):
        raise damaged("the checksum is wrong")
    try:
        positions = BitMap64.deserialize(body[4:])
    except (ValueError, MemoryError) as error:
        raise damaged(str(error)) from error
    if positions and positions.max() > _MAX_POSITION:
        raise damaged("it holds positions that no file has")
    return positions


def encode_deletion_vector(positions: BitMap64) -> bytes:
    """A ``deletion-vector-v1`` blob, run-optimised as Java writes it."""
    optimised = positions.copy()
    optimised.run_optimize()
    body = _VECTOR_MAGIC + optimised.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def encode_puffin(vectors: Sequence[tuple[str, BitMap64]]) -> PuffinFile:
    """A Puffin file of deletion vectors, each for one data file path."""
    data = bytearray(MAGIC)
    blobs: list[PuffinBlob] = []
    footer: list[dict[str, Any]] = []
    for referenced, positions in vectors:
        blob = encode_deletion_vector(positions)
        properties = {"referenced-data-file": referenced, "cardinality": str(len(positions))}
        blobs.append(PuffinBlob(len(data), len(blob), properties))
        footer.append(
            {
                "type": _VECTOR_TYPE,
                "fields": [_POSITION_ID],
                # Both are not known before the commit; the specification demands -1 for deletion vectors.
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(data),
                "length": len(blob),
                "properties": properties,
            }
        )
        data += blob
    payload = json.dumps({"blobs": footer, "properties": {"created-by": "icekeeper"}}).encode()
    data += MAGIC + payload + struct.pack("<I", len(payload)) + bytes(4) + MAGIC
    return PuffinFile(bytes(data), tuple(blobs))
