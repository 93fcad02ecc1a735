"""The memory of a process is bounded, and freed memory is returned (rule: bounded-worker-memory)."""

from __future__ import annotations

import ctypes
import io
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.machine.resources import (
    choose_allocator,
    limit_freed_memory,
    limited_cores,
    limited_memory,
    spare_bytes,
    this_machine,
    with_spare_bytes,
)
from icekeeper.model import FileContent
from icekeeper.operations.compaction.work import sorted_output
from icekeeper.operations.compaction.work import write_file as write
from icekeeper.operations.compaction.work.side_by_side import side_by_side_writer
from icekeeper.row_group_copy import write_copy as stream
from icekeeper.row_group_copy.footer import Piece, data_pages, read_footer
from icekeeper.rows import file_rows as parquet_reader
from icekeeper.rows.apply_deletes import deleted_rows_of
from icekeeper.rows.file_rows import open_rows
from icekeeper.rows.read import opened_inputs
from icekeeper.rows.read_task import DeleteFile, InputFile
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage
from support.copied import mixed_rows, parquet_file
from support.paper_s3 import PaperS3, storage_over
from support.rewrites import task

# An import of Icekeeper makes Arrow return memory to the system (platform: arrow-allocators).

GNU = {"CS_GNU_LIBC_VERSION": 2, "CS_PATH": 0}


def test_a_set_allocator_is_kept_and_the_default_depends_on_the_wheel() -> None:
    given = {"ARROW_DEFAULT_MEMORY_POOL": "system", "JE_ARROW_MALLOC_CONF": "narenas:9"}
    ours = {
        "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
        "JE_ARROW_MALLOC_CONF": "narenas:2,dirty_decay_ms:150,muzzy_decay_ms:0",
    }
    names: dict[str, int] | tuple[str, ...]
    for before, names, after in (({}, GNU, ours), (given, GNU, given), ({}, {"CS_PATH": 0}, {}), ({}, (), {})):
        found = dict(before)
        choose_allocator(found, names)
        assert found == after


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="Arrow's wheels for other systems lack it")
def test_arrow_uses_the_chosen_allocator() -> None:
    """In a separate process, because Arrow reads the choice once."""
    code = "import icekeeper, pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    assert (done.stdout, done.stderr) == ("jemalloc\n", "")


# The memory of a worker does not grow with its group (rule: bounded-worker-memory), in bytes that Arrow
# allocates.

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
    """The most bytes held besides the last batch."""
    before, most = pa.total_allocated_bytes(), 0
    with pa.OSFile(str(path)) as stream:
        schema, batches = open_rows(stream, "PARQUET")
        for batch in batches(schema.names):
            most = max(most, pa.total_allocated_bytes() - before - batch.nbytes)
    return most


def test_a_reader_holds_no_more_memory_for_a_larger_row_group(tmp_path: Path) -> None:
    """16 and 64 MB; whole column chunks would take four times as much."""
    small, large = (file_of(tmp_path / str(n), rows(n * 131_072), n * 131_072) for n in (2, 8))
    assert large.stat().st_size > 60 * MB
    assert held_by_reader(large) <= held_by_reader(small) + MB


def test_columns_of_small_chunks_get_no_buffers(tmp_path: Path) -> None:
    """Buffers for each of many columns would be larger than their chunks."""
    table = rows(2_000, columns=400)
    footer = pq.read_metadata(file_of(tmp_path / "wide", table, 2_000))
    assert parquet_reader._buffer_bytes(footer, 1.0, few_reads=False) == 0
    assert parquet_reader._buffer_bytes(footer, 1.0, few_reads=True) == 0


def test_the_size_of_a_read_from_a_store_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger row groups are read in pieces, and smaller row groups together only up to the limit."""
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


def test_batches_of_wide_rows_have_fewer_rows(tmp_path: Path) -> None:
    """A usual batch of rows of 1,600 bytes would take 200 MB."""
    path = file_of(tmp_path / "wide", rows(30_000, columns=200), 30_000)
    with pa.OSFile(str(path)) as stream:
        schema, batches = open_rows(stream, "PARQUET")
        sizes = [batch.nbytes for batch in batches(schema.names)]
    assert sum(sizes) >= 45 * MB
    assert max(sizes) <= 18 * MB


def own_copy(column: pa.ChunkedArray) -> pa.Array:
    """The column in separate memory, not shared with other columns."""
    return pa.concat_arrays([*column.chunks, column.chunk(0).slice(0, 0)])


def held_by_keys(folder: Path, delete_files: int) -> int:
    """The most bytes that Arrow holds while equality keys are turned into positions; a tenth of the keys match."""
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


def test_key_lookups_hold_no_more_memory_for_more_keys(tmp_path: Path) -> None:
    few, many = held_by_keys(tmp_path, 1), held_by_keys(tmp_path, 6)
    assert many < 1.3 * few < 16 * MB


def test_batches_are_joined_column_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one column is in memory twice."""
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

    monkeypatch.setattr(sorted_output, "pa", SimpleNamespace(RecordBatch=pa.RecordBatch, concat_arrays=joined))
    assert sorted_output.one_batch(batches).num_rows == 4 * count
    assert (batches, len(seen)) == ([], COLUMNS)
    assert max(seen) <= held * (1 + 1 / COLUMNS) + MB


@pytest.mark.parametrize("times", [2, 4])
def test_writing_holds_no_more_memory_for_more_rows(times: int, tmp_path: Path) -> None:
    """It holds the rows of a row group of 16 MB, and less than a batch beyond them."""
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


def test_a_row_group_leaves_room_for_other_memory(tmp_path: Path) -> None:
    """On S3 for unsent parts, in a sort for the rows in memory, with deletes for a copy of a batch; a row group gets at
    least half of the memory.
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
def test_an_upload_holds_a_limited_number_of_bytes(size: int) -> None:
    """Unsent bytes, counted whenever a part arrives: at most four parts of 10."""
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
    """Counts the bytes of opened files."""

    opened = 0

    def open_input(self, path: str, size: int | None = None) -> pa.NativeFile:
        self.opened += size or 0
        return pa.BufferReader(bytes(size or 0))


@pytest.mark.parametrize("count", [20, 80])
def test_files_are_fetched_ahead_up_to_a_number_of_bytes(count: int) -> None:
    """16 MB and the file that exceeds them, for any number of files."""
    storage, size = Counted({}), 3 * MB
    inputs = [InputFile(f"s3://bucket/{number}", 1, size) for number in range(count)]
    for taken, _ in enumerate(opened_inputs(inputs, storage), start=1):
        assert storage.opened <= (taken - 1) * size + 16 * MB + size


# An import of Icekeeper makes the C library return large blocks (platform: arrow-allocators).

_CODE = """
import ctypes, sys
import icekeeper

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
block = bytearray(4 << 20)
del block  # from now on blocks of this size come from an arena, unless the threshold is fixed
before = library.mallinfo2().hblks
block = bytearray(4 << 20)
mappings = library.mallinfo2().hblks - before
page = bytearray(3 << 19)
before = library.mallinfo2()
del page
after = library.mallinfo2()
print(mappings, before.arena - after.arena, before.hblks - after.hblks)
"""


def test_other_c_libraries_are_not_configured() -> None:
    assert not limit_freed_memory({"CS_PATH": 0})


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library is another library, or older")
def test_large_blocks_are_mapped_separately_and_blocks_of_compressors_are_reused() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", _CODE], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    assert (done.stdout.split(), done.stderr) == (["1", "0", "0"], "")


# The cores and memory that a container's limits leave of a machine.


def test_lower_quotas_and_limits_apply() -> None:
    quotas = ("", "max 100000", "200000 100000", "150000 100000", "10000 100000", "1600000 100000")
    assert [limited_cores(8, cpu_max) for cpu_max in quotas] == [8, 8, 2, 2, 1, 8]
    assert [limited_memory(1000, text) for text in ("", "max", "600", "9223372036854771712")] == [1000, 1000, 600, 1000]
    here = this_machine()
    assert here.cores >= 1
    assert here.memory_bytes > 2**20


# Columns that are encoded concurrently, and row groups that are copied, take little memory beside the rows.

ENCODED_COLUMNS, ROWS = 20, 64 * 1024


class Watched:
    """A sink that records the memory of Arrow at every write."""

    def __init__(self) -> None:
        self.size = 0
        self.allocated: list[int] = []

    def tell(self) -> int:
        return self.size

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self.allocated.append(pa.total_allocated_bytes())


def test_encoded_columns_replace_their_rows_in_memory() -> None:
    """Random doubles take as much memory encoded as before; without release their sum would be twice as much."""
    before = pa.total_allocated_bytes()
    rows = [pa.table({f"c{number}": pc.random(ROWS, initializer=number) for number in range(ENCODED_COLUMNS)})]
    size = pa.total_allocated_bytes() - before
    sink = Watched()
    writer = side_by_side_writer(sink, rows[0], {"use_dictionary": False, "compression": "none"}, 2)
    assert writer is not None
    writer.write_row_group(rows)
    assert rows == []
    writer.close()
    pages = sink.allocated[1 : ENCODED_COLUMNS + 1]
    # The buffer of a column's small file may be twice as large as its content: two runs are encoded, two may wait.
    assert max(pages) - before < 1.4 * size
    assert pages[-1] - before < 0.3 * size


class OneBlock:
    """A stream whose reader must release a block before it reads the next block."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)
        self._last = bytearray()

    def seek(self, place: int) -> None:
        self._data.seek(place)

    def read_buffer(self, size: int) -> bytearray:
        self._last.clear()  # raises an error while a view of it exists
        self._last = bytearray(self._data.read(size))
        return self._last


def test_a_single_block_of_a_copied_file_is_in_memory_at_a_time(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "in.parquet", mixed_rows(0))
    footer = read_footer(str(path), Storage({}))
    groups = footer.metadata().row_groups
    chunks = {data_pages(chunk.meta_data): chunk.meta_data for group in groups for chunk in group.columns}
    whole = Piece(min(chunks).start, max(chunks).end)
    data = path.read_bytes()
    copy = io.BytesIO()
    with mock.patch.object(stream, "BLOCK_BYTES", 100):
        found, _ = stream.copy_ranges(OneBlock(data), copy, [whole], chunks)
        assert found == stream.checksums(OneBlock(data), chunks)
    assert copy.getvalue() == data[whole.start : whole.end]


# A task may hold the memory that its engine states, and none if the engine states none (rule: bounded-worker-memory).


def spare_of(task: int) -> int:
    return task + spare_bytes()


def test_a_task_may_hold_the_memory_that_its_engine_states() -> None:
    """No memory is spare if several processes share it; an inner block ends its own setting only."""
    assert LocalEngine(1, spare_bytes=100).map(spare_of, [1, 2], lambda done: None) == [101, 102]
    assert LocalEngine(1).map(spare_of, [1], lambda done: None) == [1]
    assert LocalEngine(2, spare_bytes=100).map(spare_of, [1, 2], lambda done: None) == [1, 2]
    with with_spare_bytes(5):
        with with_spare_bytes(-1):
            assert spare_bytes() == 0
        assert spare_bytes() == 5
    assert spare_bytes() == 0
