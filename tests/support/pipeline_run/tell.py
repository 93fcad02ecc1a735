"""The run for people: what happened while it happens, then history, journal and metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from icekeeper.state.store import PassRecord
from support.local_stack import distributed_map
from support.local_stack.executions import ChildExecution, Execution, Visit, visits_of
from support.local_stack.metrics import Metric

__all__ = ["tell_history", "tell_journal", "tell_metrics", "telling_progress"]

_COLOURS = {"succeeded": "green", "partial": "yellow", "skipped": "dim", "failed": "red", "refused": "yellow"}
# Metrics that say how the passes ended, and what was done.
_WORTH_TELLING = ("Passes", "Tables", "OrphanRemovals")
_POLL_S = 0.2


@contextmanager
def telling_progress(console: Console, execution: str) -> Iterator[None]:
    """One line for every task that ends, as it ends."""
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
            events = list(child.events.get_event_history())
            done = [visit for visit in visits_of(events) if visit.kind == "Task" and visit.exited is not None]
            for visit in done[told.get(child.index, 0) :]:
                console.print(_task(child.input["item"]["table"], visit))
            told[child.index] = len(done)


def _task(table: str, visit: Visit) -> Text:
    word, why = _ending(visit)
    line = Text(f"  {visit.seconds:6.1f} s  {table:15} {visit.name:24} ")
    line.append(word, style=_COLOURS.get(word, ""))
    return line.append(f"  {why}" if why else "")


def tell_history(console: Console, execution: Execution) -> None:
    """The states of the machine and of every table's part of it."""
    console.print(f"\nExecution {execution.name}: {execution.status}")
    for visit in execution.visits:
        console.print(f"  {visit.name}{f'  {visit.seconds:.1f} s' if visit.kind in ('Task', 'Map') else ''}")
        if visit.name == "MaintainTables":
            for child in execution.children:
                _tell_child(console, child)


def _tell_child(console: Console, child: ChildExecution) -> None:
    result = child.output or {"table": child.input["item"]["table"], "status": "failed", "summary": "no result"}
    heading = Text(f"    {result['table']}: ")
    console.print(heading.append(result["status"], style=_COLOURS.get(result["status"], "")))
    reasons = "; ".join(child.input["item"]["reasons"])
    console.print(f"      proposed because {reasons}", markup=False)
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 6))
    for visit in child.visits:
        if visit.kind == "Task":
            word, why = _ending(visit)
            tries = f"{len(visit.errors) + (word != 'failed')} attempts" if visit.errors else ""
            table.add_row(
                visit.name, f"{visit.seconds:.1f} s", Text(word, style=_COLOURS.get(word, "")), tries, Text(why)
            )
    console.print(table)


def _ending(visit: Visit) -> tuple[str, str]:
    """How a task ended, and what it or its error said."""
    output = visit.output if isinstance(visit.output, dict) else {}
    if visit.name == "ReportTable":
        report = output.get("report", {})
        return str(report.get("status", "failed")), ""
    found = [value for name, value in output.get("outcomes", {}).items() if _is_of(visit.name, name)]
    if found and "summary" in found[0]:
        return str(found[0]["status"]), str(found[0]["summary"])
    failure = next((value for name, value in output.get("failures", {}).items() if _is_of(visit.name, name)), None)
    if failure is not None:
        return "failed", str(failure["Error"])
    return "succeeded", ""


def _is_of(state: str, operation: str) -> bool:
    name = "".join(part.capitalize() for part in operation.split("_"))
    return state in (name, f"{name}Job", name.replace("Remove", "List"))


def tell_journal(console: Console, records: Sequence[PassRecord]) -> None:
    """What ``icekeeper history`` would print."""
    console.print("\nJournal, from DynamoDB")
    for record in records:
        line = Text(f"  {record.identity.table}: ")
        line.append(record.status, style=_COLOURS.get(record.status, ""))
        console.print(line.append(f"  {record.summary}"), soft_wrap=True)


def tell_metrics(console: Console, metrics: Sequence[Metric]) -> None:
    """The totals, as CloudWatch takes them from the functions' output."""
    console.print("\nMetrics, from what the functions printed")
    totals = [metric for metric in metrics if metric.value and metric.name.startswith(_WORTH_TELLING)]
    for name in sorted({metric.name for metric in totals}):
        console.print(f"  {name} {sum(metric.value for metric in totals if metric.name == name):g}")
    merged = ("compact.files_merged", "compact.files_written")
    by_table = [metric for metric in metrics if metric.name in merged and "table" in metric.dimensions]
    for metric in by_table:
        console.print(f"  {metric.name} {metric.value:g}  ({metric.dimensions.get('table', '')})", markup=False)
