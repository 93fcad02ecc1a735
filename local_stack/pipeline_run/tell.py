"""The run for people: the execution's history, the journal and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from icekeeper.operation_facts import STEPS
from icekeeper.pipeline.events import WAITING
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
    """A task that ended: how long it took, of which table, how it ended, and what it said."""
    status, sentence = _ending(visit, {})
    line = Text(f"  {visit.seconds:6.1f} s  {table:16} {visit.name:22} ")
    return line.append(f"{status:10}", style=_STYLES.get(status, "")).append(sentence)


def tell_history(console: Console, execution: Execution, passes: Mapping[str, Mapping[str, Any]]) -> None:
    """The states of the machine and of every table's part of it: duration, outcome, sentence."""
    console.print(f"\nexecution {execution.name}: {execution.status}", style="bold")
    is_after_wave = False
    for visit in execution.visits:
        console.print(_timed(visit))
        if visit.name in ("MaintainSmallTables", "MaintainTables"):
            is_small = visit.name == "MaintainSmallTables"
            for child in execution.children:
                if (child.is_in_one_call, child.is_after_wave) == (is_small, is_after_wave):
                    _tell_child(console, child, passes.get(child.input["item"]["table"], {}))
            is_after_wave = not is_small


def _timed(visit: Visit) -> Text:
    took = f"{visit.seconds:6.1f} s" if visit.kind in ("Task", "Map") else ""
    return Text(f"  {visit.name:24}{took}")


def _tell_child(console: Console, child: ChildExecution, of_pass: Mapping[str, Any]) -> None:
    result = child.output or {"table": child.input["item"]["table"], "status": "failed"}
    status = result["status"]
    console.print(Text.assemble(f"\n    {result['table']}: ", (status, _STYLES.get(status, ""))))
    sentences = {
        part["operation"]: (part["status"], in_plain_words(part["summary"])) for part in of_pass.get("operations", ())
    }
    table = _columns(indent=4)
    table.add_row(
        "", Text("proposed", style="dim"), "", "", Text("\n".join(child.input["item"]["reasons"]), style="dim")
    )
    in_one_call = [step for step in sentences if not any(_is_of(visit.name, step) for visit in child.visits)]
    for visit in child.visits:
        if visit.kind == "Task":
            word, sentence = _ending(visit, sentences)
            tries = f" ({len(visit.errors) + (word != 'failed')} attempts)" if visit.errors else ""
            row = (f"{visit.seconds:.1f} s", Text(word, style=_STYLES.get(word, "")), Text(f"{sentence}{tries}"))
            table.add_row("", visit.name, *row)
        if visit.name in ("MaintainSmallTable", "MaintainSmall") and status != WAITING and not child.is_after_wave:
            for step in in_one_call:
                word, sentence = sentences[step]
                table.add_row("", f"  {step}", "", Text(word, style=_STYLES.get(word, "")), Text(sentence))
    console.print(table)


def _columns(indent: int) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(width=indent)
    table.add_column(no_wrap=True, min_width=22)
    table.add_column(no_wrap=True, justify="right", min_width=6)
    table.add_column(no_wrap=True, min_width=9)
    table.add_column(ratio=1)
    return table


def _ending(visit: Visit, sentences: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """How a task ended, and what it, its pass or its error said."""
    output = visit.output if isinstance(visit.output, dict) else {}
    if visit.name == "ReportTable":
        return str(output.get("report", {}).get("status", "failed")), ""
    step = next((step for step in STEPS if _is_of(visit.name, step)), "")
    failure = output.get("failures", {}).get(step)
    if failure is not None:
        return "failed", str(failure["Error"])
    if step in sentences:  # a job answers nothing: what it did is in the control bucket
        return sentences[step]
    outcome = output.get("outcomes", {}).get(step, {})
    return str(outcome.get("status", "succeeded")).lower(), str(outcome.get("summary", ""))


def _is_of(state: str, step: str) -> bool:
    name = "".join(part.capitalize() for part in step.split("_"))
    return state in (name, f"{name}Job", name.replace("Remove", "List"))


def tell_journal(console: Console, records: Sequence[PassRecord]) -> None:
    """What ``icekeeper history`` would tell."""
    console.print("\njournal, from DynamoDB", style="bold")
    for record in records:
        console.print(Text.assemble(f"  {record.identity.table}: ", (record.status, _STYLES.get(record.status, ""))))
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column(width=4)
        table.add_column(ratio=1)
        for sentence in lines_of(record.summary):
            table.add_row("", Text(sentence))
        console.print(table)


def tell_metrics(console: Console, metrics: Sequence[Metric]) -> None:
    """As CloudWatch takes them from what the functions print: totals, then some by table."""
    console.print("\nmetrics, from what the functions printed", style="bold")
    # Of what operations did there are totals, too; here they stand by table.
    totals = [metric for metric in metrics if "table" not in metric.dimensions and "." not in metric.name]
    told = {name: sum(m.value for m in totals if m.name == name) for name in sorted({m.name for m in totals})}
    console.print("  " + ", ".join(f"{name} {value:g}" for name, value in told.items()), markup=False)
    tables = sorted({metric.dimensions["table"] for metric in metrics if "table" in metric.dimensions})
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in tables:
        table.add_column(name, justify="right", no_wrap=True)
    for name, words in _BY_TABLE.items():
        values = {m.dimensions["table"]: m.value for m in metrics if m.name == name and "table" in m.dimensions}
        if values:
            table.add_row(f"  {words}", *(f"{values.get(t, 0):g}" for t in tables))  # 0 is not told
    console.print(table)
