"""A store that fails while an output is read back disproves nothing: that is said, nothing is committed (rule 183)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from icekeeper.errors import OutputUnproved, RowsNotKept, StorageError
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.row_group_copy import merge_files as merge
from icekeeper.row_group_copy.copyable import Layout
from icekeeper.row_group_copy.footer_structs import NotCopyable
from icekeeper.row_group_copy.write_copy import StoredCopy, write_copy
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read_task import ReadableFile
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.multipart import AssembledObject
from icekeeper.storage.storage import Storage
from support.copied import MIXED, copied, mixed_rows, parquet_file
from support.rewrites import input_file, rows, struct, task

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


@pytest.mark.parametrize("error", OF_A_STORE, ids=repr)
def test_a_failing_store_is_told_from_a_damaged_file(error: Exception) -> None:
    assert failed_by_store(error)
    assert failed_by_store(_raised_from(error))


@pytest.mark.parametrize("error", OF_A_FILE, ids=repr)
def test_a_damaged_or_missing_file_is_no_failure_of_its_store(error: Exception) -> None:
    assert not failed_by_store(error)
    assert not failed_by_store(_raised_from(error))


def _raised_from(error: Exception) -> Exception:
    told = StorageError("what was read")
    told.__cause__ = error
    return told


def failing(error: Exception, ending: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same method of a storage, which fails for some paths."""

    def fails(self: Storage, path: str, *more: Any) -> Any:
        with self.translated(path):
            if path.endswith(ending):
                raise error
        return call(self, path, *more)

    return fails


@pytest.mark.parametrize(("level", "method"), [("counts", "read_end"), ("full", "open_input")])
def test_rows_that_could_not_be_read_back_are_not_called_lost(
    level: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = task(SCHEMA, [input_file(tmp_path / "in.parquet", rows(SCHEMA, {"id": [1, 2]}))], tmp_path, proof=level)
    output = tmp_path / "out-00000-a0.parquet"
    monkeypatch.setattr(Storage, method, failing(answered("ExpiredToken", 403), output.name, getattr(Storage, method)))
    result = rewrite_group(work)
    assert (result.error or "").startswith(f"{UNPROVED}{output} failed with ExpiredToken; sign in again")
    assert result.written == ()
    assert not output.exists()


def assembled(layout: Layout, path: str, schema: Any, storage: Storage) -> StoredCopy:
    """As if a store had put the file together."""
    written = write_copy(layout, path, schema, storage)
    assert not isinstance(written, NotCopyable)
    return StoredCopy(written, AssembledObject(path, written.size, "etag", (), {}), ())


@pytest.mark.parametrize("by_store", [False, True])
@pytest.mark.parametrize(
    ("error", "expected"), [(OF_A_STORE[-1], OutputUnproved), (OF_A_FILE[3], RowsNotKept)], ids=["store", "file"]
)
def test_a_copy_that_could_not_be_read_back_is_unproved(
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


def test_an_input_is_not_called_damaged_when_its_store_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a rewrite would be begun again without it, and the file be told as damaged (rule 186)."""
    path = parquet_file(tmp_path / "in.parquet", mixed_rows(0))

    def fails(*arguments: Any, **more: Any) -> Any:
        raise OF_A_STORE[-1]

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fails)
    with pytest.raises(StorageError, match=r"in\.parquet cannot be reached") as told:
        list(projected_rows(ReadableFile(str(path)), MIXED, Storage({})))
    assert type(told.value) is StorageError
