"""The one pure work unit of compaction: a task in, a written file or an error out; run here or by Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from icekeeper.errors import MaintenanceError
from icekeeper.model import DataFile
from icekeeper.operations.compaction.proof import Evidence, RowProof, proof_of_file
from icekeeper.operations.compaction.read import Tally, read_rows
from icekeeper.operations.compaction.task import RewriteResult, RewriteTask
from icekeeper.operations.compaction.write import write_data_file
from icekeeper.storage import Storage

__all__ = ["rewrite_group"]


def rewrite_group(task: RewriteTask) -> RewriteResult:
    """Merge the inputs of one task into one file; never raises for what concerns only this group.

    Rows in and rows out are compared before anything is reported as written (:mod:`.proof`).
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

    proof = RowProof(table_schema, task.proof)
    try:
        rows = proof.watch(read_rows(task, table_schema, storage, tally))
        written = write_data_file(path, rows, task, table_schema, storage)
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
        storage.delete([path])  # half a file that no commit will ever name
        return result((), f"{type(error).__name__}: {error}")
    files = () if written is None else (written,)
    problem = _disproof(task, tally, proof, files, table_schema, storage)
    if problem is not None:
        kept = ", ".join(file.file_path for file in files) or "nothing"
        return result((), f"rows were not kept: {problem}; {kept} was written and is kept for inspection")
    return result(files)


def _disproof(
    task: RewriteTask,
    tally: Tally,
    proof: RowProof,
    files: Sequence[DataFile],
    table_schema: Mapping[str, Any],
    storage: Storage,
) -> str | None:
    """Why the written files do not hold the live rows of the inputs, ``None`` when they do."""
    promised = sum(source.record_count for source in task.inputs)
    if tally.read != promised or tally.live != proof.evidence.rows:
        return (
            f"rows do not add up: {promised} promised, {tally.read} read, {tally.deleted} of them deleted, "
            f"{proof.evidence.rows} written"
        )
    try:
        found = [proof_of_file(file.file_path, table_schema, storage, task.proof) for file in files]
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
        return f"what was written cannot be read back: {error}"
    return proof.evidence.contradiction(sum(found, Evidence()), proof.names)
