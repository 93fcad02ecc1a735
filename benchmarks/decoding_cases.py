"""The kinds of rewrite that ``decoding.py`` measures: our task for each, and what the bare side must know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from benchmarks.merge import SCHEMA
from icekeeper.model import FileContent
from icekeeper.operations.compaction.terms.output_names import OutputNames
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, KeyColumn
from icekeeper.operations.compaction.terms.rewrite_task import RewriteTask
from icekeeper.policy import Strategy
from icekeeper.rows.read_task import DeleteFile, InputFile

DELETE_FILES, KEYS_PER_FILE = 20, 10_000
MB = 1024 * 1024
SORT_KEYS = (KeyColumn(2), KeyColumn(3))
KINDS = ("append", "positions", "clustered", "equality", "sort", "zorder")


@dataclass(frozen=True)
class Case:
    """A kind of work: our task, and the parameters of the bare side."""

    task: RewriteTask
    deleted: Sequence[pa.Array | None]
    """Per input: its deleted positions."""
    order: Callable[[pa.Table], pa.Array] | None = None
    """The order in which the bare side writes the rows; ``None``: as they come."""


def cases(files: Sequence[Path], rows: int, folder: Path) -> dict[str, Case]:
    """Every kind of work over the same files."""
    task = RewriteTask(
        group_id=0,
        inputs=tuple(InputFile(str(path), rows, path.stat().st_size) for path in files),
        schema=SCHEMA,
        partition=(),
        outputs=OutputNames(str(folder), "ours"),
        table_properties={},
        io_properties={},
        row_group_memory_bytes=256 * MB,
    )
    size = sum(source.file_size_in_bytes for source in task.inputs)
    recipe = ClusterRecipe(Strategy.SORT, SORT_KEYS, size, size)
    sort_columns = [(SCHEMA["fields"][key.field_id - 1]["name"], "ascending") for key in SORT_KEYS]  # type: ignore[index]

    def by_columns(table: pa.Table) -> pa.Array:
        return pc.sort_indices(table, sort_keys=sort_columns)

    every_hundredth = [pa.arange(7, rows, 100)] * len(files)
    few = max(1, len(files) // 10)
    dense = [pa.arange(3, rows, 10) if i < few else None for i in range(len(files))]
    plain: list[pa.Array | None] = [None] * len(files)
    return {
        "append": Case(task, plain),
        "positions": Case(with_vectors(task, every_hundredth, folder), every_hundredth),
        "clustered": Case(with_vectors(task, dense, folder), dense),
        "equality": equality(task, rows, folder),
        "sort": Case(replace(task, recipe=recipe), plain, by_columns),
        # The bare side orders by two columns: it is the least that an order of two columns costs.
        "zorder": Case(replace(task, recipe=replace(recipe, strategy=Strategy.ZORDER)), plain, by_columns),
    }


def with_vectors(task: RewriteTask, deleted: Sequence[pa.Array | None], folder: Path) -> RewriteTask:
    """The task with a position delete file per input that has deleted rows."""
    deletes: list[DeleteFile] = []
    inputs: list[InputFile] = []
    for source, positions in zip(task.inputs, deleted, strict=True):
        if positions is None:
            inputs.append(source)
            continue
        path = folder / f"deletes-{len(list(folder.iterdir()))}.parquet"
        paths = pa.repeat(pa.scalar(source.path), len(positions))
        pq.write_table(pa.table({"file_path": paths, "pos": positions}), path)
        inputs.append(replace(source, deletes=(len(deletes),)))
        deletes.append(
            DeleteFile(
                path=str(path),
                file_format="PARQUET",
                content=FileContent.POSITION_DELETES,
                sequence_number=1,
                record_count=len(positions),
            )
        )
    return replace(task, inputs=tuple(inputs), deletes=tuple(deletes))


def equality(task: RewriteTask, rows: int, folder: Path) -> Case:
    """Twenty files of ten thousand ids from all over the table, as upserts leave them; each applies to every input."""
    total = rows * len(task.inputs)
    step = max(1, total // (DELETE_FILES * KEYS_PER_FILE))
    field = pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})
    gone = BitMap64()
    deletes: list[DeleteFile] = []
    for number in range(DELETE_FILES):
        keys = pa.arange(number * step // DELETE_FILES, total, step * DELETE_FILES).slice(0, KEYS_PER_FILE)
        keys = pc.add(keys, pa.scalar(number * step, pa.int64()))
        gone.update(keys.to_pylist())
        path = folder / f"keys-{number}.parquet"
        pq.write_table(pa.table([keys], schema=pa.schema([field])), path)
        deletes.append(
            DeleteFile(
                path=str(path),
                file_format="PARQUET",
                content=FileContent.EQUALITY_DELETES,
                sequence_number=2 + number,
                record_count=len(keys),
                equality_ids=(1,),
            )
        )
    inputs = tuple(replace(source, sequence_number=1, deletes=tuple(range(DELETE_FILES))) for source in task.inputs)
    ids = pa.array(gone.to_array(), pa.int64())
    deleted = []
    for number in range(len(inputs)):
        here = ids.filter(pc.equal(pc.divide(ids, rows), number))
        deleted.append(pc.subtract(here, number * rows))
    return Case(replace(task, inputs=inputs, deletes=tuple(deletes)), deleted)
