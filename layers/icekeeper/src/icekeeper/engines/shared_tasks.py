"""An engine for many small tables at once: little work of several tables shares one task of the workers.

The rewrite of a tiny table waits for the object store nearly all of its time, and would occupy a core of a worker
meanwhile.  So while all cores are taken, little works wait, and those that wait are then done together: in threads of
one task.
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

from icekeeper.engines.engine import Engine, in_pool, total_input_bytes
from icekeeper.engines.spark_tasks import WritesFiles
from icekeeper.errors import StorageError
from icekeeper.machine.clock import in_daemon_thread
from icekeeper.machine.metering import RequestKind, counting, current_count

Task = TypeVar("Task")
Result = TypeVar("Result")
Item = TypeVar("Item")
Part = TypeVar("Part")

# Both as ReadsBytes counts them: with 256 KB for each file that is opened.  Together they are bounded like the groups
# of one table that share a task, so that a worker's memory is (rule: bounded-worker-memory).
_LITTLE_BYTES = 16 * 1024**2
_TOGETHER_BYTES = 32 * 1024**2
_TOGETHER = 8
_LONGEST_S = 120.0
"""For all of a task.  What takes longer is given up, so that it does not hold up the others beside it."""
_POOL = "icekeeper-small-tables"


class SharedTasks:
    """Hands work to the engine of workers, little work of several threads together; threads share it.

    Whatever befalls a task that several share, befalls all of them: it raises StorageError, and whoever tries again
    should do so on the engine of workers itself, alone.
    """

    def __init__(self, workers: Engine) -> None:
        self._workers = workers
        self._waiting = deque[_Little]()
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

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        """See :class:`icekeeper.engines.engine.Engine`."""
        size = total_input_bytes(tasks)
        if not tasks or size is None or size > _LITTLE_BYTES:
            return self._workers.map(function, tasks, on_done)
        little = _Little(_Work(function, tuple(tasks)), size)
        with self._lock:
            self._waiting.append(little)
        self._threads.submit(self._dispatch)
        results, sent = little.done.result()
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
        """Have the workers do what waits, as long as one of them is free."""
        while True:
            slots = self._workers.slots
            with self._lock:
                if not self._waiting or self._running >= slots:
                    return  # one that ends takes what waits by then
                together = self._take()
                self._running += 1
            try:
                self._do(together)
            finally:
                with self._lock:
                    self._running -= 1

    def _take(self) -> list[_Little]:
        """The first that wait, as many as share a task."""
        together, room = [self._waiting.popleft()], _TOGETHER_BYTES
        room -= together[0].size_bytes
        while self._waiting and len(together) < _TOGETHER and self._waiting[0].size_bytes <= room:
            together.append(self._waiting.popleft())
            room -= together[-1].size_bytes
        return together

    def _do(self, together: Sequence[_Little]) -> None:
        task = _Together(tuple(little.work for little in together))
        try:
            with in_pool(_POOL):
                (ends,) = self._workers.map(_do_together, [task], lambda done: None)
        except BaseException as error:
            ends = [f"{type(error).__name__}: {error}"] * len(together)
        for little, end in zip(together, ends, strict=True):
            if isinstance(end, str):
                little.done.set_exception(StorageError(f"a task of several tables failed: {end}"))
            else:
                little.done.set_result(end)


@dataclass(frozen=True, slots=True)
class _Work:
    """What one caller wants done."""

    function: Callable[[Any], Any]
    tasks: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Little:
    work: _Work
    size_bytes: int
    done: Future[tuple[list[Any], dict[RequestKind, int]]] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _Together:
    """One task of a worker."""

    works: tuple[_Work, ...]

    def in_attempt(self, attempt: int) -> _Together:
        """The same works, whose files are named by that attempt."""
        return _Together(
            tuple(_Work(work.function, tuple(_in_attempt(task, attempt) for task in work.tasks)) for work in self.works)
        )


def _in_attempt(task: Any, attempt: int) -> Any:
    return task.in_attempt(attempt) if isinstance(task, WritesFiles) else task


def _do_together(together: _Together) -> list[Any]:
    """Results and requests of each work, or why it has none."""
    running = [in_daemon_thread(partial(_counted, work), "icekeeper-shared") for work in together.works]
    ends, began_s = list[Any](), time.monotonic()
    for one in running:
        try:
            ends.append(one.result(max(0.0, began_s + _LONGEST_S - time.monotonic())))
        except Exception as error:
            ends.append(f"{type(error).__name__}: {error}" if one.done() else f"it did not end within {_LONGEST_S:g} s")
    return ends


def _counted(work: _Work) -> tuple[list[Any], dict[RequestKind, int]]:
    with counting() as sent:
        results = [work.function(task) for task in work.tasks]
    return results, sent.counts
