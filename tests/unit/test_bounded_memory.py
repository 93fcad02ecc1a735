"""What a worker holds has bounds that do not grow with its group (rule 171), in bytes that Arrow hands out."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from icekeeper.model import FileContent
from icekeeper.operations.compaction import write_file as write
from icekeeper.operations.compaction.clustering import work as sorted_files
from icekeeper.rows import file_rows as parquet_reader
from icekeeper.rows.apply_deletes import deleted_rows_of
from icekeeper.rows.file_rows import open_rows
from icekeeper.rows.read import opened_inputs
from icekeeper.rows.read_task import DeleteFile, InputFile
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage
from support.paper_s3 import PaperS3, storage_over
from support.rewrites import task

MB = 1024 * 1024
BY_POSITION = DeleteFile(
    path="d", file_format="PARQUET", content=FileContent.POSITION_DELETES, sequence_number=2, record_count=1
)
BY_KEY = replace(BY_POSITION, content=FileContent.EQUALITY_DELETES, equality_ids=(1,))
COLUMNS = 8
SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": i + 1, "name": f"c{i}", "required": False, "type": "long"} for i in range(COLUMNS)],
}


def rows(count: int, columns: int = COLUMNS) -> pa.Table:
    """Numbers that do not compress."""
    values = pa.array(memoryview(random.Random(0).randbytes(8 * count)).cast("q"), pa.int64())
    fields = [pa.field(f"c{i}", pa.int64(), metadata={"PARQUET:field_id": str(i + 1)}) for i in range(columns)]
    return pa.Table.from_arrays([values] * columns, schema=pa.schema(fields))


def file_of(path: Path, table: pa.Table, group_rows: int) -> Path:
    pq.write_table(table, path, row_group_size=group_rows, use_dictionary=False, data_page_size=64 * 1024)
    return path


def held_by_reader(path: Path) -> int:
    """The most bytes that are held besides the batch that was read last."""
    before, most = pa.total_allocated_bytes(), 0
    with pa.OSFile(str(path)) as stream:
        opened = open_rows(stream, "PARQUET")
        for batch in opened.batches(opened.schema.names):
            most = max(most, pa.total_allocated_bytes() - before - batch.nbytes)
    return most


def test_a_reader_holds_no_more_of_a_larger_row_group(tmp_path: Path) -> None:
    """16 and 64 MB; whole column chunks would be four times as much."""
    small, large = (file_of(tmp_path / str(n), rows(n * 131_072), n * 131_072) for n in (2, 8))
    assert large.stat().st_size > 60 * MB
    assert held_by_reader(large) <= held_by_reader(small) + MB


def test_columns_of_small_chunks_get_no_buffers(tmp_path: Path) -> None:
    """Buffers for each of many columns would be more than their chunks are."""
    table = rows(2_000, columns=400)
    footer = pq.read_metadata(file_of(tmp_path / "wide", table, 2_000))
    assert parquet_reader._buffer_bytes(footer, 1.0, few_reads=False) == 0
    assert parquet_reader._buffer_bytes(footer, 1.0, few_reads=True) == 0


def test_what_is_read_at_once_from_far_away_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups beyond it are read by pieces, and no more of the others together than fit."""
    path = file_of(tmp_path / "far", rows(100_000), 25_000)
    monkeypatch.setattr(parquet_reader, "_SMALL_BYTES", 0)
    for most, portions, is_buffered in ((32 * MB, 1, False), (2 * MB, 2, False), (MB, 4, True)):
        monkeypatch.setattr(parquet_reader, "_AT_ONCE_BYTES", most)
        monkeypatch.setattr(parquet_reader, "_BUFFER_BYTES", 64 * 1024)
        with pa.OSFile(str(path)) as stream:
            found = parquet_reader.open_parquet(stream, True, None, 10**9)
            assert (most, len(found.portions)) == (most, portions)
            footer = found.file.metadata
            assert bool(parquet_reader._buffer_bytes(footer, 1.0, few_reads=True)) is is_buffered
            reads = [found.file.read_row_groups(groups) for groups in found.portions]
            assert sum(read.num_rows for read in reads) == 100_000


def test_wide_rows_come_fewer_at_a_time(tmp_path: Path) -> None:
    """Rows of 1,600 bytes: as many as usual would be 200 MB."""
    path = file_of(tmp_path / "wide", rows(30_000, columns=200), 30_000)
    with pa.OSFile(str(path)) as stream:
        opened = open_rows(stream, "PARQUET")
        sizes = [batch.nbytes for batch in opened.batches(opened.schema.names)]
    assert sum(sizes) >= 45 * MB
    assert max(sizes) <= 18 * MB


def own_copy(column: pa.ChunkedArray) -> pa.Array:
    """The column in memory of its own, also from the columns beside it."""
    return pa.concat_arrays([*column.chunks, column.chunk(0).slice(0, 0)])


def held_by_keys(folder: Path, delete_files: int) -> int:
    """The most bytes that Arrow holds while keys of equality deletes are turned into positions; a tenth match."""
    numbers = rows(100_000, 1)
    data = file_of(folder / "data.parquet", numbers.slice(0, 10_000), 10_000)
    deletes = []
    for number in range(delete_files):
        keys = numbers if number == 0 else pa.table([pc.add(numbers["c0"], number)], schema=numbers.schema)
        path = file_of(folder / f"delete-{number}.parquet", keys, 100_000)
        deletes.append(replace(BY_KEY, path=str(path), record_count=100_000, sequence_number=2 + number))
    source = InputFile(str(data), 10_000, data.stat().st_size, sequence_number=1, deletes=tuple(range(delete_files)))
    schema = {**SCHEMA, "fields": SCHEMA["fields"][:1]}
    work = task(schema, [source], folder, deletes=tuple(deletes), row_group_memory_bytes=4 * MB)
    usual, counted = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(counted)
    try:
        found = deleted_rows_of(work, Storage({}))
    finally:
        pa.set_memory_pool(usual)
    assert found is not None
    assert found.are_deleted(str(data), range(9_999, 10_000))
    return int(counted.max_memory() or 0)


def test_looking_up_keys_holds_no_more_of_more_keys(tmp_path: Path) -> None:
    few, many = held_by_keys(tmp_path, 1), held_by_keys(tmp_path, 6)
    assert few <= many < 1.3 * few < 16 * MB


def test_batches_are_joined_column_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at after each column: no more than one is in memory twice."""
    count, before, seen, table = 131_072, pa.total_allocated_bytes(), [], rows(131_072)
    batches = [
        pa.RecordBatch.from_arrays([own_copy(column) for column in table.columns], schema=table.schema)
        for _ in range(4)
    ]
    del table
    held = sum(batch.nbytes for batch in batches)

    def joined(arrays: list[pa.Array]) -> pa.Array:
        made = pa.concat_arrays(arrays)
        seen.append(pa.total_allocated_bytes() - before)
        return made

    monkeypatch.setattr(sorted_files, "pa", SimpleNamespace(RecordBatch=pa.RecordBatch, concat_arrays=joined))
    assert sorted_files.one_batch(batches).num_rows == 4 * count
    assert (batches, len(seen)) == ([], COLUMNS)
    assert max(seen) <= held * (1 + 1 / COLUMNS) + MB


@pytest.mark.parametrize("times", [2, 4])
def test_writing_holds_no_more_of_more_rows(times: int, tmp_path: Path) -> None:
    """A row group of 16 MB at a time, whatever their number: its rows, and less than a batch that goes beyond."""
    wanted, step = 16 * MB, 16_384
    before, most = pa.total_allocated_bytes(), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for _ in range(times * wanted // (step * 8 * COLUMNS)):
            columns = [own_copy(column) for column in rows(step).columns]
            yield pa.RecordBatch.from_arrays(columns, schema=rows(1).schema)
            del columns
            most = max(most, pa.total_allocated_bytes() - before)

    work = replace(task(SCHEMA, [], tmp_path), row_group_memory_bytes=wanted)
    file = write.write_data_file(str(tmp_path / "out.parquet"), batches(), work, Storage({}))
    assert file is not None
    assert len(file.split_offsets or ()) == times
    assert most <= wanted + 4 * MB


def test_a_row_group_leaves_room_for_what_else_is_held(tmp_path: Path) -> None:
    """On S3 for what waits to be sent, in a sort for the rows that stay, with deletes for a copy of a batch; half of
    it stays in any case.
    """
    work = replace(task(SCHEMA, [], tmp_path), row_group_memory_bytes=176 * MB)
    sorting = replace(work, recipe=SimpleNamespace())  # type: ignore[arg-type]  # any recipe
    far = Storage({"s3.access-key-id": "key", "s3.secret-access-key": "secret"})
    assert write._row_group_memory(str(tmp_path / "f"), work, Storage({})) == 176 * MB
    assert write._row_group_memory("s3://bucket/f", work, far) == 136 * MB
    assert write._row_group_memory(str(tmp_path / "f"), replace(work, deletes=(BY_POSITION,)), Storage({})) == 144 * MB
    assert write._row_group_memory(str(tmp_path / "f"), replace(work, deletes=(BY_KEY,)), Storage({})) == 120 * MB
    assert write._row_group_memory(str(tmp_path / "f"), sorting, Storage({})) == 112 * MB
    assert write._row_group_memory("s3://bucket/f", sorting, far) == 88 * MB
    assert write._row_group_memory("s3://bucket/f", replace(sorting, row_group_memory_bytes=1000), far) == 500


@pytest.mark.parametrize("size", [200, 400])
def test_an_upload_holds_no_more_than_its_room(size: int) -> None:
    """Bytes that were taken and have not arrived, counted whenever a part arrives: four parts of 10 at most."""
    taken, arrived, most, lock = 0, 0, 0, threading.Lock()

    def count(call: str, number: int) -> None:
        nonlocal most
        if call == "send":
            with lock:
                most = max(most, taken - arrived)

    client = PaperS3(count)
    upload_part = client.upload_part

    def sent(**request: Any) -> Any:
        nonlocal arrived
        answer = upload_part(**request)
        with lock:
            arrived += len(request["Body"])
        return answer

    client.upload_part = sent  # type: ignore[method-assign]
    with bounded_output(storage_over(client), "s3://bucket/t/new", 40) as sink:
        for _ in range(size // 5):
            sink.write(bytes(5))
            with lock:
                taken += 5
    assert arrived == size
    assert most <= 40


class Counted(Storage):
    """Counts the bytes of files that were opened."""

    opened = 0

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        self.opened += size or 0
        return pa.BufferReader(bytes(size or 0))


@pytest.mark.parametrize("count", [20, 80])
def test_files_are_fetched_ahead_up_to_a_number_of_bytes(count: int) -> None:
    """16 MB, and the file that goes beyond, whatever the number of files."""
    storage, size = Counted({}), 3 * MB
    inputs = [InputFile(f"s3://bucket/{number}", 1, size) for number in range(count)]
    for taken, _ in enumerate(opened_inputs(inputs, storage), start=1):
        assert storage.opened <= (taken - 1) * size + 16 * MB + size
