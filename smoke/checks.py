"""The checks, in order; each reports its finding in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smoke.deployed_stack import DeployedStack, Run
from smoke.scratch_table import FILES, ScratchTable

_OPERATIONS = "compact,rewrite_manifests"
_LOGS_S, _METRICS_S = 120.0, 600.0
_DENIED = ("AccessDenied", "not authorized to perform")


@dataclass(frozen=True, slots=True)
class Found:
    """The finding of a check."""

    what: str
    is_well: bool
    sentence: str


def check_stack(stack: DeployedStack, scratch: ScratchTable, catalog: str, *, limit_s: float) -> Iterator[Found]:
    """Let the stack maintain the scratch table, as configured and in Glue jobs, and check all results.

    ``limit_s`` is how long each run may take.
    """
    if scratch.table_bucket is not None:
        sentence = stack.switch_off_bucket_maintenance(scratch.table_bucket, *scratch.table.name())
        yield Found("ownership", True, sentence)
    lines: list[str] = []
    for in_job in (False, True):
        scratch.append()
        before = scratch.file_count()
        run = stack.run(
            {"table": scratch.name, "catalog": catalog, "operations": _OPERATIONS, "in_job": in_job, "wait": True},
            limit_s=limit_s,
        )
        yield from _of_run(run, scratch, before, in_job=in_job)
        lines += stack.lines_of_run(run.run_id, limit_s=_LOGS_S)
    denied = [line for line in lines if any(word in line for word in _DENIED)]
    yield Found("logs", bool(lines), f"functions logged {len(lines)} lines that name their run")
    yield Found("rights", not denied, denied[0] if denied else "no request of a function was denied")
    has_metric = stack.has_metric("PassesSucceeded", limit_s=_METRICS_S)
    yield Found("metrics", has_metric, f"CloudWatch {'has' if has_metric else 'does not have'} PassesSucceeded")


def _of_run(run: Run, scratch: ScratchTable, before: int, *, in_job: bool) -> Iterator[Found]:
    what = "pass in Glue jobs" if in_job else "pass as deployed"
    yield Found(what, run.status == "SUCCEEDED", f"run {run.run_id}: {run.sentence}")
    route = run.routes.get("compact")
    routes = ("glue",) if in_job else ("glue", "function")  # SmallCompactionMb decides
    yield Found(f"{what}: where", route in routes, f"compaction was planned for {route or 'nothing'}")
    after = scratch.file_count()
    merged = f"{before} files before, {after} after"
    yield Found(f"{what}: files", after <= before - FILES + 1, merged)
    wrong = scratch.wrong_rows()
    yield Found(f"{what}: rows", wrong is None, wrong or f"all {scratch.written} rows are there, each as written")
