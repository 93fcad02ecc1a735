"""Puffin files: deletion vectors, theta sketches, and errors for damaged files."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.puffin import (
    DELETION_VECTOR,
    decode_deletion_vector,
    decode_footer,
    encode_deletion_vector,
    encode_puffin,
)
from icekeeper.metadata.statistics import NOMINAL, ThetaSketch, decode_theta, encode_theta, sketch_of, union
from icekeeper.model import FileContent
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from icekeeper.operations.statistics.column_sketch import ColumnSketch, hash_bytes, hash_words
from icekeeper.rows.read_task import DeleteFile
from support.corpus import require_corpus
from support.rewrites import input_file, rows, task
from support.rewrites import struct as struct_type

# Puffin files and deletion vectors: golden files of other implementations, round trips, damaged files.

MAGIC = bytes.fromhex("d1d33964")
FRAMED = [
    "all-container-types-position-index.bin",
    "empty-position-index.bin",
    "small-alternating-values-position-index.bin",
    "small-and-large-values-position-index.bin",
]
BITMAPS = ["64map32bitvals.bin", "64mapempty.bin", "64mapspreadvals.bin"]
BLOB = encode_deletion_vector(BitMap64([1, 2, 3, 2**33]))
PUFFIN, PUFFIN_BLOBS = encode_puffin([("a", BitMap64([1])), ("b", BitMap64([2, 3]))], {"created-by": "me"})


def framed(bitmap: bytes) -> bytes:
    body = MAGIC + bitmap
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def golden(name: str) -> tuple[bytes, dict[str, Any]]:
    vectors = require_corpus() / "vectors"
    return (vectors / "deletes" / name).read_bytes(), json.loads((vectors / "dv_expected.json").read_text())[name]


def fingerprint(positions: BitMap64) -> str:
    return hashlib.sha256(",".join(map(str, positions)).encode()).hexdigest()


@pytest.mark.parametrize("name", FRAMED)
def test_encoded_vectors_equal_javas_bytes(name: str) -> None:
    """The golden files have every kind of Roaring container, also runs."""
    blob, known = golden(name)
    positions = decode_deletion_vector(blob, name, known["count"])
    assert fingerprint(positions) == known["sha256_of_comma_joined"]
    assert encode_deletion_vector(positions) == blob
    again = BitMap64()
    for position in positions:  # writers add positions singly, without runs
        again.add(position)
    assert encode_deletion_vector(again) == blob


@pytest.mark.parametrize("name", BITMAPS)
def test_bitmaps_of_other_writers_are_read(name: str) -> None:
    bitmap, known = golden(name)
    positions = decode_deletion_vector(framed(bitmap), name, known["count"])
    assert fingerprint(positions) == known["sha256_of_comma_joined"]


def test_a_bitmap_that_is_damaged_or_contradicts_its_manifest_is_rejected() -> None:
    with pytest.raises(MetadataUnreadable, match="deletion vector in x is damaged"):
        decode_deletion_vector(framed(golden("64maphighvals.bin")[0]), "x", 0)
    # Java reads the upper half as a signed number.
    assert decode_deletion_vector(framed(BitMap64([0x7FFFFFFE80000000]).serialize()), "x", 1)
    with pytest.raises(MetadataUnreadable, match="positions that no file has"):
        decode_deletion_vector(framed(BitMap64([0x7FFFFFFE80000001]).serialize()), "x", 1)
    with pytest.raises(MetadataUnreadable, match="it contains 4 positions, but its manifest says 3"):
        decode_deletion_vector(BLOB, "x", 3)


@given(st.sets(st.integers(0, 2**34), max_size=50), st.integers(0, 2**20), st.integers(0, 5000))
def test_decoded_positions_equal_the_encoded_positions(scattered: set[int], start: int, length: int) -> None:
    """Both scattered positions and a run."""
    positions = BitMap64(scattered) | BitMap64(range(start, start + length))
    before = positions.copy()
    assert decode_deletion_vector(encode_deletion_vector(positions), "x", len(before)) == before
    assert positions == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda blob: blob[:11], "too short"),
        (lambda blob: blob[:-1], "its length is"),
        (lambda blob: blob + b"x", "its length is"),
        (lambda blob: blob[:4] + b"xxxx" + blob[8:], "magic number"),
        (lambda blob: blob[:-5] + bytes([blob[-5] ^ 1]) + blob[-4:], "checksum"),
        (lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]), "checksum"),
        (lambda blob: framed(blob[8:-6]), "deserialize"),
    ],
)
def test_a_damaged_deletion_vector_is_rejected(damage: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(MetadataUnreadable, match=f"deletion vector in s3://b/x.puffin is damaged: .*{message}"):
        decode_deletion_vector(damage(BLOB), "s3://b/x.puffin", 4)


def test_a_puffin_file_lists_its_blobs() -> None:
    """Each blob belongs to one data file; snapshot and sequence number are not known at the time of writing."""
    first, second = PUFFIN_BLOBS
    assert first.offset == 4
    assert second.offset == 4 + first.length
    assert decode_footer(PUFFIN, "x") == PUFFIN_BLOBS
    assert (second.type, second.fields) == (DELETION_VECTOR, (2147483645,))
    assert second.properties == {"referenced-data-file": "b", "cardinality": "2"}
    assert (second.snapshot_id, second.sequence_number, second.compression_codec) == (-1, -1, None)
    blob = PUFFIN[second.offset : second.offset + second.length]
    assert decode_deletion_vector(blob, "x", 2) == BitMap64([2, 3])
    assert json.loads(PUFFIN[4 + first.length + second.length + 4 : -12])["properties"] == {"created-by": "me"}


def test_footers_of_other_writers_are_read() -> None:
    vectors = require_corpus() / "vectors"
    for name, known in json.loads((vectors / "puffin_expected.json").read_text()).items():
        blobs = [asdict(decoded) for decoded in decode_footer((vectors / name).read_bytes(), name)]
        defaults: dict[str, Any] = {"properties": {}, "compression-codec": None}
        assert [{key.replace("_", "-"): value for key, value in blob.items()} for blob in blobs] == [
            {**defaults, **blob, "fields": tuple(blob["fields"])} for blob in known["footer"]["blobs"]
        ]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:10], "too short"),
        (lambda data: data[:-1], "no footer"),
        (lambda data: data[:-12] + struct.pack("<I", 2**31) + data[-8:], "no footer"),
        (lambda data: data[:-12] + struct.pack("<I", 20) + data[-8:], "no footer"),
        (lambda data: data[:-8] + b"\1\0\0\0PFA1", "footer is compressed"),
        (lambda data: data.replace(b'"offset"', b'"offsat"'), "cannot be parsed"),
        (lambda data: data.replace(b'{"blobs"', b'["blobs"'), "cannot be parsed"),
    ],
)
def test_a_damaged_footer_names_its_file(damage: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(MetadataUnreadable, match=f"x.puffin is not a readable Puffin file: .*{message}"):
        decode_footer(damage(PUFFIN), "x.puffin")


# Theta sketches: the hashes and bytes of Apache DataSketches, exact up to the nominal entries, damaged sketches.

# From datasketches 5.2.0, the Apache library in C++: the single hash that a sketch retains after update().
LONGS = {
    0: 2325124908111195109,
    1: 405753591161026837,
    -1: 1043656188210950764,
    2**62: 2101392338783816263,
    -(2**63): 8761660703898668218,
    2**31: 636626271136228076,
}
TEXTS = [("ß" * (length // 2) + "x" * (length % 2)).encode() for length in range(1, 200)]
TEXTS_SHA256 = "3ebc33df3b35f8f5686d21179fd143bdf60dd0038fe44824cf704e38c063658c"
# From Iceberg-Java 1.10.2's shaded library: UpdateSketch of the Alpha family, compacted, to byte arrays.
JAVA = {
    (): "01030300001e0000",
    (1,): "01030300003acc9315f97dcbbd86a105",
    (1, 2): "02030300001acc93020000000000803f15f97dcbbd86a105c397fc1281709d1e",
}
MANY = sketch_of(range(1, 10_000))


def sketch_of_longs(*values: int) -> ThetaSketch:
    sketch = ColumnSketch("long")
    sketch.add(pa.array(values, pa.int64()))
    return sketch.sketch()


def test_hashes_equal_those_of_apache_datasketches() -> None:
    """Texts have every length from one byte to a dozen blocks."""
    words = pa.array(list(LONGS), pa.int64()).view(pa.uint64())
    assert hash_words(words, 8).to_pylist() == list(LONGS.values())
    hashes = hash_bytes(pa.array(TEXTS, pa.binary())).to_pylist()
    assert hashlib.sha256(",".join(map(str, hashes)).encode()).hexdigest() == TEXTS_SHA256


@pytest.mark.parametrize("values", JAVA, ids=len)
def test_encoded_sketches_equal_javas_bytes(values: tuple[int, ...]) -> None:
    assert encode_theta(sketch_of_longs(*values)).hex() == JAVA[values]


def test_a_sketch_is_exact_up_to_the_nominal_entries_and_close_beyond() -> None:
    for values in (0, 1, 2, NOMINAL, NOMINAL + 1, 50_000):
        sketch = sketch_of(range(1, values + 1))
        assert decode_theta(encode_theta(sketch), "x") == sketch
    assert sketch_of(range(1, NOMINAL + 1)).estimate == NOMINAL
    over = sketch_of(range(1, NOMINAL + 2))
    assert (len(over.hashes), over.theta) == (NOMINAL, NOMINAL + 1)
    error = 1 / 64  # the standard error, 1/√4096
    assert sketch_of_longs(*range(100_000)).estimate == pytest.approx(100_000, rel=3 * error)


def test_theta_of_a_union_is_the_least() -> None:
    """A hash that is above the theta of either sketch must not be in the union."""
    high = ThetaSketch((MANY.theta + 5,))
    assert union((MANY, high)) == MANY
    assert union((high, MANY)) == MANY


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:4], "requires a buffer"),
        (lambda data: data[:-8], "requires a buffer"),
        (lambda data: data + bytes(8), "do not fit"),
        (lambda data: data[:1] + b"\2" + data[2:], "not a compact sketch"),
        (lambda data: data[:2] + b"\2" + data[3:], "not a compact sketch"),
        (lambda data: data[:5] + bytes([data[5] | 1]) + data[6:], "not a compact sketch"),
        (lambda data: data[:6] + b"\0\0" + data[8:], "another seed"),
        (lambda data: data[:16] + struct.pack("<q", 5) + data[24:], "do not fit"),
    ],
)
def test_a_damaged_sketch_is_rejected(damage: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(MetadataUnreadable, match=f"a theta sketch in x.stats cannot be read: .*{message}"):
        decode_theta(damage(encode_theta(MANY)), "x.stats")


# A manifest entry with an impossible offset or size of its deletion vector fails the file group, not the operation
# (rule: unreadable-delete-blocks-its-files).

IDS = struct_type((1, "id", "long"))


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 40), (4, -1), (4, 2**40), (2**62, 40), (2**70, 40), (4, 41), (4, 0), (None, 40)]
)
def test_an_impossible_vector_offset_or_size_fails_its_group(offset: int | None, size: int, tmp_path: Path) -> None:
    source = input_file(tmp_path / "in.parquet", rows(IDS, {"id": [1, 2, 3]}))
    data, (blob,) = encode_puffin([(source.path, BitMap64([1]))], {})
    (tmp_path / "deletes.puffin").write_bytes(data)
    vector = DeleteFile(
        path=str(tmp_path / "deletes.puffin"),
        file_format="PUFFIN",
        content=FileContent.POSITION_DELETES,
        sequence_number=2,
        record_count=1,
        referenced_data_file=source.path,
        content_offset=blob.offset,
        content_size_in_bytes=blob.length,
    )
    work = task(IDS, [replace(source, deletes=(0,))], tmp_path, deletes=(vector,))
    done = rewrite_group(work)
    assert (done.error, done.rows_deleted) == (None, 1)

    misplaced = replace(vector, content_offset=offset, content_size_in_bytes=size)
    result = rewrite_group(replace(work, deletes=(misplaced,)))
    assert "deletes.puffin" in str(result.error)
    assert result.written == ()
