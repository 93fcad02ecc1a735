"""A file group rewritten by every engine: the same rows and metrics, one failure for a group, in bounded memory."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.operations.compaction.rewrite_task import OutputNames, RewriteTask
from icekeeper.rows.read_task import InputFile

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": False, "type": "long"},
        {"id": 2, "name": "text", "required": False, "type": "string"},
    ],
}


@pytest.fixture(params=["local", "local-one", "spark"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "spark":
        session: SparkSession = request.getfixturevalue("spark_session")
        return SparkEngine(session.sparkContext)
    return LocalEngine(2 if request.param == "local" else 1)


def write_inputs(folder: Path, count: int, rows: int) -> list[InputFile]:
    """Files whose rows do not repeat, so that dictionaries do not hide their size."""
    inputs = []
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"}),
            pa.field("text", pa.string(), metadata={b"PARQUET:field_id": b"2"}),
        ]
    )
    for number in range(count):
        path = folder / f"in-{number}.parquet"
        ids = range(number * rows, (number + 1) * rows)
        table = pa.table([pa.array(ids, pa.int64()), [f"{i * 2654435761 % 2**32:x}" * 8 for i in ids]], schema=schema)
        pq.write_table(table, path)
        inputs.append(InputFile(str(path), rows, path.stat().st_size))
    return inputs


def task_of(inputs: list[InputFile], output: Path, group_id: int = 0) -> RewriteTask:
    return RewriteTask(
        group_id=group_id,
        inputs=tuple(inputs),
        schema=SCHEMA,
        partition=(),
        outputs=OutputNames(str(output.parent), output.name),
        # Row groups aim at their encoded size: uncompressed, that is about what Arrow needs for them.
        table_properties={
            "write.parquet.row-group-size-bytes": str(8 * 1024 * 1024),
            "write.parquet.compression-codec": "uncompressed",
        },
        io_properties={},
    )


def test_every_engine_writes_the_same_rows_and_metrics(engine: Engine, tmp_path: Path) -> None:
    """A group merged by any engine holds its input rows in order, described by the same metrics."""
    tasks = [task_of(write_inputs(_made(tmp_path / str(g)), 3, 50), tmp_path / f"out-{g}", g) for g in range(2)]
    results = engine.map(rewrite_group, tasks, lambda done: None)
    assert [(r.group_id, r.error, r.rows_read) for r in results] == [(0, None, 150), (1, None, 150)]
    for result in results:
        (written,) = result.written
        assert pq.read_table(written.file_path)["id"].to_pylist() == list(range(150))
        assert written.file_size_in_bytes == Path(written.file_path).stat().st_size
        assert written.value_counts == {1: 150, 2: 150}
        assert written.lower_bounds is not None
        assert written.lower_bounds[1] == (0).to_bytes(8, "little")
        assert written.split_offsets == (4,)


def test_rows_are_divided_evenly_and_keep_their_order(tmp_path: Path) -> None:
    """Into as many files as the plan says; what is written when a later one fails does not stay."""
    task = replace(task_of(write_inputs(tmp_path, 4, 50), tmp_path / "out"), output_count=3)
    result = rewrite_group(task)
    assert result.error is None
    assert [file.record_count for file in result.written] == [67, 67, 66]
    ids = [i for file in result.written for i in pq.read_table(file.file_path)["id"].to_pylist()]
    assert ids == list(range(200))
    wrong = replace(
        task, outputs=OutputNames(str(tmp_path), "wrong"), inputs=(*task.inputs[:3], InputFile("gone", 50, 1))
    )
    assert rewrite_group(wrong).error is not None
    assert not list(tmp_path.glob("wrong*"))


def test_a_failing_group_is_reported_and_leaves_no_file(engine: Engine, tmp_path: Path) -> None:
    """A missing input fails its own group with its name; the other group is written."""
    inputs = write_inputs(tmp_path, 2, 10)
    good = task_of(inputs, tmp_path / "good", 0)
    bad = task_of([*inputs, InputFile(str(tmp_path / "gone.parquet"), 10, 1)], tmp_path / "bad", 1)
    first, second = engine.map(rewrite_group, [good, bad], lambda done: None)
    assert first.error is None
    assert second.written == ()
    assert second.error is not None
    assert "gone.parquet" in second.error
    assert not list(tmp_path.glob("bad*"))


def test_rows_that_the_manifest_does_not_promise_fail_the_group(tmp_path: Path) -> None:
    """A file with another number of rows than its manifest says is not merged: something is wrong with one of them."""
    inputs = write_inputs(tmp_path, 2, 10)
    wrong = [replace(inputs[0], record_count=9), inputs[1]]
    result = rewrite_group(task_of(wrong, tmp_path / "out"))
    assert result.written == ()
    assert result.error is not None
    assert "holds 10 rows, its manifest says 9" in result.error


def test_memory_of_a_worker_does_not_grow_with_the_group(tmp_path: Path) -> None:
    """Merging eight times the bytes takes no more memory: rows stream through one row group at a time."""
    few = write_inputs(_made(tmp_path / "few"), 4, 40_000)
    many = write_inputs(_made(tmp_path / "many"), 32, 40_000)
    grown = _peak_kb(task_of(many, tmp_path / "many.parquet")) - _peak_kb(task_of(few, tmp_path / "few.parquet"))
    total_kb = sum(i.record_count for i in many) * 72 // 1024
    assert total_kb > 80_000  # as Arrow holds it
    assert grown < 25_000


def test_a_group_of_300_mb_is_merged_in_less_memory_than_it_has(tmp_path: Path) -> None:
    """At the worker's peak.  A buffer of the whole group, encoded or as Arrow holds it, would break the bound."""
    ids = pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})
    text = pa.field("text", pa.string(), metadata={b"PARQUET:field_id": b"2"})
    rows, width = 100_000, 100
    noise = pa.py_buffer(os.urandom(rows * width // 2).hex().encode())
    offsets = pa.py_buffer(pa.array(range(0, (rows + 1) * width, width), pa.int32()).buffers()[1])
    texts = pa.Array.from_buffers(pa.string(), rows, [None, offsets, noise])
    table = pa.Table.from_arrays([pa.arange(0, rows), texts], schema=pa.schema([ids, text]))
    made = tmp_path / "in.parquet"
    pq.write_table(table, made, compression="none", use_dictionary=False)
    size = made.stat().st_size
    inputs = []
    for copy in range(300 * 1024 * 1024 // size + 1):
        path = tmp_path / f"in-{copy}.parquet"
        os.link(made, path)
        inputs.append(InputFile(str(path), rows, size))
    grown = _peak_kb(task_of(inputs, tmp_path / "out")) - _peak_kb(task_of([], tmp_path / "none"))
    assert sum(i.file_size_in_bytes for i in inputs) > 300 * 1024 * 1024
    assert grown < 100 * 1024


def _peak_kb(task: RewriteTask) -> int:
    """Largest resident set of a fresh process that runs one task, in KB."""
    script = (
        "import pickle, resource, sys\n"
        "from icekeeper.operations.compaction.rewrite import rewrite_group\n"
        "result = rewrite_group(pickle.load(sys.stdin.buffer))\n"
        "assert result.error is None, result.error\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(task), capture_output=True, check=True)
    return int(done.stdout)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
