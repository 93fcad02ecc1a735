"""The store itself assembles a file of row groups that it already has."""

from __future__ import annotations

import functools
import io
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.errors import StorageError
from icekeeper.model import DataFile
from icekeeper.row_group_copy.copyable import CopyableFile
from icekeeper.row_group_copy.footer import read_footer
from icekeeper.row_group_copy.merge_files import copyable_file
from icekeeper.rows.read_task import with_lineage
from icekeeper.storage.multipart import AssembledObject, assemble
from icekeeper.storage.part_plan import Part, size_of
from icekeeper.storage.storage import Storage
from support.copied import (
    FLAT,
    answering,
    judged,
    large_file,
    merged_by_the_store,
    mixed_fields,
    stored_entry,
    target_of,
)
from support.proxies import requests_of

# SeaweedFS copies the row groups of several files into one; we send page indexes and a footer.


@functools.cache
def files() -> list[bytes]:
    """Files of fixed seeds; the last two have the same size."""
    return [large_file(0), large_file(1_000_000, seed=1), large_file(1_000_000, seed=2)]


def all_rows() -> pa.Table:
    return pa.concat_tables([pq.read_table(io.BytesIO(data)) for data in files()])


@pytest.fixture(scope="module")
def properties(seaweedfs: SeaweedFSServer) -> dict[str, str]:
    seaweedfs.create_table_bucket("store-copies")
    return seaweedfs.catalog_properties("store-copies")


@pytest.fixture(scope="module")
def inputs(properties: dict[str, str]) -> list[Any]:
    """No test changes these."""
    storage, folder = Storage(properties), f"{properties['warehouse']}ns/inputs/data"
    return judged(storage, [stored_entry(storage, f"{folder}/{n}.parquet", data) for n, data in enumerate(files())])


@pytest.fixture
def storage(properties: dict[str, str]) -> Storage:
    return Storage(properties)


@pytest.fixture
def folder(properties: dict[str, str]) -> str:
    return f"{properties['warehouse']}ns/t{uuid.uuid4().hex}/data"


def uploads(storage: Storage, folder: str) -> list[Any]:
    return list(storage.s3.list_multipart_uploads(Bucket=folder.split("/")[2]).get("Uploads", ()))


def test_the_store_copies_and_a_reader_finds_every_row(storage: Storage, folder: str, inputs: list[Any]) -> None:
    """The bytes equal those of a streamed copy."""
    unread: list[int] = []
    with requests_of(storage.s3) as requests:
        made = merged_by_the_store(storage, inputs, f"{folder}/new.parquet", note_unread=unread.append)
    assert isinstance(made, DataFile)
    assert unread == [sum(file.copied_bytes for _, file in inputs)]
    assert Counter(requests) == {
        "GetObject": 1 + 3 * 2,  # the magic, and bytes of every part in both files; page indexes came with footers
        "CreateMultipartUpload": 1,
        "UploadPartCopy": 3,
        "UploadPart": 1,
        "CompleteMultipartUpload": 1,
    }
    assert (made.record_count, made.split_offsets and made.split_offsets[0]) == (2_100_000, 4)
    data = storage.read(made.file_path)
    assert made.file_size_in_bytes == len(data)
    assert pq.read_table(io.BytesIO(data)).equals(all_rows())
    storage.no_range_copies.add(folder.split("/")[2])
    streamed = merged_by_the_store(storage, inputs, f"{folder}/streamed.parquet", note_unread=unread.append)
    assert isinstance(streamed, DataFile)
    assert len(unread) == 1
    assert storage.read(streamed.file_path) == data


def test_inputs_with_and_without_a_page_index_get_a_consistent_footer(
    storage: Storage, folder: str, inputs: list[Any]
) -> None:
    """Assembled and streamed outputs are equal; they have no page index, because one input has none."""
    bare = stored_entry(storage, f"{folder}/bare.parquet", large_file(2_000_000, seed=3, page_index=False))
    mixed = [inputs[0], *judged(storage, [bare])]
    with requests_of(storage.s3) as requests:
        made = merged_by_the_store(storage, mixed, f"{folder}/new.parquet")
    assert isinstance(made, DataFile)
    assert requests.count("UploadPartCopy") >= 2
    storage.no_range_copies.add(folder.split("/")[2])
    streamed = merged_by_the_store(storage, mixed, f"{folder}/streamed.parquet")
    assert isinstance(streamed, DataFile)
    assert storage.read(streamed.file_path) == storage.read(made.file_path)
    footer = read_footer(made.file_path, storage)
    groups = footer.metadata().row_groups
    assert [group.ordinal for group in groups] == [0, 1, 2, 3]
    assert {chunk.offset_index_offset for group in groups for chunk in group.columns} == {None}
    assert mixed_fields(footer.metadata()) == []


@pytest.mark.parametrize(("status", "code", "first"), [(403, "AccessDenied", 1), (500, "InternalError", 2)])
def test_bytes_are_streamed_if_the_store_does_not_copy(
    storage: Storage, folder: str, inputs: list[Any], status: int, code: str, first: int
) -> None:
    """A refusal is remembered, a failure midway is not; neither leaves an upload."""
    storage.s3.meta.config.retries["total_max_attempts"] = 1
    with answering(storage, "UploadPartCopy", status, code, first):
        made = merged_by_the_store(storage, inputs[:2], f"{folder}/new.parquet")
    assert isinstance(made, DataFile)
    assert pq.read_table(io.BytesIO(storage.read(made.file_path))).equals(all_rows()[:1_400_000])
    assert uploads(storage, folder) == []
    with requests_of(storage.s3) as requests:
        merged_by_the_store(storage, inputs[:2], f"{folder}/next.parquet")
    assert ("UploadPartCopy" in requests) == (status == 500)


@pytest.mark.parametrize("in_store", [True, False])
def test_a_file_that_was_replaced_after_its_footer_was_read_is_refused(
    storage: Storage, folder: str, inputs: list[Any], in_store: bool
) -> None:
    """Also if its replacement has the same size."""
    changed = f"{folder}/changed.parquet"
    inputs = [inputs[0], *judged(storage, [stored_entry(storage, changed, files()[1])])]
    storage.write(changed, files()[2].ljust(len(files()[1]))[: len(files()[1])])
    if not in_store:
        storage.no_range_copies.add(folder.split("/")[2])
    refused = merged_by_the_store(storage, inputs, f"{folder}/new.parquet")
    assert str(refused) == f"{changed} changed after its footer was read"
    assert storage.size(f"{folder}/new.parquet") is None
    assert uploads(storage, folder) == []


def test_a_small_file_shares_a_sent_part_with_its_neighbour(storage: Storage, folder: str, inputs: list[Any]) -> None:
    """The bytes of the file before it are read for that."""
    small = large_file(9_000_000, 1_000)
    between = judged(storage, [stored_entry(storage, f"{folder}/small.parquet", small)])
    twice = large_file(0, 1_450_000)
    large = judged(storage, [stored_entry(storage, f"{folder}/large.parquet", twice)])
    with requests_of(storage.s3) as requests:
        made = merged_by_the_store(storage, [*large, *between, inputs[0]], f"{folder}/new.parquet")
    assert isinstance(made, DataFile)
    assert (requests.count("UploadPartCopy"), requests.count("UploadPart")) == (2, 2)
    expected = pa.concat_tables(pq.read_table(io.BytesIO(data)) for data in (twice, small, files()[0]))
    assert pq.read_table(io.BytesIO(storage.read(made.file_path))).equals(expected)


def test_small_files_are_streamed(storage: Storage, folder: str) -> None:
    """A copy would send more than a third of their bytes."""
    small = [stored_entry(storage, f"{folder}/s{n}.parquet", large_file(n * 1000, 1000)) for n in range(2)]
    with requests_of(storage.s3) as requests:
        made = merged_by_the_store(storage, judged(storage, small), f"{folder}/new.parquet")
    assert isinstance(made, DataFile)
    assert "CreateMultipartUpload" not in requests


def test_parts_that_the_store_mixes_up_are_detected(
    storage: Storage, folder: str, inputs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two ranges have the same size, their files the same shape: the footer fits both, and both decode."""

    def mixed_up(storage: Storage, path: str, parts: Sequence[Part]) -> AssembledObject | str:
        first, item, other, end = parts
        assert size_of(item) == size_of(other)
        return assemble(storage, path, (first, other, item, end))

    monkeypatch.setattr("icekeeper.row_group_copy.write_copy.assemble", mixed_up)
    with pytest.raises(StorageError, match=r"rows were not kept: the bytes from \d+ differ from those from \d+ of"):
        merged_by_the_store(storage, inputs, f"{folder}/new.parquet")


def test_an_object_that_is_replaced_before_its_proof_is_detected(
    storage: Storage, folder: str, inputs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchanged(storage: Storage, path: str, parts: Sequence[Part]) -> AssembledObject | str:
        made = assemble(storage, path, parts)
        storage.write(path, storage.read(path))
        return made

    monkeypatch.setattr("icekeeper.row_group_copy.write_copy.assemble", exchanged)
    with pytest.raises(StorageError, match="rows were not kept: the object has the ETag "):
        merged_by_the_store(storage, inputs[:1], f"{folder}/new.parquet")


# Rows of a v3 table keep their ids: the two lineage columns are sent after the copied row groups.


def test_rows_keep_their_ids_in_row_groups_that_the_store_copies(seaweedfs: SeaweedFSServer) -> None:
    """Only the second row group of the second file is copied: its row ids count from its position."""
    seaweedfs.create_table_bucket("store-copies-with-ids")
    properties = seaweedfs.catalog_properties("store-copies-with-ids")
    storage, folder = Storage(properties), f"{properties['warehouse']}ns/t{uuid.uuid4().hex}/data"
    target = target_of(with_lineage(FLAT))
    inputs = []
    for number, (rows, first_row_id) in enumerate([(700_000, 5_000), (1_500_000, 900_000)]):
        entry = stored_entry(storage, f"{folder}/{number}.parquet", large_file(0, rows, number))
        entry = replace(entry, first_row_id=first_row_id)
        file = copyable_file(entry, target, storage, 7 + number)
        assert isinstance(file, CopyableFile)
        inputs.append((entry, file if number == 0 else file.only([1])))

    with requests_of(storage.s3) as requests:
        made = merged_by_the_store(storage, inputs, f"{folder}/new.parquet", target)

    assert isinstance(made, DataFile)
    assert requests.count("UploadPartCopy") >= 1
    table = pq.read_table(io.BytesIO(storage.read(made.file_path)))
    copied = inputs[1][1].row_count
    skipped = 1_500_000 - copied
    assert table.num_rows == 700_000 + copied
    expected = {
        "id": [pa.arange(0, 700_000), pa.arange(skipped, 1_500_000)],
        "_row_id": [pa.arange(5_000, 705_000), pa.arange(900_000 + skipped, 2_400_000)],
        "_last_updated_sequence_number": [pa.repeat(pa.scalar(7), 700_000), pa.repeat(pa.scalar(8), copied)],
    }
    for name, parts in expected.items():
        assert table[name].equals(pa.chunked_array(parts)), name
