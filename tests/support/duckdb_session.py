"""DuckDB in a separate process that serves many reads: its start costs more than a read of a small table."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

# The rows of an Arrow table as dictionaries.


def arrow_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return dictionaries; nanosecond timestamps as integers, because Python has no type for them."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            table = table.set_column(index, field.name, table.column(index).cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


_CHILD = """
import json, os, sys
import pyarrow as pa
from icekeeper.demo import duckdb_child as child
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # DuckDB prints stack traces of its own faults
connection = child.connect(json.loads(sys.stdin.readline()))
connection.execute("SET enable_external_file_cache = false")  # tests put other bytes under the same name
def ids(scan, conditions, planned):
    if not planned:
        connection.execute(f"CREATE OR REPLACE TEMP TABLE whole AS SELECT * FROM {scan}")
        scan = "whole"
    found = []
    for condition in conditions:
        try:
            found.append([row[0] for row in connection.execute(f"SELECT id FROM {scan} WHERE {condition}").fetchall()])
        except Exception as error:
            found.append(str(error))
    return found
def write_rows(scan, output):
    columns = [row[:2] for row in connection.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()]
    quoted = [(child._identifier(name), kind) for name, kind in sorted(columns)]
    # Arrow has no variants.
    names = ", ".join(f"{name}::VARCHAR AS {name}" if kind == "VARIANT" else name for name, kind in quoted)
    reader = connection.execute(f"SELECT {names} FROM {scan}").to_arrow_reader()
    with pa.OSFile(output, "wb") as sink, pa.ipc.new_file(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
for line in sys.stdin:
    request = json.loads(line)
    try:
        scan = child._scan(request["metadata_location"], request.get("snapshot_id"))
        if "conditions" in request:
            print(json.dumps(ids(scan, request["conditions"], request["planned"])), file=answers, flush=True)
            continue
        write_rows(scan, request["output"])
        answer = None
    except Exception as error:
        answer = str(error)
    print(json.dumps(answer), file=answers, flush=True)
"""


class DuckDB:
    """Reads metadata files one after the other; a crash of the process fails the read, the next read restarts it."""

    def __init__(self, folder: Path, s3: Mapping[str, str] | None = None) -> None:
        """``s3``: PyIceberg's properties for tables on S3."""
        self._output = folder / "rows.arrow"
        self._s3 = None if s3 is None else dict(s3)
        self._process: subprocess.Popen[str] | None = None

    def rows(self, metadata_location: str, snapshot_id: int | None = None) -> list[dict[str, Any]]:
        """Every row of a snapshot, by default the current snapshot, by column name."""
        request = {"metadata_location": metadata_location, "snapshot_id": snapshot_id, "output": str(self._output)}
        error = self._answer(request)
        assert error is None, f"DuckDB could not read {metadata_location}: {error}"
        with pa.OSFile(str(self._output)) as source:
            return arrow_rows(pa.ipc.open_file(source).read_all())

    def ids_where(
        self, metadata_location: str, conditions: Sequence[str], *, planned: bool = True
    ) -> list[list[int] | str]:
        """Column ``id`` of the rows that meet each condition, or DuckDB's error.

        Unless ``planned``, DuckDB reads all rows before it filters.
        """
        request = {"metadata_location": metadata_location, "conditions": list(conditions), "planned": planned}
        found = self._answer(request)
        assert isinstance(found, list), f"DuckDB could not read {metadata_location}: {found}"
        return found

    def _answer(self, request: Mapping[str, Any]) -> Any:
        # Once in thousands of reads it ends without a message, on tables that it otherwise reads.
        answer = self._ask(request) or self._ask(request)
        assert answer, f"DuckDB ended twice while reading {request['metadata_location']}"
        if '"INTERNAL Error' in answer or '"FATAL Error' in answer:
            self.close()  # after an internal error, it refuses every other read
        return json.loads(answer)

    def _ask(self, request: Mapping[str, Any]) -> str:
        """The line of the answer; empty if the process ended."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            process.wait()
        return answer

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(self._s3) + "\n")
        return self._process


@functools.cache
def shared_duckdb() -> DuckDB:
    """The session of this process, which ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="icekeeper-duckdb-"))
    session = DuckDB(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(session.close)
    return session
