"""Every failure to read a data or delete file carries its path; a failure of its store does not (rule 215)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

from icekeeper.errors import FileUnreadable, MetadataUnreadable, StorageError, TableUnsupported
from icekeeper.model import FileContent
from icekeeper.rows.file_rows import reading
from icekeeper.rows.read import Tally, read_rows, unreadable_files
from icekeeper.rows.read_task import DeleteFile, InputFile, ReadTask
from icekeeper.storage.failures import ShortAnswer
from icekeeper.storage.s3_reads import NoSuchObject
from icekeeper.storage.storage import Storage
from support.rewrites import input_file, struct
from support.rewrites import rows as made_rows

PATH = "s3://b/t/data/1.parquet"
STORAGE = Storage({})
SCHEMA = struct((1, "id", "long"))


def answered(status: int, code: str) -> ClientError:
    """What boto3 raises for an answer of S3."""
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
    ("read", "told"),
    [
        (translated(NoSuchObject(PATH)), f"{PATH} does not exist"),
        (raising(pa.ArrowInvalid("two\nlines")), f"file {PATH} cannot be read: two lines"),
        (raising(OSError("Unexpected end of stream")), f"file {PATH} cannot be read: Unexpected end of stream"),
        (raising(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")), f"file {PATH} cannot be read: 'utf-8' codec "),
        (raising(TableUnsupported("column c is text")), f"file {PATH} cannot be read: column c is text"),
        (raising(MetadataUnreadable(f"{PATH} lacks pos")), f"{PATH} lacks pos"),
    ],
)
def test_whatever_is_wrong_with_a_file_names_it(read: Callable[[], None], told: str) -> None:
    with pytest.raises(FileUnreadable) as caught, reading(PATH, STORAGE):
        read()
    assert caught.value.path == PATH
    assert str(caught.value).startswith(told)


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
def test_a_store_that_fails_says_nothing_of_a_file(read: Callable[[], None]) -> None:
    with pytest.raises(StorageError, match=PATH) as caught, reading(PATH, STORAGE):
        read()
    assert type(caught.value) is StorageError


def test_the_path_survives_the_way_out_of_a_worker() -> None:
    back = pickle.loads(pickle.dumps(FileUnreadable("it is damaged", path=PATH)))
    assert (type(back), str(back), back.path) == (FileUnreadable, "it is damaged", PATH)


def inputs_of(folder: Path, count: int) -> list[InputFile]:
    return [input_file(folder / f"{n}.parquet", made_rows(SCHEMA, {"id": [n]})) for n in range(count)]


def test_all_that_cannot_be_read_is_found_at_once(tmp_path: Path) -> None:
    """One input is gone, one damaged, one has another number of rows, and one carries a delete that is gone."""
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
    task = ReadTask(inputs=tuple(inputs), schema=SCHEMA, deletes=(gone,), io_properties={})
    with pytest.raises(FileUnreadable):
        list(read_rows(task, STORAGE, Tally()))
    found = unreadable_files(task, STORAGE)
    assert list(found) == [gone.path, inputs[1].path, inputs[3].path, inputs[5].path]
    assert all(path in why for path, why in found.items())
