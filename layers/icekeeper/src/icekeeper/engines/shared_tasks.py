"""An engine for many small tables at once: small pieces of work of several tables share a task of the workers.

The rewrite of a tiny table spends nearly all of its time waiting for the object store, but would occupy a core of a
worker.  So while all cores are taken, small pieces of work wait, and the next free core does several of them together,
in threads of one task.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from icekeeper.engines.engine import Engine, current_work, in_pool, named_work, total_input_bytes
from icekeeper.engines.spark_tasks import WritesFiles
from icekeeper.errors import StorageError
from icekeeper.machine.clock import in_daemon_thread
from icekeeper.machine.metering import RequestKind, counting, current_count

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")

# Bytes as ReadsBytes counts them, with 256 KB for each opened file: the most of a small piece of work, and of all
# pieces in a task.  The latter is the bound for groups of one table that share a task; it bounds a worker's memory
# (rule: bounded-worker-memory).
_SMALL_WORK_BYTES = 16 * 1024**2
_TOGETHER_BYTES = 32 * 1024**2
_TOGETHER = 8
_LONGEST_S = 120.0
"""The time limit of a shared task: work that takes longer is abandoned, so that it does not delay the other work in the
task."""
_POOL = "icekeeper-small-tables"


class SharedTasks:
    """Passes work to the engine of the workers, small pieces from several threads together; safe to share between
    threads.

    If a shared task fails, all work in it fails with StorageError.  A caller that tries again should use the engine of
    the workers directly, so that the work has a task of its own.
    """

    def __init__(self, workers: Engine) -> None:
        self._workers = workers
        self._waiting = deque[_SmallWork]()
        self._running = 0
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(64, thread_name_prefix="icekeeper-shared-tasks")

    @property
    def name(self) -> str:
        return self._workers.name

    @property
    def slots(self) -> int:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._workers.slots

    @property
    def hosts(self) -> int:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._workers.hosts

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        size = total_input_bytes(tasks)
        if not tasks or size is None or size > _SMALL_WORK_BYTES:
            return self._workers.map(function, tasks, on_done)
        small = _SmallWork(_Work(function, tuple(tasks)), size, current_work())
        with self._lock:
            self._waiting.append(small)
        self._threads.submit(self._dispatch)
        results, sent = small.done.result()
        if (count := current_count()) is not None:
            count.add_all(sent)
        on_done(len(tasks))
        return list(results)

    def exchange(
        self,
        split: Callable[[Task], Iterable[tuple[int, Item]]],
        tasks: Sequence[Task],
        merge: Callable[[Part, Iterator[Item]], Result],
        parts: Sequence[Part],
        on_done: Callable[[int], None],
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        return self._workers.exchange(split, tasks, merge, parts, on_done)

    def _dispatch(self) -> None:
        """Pass waiting work to the workers as long as a worker is free."""
        while True:
            slots = self._workers.slots
            with self._lock:
                if not self._waiting or self._running >= slots:
                    return  # the next task that ends takes the waiting work
                together = self._take()
                self._running += 1
            try:
                self._do(together)
            finally:
                with self._lock:
                    self._running -= 1

    def _take(self) -> list[_SmallWork]:
        """Take the first waiting pieces of work, as many as fit into a task."""
        together, room = [self._waiting.popleft()], _TOGETHER_BYTES
        room -= together[0].size_bytes
        while self._waiting and len(together) < _TOGETHER and self._waiting[0].size_bytes <= room:
            together.append(self._waiting.popleft())
            room -= together[-1].size_bytes
        return together

    def _do(self, together: Sequence[_SmallWork]) -> None:
        task = _Together(tuple(small.work for small in together))
        try:
            with in_pool(_POOL), named_work("; ".join(small.name for small in together)):
                (ends,) = self._workers.map(_do_together, [task], lambda done: None)
        except BaseException as error:
            ends = [f"{type(error).__name__}: {error}"] * len(together)
        for small, end in zip(together, ends, strict=True):
            if isinstance(end, str):
                small.done.set_exception(StorageError(f"a task shared by several tables failed: {end}"))
            else:
                small.done.set_result(end)


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of a single caller."""

    function: Callable[[Any], Any]
    tasks: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _SmallWork:
    work: _Work
    size_bytes: int
    name: str
    done: Future[tuple[list[Any], dict[RequestKind, int]]] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _Together:
    """A task of a worker, shared by several callers."""

    works: tuple[_Work, ...]

    def in_attempt(self, attempt: int) -> _Together:
        """The same work, with files named by that attempt."""
        return _Together(
            tuple(_Work(work.function, tuple(_in_attempt(task, attempt) for task in work.tasks)) for work in self.works)
        )


def _in_attempt(task: Any, attempt: int) -> Any:
    return task.in_attempt(attempt) if isinstance(task, WritesFiles) else task


def _do_together(together: _Together) -> list[Any]:
    """Results and request counts of each piece of work, or the error."""
    running = [in_daemon_thread(partial(_counted, work), "icekeeper-shared") for work in together.works]
    ends, began_s = list[Any](), time.monotonic()
    for work in running:
        try:
            ends.append(work.result(max(0.0, began_s + _LONGEST_S - time.monotonic())))
        except Exception as error:
            ends.append(
                f"{type(error).__name__}: {error}" if work.done() else f"it did not end within {_LONGEST_S:g} s"
            )
    return ends


def _counted(work: _Work) -> tuple[list[Any], dict[RequestKind, int]]:
    with counting() as sent:
        results = [work.function(task) for task in work.tasks]
    return results, sent.counts
