"""The run for people: the execution's history, the journal and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from icekeeper.report.outcome import in_plain_words, lines_of
from icekeeper.state.store import PassRecord
from local_stack.executions import ChildExecution, Execution, Visit
from local_stack.metrics import Metric

_STYLES = {"succeeded": "green", "partial": "yellow", "skipped": "dim", "failed": "red", "refused": "yellow"}
_BY_TABLE = {
    "compact.files_merged": "files merged",
    "compact.files_written": "files written",
    "compact.bins_failed": "bins failed",
    "expire_snapshots.snapshots_expired": "snapshots expired",
    "expire_snapshots.files_deleted": "files deleted",
    "rewrite_manifests.manifests_rewritten": "manifests rewritten",
}


def task_line(table: str, visit: Visit) -> Text:
    """A task that ended: how long it took, of which table, and its sentence for each step."""
    line = Text(f"  {visit.seconds:6.1f} s  {table:16} {visit.name:18} ")
    for number, (word, sentence) in enumerate(_sentences(visit)):
        line.append("; " if number else "").append(word, style=_STYLES.get(word, ""))
        line.append(f" {sentence}" if sentence else "")
    return line


def print_history(
    console: Console,
    execution: Execution,
    stages: Mapping[str, Mapping[str, Sequence[str]]],
    passes: Mapping[str, Mapping[str, Any]],
) -> None:
    """The states of the machine in their order; below a map what it did table by table, below a job what it did."""
    console.print(f"\nexecution {execution.name}: {execution.status}", style="bold")
    for visit in execution.visits:
        if visit.kind not in ("Task", "Map"):
            console.print(Text(f"  {visit.name}", style="dim"))
            continue
        sentences = "; ".join(sentence for _, sentence in _sentences(visit)) if visit.kind == "Task" else ""
        console.print(
            Text(f"  {visit.name:22}{visit.seconds:6.1f} s  {sentences}".rstrip()), no_wrap=True, overflow="ellipsis"
        )
        if visit.kind == "Map":
            _tell_map(console, execution.of_map(visit.name), with_reasons=visit.name == "PlanTables")
        elif visit.name in _JOBS:
            _tell_job(console, stages[_JOBS[visit.name]], passes)


_JOBS = {
    "CompactDataFiles": "compaction",
    "ExpireManySnapshots": "expiry",
    "RemoveLargeOrphans": "orphans",
    "RewriteLargeManifests": "manifests",
}
"""The stage of which each job does the work."""


def _tell_map(console: Console, children: Sequence[ChildExecution], *, with_reasons: bool) -> None:
    table = _columns()
    for child in children:
        name = child.table
        if with_reasons:
            table.add_row("", name, "", "", Text("; ".join(child.input["item"]["reasons"]), style="dim"))
            continue
        for visit in child.visits:
            if visit.kind != "Task":
                continue
            tries = f" ({len(visit.errors) + (visit.answer is not None)} attempts)" if visit.errors else ""
            seconds = f"{visit.seconds:.1f} s"
            for word, sentence in _sentences(visit):
                row = (visit.name, seconds, Text.assemble((word, _STYLES.get(word, "")), f" {sentence}{tries}"))
                table.add_row("", name, *row)
                name = seconds = ""
    console.print(table)


def _tell_job(console: Console, tables: Mapping[str, Sequence[str]], passes: Mapping[str, Mapping[str, Any]]) -> None:
    table = _columns()
    for name, steps in tables.items():
        for part in passes.get(name, {}).get("operations", ()):
            if part["operation"] in steps:
                word = part["status"]
                sentence = Text.assemble((word, _STYLES.get(word, "")), f" {in_plain_words(part['summary'])}")
                table.add_row("", name, part["operation"], "", sentence)
    console.print(table)


def _columns() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(width=3)
    table.add_column(no_wrap=True, min_width=14)
    table.add_column(no_wrap=True, min_width=18)
    table.add_column(no_wrap=True, justify="right", min_width=6)
    table.add_column(ratio=1)
    return table


def _sentences(visit: Visit) -> list[tuple[str, str]]:
    """How a task ended, as a word and a sentence; of a function of operations each of its steps."""
    answer = visit.answer
    if answer is None:
        return [("failed", visit.errors[-1][0] if visit.errors else "")]
    match visit.name:
        case "Detect":
            return [("succeeded", answer["reason"])]
        case "PlanTable" | "CleanStaged" | "Gather":
            return [("succeeded", "")]
        case "ListOrphans" | "ListOrphansAfterJobs":
            return [("succeeded", f"{answer['count']} orphan file(s)")]
        case "Report":
            return [(answer["status"], answer["summary"])]
        case name if name in _JOBS:
            return [(answer["JobRunState"].lower(), "")]
    parts = [sentence.partition(": ") for sentence in answer.values()]
    return [(word, in_plain_words(sentence)) for word, _, sentence in parts] or [("succeeded", "nothing to do")]


def print_journal(console: Console, records: Sequence[PassRecord]) -> None:
    """Print what ``icekeeper history`` would show."""
    console.print("\njournal, from DynamoDB", style="bold")
    for record in records:
        console.print(Text.assemble(f"  {record.identity.table}: ", (record.status, _STYLES.get(record.status, ""))))
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column(width=4)
        table.add_column(ratio=1)
        for sentence in lines_of(record.summary):
            table.add_row("", Text(sentence))
        console.print(table)


def print_metrics(console: Console, metrics: Sequence[Metric]) -> None:
    """As CloudWatch takes them from what the functions print: totals, then some by table."""
    console.print("\nmetrics, from what the functions printed", style="bold")
    # Of what operations did there are totals, too; here they stand by table.
    totals = [metric for metric in metrics if "table" not in metric.dimensions and "." not in metric.name]
    sums = {name: sum(m.value for m in totals if m.name == name) for name in sorted({m.name for m in totals})}
    console.print("  " + ", ".join(f"{name} {value:g}" for name, value in sums.items()), markup=False)
    tables = sorted({metric.dimensions["table"] for metric in metrics if "table" in metric.dimensions})
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in tables:
        table.add_column(name, justify="right", no_wrap=True)
    for name, words in _BY_TABLE.items():
        values = {m.dimensions["table"]: m.value for m in metrics if m.name == name and "table" in m.dimensions}
        if values:
            table.add_row(f"  {words}", *(f"{values.get(t, 0):g}" for t in tables))  # zeros are not emitted
    console.print(table)
