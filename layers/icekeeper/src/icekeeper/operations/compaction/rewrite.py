"""The work unit of compaction: a task in, written files or an error out; run by local processes or by Spark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from icekeeper.errors import MaintenanceError
from icekeeper.model import DataFile
from icekeeper.operations.compaction.clustering.work import write_clustered
from icekeeper.operations.compaction.partition_rows import makes_fewer_files, write_partitions
from icekeeper.operations.compaction.proof import Evidence, RowProof, disproof, proof_of_file
from icekeeper.operations.compaction.task import RewriteResult, RewriteTask, Routing
from icekeeper.operations.compaction.writing.even_files import write_evenly
from icekeeper.rows.read import Tally, read_rows
from icekeeper.storage.storage import Storage

__all__ = ["rewrite_group"]


def rewrite_group(task: RewriteTask) -> RewriteResult:
    """Rewrite the live rows of one task's inputs: as they come, sorted, or dealt out to partitions.

    Rows in and rows out are compared before anything is reported as written (:mod:`.proof`).
    Never raises for what concerns only this group: the result carries the error.
    """
    started = time.perf_counter()
    tally = Tally()
    storage = Storage(task.io_properties)
    routing: Routing | None = None

    def result(written: tuple[DataFile, ...], error: str | None = None) -> RewriteResult:
        return RewriteResult(
            group_id=task.group_id,
            written=written,
            rows_read=tally.read,
            rows_deleted=tally.deleted,
            spec_id=None if routing is None else routing.spec_id,
            seconds=time.perf_counter() - started,
            error=error,
        )

    proof = RowProof(task.schema, task.proof)
    try:
        if task.routing is not None and makes_fewer_files(task, task.routing, storage):
            routing = task.routing
        rows = proof.watch(read_rows(task, storage, tally))
        if task.recipe is not None:
            clustered = write_clustered(rows, task, task.recipe, storage)
            if clustered is None:
                return replace(result(()), too_large=True)
            files = clustered
        elif routing is not None:
            files = write_partitions(rows, task, routing, storage)
        else:
            files = write_evenly(rows, task, storage)
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
        return result((), f"{type(error).__name__}: {error}")
    problem = _disproof(task, tally, proof, files, storage)
    if problem is not None:
        kept = ", ".join(file.file_path for file in files) or "nothing"
        return result((), f"rows were not kept: {problem}; {kept} was written and is kept for inspection")
    return result(files)


def _disproof(
    task: RewriteTask, tally: Tally, proof: RowProof, files: Sequence[DataFile], storage: Storage
) -> str | None:
    """Why the written files do not hold the rows that were read, in words; ``None`` when they do."""
    try:
        found = [proof_of_file(file.file_path, task.schema, storage, task.proof) for file in files]
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as error:
        return f"what was written cannot be read back: {error}"
    return disproof(
        proof.evidence,
        sum(found, Evidence()),
        proof.names,
        promised=sum(source.record_count for source in task.inputs),
        rows_read=tally.read,
        rows_deleted=tally.deleted,
    )
