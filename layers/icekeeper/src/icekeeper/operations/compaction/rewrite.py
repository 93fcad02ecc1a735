"""The one pure work unit of compaction: a task in, written files or an error out; run here or by Spark."""

from __future__ import annotations

import json
import time

import pyarrow as pa

from icekeeper.errors import MaintenanceError
from icekeeper.model import DataFile
from icekeeper.operations.compaction.cluster_rows import write_clustered
from icekeeper.operations.compaction.read import Tally, read_rows
from icekeeper.operations.compaction.task import RewriteResult, RewriteTask
from icekeeper.operations.compaction.write import write_data_file
from icekeeper.storage import Storage

__all__ = ["rewrite_group"]


def rewrite_group(task: RewriteTask) -> RewriteResult:
    """Merge the inputs of one task into one file, or into several sorted ones.

    Never raises for what concerns only this group.
    Rows in and rows out are compared before anything is reported as written (proof before commit).
    """
    started = time.perf_counter()
    tally = Tally()
    storage = Storage(task.io_properties)
    table_schema = json.loads(task.schema_json)
    path = task.outputs.path()

    def result(written: tuple[DataFile, ...], error: str | None = None) -> RewriteResult:
        return RewriteResult(
            group_id=task.group_id,
            written=written,
            rows_read=tally.read,
            rows_deleted=tally.deleted,
            seconds=time.perf_counter() - started,
            error=error,
        )

    try:
        rows = read_rows(task, table_schema, storage, tally)
        if task.recipe is not None:
            written = write_clustered(rows, task, task.recipe, storage)
        else:
            file = write_data_file(path, rows, task, table_schema, storage)
            written = () if file is None else (file,)
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
        storage.delete([path])  # half a file that no commit will ever name
        return result((), f"{type(error).__name__}: {error}")
    rows_written = sum(file.record_count for file in written)
    promised = sum(source.record_count for source in task.inputs)
    if tally.read != promised or tally.live != rows_written:
        return result(
            (),
            f"rows do not add up: {promised} promised, {tally.read} read, {tally.deleted} of them deleted, "
            f"{rows_written} written to {', '.join(f.file_path for f in written) or path}, kept for inspection",
        )
    return result(written)
