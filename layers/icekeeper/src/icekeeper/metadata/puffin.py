"""Encodes and decodes Puffin files and the deletion vectors in them (pure).

A deletion vector is a big-endian length, a magic number, a 64-bit Roaring bitmap in the portable format, and a
big-endian checksum.  Icekeeper writes the same bytes as Java's ``BitmapPositionDeleteIndex``: runs are compressed.
Source: Puffin specification, "File structure", "Footer payload", blob type ``deletion-vector-v1``.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyroaring import BitMap64

from icekeeper.errors import MetadataUnreadable
from icekeeper.machine.foreign_bytes import FileLimits, parsed_json

DELETION_VECTOR = "deletion-vector-v1"
THETA_SKETCH = "apache-datasketches-theta-v1"
_MAGIC = b"PFA1"
# Payload length, flags, magic: the fixed end of every Puffin file.
_FOOTER_END = struct.Struct("<I4s4s")
_COMPRESSED_FOOTER = 0x01
_VECTOR_MAGIC = bytes.fromhex("d1d33964")
# Reserved field id of the row position (Iceberg specification, "Reserved Field IDs").
_POSITION_ID = 2147483645
# RoaringPositionBitmap.MAX_POSITION in Java: the upper half selects one of at most 2^31 - 1 bitmaps.
_MAX_POSITION = 0x7FFFFFFE_80000000
_POSITION_BYTES = 16
# For deletion vectors the specification requires -1 as snapshot id and sequence number.
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class PuffinBlob:
    """A blob as the footer describes it; ``offset`` and ``length`` in bytes, ``fields`` are column ids."""

    type: str
    fields: tuple[int, ...]
    offset: int
    length: int
    properties: Mapping[str, str]
    snapshot_id: int = _UNKNOWN
    sequence_number: int = _UNKNOWN
    compression_codec: str | None = None


def footer_size(data: bytes, path: str) -> int:
    """Bytes from the footer's magic number to the end of the file; ``data`` is the file or its end.

    Raises:
        MetadataUnreadable: it is not a Puffin file.
    """
    return len(data) - _payload(data, path).start + len(_MAGIC)


def has_compressed_footer(data: bytes) -> bool:
    """Whether the footer is compressed; ``data`` is the file or its end."""
    return bool(data[-8] & _COMPRESSED_FOOTER)


def decode_footer(data: bytes, path: str) -> tuple[PuffinBlob, ...]:
    """The blobs of a Puffin file; ``data`` is the file, or its end from the footer's magic number on.

    Raises:
        MetadataUnreadable: the file is damaged, or its footer is compressed, which no known writer does.
    """
    payload = _payload(data, path)
    if has_compressed_footer(data):
        raise _damaged(path, "its footer is compressed")
    try:
        footer = parsed_json(data[payload.start : payload.stop], FileLimits(path))
        return tuple(map(_blob, footer["blobs"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(path, f"its footer cannot be parsed: {error!r}") from error


def _blob(entry: Mapping[str, Any]) -> PuffinBlob:
    """Raises LookupError, TypeError or ValueError: the entry is not as specified."""
    properties, codec = entry.get("properties") or {}, entry.get("compression-codec")
    texts = [entry["type"], *properties, *properties.values(), *([] if codec is None else [codec])]
    numbers = [entry[key] for key in ("offset", "length", "snapshot-id", "sequence-number")]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a blob has a type, codec or property that is not text")
    if not all(isinstance(number, int) for number in [*numbers, *entry["fields"]]):
        raise TypeError("a blob has an offset, length, id or field that is not a number")
    offset, length, snapshot_id, sequence_number = numbers
    if offset < 0 or length < 0:
        raise ValueError("a blob has a negative offset or length")
    return PuffinBlob(
        entry["type"], tuple(entry["fields"]), offset, length, properties, snapshot_id, sequence_number, codec
    )


def _payload(data: bytes, path: str) -> range:
    """The position of the footer's JSON in ``data``."""
    if len(data) < _FOOTER_END.size + len(_MAGIC):
        raise _damaged(path, "it is too short")
    length, _, magic = _FOOTER_END.unpack(data[-_FOOTER_END.size :])
    start = len(data) - _FOOTER_END.size - length
    if magic != _MAGIC or start < len(_MAGIC) or data[start - len(_MAGIC) : start] != _MAGIC:
        raise _damaged(path, "it has no footer")
    return range(start, start + length)


def _damaged(path: str, what: str) -> MetadataUnreadable:
    return MetadataUnreadable(f"{path} is not a readable Puffin file: {what}")


def decode_deletion_vector(blob: bytes, path: str, cardinality: int) -> BitMap64:
    """The ``cardinality`` deleted row positions of a ``deletion-vector-v1`` blob.

    Raises:
        MetadataUnreadable: length, magic number, checksum, bitmap or cardinality are wrong, or the positions would take
            more memory than allowed.
    """

    def damaged(what: str) -> MetadataUnreadable:
        return MetadataUnreadable(f"the deletion vector in {path} is damaged: {what}")

    if len(blob) < 12:
        raise damaged("it is too short")
    (length,) = struct.unpack(">I", blob[:4])
    if length + 8 != len(blob):
        raise damaged(f"its length is {length} bytes, but it has {len(blob) - 8}")
    body = blob[4:-4]
    if body[:4] != _VECTOR_MAGIC:
        raise damaged("the magic number is wrong")
    if struct.unpack(">I", blob[-4:])[0] != zlib.crc32(body):
        raise damaged("the checksum is wrong")
    # A few bytes may encode a long run, and applying the positions copies them into an array.
    FileLimits(f"the deletion vector in {path}").hold(_POSITION_BYTES * cardinality)
    try:
        positions = BitMap64.deserialize(body[4:])
    except (ValueError, MemoryError, IndexError) as error:
        raise damaged(str(error)) from error
    if positions and positions.max() > _MAX_POSITION:
        raise damaged("it contains positions that no file has")
    if len(positions) != cardinality:
        raise damaged(f"it contains {len(positions)} positions, but its manifest says {cardinality}")
    return positions


def encode_deletion_vector(positions: BitMap64) -> bytes:
    """The ``deletion-vector-v1`` blob of these row positions."""
    optimised = positions.copy()
    optimised.run_optimize()
    body = _VECTOR_MAGIC + optimised.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def encode_puffin(
    vectors: Sequence[tuple[str, BitMap64]], properties: Mapping[str, str]
) -> tuple[bytes, tuple[PuffinBlob, ...]]:
    """A Puffin file of deletion vectors, each given with the path of its data file; and the file's blobs in order.

    ``properties``: the properties of the Puffin file.
    """
    contents = []
    for referenced, positions in vectors:
        about = {"referenced-data-file": referenced, "cardinality": str(len(positions))}
        contents.append((PuffinBlob(DELETION_VECTOR, (_POSITION_ID,), 0, 0, about), encode_deletion_vector(positions)))
    return encode_blobs(contents, properties)


def encode_blobs(
    contents: Iterable[tuple[PuffinBlob, bytes]], properties: Mapping[str, str]
) -> tuple[bytes, tuple[PuffinBlob, ...]]:
    """A Puffin file of these blobs, and the blobs with their offsets and lengths."""
    data = bytearray(_MAGIC)
    blobs: list[PuffinBlob] = []
    for about, blob in contents:
        blobs.append(replace(about, offset=len(data), length=len(blob)))
        data += blob
    payload = json.dumps({"blobs": [_footer_entry(blob) for blob in blobs], "properties": dict(properties)}).encode()
    data += _MAGIC + payload + _FOOTER_END.pack(len(payload), bytes(4), _MAGIC)
    return bytes(data), tuple(blobs)


def _footer_entry(blob: PuffinBlob) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": blob.type,
        "fields": list(blob.fields),
        "snapshot-id": blob.snapshot_id,
        "sequence-number": blob.sequence_number,
        "offset": blob.offset,
        "length": blob.length,
    }
    if blob.compression_codec is not None:
        entry["compression-codec"] = blob.compression_codec
    if blob.properties:
        entry["properties"] = dict(blob.properties)
    return entry
