"""The proof of a copy detects every difference, and a failing store is not evidence of a difference
(rule: prove-before-commit)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from icekeeper.errors import OutputUnproved, RowsNotKept, StorageError
from icekeeper.model import DataFile
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from icekeeper.row_group_copy import merge_files as merge
from icekeeper.row_group_copy.copyable import Layout, lay_out
from icekeeper.row_group_copy.footer_structs import FileMetaData, NotCopyable
from icekeeper.row_group_copy.write_copy import BLOCK_BYTES, WrittenCopy, copy_ranges, write_copy
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read_task import ReadableFile
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.multipart import AssembledObject
from icekeeper.storage.storage import Storage
from support.copied import MIXED, copied, mixed_rows, parquet_file, with_metadata
from support.rewrites import input_file, rows, struct, task

# The proof detects any difference between the row groups read and the file written
# (rule: prove-before-commit).


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    return [parquet_file(tmp_path / f"{n}.parquet", mixed_rows(n * 60), write_page_checksum=True) for n in range(2)]


def after_writing(monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], Any]) -> None:
    """Change the new file before it is read back."""

    def spoilt(*arguments: Any, **more: Any) -> Any:
        written = write_copy(*arguments, **more)
        change(Path(arguments[1]))
        return written

    monkeypatch.setattr("icekeeper.row_group_copy.merge_files.write_copy", spoilt)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def exchanged_bytes(path: Path) -> None:
    """The same bytes in another order, as if two inputs were mixed up."""
    data = path.read_bytes()
    path.write_bytes(data[:4] + data[104:204] + data[4:104] + data[204:])


def footer(change: Callable[[FileMetaData], Any]) -> Callable[[Path], Any]:
    return lambda path: with_metadata(path, change)


def fewer_rows(metadata: FileMetaData) -> None:
    metadata.row_groups[1].num_rows -= 1


def lost_group(metadata: FileMetaData) -> None:
    metadata.num_rows -= metadata.row_groups.pop().num_rows


def exchanged_groups(metadata: FileMetaData) -> None:
    groups = metadata.row_groups
    groups[0], groups[3] = groups[3], groups[0]


def other_bounds(metadata: FileMetaData) -> None:
    statistics = metadata.row_groups[2].columns[0].meta_data.statistics
    assert statistics is not None
    statistics.max_value = bytes(8)


SPOILT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a bit": (flipped, "the bytes of row group 3 differ from those that were read from "),
    "the order of bytes": (exchanged_bytes, "the bytes of row group 0 differ from those that were read from "),
    "rows": (footer(fewer_rows), "row group 1 had 25 rows, but Arrow reads 24"),
    "a row group": (footer(lost_group), "6 row groups were copied, but Arrow reads 5"),
    "the order of row groups": (footer(exchanged_groups), "Arrow reads another description of row group 0 than "),
    "bounds": (footer(other_bounds), "Arrow reads another description of row group 2 than in its source "),
}


@pytest.mark.parametrize("what", SPOILT)
def test_every_change_of_the_written_file_is_detected(
    what: str, inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size is unchanged, so that the proof must find the change itself."""
    change, sentence = SPOILT[what]
    to = tmp_path / "copy.parquet"

    def keeping_size(path: Path) -> None:
        size = path.stat().st_size
        change(path)
        monkeypatch.setattr(Storage, "open_input", _of_size(Storage.open_input, str(path), size))

    after_writing(monkeypatch, keeping_size)
    with pytest.raises(StorageError) as raised:
        copied(inputs, to)
    assert str(raised.value).startswith(f"rows were not kept: {sentence}")
    assert str(raised.value).endswith(f"{to} was written and is kept for inspection")
    assert to.exists()


def _of_size(original: Any, path: str, size: int) -> Any:
    """An ``open_input`` that pads the stream of this path to this size, because a footer may be shorter."""

    def opened(storage: Storage, requested: str) -> Any:
        stream = original(storage, requested)
        if requested != path or stream.size() == size:
            return stream
        data = stream.read()
        # Pad before the footer, where no offset points.
        length = int.from_bytes(data[-8:-4], "little") + 8
        return pa.BufferReader(data[:-length] + bytes(size - len(data)) + data[-length:])

    return opened


def test_another_file_size_is_detected(inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to = tmp_path / "copy.parquet"
    after_writing(monkeypatch, lambda path: path.write_bytes(path.read_bytes()[:-9]))
    with pytest.raises(StorageError, match=r"\d+ bytes were written, but the file has \d+"):
        copied(inputs, to)


def test_nothing_is_left_when_an_input_disappears(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def failing(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise OSError("the disk is gone")
        return copy_ranges(*arguments, **more)

    monkeypatch.setattr("icekeeper.row_group_copy.write_copy.copy_ranges", failing)
    with pytest.raises(StorageError, match="the disk is gone"):
        copied(inputs, tmp_path / "copy.parquet")
    assert not (tmp_path / "copy.parquet").exists()


def test_an_input_replaced_after_its_check_is_refused(
    inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchanging(files: Any) -> Any:
        inputs[1].write_bytes(inputs[0].read_bytes()[: len(inputs[0].read_bytes()) // 2])
        return lay_out(files)

    monkeypatch.setattr("icekeeper.row_group_copy.merge_files.lay_out", exchanging)
    refused = copied(inputs, tmp_path / "copy.parquet")
    assert str(refused) == f"{inputs[1]} became shorter while it was read"
    assert not (tmp_path / "copy.parquet").exists()


def test_blocks_may_end_anywhere(inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages, their headers and column chunks are found across the ends of blocks."""
    whole = copied(inputs, tmp_path / "whole.parquet")
    assert isinstance(whole, DataFile)
    for size in (1, 7, 100):
        assert size < BLOCK_BYTES
        monkeypatch.setattr("icekeeper.row_group_copy.write_copy.BLOCK_BYTES", size)
        parts = copied(inputs, tmp_path / "parts.parquet")
        assert isinstance(parts, DataFile)
        assert (tmp_path / "parts.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


# If a store fails while an output is read back, the output is unproved, not wrong, and nothing is committed
# (rule: prove-before-commit).

SCHEMA = struct((1, "id", "long"))
UNPROVED = "the output could not be proved, nothing was committed: "


def answered(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")


OF_A_STORE: list[Exception] = [
    answered("ExpiredToken", 403),
    answered("SlowDown", 503),
    EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
    ReadTimeoutError(endpoint_url="http://127.0.0.1:1"),
    PermissionError("s3://b/k"),
    OSError(errno.EIO, "Input/output error"),
    OSError("When reading: AWS Error NETWORK_CONNECTION during GetObject operation"),
]
OF_A_FILE: list[Exception] = [
    answered("NoSuchKey", 404),
    answered("InvalidRange", 416),
    FileNotFoundError(errno.ENOENT, "No such file or directory"),
    OSError("Couldn't deserialize thrift: TProtocolException: Invalid data"),
    pa.ArrowInvalid("Parquet magic bytes not found in footer"),
    ValueError("no such column"),
]


def test_a_failing_store_is_distinguished_from_a_damaged_file() -> None:
    for error in (*OF_A_STORE, *OF_A_FILE):
        assert failed_by_store(error) is (error in OF_A_STORE), error
        assert failed_by_store(_raised_from(error)) is (error in OF_A_STORE), error


def _raised_from(error: Exception) -> Exception:
    raised = StorageError("what was read")
    raised.__cause__ = error
    return raised


def failing(error: Exception, ending: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same method of a storage, which fails for paths with this ending."""

    def fails(self: Storage, path: str, *more: Any) -> Any:
        with self.translated(path):
            if path.endswith(ending):
                raise error
        return call(self, path, *more)

    return fails


@pytest.mark.parametrize(("level", "method"), [("counts", "read_end"), ("full", "open_input")])
def test_rows_that_cannot_be_read_back_do_not_count_as_lost(
    level: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = task(SCHEMA, [input_file(tmp_path / "in.parquet", rows(SCHEMA, {"id": [1, 2]}))], tmp_path, proof=level)
    output = tmp_path / "out-00000-a0.parquet"
    monkeypatch.setattr(Storage, method, failing(answered("ExpiredToken", 403), output.name, getattr(Storage, method)))
    result = rewrite_group(work)
    assert (result.error or "").startswith(f"{UNPROVED}{output} failed with ExpiredToken; sign in again")
    assert result.written == ()
    assert not output.exists()


def assembled(layout: Layout, path: str, schema: Any, storage: Storage) -> WrittenCopy:
    """A write as if a store had assembled the file."""
    written = write_copy(layout, path, schema, storage)
    assert not isinstance(written, NotCopyable)
    return replace(written, assembled=AssembledObject("etag", (), {}))


@pytest.mark.parametrize("by_store", [False, True])
@pytest.mark.parametrize(
    ("error", "expected"), [(OF_A_STORE[-1], OutputUnproved), (OF_A_FILE[3], RowsNotKept)], ids=["store", "file"]
)
def test_a_copy_that_cannot_be_read_back_is_unproved(
    by_store: bool, error: Exception, expected: type[StorageError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = parquet_file(tmp_path / "in.parquet", mixed_rows(0))

    def fails(*arguments: Any, **more: Any) -> Any:
        raise error

    if by_store:
        monkeypatch.setattr(merge, "copy_in_store", assembled)
    monkeypatch.setattr("icekeeper.row_group_copy.copy_proof.pq.ParquetFile", fails)
    with pytest.raises(expected, match=f"^{UNPROVED}" if expected is OutputUnproved else "^rows were not kept: "):
        copied([source], tmp_path / "copy.parquet")


def test_an_input_is_not_damaged_because_its_store_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a rewrite would start again without the file and report it as damaged
    (rule: leave-out-unreadable-files)."""
    path = parquet_file(tmp_path / "in.parquet", mixed_rows(0))

    def fails(*arguments: Any, **more: Any) -> Any:
        raise OF_A_STORE[-1]

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fails)
    with pytest.raises(StorageError, match=r"in\.parquet cannot be reached") as caught:
        list(projected_rows(ReadableFile(str(path)), MIXED, Storage({})))
    assert type(caught.value) is StorageError
