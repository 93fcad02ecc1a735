"""One line for every task of the run, as it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from local_stack import distributed_map
from local_stack.executions import visits_of
from local_stack.pipeline_run.tell import task_line

_POLL_S = 0.3


@contextmanager
def telling_progress(console: Console, execution: str) -> Iterator[None]:
    """While it lasts; what has ended by then is told before it ends."""
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(console, execution, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(console: Console, execution: str, ended: threading.Event) -> None:
    told: dict[int, int] = {}
    is_last = False
    while not is_last:
        is_last = ended.wait(_POLL_S)
        for child in distributed_map.children_of(execution):
            visits = visits_of(child.events.get_event_history())
            done = [visit for visit in visits if visit.kind == "Task" and visit.exited is not None]
            for visit in done[told.get(id(child), 0) :]:
                console.print(task_line(child.input["item"]["table"], visit), no_wrap=True, overflow="ellipsis")
            told[id(child)] = len(done)
