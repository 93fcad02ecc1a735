"""The local engine: tasks run in a pool of processes on this machine; items of an exchange wait on its disk."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from icekeeper.errors import StorageError

__all__ = ["LocalEngine"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")


class LocalEngine:
    """At most one process per core; a single task runs in the calling process, which saves starting one."""

    name = "local"

    def __init__(self, processes: int | None = None) -> None:
        self._processes = processes or os.cpu_count() or 1

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        with self._pool(len(tasks)) as pool:
            return _run(pool, function, tasks, on_done)

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
            tempfile.TemporaryDirectory(prefix="icekeeper-exchange-") as folder,
            self._pool(max(len(tasks), len(parts))) as pool,
        ):
            splits = [_Split(split, task, number, folder) for number, task in enumerate(tasks)]
            _run(pool, _spill, splits, on_done)
            merges = [_Merge(merge, part, number, folder) for number, part in enumerate(parts)]
            return _run(pool, _gather, merges, lambda done: on_done(len(tasks) + done))

    @contextmanager
    def _pool(self, tasks: int) -> Iterator[ProcessPoolExecutor | None]:
        """A pool of processes; ``None`` where one process is enough, so that the calling one does the work."""
        processes = min(self._processes, tasks)
        if processes <= 1:
            yield None
            return
        others = multiprocessing.active_children()
        # Spawned, not forked: Arrow's and boto3's threads do not survive a fork.
        pool = ProcessPoolExecutor(
            processes, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
        )
        try:
            yield pool
        except BrokenProcessPool as error:
            raise StorageError("a worker process died, probably for lack of memory; nothing was committed") from error
        except KeyboardInterrupt:
            # Nobody waits for their results any more; what they have begun to write is on the job's record.
            for worker in multiprocessing.active_children():
                if worker not in others:
                    worker.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)  # after an error, tasks that have not begun never begin


def _run(
    pool: ProcessPoolExecutor | None,
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    on_done: Callable[[int], None],
) -> list[Result]:
    if pool is None:
        results = []
        for done, task in enumerate(tasks, start=1):
            results.append(function(task))
            on_done(done)
        return results
    with _workers_ignore_interrupts():
        futures = [pool.submit(function, task) for task in tasks]
    for done, _ in enumerate(as_completed(futures), start=1):
        on_done(done)
    return [future.result() for future in futures]


@contextmanager
def _workers_ignore_interrupts() -> Iterator[None]:
    """Processes that are started within the block never see SIGINT: a terminal sends it to them, too.

    A process takes over which signals are blocked in the thread that starts it.  This thread still learns of an
    interrupt: right after the block, or at once through another thread.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True, slots=True)
class _Split:
    function: Callable[[Any], Iterable[tuple[int, Any]]]
    task: Any
    number: int
    folder: str


@dataclass(frozen=True, slots=True)
class _Merge:
    function: Callable[[Any, Iterator[Any]], Any]
    part: Any
    number: int
    folder: str


def _spill(work: _Split) -> None:
    """Write the items of a task to one file per task and part, so that no two processes write the same file."""
    for part, item in work.function(work.task):
        folder = Path(work.folder) / str(part)
        folder.mkdir(exist_ok=True)
        with (folder / str(work.number)).open("ab") as file:
            pickle.dump(item, file, pickle.HIGHEST_PROTOCOL)


def _gather(work: _Merge) -> Any:
    return work.function(work.part, _items(Path(work.folder) / str(work.number)))


def _items(folder: Path) -> Iterator[Any]:
    for path in sorted(folder.glob("*")):
        with path.open("rb") as file:
            while file.peek(1):
                yield pickle.load(file)
        path.unlink()


def _end_with_parent() -> None:
    """End this worker when its parent ends: without that, a worker whose parent was killed would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.join,), daemon=True).start()


def _exit_after(wait: Callable[[], object]) -> None:
    wait()
    os._exit(1)
