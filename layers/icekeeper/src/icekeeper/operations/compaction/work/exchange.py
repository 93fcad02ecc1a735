"""Sort file groups that do not fit into a worker: sample the key, exchange rows by key, sort range by range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pyarrow as pa

from icekeeper.engines.engine import Engine
from icekeeper.operations.compaction.terms.rewrite_task import RewriteResult, RewriteTask
from icekeeper.operations.compaction.work.proof import Evidence, disproof
from icekeeper.operations.compaction.work.sort_files import (
    RANGE_BYTES,
    LaneResult,
    LaneTask,
    Sample,
    SampleTask,
    SplitReport,
    SplitTask,
    lane_files,
    merge_lane,
    sample_keys,
    split_rows,
)
from icekeeper.operations.compaction.work.sort_keys import (
    Bound,
    ZOrderCurve,
    at_cells,
    choose_bounds,
    fit_curve,
    sorted_indices,
)
from icekeeper.policy import Strategy
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.read_task import InputFile
from icekeeper.storage.paths import MAX_ATTEMPTS

# The keys that are sampled per group, and the least number of files; each range gets a hundred keys or more.
_SAMPLED_KEYS = 100_000
_SAMPLED_FILES = 64
# Files that a sample task reads, because reading the keys of a file takes less time than starting a worker.  A group of
# usual size has a single task, so that no further processes are started for it.
_FILES_PER_SAMPLE = 64
# Arrow bytes that a split task reads.
_SPLIT_BYTES = 4 * RANGE_BYTES
# A lane writes at least this many files, so that its small last file matters little.
_FILES_PER_LANE = 4
# Bytes per value in memory; for text and binary, only the offsets.
_WIDTHS = {"boolean": 1, "int": 4, "float": 4, "date": 4}
_OTHER_WIDTH = 16
# Size of text in memory per byte on disk.  If the estimate is too low, the group is sorted in several pieces.
_TEXT_EXPANSION = 3


def fits_one_worker(schema: Mapping[str, Any], rows: int, file_bytes: int) -> bool:
    """Whether a single worker can probably sort the rows in memory, by their number, their types and the file sizes."""
    leaves = leaf_columns(schema)
    fixed = rows * sum(_WIDTHS.get(leaf.iceberg_type, _OTHER_WIDTH) for leaf in leaves)
    has_text = any(leaf.iceberg_type in ("string", "binary") or leaf.repeated for leaf in leaves)
    return fixed + has_text * _TEXT_EXPANSION * file_bytes <= RANGE_BYTES


def cluster_groups(
    engine: Engine,
    tasks: Sequence[RewriteTask],
    *,
    will_write: Callable[[Iterable[str]], None],
    discard: Callable[[Iterable[str]], None],
    on_done: Callable[[int], None],
) -> list[RewriteResult]:
    """Sort every group with all workers; results are in the order of the tasks.

    ``will_write`` is called with the records of a group's files (:class:`.PlannedFile`) before it writes them,
    ``discard`` with the paths that a failed group has written, ``on_done`` repeatedly with the number of finished
    groups.

    Raises:
        StorageError: the engine failed, or the names could not be recorded.
    """
    if not tasks:
        return []
    sampling = [_sample_tasks(task) for task in tasks]
    samples = iter(engine.map(sample_keys, [work for some in sampling for work in some], lambda done: on_done(0)))
    results: list[RewriteResult] = []
    for task, some in zip(tasks, sampling, strict=True):
        found = [next(samples) for _ in some]
        error = _error_of(found)
        if error is None:
            splits, lanes, files = _plan(task, found)
            will_write(file.record for lane in lanes for file in lane_files(lane, files))
            sorted_lanes = engine.exchange(split_rows, splits, merge_lane, lanes, lambda done: on_done(len(results)))
            results.append(_result(task, sorted_lanes, discard))
        else:
            results.append(RewriteResult(group_id=task.group_id, error=error, unreadable=_unreadable(found)))
        on_done(len(results))
    return results


def _error_of(samples: Sequence[Sample]) -> str | None:
    errors = [sample.error for sample in samples if sample.error is not None]
    if errors or any(sample.rows for sample in samples):
        return errors[0] if errors else None
    return "the inputs have no rows, although their manifests list rows; run 'icekeeper verify' on this table"


def _sample_tasks(task: RewriteTask) -> list[SampleTask]:
    firsts = _first_rows(task)
    filled = [i for i, source in enumerate(task.inputs) if source.record_count]
    wanted = min(len(filled), max(_SAMPLED_FILES, 4 * task.file_bytes // RANGE_BYTES))
    chosen = [filled[len(filled) * i // wanted] for i in range(wanted)]
    step = max(1, sum(task.inputs[i].record_count for i in chosen) // _SAMPLED_KEYS)
    return [
        SampleTask(
            replace(task, inputs=tuple(task.inputs[i] for i in some), deletes=()),
            tuple(firsts[i] for i in some),
            step,
        )
        for some in (chosen[n : n + _FILES_PER_SAMPLE] for n in range(0, wanted, _FILES_PER_SAMPLE))
    ]


def _plan(task: RewriteTask, samples: Sequence[Sample]) -> tuple[list[SplitTask], list[LaneTask], int]:
    """The tasks that sort a group, and the expected number of files of a lane."""
    recipe = task.recipe
    assert recipe is not None
    disk_bytes = task.file_bytes
    arrow_bytes = max(1.0, task.record_count * max(sample.row_bytes for sample in samples))
    file_count = recipe.output_count(disk_bytes)
    lane_count = max(1, file_count // _FILES_PER_LANE)
    ranges_per_lane = max(1, math.ceil(arrow_bytes / RANGE_BYTES / lane_count))
    if recipe.strategy is Strategy.ZORDER:
        ranges_per_lane = 1 << (ranges_per_lane - 1).bit_length()  # the curve divides evenly into powers of two
    curve, bounds = _bounds(task, [s for s in samples if s.rows], lane_count * ranges_per_lane)
    lane_of = tuple(number // ranges_per_lane for number in range(lane_count * ranges_per_lane))
    share = None if task.most_files is None else max(1, task.most_files // lane_count)
    outputs = replace(task.outputs, attempts=MAX_ATTEMPTS)
    without_inputs = replace(task, inputs=(), deletes=(), most_files=share, outputs=outputs)
    portions = enumerate(_portions(task, arrow_bytes / max(1, disk_bytes)))
    return (
        [SplitTask(part, number, first_row, curve, bounds, lane_of) for number, (part, first_row) in portions],
        [LaneTask(without_inputs, number, curve, disk_bytes / arrow_bytes, lane_count) for number in range(lane_count)],
        math.ceil(file_count / lane_count),
    )


def _bounds(task: RewriteTask, samples: Sequence[Sample], ranges: int) -> tuple[ZOrderCurve | None, tuple[Bound, ...]]:
    """The z-order curve (``None``: rows are sorted by columns) and the bounds of the ranges."""
    recipe = task.recipe
    assert recipe is not None
    keys = [pa.concat_arrays(parts) for parts in zip(*(sample.values for sample in samples), strict=True)]
    rows = [row for sample in samples for row in sample.rows]
    if recipe.strategy is not Strategy.ZORDER:
        return None, choose_bounds(keys, rows, sorted_indices(keys, recipe.columns), ranges)
    curve = fit_curve(keys)
    cells = curve.keys(keys)
    order = sorted_indices([cells], curve.columns)
    return curve, at_cells(choose_bounds([cells], rows, order, ranges), cells.take(order))


def _portions(task: RewriteTask, expansion: float) -> Iterator[tuple[RewriteTask, int]]:
    """Divide the inputs into portions for split tasks, each with the number of its first row within the group.

    ``expansion`` is Arrow bytes per byte on disk.
    """
    firsts = _first_rows(task)
    start, size = 0, 0.0
    for index, source in enumerate(task.inputs):
        size += source.file_size_in_bytes * expansion
        if size >= _SPLIT_BYTES or index == len(task.inputs) - 1:
            yield _with_inputs(task, task.inputs[start : index + 1]), firsts[start]
            start, size = index + 1, 0.0


def _with_inputs(task: RewriteTask, inputs: Sequence[InputFile]) -> RewriteTask:
    """The task with some of its inputs and the delete files that apply to them."""
    needed = sorted({number for source in inputs for number in source.deletes})
    renumbered = {old: new for new, old in enumerate(needed)}
    return replace(
        task,
        inputs=tuple(replace(s, deletes=tuple(renumbered[number] for number in s.deletes)) for s in inputs),
        deletes=tuple(task.deletes[number] for number in needed),
    )


def _first_rows(task: RewriteTask) -> list[int]:
    """The number of each input's first row within the group, followed by the number of all rows."""
    return [0, *accumulate(source.record_count for source in task.inputs)]


def _result(task: RewriteTask, lanes: Sequence[LaneResult], discard: Callable[[Iterable[str]], None]) -> RewriteResult:
    """The group's result, with the same proof as for a group that a single worker rewrites."""
    reports = [report for lane in lanes for report in lane.reports]
    read, deleted = sum(r.rows_read for r in reports), sum(r.rows_deleted for r in reports)
    written = tuple(file for lane in lanes for file in lane.written)
    error = next((e for e in [*(r.error for r in reports), *(lane.error for lane in lanes)] if e is not None), None)
    if error is not None:
        discard(file.file_path for file in written)
    if error is None:
        problem = disproof(
            task,
            sum((r.evidence for r in reports), Evidence()),
            sum((lane.evidence for lane in lanes), Evidence()),
            rows_read=read,
            rows_deleted=deleted,
        )
        if problem is not None:
            kept = ", ".join(file.file_path for file in written) or "nothing"
            error = f"rows were not kept: {problem}; {kept} was written and is kept for inspection"
    return RewriteResult(
        group_id=task.group_id,
        written=() if error is not None else written,
        rows_read=read,
        rows_deleted=deleted,
        has_row_maps=task.keeps_row_maps,
        error=error,
        unreadable=_unreadable(reports),
    )


def _unreadable(found: Iterable[Sample | SplitReport]) -> dict[str, str]:
    return {path: why for report in found for path, why in report.unreadable.items()}
