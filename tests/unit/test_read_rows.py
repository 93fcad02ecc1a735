"""Rows of a read task: decoding ahead, deletes, and errors that name the file."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError

from icekeeper.errors import FileUnreadable, MaintenanceError, MetadataUnreadable, StorageError, TableUnsupported
from icekeeper.machine.metering import WorkThreads
from icekeeper.machine.resources import on_cores
from icekeeper.model import FileContent
from icekeeper.operations.compaction.terms.rewrite_task import RewriteResult, RewriteTask
from icekeeper.operations.compaction.work.proof import write_proven
from icekeeper.rows import read as decoding
from icekeeper.rows.apply_deletes import DeletedRows, deleted_rows_of
from icekeeper.rows.file_rows import reading
from icekeeper.rows.read import Tally, read_rows, unreadable_files
from icekeeper.rows.read_task import DeleteFile, InputFile, ReadTask
from icekeeper.storage.failures import ShortAnswer
from icekeeper.storage.s3_reads import NoSuchObject
from icekeeper.storage.storage import Storage
from support.rewrites import input_file, rows, struct, task
from support.rewrites import rows as made_rows

# The cores of a task decode small inputs ahead: in order, within a memory limit, and without leaving threads behind.

ROWS = 10
FILES = 24
SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
}
ARROW = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of two files, at most four of which wait; a row has one column and takes eight bytes."""
    monkeypatch.setattr(decoding, "_WORTH_THREADS_BYTES", 0)
    monkeypatch.setattr(decoding, "_PORTION_BYTES", 2 * ROWS * 8)
    monkeypatch.setattr(decoding, "_MOST_OF_PORTION_BYTES", 4 * ROWS * 8)
    monkeypatch.setattr(decoding, "_AHEAD_BYTES", 8 * ROWS * 8)


def read_task(inputs: list[InputFile]) -> ReadTask:
    return ReadTask(inputs=tuple(inputs), schema=SCHEMA, io_properties={})


def files(folder: Path) -> list[InputFile]:
    found = []
    for number in range(FILES):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table([pa.array(range(number * ROWS, (number + 1) * ROWS))], schema=ARROW), path)
        found.append(InputFile(str(path), ROWS, path.stat().st_size))
    return found


def ids(inputs: list[InputFile], cores: int) -> tuple[list[int], MaintenanceError | None]:
    """The ids that were read, and the error that ended the read."""
    found: list[int] = []
    with on_cores(cores):
        try:
            for batch in read_rows(read_task(inputs), Storage({}), Tally()):
                found += batch.column(0).to_pylist()
        except MaintenanceError as error:
            return found, error
    return found, None


def decoding_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("icekeeper-decode")]


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("cores", [1, 2, 4])
def test_rows_arrive_in_the_order_of_the_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    """So do rows of inputs that are too large to be decoded ahead."""
    inputs = files(tmp_path)
    monkeypatch.setattr(decoding, "_is_small", lambda source: "3" not in Path(source.path).name)
    assert ids(inputs, cores) == (list(range(FILES * ROWS)), None)


@pytest.mark.usefixtures("small_portions")
def test_an_error_is_raised_when_its_file_is_due(tmp_path: Path) -> None:
    """Rows before the file are read, and the first of several errors is raised, on any number of cores."""
    inputs = files(tmp_path)
    Path(inputs[7].path).write_bytes(b"no Parquet")
    on_one_core, on_two_cores = ids(inputs, 1), ids(inputs, 2)
    assert on_one_core[0] == on_two_cores[0] == list(range(7 * ROWS))
    assert isinstance(on_two_cores[1], FileUnreadable)
    assert on_two_cores[1].path == inputs[7].path
    assert str(on_one_core[1]) == str(on_two_cores[1])
    inputs[6] = InputFile(inputs[6].path, ROWS + 1, inputs[6].file_size_in_bytes)
    assert [type(error) for _, error in (ids(inputs, 1), ids(inputs, 2))] == [FileUnreadable, FileUnreadable]


class Rows:
    """Inputs with ``batches`` batches of ``batch_bytes``; records which inputs were begun, and in which threads."""

    def __init__(self, inputs: list[InputFile], batch_bytes: int, batches: int = 1) -> None:
        self.begun: list[str] = []
        self.threads: set[str] = set()
        self.batches = self.taken = 0
        self._batch = pa.record_batch([pa.nulls(batch_bytes // 8, pa.int64())], schema=ARROW)
        self._of_a_file = batches
        self._inputs = inputs

    def read(self, cores: int) -> Generator[decoding.InputRows]:
        """The iterator, after its first input."""
        with on_cores(cores):
            given = decoding.decoded_ahead(self._pairs(), read_task(self._inputs), SCHEMA)
            next(given)
        return given

    def _pairs(self) -> Iterator[decoding.InputRows]:
        for source in self._inputs:
            self.taken += 1
            yield source, self._rows(source)

    def _rows(self, source: InputFile) -> Iterator[pa.RecordBatch]:
        self.begun.append(source.path)
        self.threads.add(threading.current_thread().name)
        for _ in range(self._of_a_file):
            self.batches += 1
            yield self._batch


@pytest.mark.usefixtures("small_portions")
def test_decoding_ahead_stops_at_its_limit() -> None:
    """The limit holds while the consumer has not advanced."""
    rows = Rows([InputFile(f"/{n}", ROWS, 1) for n in range(50)], ROWS * 8)
    given = rows.read(3)
    assert rows.taken == 8
    given.close()


@pytest.mark.usefixtures("small_portions")
def test_rows_larger_than_expected_are_not_decoded_ahead() -> None:
    rows = Rows([InputFile(f"/{n}", 1, 1) for n in range(2 * ROWS)], ROWS * 8 * 100)  # a single portion by its entries
    given = rows.read(2)
    assert rows.begun == ["/0"]
    assert sum(1 for _, batches in given for _ in batches) == 2 * ROWS - 1


@pytest.mark.usefixtures("small_portions")
def test_a_file_with_more_rows_than_its_entry_states_is_not_held_in_memory() -> None:
    rows = Rows([InputFile("/0", ROWS, 1)], ROWS * 8, batches=100)
    given = rows.read(2)
    assert rows.batches == 2
    given.close()


@pytest.mark.parametrize(("cores", "small_rows"), [(1, 10**6), (2, 100)])
def test_a_single_core_or_little_work_starts_no_thread(cores: int, small_rows: int) -> None:
    rows = Rows([InputFile(f"/{n}", small_rows // 20, 1) for n in range(20)], 8)
    for _, batches in rows.read(cores):
        list(batches)
    assert rows.threads == {threading.current_thread().name}


@pytest.mark.parametrize(("rows_of_a_file", "threads"), [(100_000, 3), (200_000, 2)])
def test_all_cores_decode_tiny_files_and_all_but_one_core_decode_others(
    rows_of_a_file: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows have one column of eight bytes; a file of more than a megabyte is not tiny."""
    rows = Rows([InputFile(f"/{n}", rows_of_a_file, 1) for n in range(20)], 8)
    begun: list[int] = []

    class Threads(WorkThreads):
        def __init__(self, threads: int, **options: Any) -> None:
            begun.append(threads)
            super().__init__(threads, **options)

    monkeypatch.setattr(decoding, "BATCH_ROWS", 10**6)
    monkeypatch.setattr(decoding, "WorkThreads", Threads)
    for _, batches in rows.read(3):
        list(batches)
    assert begun == [threads]


@pytest.mark.usefixtures("small_portions")
def test_no_thread_outlives_a_task_whose_writer_fails(tmp_path: Path) -> None:
    """The caller may still hold the error, and with it the frames of the writer."""
    seen: list[str] = []

    def write(rows: Iterator[pa.RecordBatch]) -> None:
        next(rows)
        seen.extend(decoding_threads())
        raise KeyboardInterrupt

    tiny_row_groups = {"write.parquet.row-group-size-bytes": "64"}  # keeps batches apart
    work = task(SCHEMA, files(tmp_path), tmp_path, table_properties=tiny_row_groups)
    with on_cores(2), pytest.raises(KeyboardInterrupt) as held:
        write_proven(work, Storage({}), RewriteResult(group_id=0), write)
    assert seen != []
    assert decoding_threads() == []
    assert held.traceback


# Equality keys apply only to the inputs that their delete file applies to
# (rule: deletes-reach-one-partition, copy-under-keys-only-if-none-match).

KEYED_SCHEMA = struct((1, "id", "long"), (2, "name", "string"))
STORAGE = Storage({})


@pytest.fixture
def work(tmp_path: Path) -> RewriteTask:
    """Two inputs with the same rows in two partitions; keys by id apply to the first, keys by name to both."""
    deletes = []
    for field, key in ((1, 7), (2, "b")):
        name = "id" if field == 1 else "name"
        keys = input_file(
            tmp_path / f"{name}.parquet", rows(struct((field, name, ("long", "string")[field - 1])), {name: [key]})
        )
        deletes.append(
            DeleteFile(
                path=keys.path,
                file_format="PARQUET",
                content=FileContent.EQUALITY_DELETES,
                sequence_number=2,
                record_count=1,
                equality_ids=(field,),
            )
        )
    table = rows(KEYED_SCHEMA, {"id": [6, 7], "name": ["a", "a"]})
    first, second = (input_file(tmp_path / f"in-{n}.parquet", table) for n in range(2))
    inputs = [replace(first, deletes=(0, 1)), replace(second, deletes=(1,), partition_number=1)]
    return task(KEYED_SCHEMA, inputs, tmp_path, deletes=tuple(deletes))


def found(work: RewriteTask) -> DeletedRows:
    deletes = deleted_rows_of(work, STORAGE)
    assert deletes is not None
    return deletes


def test_keys_of_another_partition_are_not_counted(work: RewriteTask) -> None:
    assert [found(work).keys_within(source, {}) for source in work.inputs] == [2, 1]


def test_keys_of_another_partition_match_no_row(work: RewriteTask) -> None:
    assert [found(work).match_rows_of(source, STORAGE) for source in work.inputs] == [True, False]


def test_keys_of_every_column_set_are_looked_up(work: RewriteTask) -> None:
    first, second = work.deletes
    turned = replace(
        work, deletes=(second, first), inputs=(replace(work.inputs[0]), replace(work.inputs[1], deletes=(0,)))
    )
    assert found(turned).match_rows_of(turned.inputs[0], STORAGE)


def test_keys_do_not_match_rows_with_the_same_sequence_number(work: RewriteTask) -> None:
    newer = replace(work, inputs=tuple(replace(source, sequence_number=2) for source in work.inputs))
    assert [found(newer).keys_within(source, {}) for source in newer.inputs] == [0, 0]
    assert not found(newer).match_rows_of(newer.inputs[0], STORAGE)


# A damaged or missing file raises an error with its path; a failing store does not accuse the file
# (rule: leave-out-unreadable-files).

PATH = "s3://b/t/data/1.parquet"
READ_SCHEMA = struct((1, "id", "long"))


def answered(status: int, code: str) -> ClientError:
    """The error that boto3 raises for an S3 response."""
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")


def raising(error: Exception) -> Callable[[], None]:
    def read() -> None:
        raise error

    return read


def translated(error: Exception) -> Callable[[], None]:
    def read() -> None:
        with STORAGE.translated(PATH):
            raise error

    return read


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (translated(NoSuchObject(PATH)), f"{PATH} does not exist"),
        (raising(pa.ArrowInvalid("two\nlines")), f"file {PATH} cannot be read: two lines"),
        (raising(OSError("Unexpected end of stream")), f"file {PATH} cannot be read: Unexpected end of stream"),
        (raising(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")), f"file {PATH} cannot be read: 'utf-8' codec "),
        (raising(TableUnsupported("column c is text")), f"file {PATH} cannot be read: column c is text"),
        (raising(MetadataUnreadable(f"{PATH} lacks pos")), f"{PATH} lacks pos"),
    ],
)
def test_every_error_in_a_file_names_the_file(read: Callable[[], None], message: str) -> None:
    with pytest.raises(FileUnreadable) as caught, reading(PATH, STORAGE):
        read()
    assert caught.value.path == PATH
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "read",
    [
        translated(answered(403, "AccessDenied")),
        translated(answered(503, "SlowDown")),
        translated(answered(404, "NoSuchBucket")),
        translated(PermissionError(13, "denied")),
        translated(OSError(5, "AWS Error NETWORK_CONNECTION")),
        raising(OSError("When reading: AWS Error SLOW_DOWN")),
        raising(ShortAnswer("the store answered with fewer than 10 bytes")),
    ],
)
def test_a_failing_store_does_not_make_a_file_unreadable(read: Callable[[], None]) -> None:
    with pytest.raises(StorageError, match=PATH) as caught, reading(PATH, STORAGE):
        read()
    assert type(caught.value) is StorageError


def test_the_path_survives_pickling() -> None:
    back = pickle.loads(pickle.dumps(FileUnreadable("it is damaged", path=PATH)))
    assert (type(back), str(back), back.path) == (FileUnreadable, "it is damaged", PATH)


def inputs_of(folder: Path, count: int) -> list[InputFile]:
    return [input_file(folder / f"{n}.parquet", made_rows(READ_SCHEMA, {"id": [n]})) for n in range(count)]


def test_all_unreadable_files_are_found_together(tmp_path: Path) -> None:
    """A missing input, a damaged input, an input with another row count, and a missing delete file."""
    inputs = inputs_of(tmp_path, 8)
    Path(inputs[1].path).unlink()
    Path(inputs[3].path).write_bytes(b"no Parquet")
    inputs[5] = replace(inputs[5], record_count=2)
    gone = DeleteFile(
        path=str(tmp_path / "gone.parquet"),
        file_format="PARQUET",
        content=FileContent.EQUALITY_DELETES,
        sequence_number=1,
        record_count=1,
        equality_ids=(1,),
    )
    inputs[6] = replace(inputs[6], deletes=(0,))
    task = ReadTask(inputs=tuple(inputs), schema=READ_SCHEMA, deletes=(gone,), io_properties={})
    with pytest.raises(FileUnreadable):
        list(read_rows(task, STORAGE, Tally()))
    found = unreadable_files(task, STORAGE)
    assert list(found) == [gone.path, inputs[1].path, inputs[3].path, inputs[5].path]
    assert all(path in why for path, why in found.items())
