"""Entries of statistics files in table metadata, and theta sketches, which count distinct values (pure).

Source: specification, "Table Statistics", and the Puffin specification.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.puffin import PuffinBlob, footer_size


@dataclass(frozen=True, slots=True)
class BlobMetadata:
    """The description of a blob in table metadata; its ``snapshot_id`` may be older than that of its file."""

    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    properties: tuple[tuple[str, str], ...] = ()
    """Sorted by key, so that blobs can be compared."""

    def get(self, key: str) -> str | None:
        """A property; ``None``: it is not set."""
        return dict(self.properties).get(key)


@dataclass(frozen=True, slots=True)
class StatisticsFile:
    """A Puffin file with statistics of a snapshot; sizes in bytes."""

    snapshot_id: int
    path: str
    size: int
    footer_size: int
    blobs: tuple[BlobMetadata, ...]


def statistics_by_snapshot(metadata: TableMetadata) -> dict[int, StatisticsFile]:
    """Snapshot id → its statistics file; malformed entries are left out."""
    files = (_statistics_file(raw) for raw in metadata.statistics)
    return {file.snapshot_id: file for file in files if file is not None}


def _statistics_file(raw: Mapping[str, Any]) -> StatisticsFile | None:
    try:
        return StatisticsFile(
            snapshot_id=int(raw["snapshot-id"]),
            path=str(raw["statistics-path"]),
            size=int(raw["file-size-in-bytes"]),
            footer_size=int(raw["file-footer-size-in-bytes"]),
            blobs=tuple(
                BlobMetadata(
                    str(blob["type"]),
                    tuple(int(field_id) for field_id in blob["fields"]),
                    int(blob["snapshot-id"]),
                    int(blob["sequence-number"]),
                    tuple(sorted((blob.get("properties") or {}).items())),
                )
                for blob in raw["blob-metadata"]
            ),
        )
    except (KeyError, TypeError, ValueError):
        return None


def blob_metadata(blob: PuffinBlob) -> BlobMetadata:
    """The table metadata's description of a blob in a Puffin footer."""
    properties = tuple(sorted(blob.properties.items()))
    return BlobMetadata(blob.type, blob.fields, blob.snapshot_id, blob.sequence_number, properties)


def statistics_entry(snapshot_id: int, path: str, data: bytes, blobs: Sequence[PuffinBlob]) -> dict[str, Any]:
    """The entry in ``statistics`` for a snapshot's Puffin file of these bytes and blobs."""
    return {
        "snapshot-id": snapshot_id,
        "statistics-path": path,
        "file-size-in-bytes": len(data),
        "file-footer-size-in-bytes": footer_size(data, path),
        "blob-metadata": [
            {
                "type": blob.type,
                "snapshot-id": blob.snapshot_id,
                "sequence-number": blob.sequence_number,
                "fields": list(blob.fields),
                "properties": dict(blob.properties),
            }
            for blob in blobs
        ],
    }


# A theta sketch estimates the number of distinct values from their smallest hashes.
#
# It keeps at most ``NOMINAL`` hashes.  Up to that number it is exact.  Above it, theta is the smallest hash that was
# left out, and shows which share of all hashes the sketch has.  The bytes are the compact, ordered form of Apache
# DataSketches (serial version 3), which the Puffin specification requires for ``apache-datasketches-theta-v1`` blobs.
# The library's Python package accepts no bytes as values, and needs NumPy.  Sources: DataSketches, "Theta Sketch
# Framework" and Java's ``PreambleUtil``; Dasgupta, Lang, Rhodes, Thaler 2015.

# DataSketches' DEFAULT_UPDATE_SEED and DEFAULT_NOMINAL_ENTRIES.
SEED = 9001
NOMINAL = 4096
ALL_HASHES = 2**63 - 1
"""Theta of a sketch that contains all hashes.  Hashes are positive and smaller than this."""

_SERIAL_VERSION, _FAMILY_COMPACT = 3, 3
_BIG_ENDIAN, _READ_ONLY, _EMPTY, _COMPACT, _ORDERED, _SINGLE = 1, 2, 4, 8, 16, 32
# ThetaUtil.computeSeedHash(9001); readers refuse to mix sketches with different seed hashes.
_SEED_HASH = 0x93CC
# Preamble longs, serial version, family, two sizes that compact sketches do not have, flags, seed hash.
_START = struct.Struct("<BBBBBBH")
# Number of hashes; the sampling probability, which is 1.
_COUNT = struct.Struct("<if")
_THETA = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class ThetaSketch:
    """Distinct hashes, ascending, all below theta."""

    hashes: tuple[int, ...] = ()
    theta: int = ALL_HASHES

    @property
    def estimate(self) -> float:
        """The number of distinct values; exact if no hash was left out."""
        if self.theta == ALL_HASHES:
            return float(len(self.hashes))
        return len(self.hashes) * (float(ALL_HASHES) / self.theta)


def sketch_of(hashes: Iterable[int], theta: int = ALL_HASHES) -> ThetaSketch:
    """The sketch of these hashes; hashes from ``theta`` up are left out."""
    kept = sorted(h for h in set(hashes) if h < theta)
    if len(kept) > NOMINAL:
        return ThetaSketch(tuple(kept[:NOMINAL]), kept[NOMINAL])
    return ThetaSketch(tuple(kept), theta)


def union(sketches: Iterable[ThetaSketch]) -> ThetaSketch:
    """The sketch of the values of all these sketches."""
    result = ThetaSketch()
    for sketch in sketches:
        result = sketch_of((*result.hashes, *sketch.hashes), min(result.theta, sketch.theta))
    return result


def encode_theta(sketch: ThetaSketch) -> bytes:
    """The compact form, byte for byte Java's ``CompactSketch.toByteArray``."""
    flags = _READ_ONLY | _COMPACT | _ORDERED
    hashes = struct.pack(f"<{len(sketch.hashes)}q", *sketch.hashes)
    if sketch.theta < ALL_HASHES:
        counted = _COUNT.pack(len(sketch.hashes), 1.0) + _THETA.pack(sketch.theta)
        return _start(3, flags) + counted + hashes
    if not sketch.hashes:
        return _START.pack(1, _SERIAL_VERSION, _FAMILY_COMPACT, 0, 0, flags | _EMPTY, 0)
    if len(sketch.hashes) == 1:
        return _start(1, flags | _SINGLE) + hashes
    return _start(2, flags) + _COUNT.pack(len(sketch.hashes), 1.0) + hashes


def _start(longs: int, flags: int) -> bytes:
    return _START.pack(longs, _SERIAL_VERSION, _FAMILY_COMPACT, 0, 0, flags, _SEED_HASH)


def decode_theta(data: bytes, path: str) -> ThetaSketch:
    """The sketch of a blob in the Puffin file at ``path``.

    Raises:
        MetadataUnreadable: the blob is damaged, or is not a compact sketch of the default seed.
    """

    def damaged(what: str) -> MetadataUnreadable:
        return MetadataUnreadable(f"a theta sketch in {path} cannot be read: {what}")

    try:
        longs, version, family, _, _, flags, seed_hash = _START.unpack_from(data)
        longs &= 0x3F  # only updatable sketches use the upper bits
        if (version, family) != (_SERIAL_VERSION, _FAMILY_COMPACT) or flags & _BIG_ENDIAN or not 1 <= longs <= 3:
            raise damaged("it is not a compact sketch")
        if flags & _EMPTY:
            return ThetaSketch()
        if seed_hash != _SEED_HASH:
            raise damaged("it was made with another seed")
        count = 1 if longs == 1 else _COUNT.unpack_from(data, 8)[0]
        theta = _THETA.unpack_from(data, 16)[0] if longs == 3 else ALL_HASHES
        hashes = struct.unpack_from(f"<{count}q", data, 8 * longs)
    except struct.error as error:
        raise damaged(str(error)) from error
    if len(data) != 8 * (longs + count) or any(not 0 < h < theta for h in hashes):
        raise damaged("its hashes do not fit its header")
    return ThetaSketch(tuple(sorted(set(hashes))), theta)
