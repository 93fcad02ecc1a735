"""Lists the files that the record of a staged load stands for."""

from __future__ import annotations

from collections.abc import Iterator

from icekeeper.state.staging import LoadOrigin, StagedLoad
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.attempt_names import planned_file

__all__ = ["recorded_files"]


def recorded_files(memory: TableMemory, load: StagedLoad) -> Iterator[str]:
    """The paths of all files that the load may have left; of a job, one for each possible attempt at a task.

    Raises:
        StorageError: the state store cannot be read.
    """
    for record in memory.staged_files(load):
        planned = planned_file(record) if load.origin is LoadOrigin.JOB else None
        yield from [record] if planned is None else planned.paths
