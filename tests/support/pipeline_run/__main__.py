"""Detect → four tables → report, with moto as AWS, SeaweedFS as the table bucket and Glue jobs as local Spark.

One data file of one table is made unreadable on purpose: its compaction fails, everything else must not.  Exit code 0
when all ended as expected (the run ``partial``, every row where it was), else 1.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from icekeeper.demo.measure import Contents
from icekeeper.demo.seaweedfs import running_seaweedfs
from icekeeper.demo.tables import NAMESPACE
from icekeeper.demo.tell import tell_contents, tell_figures
from icekeeper.state.open import open_state
from icekeeper.state.store import PassRecord
from support.local_lake import told_metrics
from support.local_stack.executions import Execution
from support.local_stack.metrics import Metric
from support.local_stack.stack import LocalStack, deployed
from support.moto_server import running_moto
from support.pipeline_run.lake import BROKEN, CATALOG, Lake
from support.pipeline_run.tell import tell_history, tell_journal, tell_metrics, telling_progress

__all__ = ["PipelineRun", "run_pipeline"]

# Small enough that the two largest tables go to Glue and the others to functions.
PARAMETERS = {"Catalogs": CATALOG, "SmallCompactionMb": "1", "SmallManifests": "30"}
POLICY_FILE = """\
rules:
- settings:
    snapshot_retention_hours: 0
    max_snapshots_to_keep: 1
"""
_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """What there is to judge."""

    execution: Execution
    report: Mapping[str, Any]
    journal: tuple[PassRecord, ...]
    metrics: tuple[Metric, ...]
    rows: Mapping[str, tuple[Contents, Contents]]
    """By table: before and after."""
    seconds: float

    def surprises(self) -> Iterator[str]:
        """What is not as it should be, in words."""
        if self.execution.status != "SUCCEEDED":
            yield f"the execution is {self.execution.status}: {self.execution.cause}"
        if self.report["status"] != "partial":
            yield f"the run is {self.report['status']}, not partial"
        broken = f"{NAMESPACE}.{BROKEN}"
        expected = {f"{NAMESPACE}.{name}": "partial" if name == BROKEN else "succeeded" for name in self.rows}
        found = {result["table"]: result["status"] for result in self.report["results"]}
        if found != expected:
            yield f"the tables ended {found}, not {expected}"
        journal = {str(record.identity.table): record for record in self.journal}
        if {name: record.status for name, record in journal.items()} != expected:
            yield f"the journal says { ({name: record.status for name, record in journal.items()}) }"
        elif "compact: failed" not in journal[broken].summary and "Parquet" not in journal[broken].summary:
            yield f"the journal does not say why {broken} is partial: {journal[broken].summary}"
        told = {name: self._total(name) for name in ("PassesSucceeded", "PassesPartial", "PassesFailed")}
        if told != {"PassesSucceeded": 3, "PassesPartial": 1, "PassesFailed": 0}:
            yield f"the metrics say {told}"
        yield from (f"rows of {NAMESPACE}.{name} changed" for name, (was, now) in self.rows.items() if was != now)

    def _total(self, name: str) -> float:
        return sum(metric.value for metric in self.metrics if metric.name == name)


def run_pipeline(folder: Path, console: Console) -> PipelineRun:
    """Run it once; everything that it starts is stopped, ``folder`` holds the bucket."""
    started = time.perf_counter()
    with running_seaweedfs(folder) as server, running_moto() as moto:
        console.print(f"SeaweedFS serves a table bucket at {server.s3_endpoint}, moto plays AWS at {moto.endpoint}")
        lake = Lake.fill(server)
        for table in lake.tables:
            console.print(f"  {NAMESPACE}.{table.name}: {table.mess}", markup=False)
        figures = {table.name: lake.figures(table) for table in lake.tables}
        contents = {table.name: lake.contents(table) for table in lake.tables}
        with deployed(moto, parameters=PARAMETERS) as stack:
            stack.put_control("config/pyiceberg.yaml", lake.catalog_file)
            stack.put_control("config/policy.yaml", POLICY_FILE)
            with lake.one_file_unreadable() as path:
                console.print(f"\nunreadable on purpose: {path}", soft_wrap=True, markup=False)
                execution = _execute(stack, console)
            journal = _journal(stack, lake)
            metrics = tuple(told_metrics(stack))
            report = stack.control(f"runs/{execution.name}/report.json")
        tell_history(console, execution)
        tell_journal(console, journal)
        tell_metrics(console, metrics)
        after = {table.name: lake.contents(table) for table in lake.tables}
        tell_figures(console, [(t, figures[t.name], lake.figures(t)) for t in lake.tables])
        tell_contents(console, [(t, contents[t.name], after[t.name]) for t in lake.tables])
    rows = {name: (contents[name], after[name]) for name in contents}
    return PipelineRun(execution, report, journal, metrics, rows, time.perf_counter() - started)


def _execute(stack: LocalStack, console: Console) -> Execution:
    console.print("\nthe schedule starts a run; what ends is told as it ends")
    execution = stack.start({}, name="pipeline-run")
    with telling_progress(console, execution):
        return stack.wait(execution, timeout_s=_TIMEOUT_S)


def _journal(stack: LocalStack, lake: Lake) -> tuple[PassRecord, ...]:
    # The table of the stack, as an operator's laptop would read it.
    state = open_state({"ICEKEEPER_STATE": f"dynamodb://{stack.template.name('StateTable')}"})
    return tuple(record for table in lake.tables for record in state.history(lake.identity(table)))


def main() -> int:
    # Loopback is never behind a proxy, and moto's engine is talkative.
    os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
    logging.getLogger("moto").setLevel(logging.CRITICAL)
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="icekeeper-pipeline-", ignore_cleanup_errors=True) as folder:
        run = run_pipeline(Path(folder), console)
    surprises = list(run.surprises())
    for surprise in surprises:
        console.print(f"not as expected: {surprise}", style="red", soft_wrap=True, markup=False)
    if not surprises:
        console.print(
            f"\nas expected: {NAMESPACE}.{BROKEN} could not be compacted, all else is done, every row is where it was"
            f" ({run.seconds:.0f} s)",
            soft_wrap=True,
        )
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
