"""A pass on a Spark cluster whose executors are processes that are killed while they work, or have small disks.

``local-cluster[2,1,1024]`` has a master and two workers with one executor each.  An executor is killed when it has
started, when the first output exists, or when the second output exists (a sort writes all outputs at once); with
speculation, tasks run twice.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import duckdb
import pyarrow as pa
import pyspark
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.engines.spark import LOCAL_SETTINGS, find_java_home
from icekeeper.storage.paths import normalise
from support.maintained_table import MaintainedTable, new_table, our_catalog
from support.readers import duckdb_rows

MASTER = "local-cluster[2,1,1024]"
FILES, ROWS = 24, 60_000
SCRIPT = "from icekeeper.cli import main\nif code := main():\n    raise SystemExit(code)\n"
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


def submitted(
    table: MaintainedTable,
    folder: Path,
    settings: dict[str, str],
    *more: str,
    script_text: str = SCRIPT,
    disk: Path | None = None,
    target_mb: int = 2,
) -> subprocess.Popen[str]:
    """Start ``icekeeper maintain`` under ``spark-submit``; ``disk``: where workers keep rows."""
    home, script = folder / "spark", folder / "maintain.py"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    script.write_text(script_text)
    options = [text for pair in {**LOCAL_SETTINGS, **settings}.items() for text in ("--conf", "=".join(pair))]
    catalog = "PYICEBERG_CATALOG__LOCAL__"
    return subprocess.Popen(
        [
            *(str(home / "bin" / "spark-submit"), "--master", MASTER, *options, str(script)),
            *("maintain", "ns.t", "--catalog", "local", "--engine", "spark", "--operations", "compact"),
            *(
                "--set",
                "min_input_files=2",
                "--set",
                f"target_file_size_mb={target_mb}",
                "--set",
                "min_row_group_copy_bytes=none",
            ),
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
            "SPARK_LOCAL_DIRS": str(disk or folder),
            "TMPDIR": str(disk or folder),
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


# Sorts whose rows do not fit on the disk of the workers, which is a file system of its own.

DISK_MB = 88
# Groups are smaller than a cluster's, and so are their parts; the ratios are a cluster's.
SMALL_PARTS = """
from icekeeper.operations.compaction.work import exchange
exchange._SPLIT_BYTES, exchange.RANGE_BYTES = 16 * 2**20, 4 * 2**20
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Spilled:
    """The largest size at which each file of a folder was seen, and the most bytes in use at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._sizes = folder, dict[Path, int]()
        self.most_in_use = 0

    def watch(self, process: subprocess.Popen[str]) -> None:
        while process.poll() is None:
            self._look()
            time.sleep(0.02)

    def _look(self) -> None:
        usage = shutil.disk_usage(self._folder)
        self.most_in_use = max(self.most_in_use, usage.used)
        for pattern in ("**/shuffle_*.data", "**/range-*"):
            with suppress(FileNotFoundError):
                for path in self._folder.glob(pattern):
                    self._sizes[path] = max(self._sizes.get(path, 0), path.stat().st_size)

    @property
    def all_bytes(self) -> int:
        return sum(self._sizes.values())


ROWS_OF_FILE = 400_000
# Values that do not compress, and depend on the id; 60 % of the rows may have the key 7.
COLUMNS = ", ".join(f"(hash(id + {n}) >> 1)::BIGINT AS n{n}" for n in range(1, 4))
KEYS = {"even_keys": "(hash(id) >> 1)::BIGINT", "a_key_of_60_percent": "if(id % 5 < 3, 7, (hash(id) >> 1)::BIGINT)"}


@pytest.mark.parametrize(("keys", "files"), [("even_keys", 12), ("a_key_of_60_percent", 14)])
def test_a_sort_that_spills_three_times_the_disk_ends(
    local_catalog: SqlCatalog, tmp_path: Path, small_disk: Path, keys: str, files: int
) -> None:
    """Every row is kept whole, rows are in order, and rows of a key keep their order."""
    made = MaintainedTable(our_catalog(tmp_path), tmp_path, pyiceberg=local_catalog)
    with duckdb.connect() as connection:
        for number in range(files):
            ids = f"range({number * ROWS_OF_FILE}, {(number + 1) * ROWS_OF_FILE}) AS ids(id)"
            rows = connection.sql(f"SELECT {KEYS[keys]} AS key, id, {COLUMNS} FROM {ids}").arrow()
            if not number:
                made.create(rows.schema)
            made.table.append(rows)
        spilled = Spilled(small_disk)
        order = ["--set", "strategy=sort", "--set", "sort_order=key"]
        text = SMALL_PARTS + SCRIPT
        with submitted(made, tmp_path, {}, *order, script_text=text, disk=small_disk, target_mb=1) as process:
            looking = Thread(target=spilled.watch, args=(process,))
            looking.start()
            out, err = process.communicate(timeout=500)
            looking.join()
        assert process.returncode == 0, (out[-2000:], err[-3000:])
        metrics = json.loads(out[out.index("{") : out.rindex("}") + 1])["operations"][0]["metrics"]
        print(f"spilled {spilled.all_bytes >> 20} MB, at most {spilled.most_in_use >> 20} MB at a time; {metrics}")
        assert spilled.all_bytes > 3 * DISK_MB * 2**20
        assert metrics["compact.bytes_read_again"] > 0
        paths = [normalise(file.file_path) for file in made.data_files()]
        row = "SELECT key, id, n1, n2, n3, row(key, id) < lag(row(key, id), 1, row(key, id)) OVER outputs AS is_late "
        row += f"FROM read_parquet({paths}, filename = true, file_row_number = true) "
        row += "WINDOW outputs AS (ORDER BY filename, file_row_number)"
        kept = " AND ".join(f"n{n} = (hash(id + {n}) >> 1)::BIGINT" for n in range(1, 4))
        (found,) = connection.sql(
            f"SELECT count(*), count(DISTINCT id), min(id), max(id), "
            f"count(*) FILTER ({kept} AND key = {KEYS[keys]}), count(*) FILTER (is_late) FROM ({row})"
        ).fetchall()
    count = files * ROWS_OF_FILE
    assert found == (count, count, 0, count - 1, count, 0)
    made.assert_sound()
