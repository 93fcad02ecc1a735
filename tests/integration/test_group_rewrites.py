"""Every engine rewrites file groups, and rows are proven before the commit."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.engines.engine import Engine
from icekeeper.operations.compaction.plan import plan_on_workers
from icekeeper.operations.compaction.terms.output_names import OutputNames
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassStatus, Status
from icekeeper.rows.read_task import InputFile
from support.maintained_table import new_table
from support.rewrites import input_file, rows, struct, task

# Every engine rewrites a file group with the same rows and metrics, a failure per group, and bounded memory.

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": False, "type": "long"},
        {"id": 2, "name": "text", "required": False, "type": "string"},
    ],
}


def write_inputs(folder: Path, count: int, rows: int) -> list[InputFile]:
    """Files without repeated rows, so that dictionaries do not reduce their size."""
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
        # Row groups aim at their encoded size; uncompressed, that is about their size in Arrow.
        table_properties={
            "write.parquet.row-group-size-bytes": str(8 * 1024 * 1024),
            "write.parquet.compression-codec": "uncompressed",
        },
        io_properties={},
    )


def test_every_engine_writes_the_same_rows_and_metrics(engine: Engine, tmp_path: Path) -> None:
    """A group merged by any engine holds its input rows in order, with the same metrics."""
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


def test_rows_are_divided_evenly_in_their_order(tmp_path: Path) -> None:
    """The number of files is that of the plan; if a later file fails, the earlier files are removed."""
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
    """A missing input fails only its own group, by name; the other group is written."""
    inputs = write_inputs(tmp_path, 2, 10)
    good = task_of(inputs, tmp_path / "good", 0)
    bad = task_of([*inputs, InputFile(str(tmp_path / "gone.parquet"), 10, 1)], tmp_path / "bad", 1)
    first, second = engine.map(rewrite_group, [good, bad], lambda done: None)
    assert first.error is None
    assert second.written == ()
    assert second.error is not None
    assert "gone.parquet" in second.error
    assert not list(tmp_path.glob("bad*"))


def test_a_group_of_150_mb_is_merged_in_less_memory_than_it_has(tmp_path: Path) -> None:
    """The limit applies to the worker's peak; a buffer of the whole group, encoded or in Arrow, would exceed it."""
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
    for copy in range(150 * 1024 * 1024 // size + 1):
        path = tmp_path / f"in-{copy}.parquet"
        os.link(made, path)
        inputs.append(InputFile(str(path), rows, size))
    grown = _peak_kb(task_of(inputs, tmp_path / "out")) - _peak_kb(task_of([], tmp_path / "none"))
    assert sum(i.file_size_in_bytes for i in inputs) > 150 * 1024 * 1024
    assert grown < 100 * 1024


def _peak_kb(task: RewriteTask) -> int:
    """The largest resident set of a new process that runs one task, in KB."""
    script = (
        "import pickle, resource, sys\n"
        "from icekeeper.operations.compaction.work.rewrite import rewrite_group\n"
        "result = rewrite_group(pickle.load(sys.stdin.buffer))\n"
        "assert result.error is None, result.error\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(task), capture_output=True, check=True)
    return int(done.stdout)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


# Counts or the full proof detect a writer that corrupts rows before the commit.

PROVEN_SCHEMA = struct(
    (1, "id", "long"),
    (2, "text", "string"),
    (3, "point", struct((4, "x", "int"))),
    (5, "tags", {"type": "list", "element-id": 6, "element": "string", "element-required": False}),
)
ROWS = rows(
    PROVEN_SCHEMA,
    {
        "id": [1, 2, 3, 4],
        "text": ["a", "b", "c", "d"],
        "point": [{"x": 1}, None, {"x": None}, {"x": 4}],
        "tags": [["u", "v"], [], None, [None]],
    },
)


def _with(table: pa.Table, name: str, values: list[object]) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))


CORRUPTIONS: dict[str, tuple[Callable[[pa.Table], pa.Table], str, bool]] = {
    "a lost row": (lambda t: t.slice(1), "4 rows went to the writer, but the written files have 3", True),
    "a row twice": (lambda t: pa.concat_tables([t, t.slice(0, 1)]), "but the written files have 5", True),
    "a lost value": (lambda t: _with(t, "text", ["a", None, "c", "d"]), "column text had 4 values, but has 3 in", True),
    "a lost element": (
        lambda t: _with(t, "tags", [["u"], [], None, [None]]),
        "column tags.element had 2 values, but has 1 in",
        True,
    ),
    "another number": (lambda t: _with(t, "id", [1, 2, 3, 5]), "column id had values from 1 to 4", True),
    "another last text": (
        lambda t: _with(t, "text", ["a", "b", "x", "d"]),
        "column text had values from b'a' to b'd'",
        True,
    ),
    "swapped values": (lambda t: _with(t, "text", ["b", "a", "c", "d"]), "the checksums of the rows", False),
    "an element that moved": (
        lambda t: _with(t, "tags", [["v", "u"], [], None, [None]]),
        "the checksums of the rows",
        False,
    ),
    "an empty list": (lambda t: _with(t, "tags", [["u", "v"], None, None, [None]]), "the checksums of the rows", False),
}


def corrupt(monkeypatch: pytest.MonkeyPatch, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change each table on its way into a Parquet file."""
    write_table = pq.ParquetWriter.write_table

    def changed(self: pq.ParquetWriter, table: pa.Table, row_group_size: int) -> None:
        write_table(self, change(table), row_group_size + 1)  # room for another row

    monkeypatch.setattr(pq.ParquetWriter, "write_table", changed)


@pytest.mark.parametrize("name", list(CORRUPTIONS))
def test_corrupted_rows_are_detected(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts detect changes to a count or a bound, checksums detect all; the file is kept for inspection."""
    change, problem, by_counts = CORRUPTIONS[name]
    source, path = input_file(tmp_path / "in.parquet", ROWS), tmp_path / "out-00000-a0.parquet"
    for level in ("counts", "full"):
        work = task(PROVEN_SCHEMA, [source], tmp_path, proof=level)
        assert rewrite_group(work).error is None
        with monkeypatch.context() as patch:
            corrupt(patch, change)
            result = rewrite_group(work)
        if not by_counts and level == "counts":
            assert result.error is None
            continue
        assert result.written == ()
        assert problem in (result.error or "")
        assert f"{path} was written and is kept for inspection" in (result.error or "")
        assert path.is_file()


def test_a_file_that_cannot_be_read_back_fails_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.operations.compaction.work.proof.pq.read_metadata", _fails)
    result = rewrite_group(task(PROVEN_SCHEMA, [input_file(tmp_path / "in.parquet", ROWS)], tmp_path))
    assert result.written == ()
    assert "the written files cannot be read back" in (result.error or "")


def _fails(stream: object) -> None:
    raise pa.ArrowInvalid("Parquet magic bytes not found in footer")


@pytest.mark.parametrize(
    ("level", "status"), [("counts", Status.SUCCEEDED), ("full", Status.FAILED)], ids=["counts", "full"]
)
def test_a_pass_does_not_commit_a_group_that_fails_its_proof(
    level: str, status: Status, tmp_path: Path, local_catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strings are swapped on the way into the file: only the full proof detects it, and the table is unchanged."""
    table = new_table(local_catalog, tmp_path)
    table.append(1, part="b")
    table.append(2, part="a")
    before = table.loaded.metadata_location

    def swapped(content: pa.Table) -> pa.Table:
        return content.set_column(1, content.schema.field(1), pc.if_else(pc.equal(content["part"], "a"), "b", "a"))

    with monkeypatch.context() as patch:
        corrupt(patch, swapped)
        # A failed job's files are kept for the grace period, like those of any load.
        outcome = table.maintain("compact", proof=level, orphan_older_than_hours="24")
    (compacted,) = outcome.operations
    assert (compacted.operation, compacted.status) == (Operation.COMPACT, status)
    if status is Status.SUCCEEDED:
        return
    assert outcome.status is PassStatus.FAILED
    assert "rows were not kept: the checksums of the rows before and after writing differ" in (compacted.reason or "")
    assert table.loaded.metadata_location == before
    assert table.readers_agree() == [1, 2]
    (kept,) = (path for path in table.unreferenced() if "/compact-" in path)
    assert kept in (compacted.reason or "")


def test_a_table_planned_by_workers_keeps_its_rows(
    engine: Engine, tmp_path: Path, local_catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every table counts as large here; the files of a large plan are not listed."""
    monkeypatch.setattr(plan_on_workers, "LARGE_ENTRIES", 1)
    table = new_table(local_catalog, tmp_path)
    for number in range(6):
        table.append(number)
    compacted = table.run(Operation.COMPACT, engine=engine, min_input_files="2")
    assert (compacted.status, compacted.files_planned) == (Status.SUCCEEDED, ())
    assert (compacted.metrics["compact.files_merged"], compacted.metrics["compact.files_written"]) == (6, 1)
    assert table.readers_agree() == [0, 1, 2, 3, 4, 5]
    again = table.run(Operation.COMPACT, engine=engine, min_input_files="2")
    assert (again.status, again.reason) == (Status.SKIPPED, "no files eligible for compaction")
