"""Sort file groups that do not fit into a worker: sample the key, exchange rows by key, sort range by range."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from threading import Condition, Lock
from typing import Any

import pyarrow as pa

from icekeeper.engines.engine import USED_DISK_SHARE, Engine
from icekeeper.operations.compaction.terms.rewrite_task import RewriteResult, RewriteTask
from icekeeper.operations.compaction.work.proof import Evidence, disproof
from icekeeper.operations.compaction.work.sort_files import (
    RANGE_BYTES,
    RUN_BYTES,
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
from icekeeper.text import counted, size_text

log = logging.getLogger(__name__)

# The keys that are sampled per group, and the least number of files; each range gets a hundred keys or more.
_SAMPLED_KEYS = 100_000
_SAMPLED_FILES = 64
# Files that a sample task reads, because reading the keys of a file takes less time than starting a worker.  A group of
# usual size has a single task, so that no further processes are started for it.
_FILES_PER_SAMPLE = 64
# The most Arrow bytes that a split task reads.
_SPLIT_BYTES = 4 * RANGE_BYTES
# A lane writes about so many files, so that rounding their number matters little.
_FILES_PER_LANE = 4
# A lane writes at least so many files where more lanes keep all slots busy.
_LEAST_FILES_PER_LANE = 3
# Bytes per value in memory; for text and binary, only the offsets.
# Sampling reads the keys of some files, the sort all columns twice.
_SAMPLING_SHARE = 0.05
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
    on_done: Callable[[float], None],
) -> list[RewriteResult]:
    """Sort every group with all workers; results are in the order of the tasks.

    ``will_write`` is called with the records of a group's files (:class:`.PlannedFile`) before it writes them,
    ``discard`` with the paths that a failed group has written, ``on_done`` repeatedly with how many groups are done, as
    a fraction: finished groups and shares of others, sampling included.

    Raises:
        StorageError: the engine failed, or the names could not be recorded.
    """
    if not tasks:
        return []
    sampling = [_sample_tasks(task, engine.slots) for task in tasks]
    works = [work for some in sampling for work in some]
    sampled = _SAMPLING_SHARE * len(tasks)  # of all groups, because all are sampled first
    samples = iter(engine.map(sample_keys, works, lambda done: on_done(sampled * done / max(1, len(works)))))
    results: list[RewriteResult] = []

    def note(finished: float) -> None:
        on_done(sampled + (1 - _SAMPLING_SHARE) * finished)

    for task, some in zip(tasks, sampling, strict=True):
        found = [next(samples) for _ in some]
        error = _error_of(found)
        if error is None:
            results.append(_sorted(engine, task, found, will_write, discard, lambda share: note(len(results) + share)))
        else:
            results.append(RewriteResult(group_id=task.group_id, error=error, unreadable=_unreadable(found)))
        note(len(results))
    return results


def _sorted(
    engine: Engine,
    task: RewriteTask,
    samples: Sequence[Sample],
    will_write: Callable[[Iterable[str]], None],
    discard: Callable[[Iterable[str]], None],
    on_done: Callable[[float], None],
) -> RewriteResult:
    """Sort a group in one or more exchanges, or refuse it if the workers' disks are too small."""
    slots = engine.slots
    plan = _plan(task, samples, slots)
    room_bytes = DISK.room_bytes(engine.hosts, min(sample.free_bytes for sample in samples))
    exchanges = plan.needs.exchanges(slots, room_bytes)
    if not exchanges:
        return RewriteResult(group_id=task.group_id, error=_too_large(task, plan.needs, slots, room_bytes))
    need_bytes = plan.needs.bytes_of(exchanges[0], slots)
    log.info(
        "sorting %s in %s: each keeps up to %s on disk, and the workers may use %s on %s",
        size_text(task.file_bytes),
        counted(len(exchanges), "exchange"),
        size_text(need_bytes),
        size_text(room_bytes),
        counted(engine.hosts, "host"),
    )
    will_write(file.record for lane in plan.lanes for file in lane_files(lane, plan.files_per_lane))
    with DISK.taken(need_bytes, room_bytes):
        lanes, again_bytes = _exchanged(engine, plan, exchanges, on_done)
    return _result(task, lanes, again_bytes, discard)


# The rows of an exchange wait on the disks of the workers until it ends, and those of a lane once more while the lane
# is sorted.  If they take more than the workers may use, the group is sorted in several exchanges, each of a part of
# the lanes.  The first reads all inputs and finds out for which lanes each portion has rows, so that later exchanges
# skip portions that have none for them: if files overlap little in the key, little is read again.

MOST_EXCHANGES = 4
"""The most exchanges of a group; a group that needs more is refused, because each may read all inputs again."""


@dataclass(frozen=True, slots=True)
class DiskNeeds:
    """The estimated bytes on disk while a group is sorted."""

    sent_bytes: float
    """The bytes of all rows on their way to lanes."""
    split_bytes: float
    """The bytes of them that a split task sends."""
    lanes: int

    def bytes_of(self, lanes: range, slots: int) -> float:
        """The bytes of an exchange of some lanes: all its rows, and again either those of the lanes that are sorted at
        once or, before, those of the running split tasks, which Spark writes twice."""
        share = len(lanes) / self.lanes
        lane_bytes = self.sent_bytes / self.lanes
        return self.sent_bytes * share + max(min(slots, len(lanes)) * lane_bytes, slots * self.split_bytes * share)

    def exchanges(self, slots: int, room_bytes: float) -> list[range]:
        """The lanes of each exchange, as few exchanges as fit; empty: ``MOST_EXCHANGES`` are not enough."""
        for count in range(1, MOST_EXCHANGES + 1):
            size = -(-self.lanes // count)
            if self.bytes_of(range(size), slots) <= room_bytes:
                return [range(first, min(first + size, self.lanes)) for first in range(0, self.lanes, size)]
        return []


class SharedDisk:
    """The disk that workers may use for exchanges, shared by the threads of this process."""

    def __init__(self) -> None:
        self._turn, self._changed = Lock(), Condition()
        self._taken_bytes = 0.0
        self._free_bytes = 0

    def room_bytes(self, hosts: int, free_bytes: int) -> float:
        """The bytes that exchanges may use on all hosts together, if a host was found to have ``free_bytes``.

        The largest number that was found counts: at other times, exchanges were using the disk.
        """
        with self._changed:
            self._free_bytes = max(self._free_bytes, free_bytes)
            return USED_DISK_SHARE * self._free_bytes * hosts

    @contextmanager
    def taken(self, size_bytes: float, room_bytes: float) -> Iterator[None]:
        """Hold bytes of the room; waits for exchanges of other threads if it has too few, in the order of calls."""
        with self._turn, self._changed:
            self._changed.wait_for(lambda: not self._taken_bytes or self._taken_bytes + size_bytes <= room_bytes)
            self._taken_bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._taken_bytes -= size_bytes
                self._changed.notify_all()


DISK = SharedDisk()


def _too_large(task: RewriteTask, needs: DiskNeeds, slots: int, room_bytes: float) -> str:
    where = f" of partition {task.outputs.partition_path}" if task.outputs.partition_path else ""
    least = needs.bytes_of(range(-(-needs.lanes // MOST_EXCHANGES)), slots)
    return (
        f"{counted(len(task.inputs), 'file')} ({size_text(task.file_bytes)}){where} cannot be sorted together: even "
        f"in {MOST_EXCHANGES} exchanges each would keep about {size_text(least)} on disk, and the workers may use "
        f"{size_text(room_bytes)}, {USED_DISK_SHARE:.0%} of the free disk; use more workers or workers with larger "
        "disks, or lower max_file_group_size_mb"
    )


def _exchanged(
    engine: Engine, plan: _GroupPlan, exchanges: Sequence[range], on_done: Callable[[float], None]
) -> tuple[list[LaneResult], int]:
    """The results of the lanes, and how many bytes of files were read again; ends early if there is an error.

    ``on_done`` is called with the share of the splits and lanes that is finished.
    """
    results: list[LaneResult] = []
    seen: dict[int, frozenset[int]] = {}
    again_bytes = 0
    for number, lanes in enumerate(exchanges):
        splits = [
            replace(split, exchanged=lanes, is_again=bool(results))
            for split in plan.splits
            if not results or not seen[split.number].isdisjoint(lanes)
        ]
        again_bytes += sum(split.task.file_bytes for split in splits if split.is_again)
        note = partial(_note_share, on_done, number, len(exchanges), len(splits) + len(lanes))
        ended = engine.exchange(split_rows, splits, merge_lane, plan.lanes[lanes.start : lanes.stop], note)
        results += ended
        if _lane_error(ended) is not None:
            break
        # A later exchange reports the same lanes.
        seen |= {report.split: report.lanes for lane in ended for report in lane.reports}
    return results, again_bytes


def _note_share(on_done: Callable[[float], None], number: int, exchanges: int, steps: int, done: int) -> None:
    on_done((number + min(done, steps) / steps) / exchanges)


def _lane_error(lanes: Sequence[LaneResult]) -> str | None:
    reports = (report for lane in lanes for report in lane.reports)
    return next((e for e in [*(r.error for r in reports), *(lane.error for lane in lanes)] if e is not None), None)


def _error_of(samples: Sequence[Sample]) -> str | None:
    errors = [sample.error for sample in samples if sample.error is not None]
    if errors or any(sample.rows for sample in samples):
        return errors[0] if errors else None
    return "the inputs have no rows, although their manifests list rows; run 'icekeeper verify' on this table"


def _sample_tasks(task: RewriteTask, slots: int) -> list[SampleTask]:
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
            _lane_count(task, slots),
        )
        for some in (chosen[n : n + _FILES_PER_SAMPLE] for n in range(0, wanted, _FILES_PER_SAMPLE))
    ]


def _lane_count(task: RewriteTask, slots: int) -> int:
    """How many lanes a group has; for a sort, all slots are busy until its end, unless lanes had too few files."""
    assert task.recipe is not None
    files = task.recipe.output_count(task.file_bytes)
    lanes = max(1, files // _FILES_PER_LANE)
    if task.recipe.strategy is Strategy.ZORDER:
        return lanes  # a power of two, as the number of files
    return max(lanes, min(-(-lanes // slots) * slots, files // _LEAST_FILES_PER_LANE))


@dataclass(frozen=True, slots=True)
class _GroupPlan:
    """The tasks that sort a group."""

    splits: list[SplitTask]
    lanes: list[LaneTask]
    files_per_lane: int
    """The expected number of files of a lane."""
    needs: DiskNeeds


def _plan(task: RewriteTask, samples: Sequence[Sample], slots: int) -> _GroupPlan:
    recipe = task.recipe
    assert recipe is not None
    disk_bytes = task.file_bytes
    arrow_bytes = max(1.0, task.record_count * max(sample.row_bytes for sample in samples))
    file_count, lane_count = recipe.output_count(disk_bytes), _lane_count(task, slots)
    ranges_per_lane = max(1, math.ceil(arrow_bytes / RANGE_BYTES / lane_count))
    if recipe.strategy is Strategy.ZORDER:
        ranges_per_lane = 1 << (ranges_per_lane - 1).bit_length()  # the curve divides evenly into powers of two
    curve, bounds = _bounds(task, [s for s in samples if s.rows], lane_count * ranges_per_lane)
    lane_of = tuple(number // ranges_per_lane for number in range(lane_count * ranges_per_lane))
    share = None if task.most_files is None else max(1, task.most_files // lane_count)
    outputs = replace(task.outputs, attempts=MAX_ATTEMPTS)
    without_inputs = replace(task, inputs=(), deletes=(), most_files=share, outputs=outputs)
    # As many portions of equal size for each slot, so that all are busy until the last ends; a small group has a single
    # portion, so that no further processes are started for it.
    count = 1 if arrow_bytes <= _SPLIT_BYTES else math.ceil(arrow_bytes / _SPLIT_BYTES / slots) * slots
    portions = enumerate(_portions(task, max(1, min(count, int(arrow_bytes / min(_SPLIT_BYTES, RUN_BYTES))))))
    every, ratio = range(lane_count), disk_bytes / arrow_bytes
    splits = [
        SplitTask(part, number, first_row, curve, bounds, lane_of, every) for number, (part, first_row) in portions
    ]
    sent_bytes = task.record_count * max(sample.sent_bytes for sample in samples)
    largest = max(split.task.record_count for split in splits) / max(1, task.record_count)
    return _GroupPlan(
        splits,
        [LaneTask(without_inputs, number, curve, ratio, lane_count) for number in every],
        math.ceil(file_count / lane_count),
        DiskNeeds(sent_bytes, sent_bytes * largest, lane_count),
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


def _portions(task: RewriteTask, count: int) -> Iterator[tuple[RewriteTask, int]]:
    """Divide the inputs into about ``count`` portions of equal bytes for split tasks, each with the number of its first
    row within the group."""
    firsts, total = _first_rows(task), max(1, task.file_bytes)
    start = number = size = 0
    for index, source in enumerate(task.inputs):
        size += source.file_size_in_bytes
        if size * count >= total * (number + 1) or index == len(task.inputs) - 1:
            yield _with_inputs(task, task.inputs[start : index + 1]), firsts[start]
            start, number = index + 1, size * count // total


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


def _result(
    task: RewriteTask, lanes: Sequence[LaneResult], again_bytes: int, discard: Callable[[Iterable[str]], None]
) -> RewriteResult:
    """The group's result, with the same proof as for a group that a single worker rewrites."""
    reports = [report for lane in lanes for report in lane.reports]
    read, deleted = sum(r.rows_read for r in reports), sum(r.rows_deleted for r in reports)
    written = tuple(file for lane in lanes for file in lane.written)
    error = _lane_error(lanes)
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
        bytes_read_again=again_bytes,
        has_row_maps=task.keeps_row_maps,
        error=error,
        unreadable=_unreadable(reports),
    )


def _unreadable(found: Iterable[Sample | SplitReport]) -> dict[str, str]:
    return {path: why for report in found for path, why in report.unreadable.items()}
