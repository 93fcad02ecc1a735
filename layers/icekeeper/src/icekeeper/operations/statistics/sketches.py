"""The sketches of a plan: its readings as work units through the engine, united with what they continue."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import FileUnreadable, StorageError
from icekeeper.metadata.document import schema_digest
from icekeeper.metadata.statistics import ThetaSketch, decode_theta, union
from icekeeper.operations.statistics.plan import StatisticsPlan, StoredBlob
from icekeeper.operations.statistics.task import sketch_rows, sketch_tasks
from icekeeper.pass_context.context import OperationContext

__all__ = ["computed_sketches"]

_WHAT = "compute_statistics: file groups"
# Results held at once: of a hundred columns with 32 KB each they are 200 MB.
_WAVE = 64


def computed_sketches(
    context: OperationContext,
    loaded: LoadedTable,
    plan: StatisticsPlan,
    bases: Mapping[StoredBlob, ThetaSketch],
) -> tuple[dict[int, tuple[str, ThetaSketch]], int]:
    """Run the work unit over all files; a single one that cannot be read makes all of it worthless, and is remembered.

    Returns:
        By field id the type that was hashed and its sketch; and how many rows were read for them.

    Raises:
        FileUnreadable: a file cannot be read.
        StorageError: a store failed, or the engine broke.
        TableUnsupported: an equality delete cannot be applied by this version.
    """
    verify = context.policy.verify_page_checksums
    tasks = sketch_tasks(loaded.metadata, plan.readings, loaded.io_properties, verify_checksums=verify)
    merged: dict[int, ThetaSketch] = {}
    for reading in plan.readings:
        for field_id in reading.types:
            stored = reading.base.get(field_id)
            merged[field_id] = ThetaSketch() if stored is None else bases[stored]
    rows = 0
    context.progress(_WHAT, 0, len(tasks))
    for start in range(0, len(tasks), _WAVE):
        wave = tasks[start : start + _WAVE]
        for result in context.engine.map(sketch_rows, wave, partial(_tell, context, len(tasks), start)):
            if result.unreadable:
                context.memory.remember_unreadable(result.unreadable, schema_digest(loaded.metadata))
                raise FileUnreadable(str(result.error), path=next(iter(result.unreadable)))
            if result.error is not None:
                raise StorageError(f"no statistics were computed: {result.error}")
            rows += result.rows
            for field_id, data in result.sketches.items():
                merged[field_id] = union((merged[field_id], decode_theta(data, "a result")))
    types = {field_id: kind for reading in plan.readings for field_id, kind in reading.types.items()}
    return {field_id: (types[field_id], sketch) for field_id, sketch in merged.items()}, rows


def _tell(context: OperationContext, total: int, before: int, done: int) -> None:
    context.progress(_WHAT, before + done, total)
