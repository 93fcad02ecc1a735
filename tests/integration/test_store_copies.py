"""One file made of several by the store itself: SeaweedFS copies the row groups, we send page indexes and a footer."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.model import DataFile
from icekeeper.storage.storage import Storage
from support.stored import judged, large_file, merged, requests_of, stored_entry

FILES = [large_file(number * 1_000_000) for number in range(3)]
ROWS = pa.concat_tables([pq.read_table(io.BytesIO(data)) for data in FILES])


@pytest.fixture
def storage(table_bucket: dict[str, str]) -> Storage:
    return Storage(table_bucket)


@pytest.fixture
def folder(table_bucket: dict[str, str]) -> str:
    return f"{table_bucket['warehouse']}ns/t/data"


@pytest.fixture
def inputs(storage: Storage, folder: str) -> list[Any]:
    return judged(storage, [stored_entry(storage, f"{folder}/{n}.parquet", data) for n, data in enumerate(FILES)])


def uploads(storage: Storage, folder: str) -> list[Any]:
    return list(storage.s3.list_multipart_uploads(Bucket=folder.split("/")[2]).get("Uploads", ()))


def test_the_store_copies_and_a_reader_finds_every_row(storage: Storage, folder: str, inputs: list[Any]) -> None:
    """And the bytes are those that streaming writes."""
    with requests_of(storage) as requests:
        made = merged(storage, inputs, f"{folder}/new.parquet")
    assert isinstance(made, DataFile)
    assert Counter(requests) == {
        "GetObject": 3 + 1 + 3 * 4,  # page indexes; the magic, and both ends of every part in both files
        "CreateMultipartUpload": 1,
        "UploadPartCopy": 3,
        "UploadPart": 1,
        "CompleteMultipartUpload": 1,
    }
    assert (made.record_count, made.split_offsets and made.split_offsets[0]) == (2_400_000, 4)
    data = storage.read(made.file_path)
    assert made.file_size_in_bytes == len(data)
    assert pq.read_table(io.BytesIO(data)).equals(ROWS)
    storage.no_range_copies.add(folder.split("/")[2])
    streamed = merged(storage, inputs, f"{folder}/streamed.parquet")
    assert isinstance(streamed, DataFile)
    assert storage.read(streamed.file_path) == data
