"""The process in which Arrow reads ORC files; only :mod:`icekeeper.rows.orc_rows` starts it.

Both sides send messages through its standard input and output: a letter, the length of a body, the body.  It answers
``OPEN`` and ``COLUMNS``, and requests bytes of the file with ``BYTES``.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
from pyarrow import orc

OPEN = b"O"
"""To the process: the size of the file.  Answered by ``SCHEMA`` and ``END``."""
COLUMNS = b"C"
"""To the process: the columns, and the most rows of a batch.  Answered by ``SCHEMA``, ``BATCH`` and ``END``."""
BYTES = b"R"
"""From the process: an offset and a length; to the process: these bytes."""
SCHEMA = b"S"
"""The number of rows of the file, and the schema of the batches that follow."""
BATCH = b"B"
END = b"E"
ERROR = b"X"
"""Ends an answer: why the file cannot be read."""
RANGE = struct.Struct(">QQ")
NUMBER = struct.Struct(">Q")
_HEAD = struct.Struct(">cQ")


@dataclass(frozen=True, slots=True)
class Pipe:
    """Sends and receives messages."""

    received: IO[bytes]
    sent: IO[bytes]

    def send(self, kind: bytes, *body: bytes | pa.Buffer) -> None:
        self.sent.write(_HEAD.pack(kind, sum(map(len, body))))
        for part in body:
            self.sent.write(part)
        self.sent.flush()

    def receive(self) -> tuple[bytes, bytes]:
        """Raises EOFError if the other side has ended."""
        head = self.received.read(_HEAD.size)
        if len(head) == _HEAD.size:
            kind, size = _HEAD.unpack(head)
            body = self.received.read(size)
            if len(body) == size:
                return kind, body
        raise EOFError


class _File:
    """The file, read through the other process; Arrow wraps it into its own file object."""

    closed = False

    def __init__(self, pipe: Pipe, size: int) -> None:
        self._pipe, self._size, self._at = pipe, size, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int) -> bytes:
        self._pipe.send(BYTES, RANGE.pack(self._at, size))
        data = self._pipe.receive()[1]
        self._at += len(data)
        return data


def main() -> None:
    """Answer until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process handles Ctrl-C
    pipe = Pipe(sys.stdin.buffer, sys.stdout.buffer)
    file = None
    while True:
        try:
            kind, body = pipe.receive()
        except EOFError:
            return
        try:
            if kind == OPEN:
                file = orc.ORCFile(pa.PythonFile(_File(pipe, *NUMBER.unpack(body)), mode="r"))
                pipe.send(SCHEMA, NUMBER.pack(file.nrows), file.schema.serialize())
            else:
                assert file is not None
                _send_rows(pipe, file, **json.loads(body))
        except Exception as error:  # any error of Arrow means that it cannot read the file
            pipe.send(ERROR, str(error).encode())
        else:
            pipe.send(END)


def _send_rows(pipe: Pipe, file: orc.ORCFile, columns: list[str] | None, batch_rows: int) -> None:
    for stripe in range(file.nstripes):
        rows = file.read_stripe(stripe, columns=columns)
        if stripe == 0:
            pipe.send(SCHEMA, NUMBER.pack(file.nrows), rows.schema.serialize())
        for start in range(0, rows.num_rows, batch_rows):
            pipe.send(BATCH, rows.slice(start, batch_rows).serialize())


if __name__ == "__main__":
    main()
