"""The local engine: the work unit in a pool of processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from icekeeper.errors import StorageError

__all__ = ["LocalEngine"]

Task = TypeVar("Task")
Result = TypeVar("Result")


class LocalEngine:
    """One process per core at most; a single task runs in this process, which saves starting one."""

    name = "local"

    def __init__(self, processes: int | None = None) -> None:
        self._processes = processes or os.cpu_count() or 1

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.operations.context.Engine`."""
        processes = min(self._processes, len(tasks))
        if processes <= 1:
            results = []
            for done, task in enumerate(tasks, start=1):
                results.append(function(task))
                on_done(done)
            return results
        # Spawned, not forked: Arrow's and boto3's threads do not survive a fork.
        pool = ProcessPoolExecutor(
            processes, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
        )
        try:
            futures = [pool.submit(function, task) for task in tasks]
            for done, _ in enumerate(as_completed(futures), start=1):
                on_done(done)
            return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise StorageError("a worker process died, probably for lack of memory; nothing was committed") from error
        finally:
            pool.shutdown(cancel_futures=True)  # interrupted: what has not begun never does


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.join,), daemon=True).start()


def _exit_after(wait: Callable[[], object]) -> None:
    wait()
    os._exit(1)
