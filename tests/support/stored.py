"""Parquet files that are large enough for a store to copy, merged there, and the requests that it was sent."""

from __future__ import annotations

import functools
import io
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from botocore.awsrequest import AWSResponse

from icekeeper.model import DataFile, FileContent
from icekeeper.row_group_copy.copyable import CopyableFile, CopyTarget
from icekeeper.row_group_copy.footer_structs import NotCopyable
from icekeeper.row_group_copy.merge_files import copyable_file, merge_files
from icekeeper.storage.storage import Storage
from support.copied import target_of
from support.rewrites import rows, struct

FLAT = struct((1, "id", "long"), (2, "noise", "long"), (3, "text", "string"))
_TARGET = target_of(FLAT)


@functools.cache
def large_file(first: int, count: int = 700_000, seed: int = 0, *, page_index: bool = True) -> bytes:
    """Rows with ids from ``first``, and noise that no codec makes smaller: 8 bytes a row; two row groups."""
    some = random.Random(first + seed).randbytes(8 * count)
    noise = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(some)])
    ids = pa.array(range(first, first + count), pa.int64())
    table = rows(FLAT, {"id": ids, "noise": noise, "text": pc.cast(pc.divide(ids, 100_000), pa.string())})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", row_group_size=count // 2 + 1, write_page_index=page_index)
    return sink.getvalue()


def stored_entry(storage: Storage, path: str, data: bytes) -> DataFile:
    """The file in the store, and its manifest entry without metrics."""
    storage.write(path, data)
    return DataFile(
        content=FileContent.DATA,
        file_path=path,
        file_format="PARQUET",
        partition=(),
        record_count=pq.read_metadata(io.BytesIO(data)).num_rows,
        file_size_in_bytes=len(data),
    )


def judged(
    storage: Storage, entries: Sequence[DataFile], target: CopyTarget = _TARGET
) -> list[tuple[DataFile, CopyableFile]]:
    """The files, all of which can be copied."""
    found = []
    for entry in entries:
        file = copyable_file(entry, target, storage)
        assert isinstance(file, CopyableFile), file
        found.append((entry, file))
    return found


def merged(
    storage: Storage,
    inputs: Sequence[tuple[DataFile, CopyableFile]],
    path: str,
    target: CopyTarget = _TARGET,
    note_unread: Callable[[int], None] = lambda size: None,
) -> DataFile | NotCopyable | None:
    """One file of the inputs at ``path``."""
    return merge_files(inputs, path, target, storage, note_unread)


@contextmanager
def requests_of(storage: Storage) -> Iterator[list[str]]:
    """The names of requests that boto3 sends meanwhile; what Arrow sends is not among them."""
    seen: list[str] = []

    def note(model: Any, **_: Any) -> None:
        seen.append(model.name)

    storage.s3.meta.events.register("before-call.s3", note)
    try:
        yield seen
    finally:
        storage.s3.meta.events.unregister("before-call.s3", note)


@contextmanager
def answering(storage: Storage, call: str, status: int, code: str, first: int = 1) -> Iterator[None]:
    """Requests of that name are answered with an error, from the ``first`` one on, and do not reach the store."""
    count = 0
    lock = threading.Lock()

    def answer(request: Any, **_: Any) -> AWSResponse | None:
        nonlocal count
        with lock:
            count += 1
            if count < first:
                return None
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        return AWSResponse(request.url, status, {}, _Raw(body))

    storage.s3.meta.events.register(f"before-send.s3.{call}", answer)
    try:
        yield
    finally:
        storage.s3.meta.events.unregister(f"before-send.s3.{call}", answer)


class _Raw(io.BytesIO):
    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()
