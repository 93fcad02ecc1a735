"""One line for every task of the run, as it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from moto.stepfunctions.parser.models import stepfunctions_parser_backends
from rich.console import Console

from local_stack import distributed_map
from local_stack.executions import Event, visits_of
from local_stack.pipeline_run.printing import task_line
from local_stack.template import ACCOUNT, REGION

_POLL_S = 0.3


@contextmanager
def printing_progress(console: Console, execution: str) -> Iterator[None]:
    """Print the tasks that end during the block; those that have ended are printed before the block ends."""
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(console, execution, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(console: Console, execution: str, ended: threading.Event) -> None:
    printed: dict[str, int] = {}
    is_last = False
    while not is_last:
        is_last = ended.wait(_POLL_S)
        for name, table, events in _histories(execution):
            done = [visit for visit in visits_of(events) if visit.kind == "Task" and visit.exited is not None]
            for visit in done[printed.get(name, 0) :]:
                console.print(task_line(table, visit), no_wrap=True, overflow="ellipsis")
            printed[name] = len(done)


def _histories(execution: str) -> Iterator[tuple[str, str, Sequence[Event]]]:
    """The machine's own events, and those of each child with its table."""
    machine = stepfunctions_parser_backends[ACCOUNT][REGION].get_execution_history(execution)
    yield "", "(all tables)", machine["events"]
    for child in distributed_map.children_of(execution):
        yield f"{child.label} {child.index}", child.input["item"]["table"], child.events.get_event_history()
