"""Hostile bytes in a file end in a named error or the right answer, within 512 MB and ten seconds."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeeper.errors import MetadataUnreadable, PolicyError, StorageError
from icekeeper.machine import foreign_bytes
from icekeeper.machine.foreign_bytes import MAX_UNPACKED_MB, FileLimits, most_unpacked
from icekeeper.metadata.avro_values import AvroTypes
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import parse_document
from icekeeper.rows.read_task import name_mapping
from icekeeper.storage.storage import Storage
from support.hostile.avro import NULLS, avro_file, avro_long, deflated, gzipped, records_of
from support.hostile.child import FAMILIES, MOST_SECONDS, tried
from support.hostile.parsers import DOCUMENT

# The author of a table's files or of a report must not stop other tables (rule: bound-foreign-bytes).

NAMED = {
    "deletion vector": {"MetadataUnreadable", "FileUnreadable"},
    "sketch": {"StatisticsFileUnusable"},
    "Avro rows": {"FileUnreadable"},
    "Parquet rows": {"FileUnreadable"},
    "Parquet footer": {"CannotCopy"},
    "ORC rows": {"FileUnreadable"},
    "policy file": {"PolicyError"},
    "inventory": {"PolicyError"},
    "S3 Inventory": {"PolicyError", "MetadataUnreadable"},
    "control document": {"StorageError", "MetadataUnreadable"},
    "state item": {"StorageError", "MetadataUnreadable"},
    "state file": {"StorageError"},
}
"""The errors of parsers that do not only raise ``MetadataUnreadable``."""
ANSWERED = {
    "metadata.json": {"60 MB of one wide character", "UTF-16", "a key that stands twice"},
    "manifest list": {"many blocks of nulls"},
    "manifest": {"many blocks of nulls", "1,000 fields of many layouts"},
    "Puffin footer": {"a number of 4,000 digits"},
    "Avro rows": {"many blocks of nulls", "20,000 fields"},
    "inventory": {"the year 1", "a nul", "another column"},
    "state file": {  # malformed requests are skipped
        *("settings that are a number", "settings with a lone surrogate"),
        *("settings in each other", "settings with a number of 5,000 digits"),
    },
}
"""Odd cases that are valid."""
TOO_LARGE = ("GB of", "60 MB of empty", "60 MB of files", "2^32 positions", "15,000,000", "300 MB", "10,000,000 blobs")


@pytest.mark.parametrize("family", FAMILIES)
def test_hostile_bytes_end_in_a_named_error_or_an_answer(family: str, tmp_path: Path) -> None:
    attempts = tried(family, tmp_path)
    wrong = [
        attempt
        for attempt in attempts
        if attempt.error
        not in (
            {""}
            if attempt.case in ANSWERED.get(attempt.group, ())
            else NAMED.get(attempt.group, {"MetadataUnreadable"})
        )
    ]
    assert wrong == []
    assert {attempt.group for attempt in attempts} == set(FAMILIES[family])
    assert [attempt for attempt in attempts if attempt.seconds > MOST_SECONDS / 2 or "\n" in attempt.message] == []
    named = [attempt for attempt in attempts if attempt.group != "inventory"]
    bombs = [attempt for attempt in named if any(word in attempt.case for word in TOO_LARGE)]
    assert [
        attempt for attempt in bombs if "if it is valid, set ICEKEEPER_MAX_UNPACKED_MB to more" not in attempt.message
    ] == []


# The limit on the unpacked size of a file, which honest files never approach (rule: bound-foreign-bytes).

MB = 1024 * 1024


def test_an_environment_variable_sets_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzipped(b"[", b"1, ", 3 * MB, b"1]")
    monkeypatch.setenv(MAX_UNPACKED_MB, "2")
    with pytest.raises(MetadataUnreadable) as caught:
        FileLimits("s3://b/m.json", len(bomb)).unpack("gzip", bomb)
    assert str(caught.value) == (
        "s3://b/m.json unpacks to more than one file may here: 2 MB, and four times that for its values; if it is "
        "valid, set ICEKEEPER_MAX_UNPACKED_MB to more, in a process of "
        "eight times that"
    )
    monkeypatch.setenv(MAX_UNPACKED_MB, "4")
    assert len(FileLimits("s3://b/m.json", len(bomb)).unpack("gzip", bomb)) > 3 * MB


def test_the_limit_counts_all_parts_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_UNPACKED_MB, "2")
    part = deflated(b"", b"x", MB)
    limits = FileLimits("s3://b/m.avro", 99)
    assert [len(limits.unpack("deflate", part)) for _ in range(2)] == [MB, MB]
    with pytest.raises(MetadataUnreadable):
        limits.unpack("deflate", part)


@given(st.binary(max_size=300), st.integers(1, 999), st.integers(0, 9), st.integers(0, 4), st.data())
def test_deflate_unpacks_as_zlib_unpacks_it(
    part: bytes, repeated: int, level: int, strategy: int, data: st.DataObject
) -> None:
    """Damaged bytes too, except that libdeflate may accept what zlib refuses."""
    plain = part * repeated
    packing = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS, 9, strategy)
    packed = bytearray(packing.compress(plain) + packing.flush())
    assert FileLimits("f").unpack("deflate", bytes(packed)) == plain
    del packed[data.draw(st.integers(1, len(packed))) :]
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    with suppress(zlib.error):
        found = stream.decompress(bytes(packed))
        if stream.eof:
            assert FileLimits("f").unpack("deflate", bytes(packed)) == found
        else:
            with pytest.raises(ValueError, match="damaged"):
                FileLimits("f").unpack("deflate", bytes(packed))


@pytest.mark.parametrize(
    ("memory_mb", "most_mb"), [(256, 64), (512, 64), (1024, 128), (3008, 376), (10_240, 1280), (64 * 1024, 8192)]
)
def test_the_default_is_an_eighth_of_the_memory(monkeypatch: pytest.MonkeyPatch, memory_mb: int, most_mb: int) -> None:
    monkeypatch.delenv(MAX_UNPACKED_MB, raising=False)
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", str(memory_mb))
    monkeypatch.setattr("icekeeper.machine.resources.os.sysconf", lambda name: 2**20)
    foreign_bytes._default.cache_clear()
    try:
        assert most_unpacked() == most_mb * MB
    finally:
        foreign_bytes._default.cache_clear()


@pytest.mark.parametrize("text", ["0", "-1", "much", "1.5", "1" * 30, "²"])
def test_a_limit_that_is_not_a_positive_integer_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(MAX_UNPACKED_MB, text)
    with pytest.raises(PolicyError, match="environment variable ICEKEEPER_MAX_UNPACKED_MB is"):
        parse_document(json.dumps(DOCUMENT).encode(), "s3://b/m.json")


def test_only_large_files_have_a_limit_on_their_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data files have no such limit, nor do any files under a limit that the operator sets."""
    bomb, plain = deflated(b"", b"x", 80 * MB), 80 * MB
    monkeypatch.delenv(MAX_UNPACKED_MB, raising=False)
    monkeypatch.setattr(foreign_bytes, "_default", lambda: 1000 * MB)
    with pytest.raises(MetadataUnreadable, match="unpacks to 200 times its size, more than"):
        FileLimits("f", len(bomb)).unpack("deflate", bomb)
    assert len(FileLimits("f", plain // 190).unpack("deflate", bomb)) == plain
    assert len(FileLimits("f").unpack("deflate", bomb)) == plain
    small = deflated(b"", b"x", 60 * MB)
    assert len(FileLimits("f", len(small)).unpack("deflate", small)) == 60 * MB
    monkeypatch.setenv(MAX_UNPACKED_MB, "100")
    assert len(FileLimits("f", len(bomb)).unpack("deflate", bomb)) == plain


def snapshot(number: int) -> dict[str, Any]:
    """A snapshot as Iceberg-Java writes it: ids, times and paths differ, counters hardly do."""
    counters = ("added-data-files", "added-records", "added-files-size", "changed-partition-count", "total-records")
    return {
        "snapshot-id": number * 7_919_191_919_191 % 2**62,
        "sequence-number": number,
        "timestamp-ms": 1_700_000_000_000 + number * 60_000,
        "summary": {"operation": "append", **{name: str(number % 1000) for name in counters}},
        "manifest-list": f"s3://lake/db.db/events/metadata/snap-{os.urandom(16).hex()}-1-{os.urandom(16).hex()}.avro",
        "schema-id": 0,
    }


def test_honest_files_below_the_limit_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A metadata file of nearly the largest size, full of snapshots (rule: bound-foreign-bytes)."""
    monkeypatch.setenv(MAX_UNPACKED_MB, "12")
    document = {**DOCUMENT, "snapshots": [snapshot(number) for number in range(29_000)]}
    plain = json.dumps(document, separators=(",", ":")).encode()
    assert 10 * MB < len(plain) < 12 * MB
    for data in (plain, gzip.compress(plain, 1)):
        assert len(parse_document(data, "s3://b/m.json").snapshots) == 29_000


def test_a_file_larger_than_the_limit_is_not_read_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(bytes(2 * MB))
    monkeypatch.setenv(MAX_UNPACKED_MB, "1")
    with pytest.raises(MetadataUnreadable, match=rf"^{path} is larger than one file may here: 1 MB,"):
        Storage({}).read(str(path))
    monkeypatch.setenv(MAX_UNPACKED_MB, "2")
    assert len(Storage({}).read(str(path))) == 2 * MB


def types_of(kind: Any) -> tuple[AvroTypes, Any]:
    parsed: Any = fastavro.parse_schema({"type": "record", "name": "t", "fields": [{"name": "x", "type": kind}]})
    return AvroTypes(parsed), parsed


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (NULLS, 1024),
        ({"type": "array", "items": {"type": "record", "name": "r", "fields": [{"name": "n", "type": "null"}]}}, 64),
        ({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}, 64),
    ],
    ids=["nulls", "records", "fixed"],
)
def test_many_items_without_bytes_are_skipped_but_not_read(kind: Any, most: int) -> None:
    types, schema = types_of(kind)
    for count in (most, most + 1):
        data = avro_long(count) + b"\0"
        assert types.skipper(schema)(data, 0) == len(data)
        in_two = avro_long(count - 1) + avro_long(1) + b"\0"
        assert types.skipper(schema)(in_two, 0) == len(in_two)
        if count == most:
            assert len(types.reader(schema)(in_two, 0)[0]["x"]) == most
        else:
            with pytest.raises(ValueError, match=f"an array has {count} items, at most {most} are allowed"):
                types.reader(schema)(in_two, 0)


@given(
    st.sampled_from(["null", "long", "float", "string", {"type": "map", "values": "null"}])
    | st.sampled_from([{"type": "fixed", "name": "f", "size": size} for size in (0, 9)]),
    st.integers(2**20, 2**62),
    st.booleans(),
    st.sampled_from([("array", "items"), ("map", "values")]),
)
def test_a_count_of_items_beyond_the_bytes_is_refused(
    items: Any, count: int, sized: bool, kind: tuple[str, str]
) -> None:
    """For the items of a value and for the records of a block (rule: damage-ends-in-a-named-error)."""
    field = {"name": "x", "type": {"type": kind[0], kind[1]: items}}
    claim = avro_long(-count) + avro_long(8) if sized else avro_long(count)
    for records, body in ((1, claim + b"\0\0"), (count, b"\0\0\0")):
        data = avro_file({"type": "record", "name": "r", "fields": [field]}, [(records, body)])
        with pytest.raises(MetadataUnreadable, match=r"^s3://b/m\.avro is damaged or truncated: ValueError: \d+ bytes"):
            records_of(data, "s3://b/m.avro")


@pytest.mark.parametrize("codec", ["snappy", "zstandard", "bzip2", "xz"])
def test_manifests_of_every_avro_codec_are_read(codec: str) -> None:
    import bz2
    import lzma

    import pyarrow as pa

    text = b"\x06abc" * 100
    packers: Mapping[str, Callable[[], bytes]] = {
        "snappy": lambda: pa.Codec("snappy").compress(text, asbytes=True) + bytes(4),
        "zstandard": lambda: pa.Codec("zstd").compress(text, asbytes=True),
        "bzip2": lambda: bz2.compress(text),
        "xz": lambda: lzma.compress(text),
    }
    schema = {"type": "record", "name": "t", "fields": [{"name": "x", "type": "string"}]}
    assert records_of(avro_file(schema, [(100, packers[codec]())], codec), "m.avro") == [{"x": "abc"}] * 100


def test_a_deeply_nested_name_mapping_is_refused() -> None:
    """Writers of the table choose this property."""
    metadata = TableMetadata({**DOCUMENT, "properties": {"schema.name-mapping.default": "[" * 100_000}})
    with pytest.raises(StorageError, match="maximum recursion depth exceeded"):
        name_mapping(metadata)
