"""The local engine: tasks run in a pool of processes on this machine; the items of an exchange wait on its disk."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from icekeeper.engines.engine import total_input_bytes
from icekeeper.engines.worker_processes import worker_pool, workers_ignore_interrupts
from icekeeper.machine.resources import on_cores, this_machine, with_spare_bytes
from icekeeper.storage.local_files import scratch_folder

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")

SMALL_WORK_BYTES = 128 * 1024 * 1024
"""Tasks that read less than this together take no longer than starting other processes
(platform: forked-workers-start-cheap)."""
# Memory of a worker that sorts, or merges a group of any size.
_WORKER_BYTES = 512 * 1024 * 1024


class LocalEngine:
    """Runs tasks in at most one process per core and per half a gigabyte of memory.

    A single task, or tasks that read little, run in the calling process.
    """

    name = "local"

    def __init__(self, processes: int | None = None, *, cores: int | None = None, spare_bytes: int = 0) -> None:
        """``cores`` are divided among the processes; by default one core per process, or all cores of this machine.

        ``spare_bytes``: memory that a task may use to send fewer requests if one process does all work.
        """
        machine = this_machine()
        self._processes = processes or max(1, min(machine.cores, machine.memory_bytes // _WORKER_BYTES))
        self._cores = cores or processes or machine.cores
        self._spare_bytes = spare_bytes

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        size = total_input_bytes(tasks)
        is_small = size is not None and size < SMALL_WORK_BYTES
        with self._workers(1 if is_small else len(tasks), function) as workers:
            return workers.run(function, tasks, on_done)

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
            self._workers(max(len(tasks), len(parts)), split) as workers,
        ):
            splits = [_Exchanged(split, task, number, str(folder)) for number, task in enumerate(tasks)]
            workers.run(_spill, splits, on_done)
            merges = [_Exchanged(merge, part, number, str(folder)) for number, part in enumerate(parts)]
            return workers.run(_gather, merges, lambda done: on_done(len(tasks) + done))

    @contextmanager
    def _workers(self, tasks: int, function: Callable[..., Any]) -> Iterator[_Workers]:
        """The workers for a number of tasks, whose first work is ``function``."""
        processes = min(self._processes, tasks)
        if processes <= 1:
            yield _Workers(None, self._cores, self._spare_bytes)
            return
        with worker_pool(processes, function) as pool:
            yield _Workers(pool, self._cores // processes)


@dataclass(frozen=True, slots=True)
class _Workers:
    pool: ProcessPoolExecutor | None
    """``None``: the calling process does the work."""
    cores: int
    """Per task."""
    spare_bytes: int = 0

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        work = _Granted(function, self.cores, self.spare_bytes)
        if self.pool is None:
            results = []
            for done, task in enumerate(tasks, start=1):
                results.append(work(task))
                on_done(done)
            return results
        with workers_ignore_interrupts():
            futures = [self.pool.submit(work, task) for task in tasks]
        for done, _ in enumerate(as_completed(futures), start=1):
            on_done(done)
        return [future.result() for future in futures]


@dataclass(frozen=True, slots=True)
class _Granted:
    """A function that runs with these cores and this spare memory."""

    function: Callable[[Any], Any]
    cores: int
    spare_bytes: int

    def __call__(self, task: Any) -> Any:
        with on_cores(self.cores), with_spare_bytes(self.spare_bytes):
            return self.function(task)


@dataclass(frozen=True, slots=True)
class _Exchanged:
    """A task to split or a part to merge, with its number; items are in ``folder``, by part and task."""

    function: Callable[..., Any]
    subject: Any
    number: int
    folder: str


def _spill(work: _Exchanged) -> None:
    """Write the items of a task to one file per task and part, so that no two processes write the same file."""
    for part, item in work.function(work.subject):
        folder = Path(work.folder) / str(part)
        folder.mkdir(exist_ok=True)
        with (folder / str(work.number)).open("ab") as file:
            pickle.dump(item, file, pickle.HIGHEST_PROTOCOL)


def _gather(work: _Exchanged) -> Any:
    return work.function(work.subject, _items(Path(work.folder) / str(work.number)))


def _items(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("*")):
        with path.open("rb") as file:
            while file.peek(1):
                yield pickle.load(file)
        path.unlink()
