"""The local engine: tasks run in a pool of processes on this machine; the items of an exchange wait on its disk."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from icekeeper.engines.engine import Done, Payload, results_of, total_input_bytes
from icekeeper.engines.worker_processes import worker_pool, workers_ignore_signals
from icekeeper.machine.metering import counting
from icekeeper.machine.resources import on_cores, this_machine, with_spare_bytes
from icekeeper.storage.local_files import scratch_folder

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")

SMALL_WORK_BYTES = 128 * 1024 * 1024
"""Tasks that read less than this together take no longer than starting other processes."""
# Memory of a worker that sorts, or merges a group of any size.
_WORKER_BYTES = 512 * 1024 * 1024


class LocalEngine:
    """Runs tasks in at most one process per core and per half a gigabyte of memory.

    A single task, or tasks that read little, run in the calling process.
    """

    name = "local"
    hosts = 1

    def __init__(self, processes: int | None = None, *, cores: int | None = None, spare_bytes: int = 0) -> None:
        """``cores`` are divided among the processes; by default one core per process, or all cores of this machine.

        ``spare_bytes``: memory that a task may use to send fewer requests if one process does all work.
        """
        machine = this_machine()
        self._processes = processes or max(1, min(machine.cores, machine.memory_bytes // _WORKER_BYTES))
        self._cores = cores or processes or machine.cores
        self._spare_bytes = spare_bytes

    @property
    def slots(self) -> int:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._processes

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        size = total_input_bytes(tasks)
        is_small = size is not None and size < SMALL_WORK_BYTES
        with self._workers(1 if is_small else len(tasks), function) as (pool, cores):
            return self._run(pool, cores, function, tasks, on_done)

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`; items wait in a temporary directory."""
        with (
            scratch_folder("icekeeper-exchange-") as folder,
            self._workers(max(len(tasks), len(parts)), split) as (pool, cores),
        ):
            self._run(pool, cores, partial(_spill, split, str(folder)), list(enumerate(tasks)), on_done)
            gather = partial(_gather, merge, str(folder))
            return self._run(pool, cores, gather, list(enumerate(parts)), lambda done: on_done(len(tasks) + done))

    @contextmanager
    def _workers(self, tasks: int, function: Callable[..., Any]) -> Iterator[tuple[ProcessPoolExecutor | None, int]]:
        """The pool for a number of tasks whose first work is ``function``, and the cores of each task.

        ``None``: the calling process does the work.
        """
        processes = min(self._processes, tasks)
        if processes <= 1:
            yield None, self._cores
            return
        with worker_pool(processes, function) as pool:
            yield pool, self._cores // processes

    def _run(
        self,
        pool: ProcessPoolExecutor | None,
        cores: int,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        if pool is None:
            done: list[Done[Result]] = []
            with on_cores(cores), with_spare_bytes(self._spare_bytes):
                for number, task in enumerate(tasks, start=1):
                    with counting() as sent:
                        result = function(task)
                    done.append((result, sent.counts))
                    on_done(number)
            return results_of(done)
        with workers_ignore_signals():
            futures = [pool.submit(_in_worker, function, cores, task) for task in tasks]
            pool.submit(int)  # wakes the pool once all workers run: otherwise the last worker could die unnoticed
        for number, _ in enumerate(as_completed(futures), start=1):
            on_done(number)
        return results_of([future.result() for future in futures])


def _in_worker(function: Callable[[Task], Result], cores: int, task: Task) -> Done[Result]:
    with on_cores(cores), counting() as sent:
        result = function(task)
    return result, sent.counts


def _spill(split: Callable[[Any], Iterable[tuple[int, Any]]], place: str, numbered: tuple[int, Any]) -> None:
    """Write the items of a task to one file per part and task, so that no two processes write the same file."""
    number, task = numbered
    for part, item in split(task):
        folder = Path(place) / str(part)
        folder.mkdir(exist_ok=True)
        with (folder / f"{number}.items").open("ab") as file:
            _ItemPickler(file, folder / f"{number}.payloads").dump(item)


class _ItemPickler(pickle.Pickler):
    """Pickles an item whose payloads are stored in a file of their own."""

    def __init__(self, file: IO[bytes], payloads: Path) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._payloads = payloads

    def reducer_override(self, part: object) -> Any:
        if not isinstance(part, Payload):
            return NotImplemented
        stored = part.stored(self._payloads)
        return Payload, (stored.data, stored.path, stored.start, stored.size)


def _gather(merge: Callable[[Any, Iterator[Any]], Result], place: str, numbered: tuple[int, Any]) -> Result:
    number, part = numbered
    folder = Path(place) / str(number)
    try:
        return merge(part, _items(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _items(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("*.items")):
        with path.open("rb") as file:
            while file.peek(1):
                yield pickle.load(file)
