"""ORC files are read in another process, whose crash is an error of the file (platform: arrow-orc-reader-crashes)."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from icekeeper.rows import orc_rows
from icekeeper.rows.orc_rows import OrcRows

ROWS = pa.table({"n": range(1000), "s": pa.array([None, "a", "", "b" * 50] * 250)})
DAMAGED = Path(__file__).parents[1] / "hostile" / "findings" / "orc-rows" / "texts-longer-than-memory.bin"


def stored(table: pa.Table = ROWS) -> bytes:
    sink = io.BytesIO()
    orc.write_table(table, sink, stripe_size=2048, row_index_stride=1000)
    return sink.getvalue()


def process_of(rows: OrcRows) -> int:
    return rows._reader._process.pid


def read(data: bytes) -> tuple[int, pa.Table]:
    """The process that read the data, and the table."""
    rows = OrcRows(pa.BufferReader(data))
    return process_of(rows), pa.Table.from_batches(rows.batches(None, 300))


def test_a_process_reads_several_files_in_turn() -> None:
    process, table = read(stored())
    assert table.equals(ROWS)
    assert read(stored(ROWS.slice(7, 500))) == (process, ROWS.slice(7, 500))
    empty = OrcRows(pa.BufferReader(stored(ROWS.slice(0, 0))))
    assert (process_of(empty), empty.rows, list(empty.batches(None, 300))) == (process, 0, [])


def test_columns_are_read_in_batches_of_the_requested_size() -> None:
    rows = OrcRows(pa.BufferReader(stored()))
    assert (rows.rows, rows.schema.names) == (1000, ["n", "s"])
    batches = list(rows.batches(["s"], 300))
    assert max(batch.num_rows for batch in batches) == 300
    assert pa.Table.from_batches(batches).equals(ROWS.select(["s"]))


def test_two_files_are_read_at_once_in_two_processes() -> None:
    first, second = OrcRows(pa.BufferReader(stored())), OrcRows(pa.BufferReader(stored(ROWS.slice(500))))
    assert process_of(first) != process_of(second)
    firsts, seconds = first.batches(["n"], 1000), second.batches(["n"], 1000)
    assert (next(firsts)["n"][0].as_py(), next(seconds)["n"][0].as_py()) == (0, 500)


def test_a_partly_read_file_leaves_no_process_behind() -> None:
    rows = OrcRows(pa.BufferReader(stored()))
    process, batches = process_of(rows), rows.batches(None, 10)
    next(batches)
    del batches, rows
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert read(stored())[1].equals(ROWS)


def test_a_crash_over_a_file_is_an_error_and_the_next_file_is_read() -> None:
    with pytest.raises(pa.ArrowInvalid, match="the process in which Arrow read this ORC file ended with SIGSEGV"):
        read(DAMAGED.read_bytes())
    assert read(stored())[1].equals(ROWS)


def test_a_process_that_ended_while_idle_is_replaced() -> None:
    process, _ = read(stored())
    os.kill(process, signal.SIGKILL)
    orc_rows._idle[-1]._process.wait()
    assert read(stored())[1].equals(ROWS)


def test_errors_of_arrow_and_of_the_store_are_passed_on() -> None:
    with pytest.raises(pa.ArrowInvalid, match="File size too small"):
        read(b"ORC")
    with pytest.raises(ZeroDivisionError):
        OrcRows(pa.PythonFile(_Failing(stored()), mode="r"))
    assert read(stored())[1].equals(ROWS)


class _Failing(io.BytesIO):
    """A store that fails."""

    def read(self, size: int | None = -1) -> bytes:
        raise ZeroDivisionError
