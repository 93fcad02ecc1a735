"""A pass on a Spark cluster whose executors are separate processes that are killed while they work.

``local-cluster[2,1,1024]`` has a master and two workers with one executor each.  An executor is killed when it has
started, when the first output exists, or when the second output exists (a sort writes all outputs at once); with
speculation, tasks run twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.engines.spark import LOCAL_SETTINGS, find_java_home
from support.maintained_table import MaintainedTable, new_table
from support.readers import duckdb_rows

MASTER = "local-cluster[2,1,1024]"
FILES, ROWS = 24, 60_000
SCRIPT = "from icekeeper.cli import main\nraise SystemExit(main())\n"
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "50ms",
}
ORDERS = {"in_order": [], "sorted": ["--set", "strategy=sort", "--set", "sort_order=id desc"]}


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """24 files of 60,000 rows: enough for several tasks of about a second each."""
    made = new_table(local_catalog, tmp_path)
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        made.table.append(pa.table({"id": list(ids), "part": [f"some text, number {i}" for i in ids]}))
    return made


def submitted(table: MaintainedTable, folder: Path, settings: dict[str, str], *more: str) -> subprocess.Popen[str]:
    """Start ``icekeeper maintain`` under ``spark-submit``."""
    home, script = folder / "spark", folder / "maintain.py"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    script.write_text(SCRIPT)
    options = [text for pair in {**LOCAL_SETTINGS, **settings}.items() for text in ("--conf", "=".join(pair))]
    catalog = "PYICEBERG_CATALOG__LOCAL__"
    return subprocess.Popen(
        [
            *(str(home / "bin" / "spark-submit"), "--master", MASTER, *options, str(script)),
            *("maintain", "ns.t", "--catalog", "local", "--engine", "spark", "--operations", "compact"),
            *("--set", "min_input_files=2", "--set", "target_file_size_mb=2", "--set", "min_row_group_copy_bytes=none"),
            *("--json", *more),
        ],
        env={
            **os.environ,
            f"{catalog}TYPE": "sql",
            f"{catalog}URI": f"sqlite:///{folder / 'catalog.db'}",
            f"{catalog}WAREHOUSE": (folder / "warehouse").as_uri(),
            "ICEKEEPER_STATE": str(folder / "state.db"),
            "ICEKEEPER_TABLE_SETTINGS": "all",
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_HOME": find_java_home(),
            "PYSPARK_PYTHON": sys.executable,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def executors(session: int) -> list[int]:
    """The executors among the processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                is_executor = b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes()
                if is_executor and os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def outputs(table: MaintainedTable) -> int:
    return sum("compact-" in path and path.endswith(".parquet") for path in table.files())


MOMENTS: dict[str, Callable[[MaintainedTable], bool]] = {
    "begun": lambda table: True,
    "first_output": lambda table: outputs(table) >= 1,
    "second_output": lambda table: outputs(table) >= 2,
}


CASES = [
    (moment, order)
    for moment in (*MOMENTS, "speculation")
    for order in ORDERS
    if (moment, order) != ("second_output", "sorted")
]


@pytest.mark.parametrize(("moment", "order"), CASES)
def test_a_killed_executor_changes_neither_rows_nor_files(
    table: MaintainedTable, tmp_path: Path, moment: str, order: str
) -> None:
    before = Counter(row["id"] for row in duckdb_rows(table.metadata_location))
    settings = SPECULATION if moment == "speculation" else {}
    with submitted(table, tmp_path, settings, *ORDERS[order]) as process:
        killed = moment == "speculation"
        deadline = time.monotonic() + 240
        while process.poll() is None and not killed and time.monotonic() < deadline:
            alive = executors(process.pid)
            if len(alive) == 2 and MOMENTS[moment](table):
                os.kill(alive[0], signal.SIGKILL)
                killed = True
            time.sleep(0.02)
        out, err = process.communicate(timeout=300)
    assert killed, err[-2000:]
    assert process.returncode == 0, (out[-2000:], err[-3000:])
    assert Counter(row["id"] for row in duckdb_rows(table.metadata_location)) == before
    table.assert_sound()
    table.late_ms = 10 * 24 * 3_600_000
    table.maintain("remove_orphans,expire_snapshots")
    assert table.unreferenced() == set()
