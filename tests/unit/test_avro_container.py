"""Container files are taken apart as fastavro takes them apart, whatever wrote them, and refused when damaged."""

from __future__ import annotations

import io
import os
from typing import Any

import fastavro
import pytest

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.avro_files import open_container
from support.hostile.avro import records_of

SCHEMA: dict[str, Any] = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}


def written(codec: str, records: int = 300) -> bytes:
    sink = io.BytesIO()
    values = [{"n": number * 2**40} for number in range(records)]
    fastavro.writer(sink, SCHEMA, values, codec=codec, metadata={"spec-id": "0", "é": "ü"}, sync_interval=400)
    return sink.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_blocks_and_header_are_those_that_fastavro_finds(codec: str) -> None:
    data = written(codec)
    container = open_container(data, "a.avro")
    known: Any = fastavro.block_reader(io.BytesIO(data))
    assert dict(container.header) == dict(known.metadata)
    blocks = [(block.num_records, block.bytes_.getvalue()) for block in known]
    assert len(blocks) > 3
    assert [*container.blocks()] == blocks


def test_a_header_in_several_blocks_with_their_sizes_is_read() -> None:
    """Avro allows a negative count, after which the size in bytes follows."""
    plain = written("null", 0)
    container = open_container(plain, "a.avro")
    pairs = b"".join(text(key) + text(value) for key, value in container.header.items())
    sync = plain[container.blocks_at - 16 : container.blocks_at]
    count = len(container.header)
    data = b"Obj\x01" + long(-count) + long(len(pairs)) + pairs + long(1) + text("more") + text("said") + b"\0" + sync
    assert dict(open_container(data, "a.avro").header) == {**container.header, "more": "said"}


def long(value: int) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, "long", value)
    return sink.getvalue()


def text(value: str) -> bytes:
    return long(len(value.encode())) + value.encode()


def test_a_file_that_is_cut_off_anywhere_but_between_blocks_is_refused() -> None:
    data = written("deflate", 120)
    container = open_container(data, "a.avro")
    ends, at = {container.blocks_at}, container.blocks_at
    marker = data[at - 16 : at]
    while (at := data.find(marker, at)) > 0:
        at += 16
        ends.add(at)
    for length in range(len(data)):
        if length in ends:
            continue
        with pytest.raises(MetadataUnreadable, match=r"m\.avro"):
            records_of(data[:length], "m.avro")


def test_a_block_that_does_not_end_with_the_marker_is_refused() -> None:
    data = written("deflate")
    with pytest.raises(MetadataUnreadable, match="does not end with the file's marker"):
        records_of(data[:-16] + os.urandom(16), "m.avro")
