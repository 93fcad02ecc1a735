"""Reads ORC files as Arrow batches, in a separate process.

Arrow's ORC reader crashes its process on some damaged files (platform: arrow-orc-reader-crashes); here this becomes an
error.  A process reads one file after the other, and ends with the process that started it.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import finalize

import pyarrow as pa

from icekeeper.rows.orc_child import BATCH, BYTES, COLUMNS, END, ERROR, NUMBER, OPEN, RANGE, Pipe

_idle: list[_Reader] = []


class OrcRows:
    """An open ORC file: its schema, the number of its rows, and its batches; at most one stripe is in memory."""

    def __init__(self, stream: pa.NativeFile) -> None:
        """Raises pa.ArrowInvalid for a damaged file, and the errors of reading ``stream``."""
        self._stream = stream
        self._reader = _idle_reader() or _Reader()
        finalize(self, self._reader.release)
        for _, facts in self._reader.answers(OPEN, NUMBER.pack(stream.size()), stream):
            (self.rows,) = NUMBER.unpack_from(facts)
            self.schema = _schema(facts)

    def batches(self, columns: list[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The rows of some top-level columns (``None``: all), in file order; raises the same errors."""
        wanted = json.dumps({"columns": columns, "batch_rows": batch_rows}).encode()
        schema = None
        for kind, body in self._reader.answers(COLUMNS, wanted, self._stream):
            if kind == BATCH:
                yield pa.ipc.read_record_batch(pa.py_buffer(body), schema)
            else:
                schema = _schema(body)


def _schema(facts: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(facts[NUMBER.size :]))


class _Reader:
    """A process that reads ORC files, one at a time."""

    def __init__(self) -> None:
        # Import modules from the same places as this process; Spark adds zip files while it runs.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "icekeeper.rows.orc_child"],  # (rule: no-imports-from-current-folder)
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._pipe = Pipe(self._process.stdout, self._process.stdin)
        self._is_answering = False

    def answers(self, kind: bytes, body: bytes, stream: pa.NativeFile) -> Iterator[tuple[bytes, bytes]]:
        """Send a request, serve the process's reads of the file, and yield its messages until the last.

        Raises:
            pa.ArrowInvalid: the process cannot read the file, or crashed on it.
        """
        self._is_answering = True
        self._send(kind, body)
        while True:
            kind, body = self._receive()
            if kind == BYTES:
                offset, size = RANGE.unpack(body)
                stream.seek(offset)
                self._send(BYTES, stream.read(size))
            elif kind in (END, ERROR):
                break
            else:
                yield kind, body
        self._is_answering = False
        if kind == ERROR:
            raise pa.ArrowInvalid(body.decode())

    def _send(self, kind: bytes, body: bytes) -> None:
        with self._reporting_its_end():
            self._pipe.send(kind, body)

    def _receive(self) -> tuple[bytes, bytes]:
        with self._reporting_its_end():
            return self._pipe.receive()

    @contextmanager
    def _reporting_its_end(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, BrokenPipeError) as error:
            code = self._process.wait()
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise pa.ArrowInvalid(f"the process in which Arrow read this ORC file ended with {name}") from error

    def release(self) -> None:
        """Let the process read the next file, or end it if it has not finished the current file."""
        if self._is_answering:
            self._process.kill()
            self.end()
        else:
            _idle.append(self)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Close the standard input of the process, which ends it, and wait."""
        self._process.communicate()


def _idle_reader() -> _Reader | None:
    try:
        reader = _idle.pop()
    except IndexError:
        return None
    if reader.is_running():
        return reader
    reader.end()
    return _idle_reader()


@atexit.register
def _end_idle() -> None:
    while _idle:
        _idle.pop().end()
