"""A bare client of S3 with pyarrow: GET every file whole, some ahead, decode, encode one file, PUT it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import S3FileSystem

from benchmarks.peers.bare_pyarrow import merge
from benchmarks.peers.serve import Answer, Task, serve

_AHEAD = 16


def prepare(task: Task) -> Callable[[], Answer]:
    """Opens no connection yet."""
    given, endpoint = task["catalog"], urlsplit(task["catalog"]["s3.endpoint"])
    store = S3FileSystem(
        access_key=given["s3.access-key-id"],
        secret_key=given["s3.secret-access-key"],
        region=given.get("s3.region", "us-east-1"),
        scheme=endpoint.scheme,
        endpoint_override=endpoint.netloc,
    )
    output = f"{task['location']}/data/merged.parquet"

    def run() -> Answer:
        with ThreadPoolExecutor(_AHEAD) as pool, store.open_output_stream(output.removeprefix("s3://")) as sink:
            merge(_tables(store, [path.removeprefix("s3://") for path in task["data_files"]], pool), sink)
        return {"files": [output]}

    return run


def _tables(store: S3FileSystem, paths: list[str], pool: ThreadPoolExecutor) -> Iterator[pa.Table]:
    def whole(path: str) -> pa.Buffer:
        with store.open_input_file(path) as stream:
            return stream.read_buffer()

    under_way: deque[Future[pa.Buffer]] = deque()
    for path in paths:
        under_way.append(pool.submit(whole, path))
        if len(under_way) == _AHEAD:
            yield pq.read_table(pa.BufferReader(under_way.popleft().result()))
    for last in under_way:
        yield pq.read_table(pa.BufferReader(last.result()))


if __name__ == "__main__":
    serve(prepare)
