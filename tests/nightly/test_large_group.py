"""A group of 5 GB is rewritten in bounded memory, sampled while it runs; takes minutes and 10 GB of disk."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.operations.compaction.terms.output_names import OutputNames
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, KeyColumn
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask
from icekeeper.policy import Strategy
from icekeeper.rows.read_task import InputFile

GB = 1024**3
MB = 1024**2
COLUMNS = ("id", "amount", "text")
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": number, "name": name, "required": False, "type": kind}
        for number, (name, kind) in enumerate(zip(COLUMNS, ("long", "double", "string"), strict=True), start=1)
    ],
}
RUN = """
import pickle, sys
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.operations.compaction.work.exchange import cluster_groups
from icekeeper.operations.compaction.work.rewrite import rewrite_group

if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        task = pickle.load(file)
    if task.recipe is None:
        (result,) = LocalEngine(2).map(rewrite_group, [task], lambda done: None)
    else:
        (result,) = cluster_groups(
            LocalEngine(2), [task], will_write=lambda paths: None, discard=lambda paths: None, on_done=lambda done: None
        )
    assert result.error is None, result.error
    print(sum(file.record_count for file in result.written))
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[InputFile]:
    """5 GB of hard links to one incompressible file of 64 MB."""
    folder = tmp_path_factory.mktemp("inputs")
    rows, width = 500_000, 100
    noise = pa.py_buffer(os.urandom(rows * width // 2).hex().encode())
    offsets = pa.py_buffer(pa.array(range(0, (rows + 1) * width, width), pa.int32()).buffers()[1])
    fields = [
        pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})
        for number, (name, kind) in enumerate(
            zip(COLUMNS, (pa.int64(), pa.float64(), pa.string()), strict=True), start=1
        )
    ]
    numbers = pa.array(memoryview(os.urandom(rows * 8)).cast("q"), pa.int64())
    columns = [
        numbers,
        pa.arange(0, rows).cast(pa.float64()),
        pa.Array.from_buffers(pa.string(), rows, [None, offsets, noise]),
    ]
    made = folder / "made.parquet"
    pq.write_table(pa.Table.from_arrays(columns, schema=pa.schema(fields)), made, use_dictionary=False)
    found: list[InputFile] = []
    while sum(source.file_size_in_bytes for source in found) < 5 * GB:
        path = folder / f"in-{len(found)}.parquet"
        os.link(made, path)
        found.append(InputFile(str(path), rows, made.stat().st_size))
    return found


@pytest.mark.parametrize("is_sorted", [False, True], ids=["binpack", "sort"])
def test_a_group_of_5_gb_fits_a_worker_of_1_gb(inputs: list[InputFile], is_sorted: bool, tmp_path: Path) -> None:
    """The limit holds for all processes of a merge together, and for each of the two workers of a sort."""
    recipe = ClusterRecipe(Strategy.SORT, (KeyColumn(1),), 256 * MB, 192 * MB)
    task = RewriteTask(
        group_id=0,
        inputs=tuple(inputs),
        schema=SCHEMA,
        partition=(),
        outputs=OutputNames(str(tmp_path), "out"),
        table_properties={},
        io_properties={},
        recipe=recipe if is_sorted else None,
    )
    (tmp_path / "task").write_bytes(pickle.dumps(task))
    (tmp_path / "run.py").write_text(RUN)
    running = subprocess.Popen(
        [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "task")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    together = alone = 0
    while running.poll() is None:
        sizes = resident_sizes(running.pid)
        together, alone = max(together, sum(sizes)), max(alone, *sizes, 0)
        time.sleep(0.2)
    out, _ = running.communicate()
    assert running.returncode == 0
    assert int(out) == sum(source.record_count for source in inputs)
    print(f"peak: {together // MB} MB together, {alone // MB} MB of one process")
    assert (alone if is_sorted else together) < GB


def resident_sizes(pid: int) -> list[int]:
    """Resident bytes of a process and of its descendants; shared memory counts for each process."""
    sizes = []
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        sizes.append(next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Rss:")))
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                sizes += resident_sizes(int(child))
    except (FileNotFoundError, ProcessLookupError, StopIteration):
        pass  # it has ended
    return sizes
