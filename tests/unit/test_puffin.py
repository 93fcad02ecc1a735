"""Puffin files and deletion vectors: the golden files of other implementations, round trips, damage by name."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.puffin import (
    DELETION_VECTOR,
    PuffinBlob,
    decode_deletion_vector,
    decode_footer,
    encode_deletion_vector,
    encode_puffin,
)
from support.corpus import require_corpus

MAGIC = bytes.fromhex("d1d33964")
FRAMED = [
    "all-container-types-position-index.bin",
    "empty-position-index.bin",
    "small-alternating-values-position-index.bin",
    "small-and-large-values-position-index.bin",
]
BITMAPS = ["64map32bitvals.bin", "64mapempty.bin", "64mapspreadvals.bin"]
BLOB = encode_deletion_vector(BitMap64([1, 2, 3, 2**33]))
PUFFIN = encode_puffin([("a", BitMap64([1])), ("b", BitMap64([2, 3]))], {"created-by": "me"})


def framed(bitmap: bytes) -> bytes:
    body = MAGIC + bitmap
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def golden(name: str) -> tuple[bytes, dict[str, Any]]:
    vectors = require_corpus() / "vectors"
    return (vectors / "deletes" / name).read_bytes(), json.loads((vectors / "dv_expected.json").read_text())[name]


def fingerprint(positions: BitMap64) -> str:
    return hashlib.sha256(",".join(map(str, positions)).encode()).hexdigest()


@pytest.mark.parametrize("name", FRAMED)
def test_our_bytes_are_javas(name: str) -> None:
    """Every kind of Roaring container, runs too."""
    blob, told = golden(name)
    positions = decode_deletion_vector(blob, name, told["count"])
    assert fingerprint(positions) == told["sha256_of_comma_joined"]
    assert encode_deletion_vector(positions) == blob
    again = BitMap64()
    for position in positions:  # as a writer collects them, without runs
        again.add(position)
    assert encode_deletion_vector(again) == blob


@pytest.mark.parametrize("name", BITMAPS)
def test_bitmaps_of_other_writers_are_read(name: str) -> None:
    bitmap, told = golden(name)
    positions = decode_deletion_vector(framed(bitmap), name, told["count"])
    assert fingerprint(positions) == told["sha256_of_comma_joined"]


def test_a_mangled_bitmap_is_rejected() -> None:
    bitmap, _ = golden("64maphighvals.bin")
    with pytest.raises(MetadataUnreadable, match="deletion vector in x is damaged"):
        decode_deletion_vector(framed(bitmap), "x", 0)


def test_positions_beyond_any_file_are_rejected() -> None:
    """Java's upper half is a signed number."""
    assert decode_deletion_vector(framed(BitMap64([0x7FFFFFFE80000000]).serialize()), "x", 1)
    with pytest.raises(MetadataUnreadable, match="positions that no file has"):
        decode_deletion_vector(framed(BitMap64([0x7FFFFFFE80000001]).serialize()), "x", 1)


@given(st.sets(st.integers(0, 2**34), max_size=50), st.integers(0, 2**20), st.integers(0, 5000))
def test_positions_come_back(scattered: set[int], start: int, length: int) -> None:
    """Scattered ones and a run."""
    positions = BitMap64(scattered) | BitMap64(range(start, start + length))
    before = positions.copy()
    assert decode_deletion_vector(encode_deletion_vector(positions), "x", len(before)) == before
    assert positions == before


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda blob: blob[:11], "too short"),
        (lambda blob: blob[:-1], "it says"),
        (lambda blob: blob + b"x", "it says"),
        (lambda blob: blob[:4] + b"xxxx" + blob[8:], "magic number"),
        (lambda blob: blob[:-5] + bytes([blob[-5] ^ 1]) + blob[-4:], "checksum"),
        (lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]), "checksum"),
        (lambda blob: framed(blob[8:-6]), "deserialize"),
    ],
)
def test_damage_is_found(damage: Callable[[bytes], bytes], said: str) -> None:
    with pytest.raises(MetadataUnreadable, match=f"deletion vector in s3://b/x.puffin is damaged: .*{said}"):
        decode_deletion_vector(damage(BLOB), "s3://b/x.puffin", 4)


def test_the_cardinality_must_be_what_the_manifest_says() -> None:
    with pytest.raises(MetadataUnreadable, match="it holds 4 positions, its manifest says 3"):
        decode_deletion_vector(BLOB, "x", 3)


def test_a_puffin_file_says_what_it_holds() -> None:
    """Blob after blob, each for one data file; snapshot and sequence number are not known when it is written."""
    first, second = PUFFIN.blobs
    assert first.offset == 4
    assert second.offset == 4 + first.length
    assert decode_footer(PUFFIN.data, "x") == PUFFIN.blobs
    assert (second.type, second.fields) == (DELETION_VECTOR, (2147483645,))
    assert second.properties == {"referenced-data-file": "b", "cardinality": "2"}
    assert (second.snapshot_id, second.sequence_number, second.compression_codec) == (-1, -1, None)
    blob = PUFFIN.data[second.offset : second.offset + second.length]
    assert decode_deletion_vector(blob, "x", 2) == BitMap64([2, 3])
    assert json.loads(PUFFIN.data[4 + first.length + second.length + 4 : -12])["properties"] == {"created-by": "me"}


def test_footers_of_other_writers_are_read() -> None:
    vectors = require_corpus() / "vectors"
    for name, told in json.loads((vectors / "puffin_expected.json").read_text()).items():
        blobs = decode_footer((vectors / name).read_bytes(), name)
        assert blobs == tuple(
            PuffinBlob(
                b["type"],
                tuple(b["fields"]),
                b["offset"],
                b["length"],
                b.get("properties", {}),
                b["snapshot-id"],
                b["sequence-number"],
                b.get("compression-codec"),
            )
            for b in told["footer"]["blobs"]
        )


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[:10], "too short"),
        (lambda data: data[:-1], "no footer"),
        (lambda data: data[:-12] + struct.pack("<I", 2**31) + data[-8:], "no footer"),
        (lambda data: data[:-12] + struct.pack("<I", 20) + data[-8:], "no footer"),
        (lambda data: data[:-8] + b"\1\0\0\0PFA1", "footer is compressed"),
        (lambda data: data.replace(b'"offset"', b'"offsat"'), "cannot be understood"),
        (lambda data: data.replace(b'{"blobs"', b'["blobs"'), "cannot be understood"),
    ],
)
def test_a_damaged_footer_names_its_file(damage: Callable[[bytes], bytes], said: str) -> None:
    with pytest.raises(MetadataUnreadable, match=f"x.puffin is not a readable Puffin file: .*{said}"):
        decode_footer(damage(PUFFIN.data), "x.puffin")
