"""Fills the bucket, deploys the stack, lets the schedule start a run, and prints its results."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from icekeeper.demo.measure import Contents, Figures
from icekeeper.demo.run import print_contents, print_figures
from icekeeper.demo.seaweedfs import running_seaweedfs
from icekeeper.demo.tables import NAMESPACE, MessyTable
from icekeeper.state.leases import slot_keys
from icekeeper.state.open import open_state
from icekeeper.state.store import PassRecord
from local_stack.executions import Execution
from local_stack.jobs import JobRun
from local_stack.judged_lake import judged_lake
from local_stack.metrics import Metric
from local_stack.moto_server import running_moto
from local_stack.pipeline_run.lake import BUCKET, CATALOG, Lake
from local_stack.pipeline_run.printing import print_history, print_journal, print_metrics
from local_stack.pipeline_run.progress import printing_progress
from local_stack.rights.callers import DENIED
from local_stack.stack import LocalStack, deployed

# Small enough that Glue compacts the largest table, expires its snapshots, and rewrites the manifests of larger tables.
# Functions do everything else.
PARAMETERS = {"Catalogs": CATALOG, "SmallCompactionMb": "1", "Metrics": "passes"}
POLICY_FILE = """\
rules:
- settings:  # a demonstration cannot wait a week: old means a moment ago, and orphans are looked for at once
    snapshot_retention_hours: 0
    orphan_sweep_interval_hours: 0
    max_snapshots_to_keep: 1
    min_manifests_to_rewrite: 2
"""
_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """What there is to judge; mappings are by the table's name."""

    execution: Execution
    report: Mapping[str, Any]
    passes: Mapping[str, Mapping[str, Any]]
    """What each pass left in the control bucket."""
    journal: Mapping[str, PassRecord]
    metrics: tuple[Metric, ...]
    stages: Mapping[str, Mapping[str, tuple[str, ...]]]
    """By stage that had work: its tables, each with its steps."""
    jobs: Mapping[str, tuple[JobRun, ...]]
    """By the name of their script."""
    leases: tuple[str, ...]
    """Those that nobody gave back."""
    asked_lake: frozenset[str]
    """Roles that read or wrote in the lake."""
    denied: tuple[str, ...]
    """Calls that no policy allows."""
    figures: Mapping[str, tuple[Figures, Figures]]
    rows: Mapping[str, tuple[Contents, Contents]]
    """Before and after."""
    seconds: float


def run_pipeline(folder: Path, console: Console) -> PipelineRun:
    """Run it once; everything that it starts is stopped, also when it is interrupted.  ``folder`` holds the bucket."""
    started = time.perf_counter()
    with running_seaweedfs(folder) as server, running_moto() as moto, ExitStack() as opened:
        console.print(f"SeaweedFS serves a table bucket at {server.s3_endpoint}, moto plays AWS at {moto.endpoint}")
        lake = Lake.fill(server)
        for table in lake.tables:
            console.print(f"  {_name(table):16} {table.mess}", markup=False)
        before = _measured(lake)
        judged = opened.enter_context(judged_lake(server, BUCKET))
        objects, catalog = judged.arns
        rights = {"DataBucketArns": objects, "TableBucketArns": catalog}
        # Rights to the catalog of the table bucket are given; it is opened by the catalog file, and not as one of AWS.
        variables = {"ICEKEEPER_TABLE_BUCKETS": "", "ICEKEEPER_SMALL_EXPIRY": "2000", "ICEKEEPER_SMALL_MANIFESTS": "39"}
        denied_before = len(DENIED)
        with deployed(moto, parameters={**PARAMETERS, **rights}, environment=variables) as stack:
            stack.put_control("config/pyiceberg.yaml", lake.catalog_file(judged))
            stack.put_control("config/policy.yaml", POLICY_FILE)
            judged.closed = lake.broken_file.removeprefix("s3:/")
            console.print(f"\nrefused on purpose: {lake.broken_file}", soft_wrap=True, markup=False)
            console.print("\nthe schedule starts a run; every task is printed as it ends")
            arn = stack.start({}, name="pipeline-run")
            with printing_progress(console, arn):
                execution = stack.wait(arn, timeout_s=_TIMEOUT_S)
            left = _left_behind(stack, lake, execution)
        after = _measured(lake)
    denied = tuple(str(one) for one in DENIED[denied_before:])
    del DENIED[denied_before:]  # the check of the run has its own list
    run = PipelineRun(
        execution=execution,
        asked_lake=frozenset(judged.let_in),
        denied=denied,
        figures={name: (before[name][0], after[name][0]) for name in before},
        rows={name: (before[name][1], after[name][1]) for name in before},
        seconds=time.perf_counter() - started,
        **left,
    )
    print_history(console, run.execution, run.stages, run.passes)
    print_journal(console, tuple(run.journal.values()))
    print_metrics(console, run.metrics)
    print_figures(console, [(table, *run.figures[_name(table)]) for table in lake.tables])
    console.print("orphans stay until they are older than orphan_older_than_hours, 72 unless set", style="dim")
    print_contents(console, [(table, *run.rows[_name(table)]) for table in lake.tables])
    return run


def _name(table: MessyTable) -> str:
    return f"{NAMESPACE}.{table.name}"


def _measured(lake: Lake) -> dict[str, tuple[Figures, Contents]]:
    """Each table in numbers and by its rows."""
    contents = zip(lake.tables, lake.contents(), strict=True)
    return {_name(table): (lake.figures(table), found) for table, found in contents}


def _tables(document: Any) -> dict[str, tuple[str, ...]]:
    """Of a map's list, or of a job's work."""
    items = document if isinstance(document, list) else document["tables"]
    return {one["item"]["table"]: tuple(one["steps"]) for one in items}


def _left_behind(stack: LocalStack, lake: Lake, execution: Execution) -> dict[str, Any]:
    """What the run left in the state table, the control bucket, the logs and Glue."""
    # As an operator's laptop would read it.
    state = open_state({"ICEKEEPER_STATE": f"dynamodb://{stack.template.name('StateTable')}"})
    identities = {_name(table): lake.identity(table) for table in lake.tables}
    keys = (*slot_keys(4), *(identity.key for identity in identities.values()))
    tables = {child.table for child in execution.children}
    stages = [stage for stage, result in execution.output["stages"].items() if result["count"]]
    return {
        "report": stack.control(f"runs/{execution.name}/report.json"),
        "passes": {name: stack.document_of_pass(execution, "pass.json", of=name) for name in sorted(tables)},
        "stages": {stage: _tables(stack.control(f"runs/{execution.name}/{stage}.json")) for stage in stages},
        "journal": {name: record for name, identity in identities.items() for record in state.history(identity)},
        "metrics": tuple(stack.metrics),
        "jobs": {role: tuple(job.runs) for role, job in stack.jobs.items()},
        "leases": tuple(key for key in keys if state.leases.current(key, now_ms=0) is not None),
    }
