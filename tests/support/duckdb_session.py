"""DuckDB in a process of its own that answers many reads: starting one costs more than a small table's rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from support.readers import arrow_rows

__all__ = ["DuckDB"]

_CHILD = """
import json, sys
from icekeeper.demo import duckdb_child as child
connection = child._connect(None)
for line in sys.stdin:
    request = json.loads(line)
    try:
        scan = child._scan(request["metadata_location"], None)
        columns = [row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()]
        child._rows(connection, scan, ", ".join(child._identifier(c) for c in sorted(columns)), request["output"])
        answer = None
    except Exception as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
"""


class DuckDB:
    """Reads metadata files one after the other; a crash of the process fails the read, and the next starts anew."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "rows.arrow"
        self._process: subprocess.Popen[str] | None = None

    def rows(self, metadata_location: str) -> list[dict[str, Any]]:
        """Every row of the current snapshot, by column name."""
        # Once in thousands of reads it ends without a word, on tables that it reads at any other time.
        answer = self._ask(metadata_location) or self._ask(metadata_location)
        assert answer, f"DuckDB ended twice while reading {metadata_location}"
        error = json.loads(answer)
        assert error is None, f"DuckDB could not read {metadata_location}: {error}"
        with pa.OSFile(str(self._output)) as source:
            return arrow_rows(pa.ipc.open_file(source).read_all())

    def _ask(self, metadata_location: str) -> str:
        """The answer's line; nothing when the process ended."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"metadata_location": metadata_location, "output": str(self._output)}) + "\n")
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
        return self._process
