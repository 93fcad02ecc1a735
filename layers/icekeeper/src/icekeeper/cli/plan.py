"""``icekeeper plan``: what a pass would do to a table, why, and what its snapshots cost."""

from __future__ import annotations

from typing import Annotated

import typer

from icekeeper.cli.arguments import (
    AsJson,
    CatalogName,
    Engine,
    Schedule,
    Settings,
    Table,
    Unsafe,
    overrides,
    table_name,
)
from icekeeper.cli.console import (
    EXIT_OK,
    engine_and_progress,
    listings,
    people,
    print_failed,
    print_json,
)
from icekeeper.engines.names import EngineName

__all__ = ["plan"]

_RECLAIMABLE = ("expire_snapshots.bytes_reclaimable", "remove_orphans.orphan_bytes")
_DEPTH = ("compact.depth_before", "compact.depth_after")


def plan(
    table: Table,
    catalog: CatalogName,
    operations: Annotated[
        str | None, typer.Option("--operations", metavar="LIST|all", help="comma-separated; all that a pass would run")
    ] = None,
    settings: Settings = None,
    schedule: Schedule = None,
    engine: Engine = EngineName.AUTO,
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Say what a pass would do and free, and what each branch, tag and snapshot costs; changes nothing."""
    from icekeeper.report.outcome import PassStatus
    from icekeeper.report.plan_lines import plan_lines
    from icekeeper.report.planned_order import in_turn, order_json
    from icekeeper.report.terminal import print_costs, print_outcome, trouble
    from icekeeper.runtime import Runtime

    chosen, name = overrides(settings, operations), table_name(table)
    runtime = Runtime.open(catalog)
    with engine_and_progress(engine, as_json=as_json) as (started, progress):
        answers = runtime.maintain(
            name, chosen, started, schedule=schedule, dry_run=True, unsafe=unsafe, progress=progress
        )
    outcome, costs = in_turn(answers), runtime.costs(name).to_json()
    reclaimable = sum(outcome.metrics.get(key, 0) for key in _RECLAIMABLE)
    if as_json:
        order = {"planned_anew": order_json(outcome.operations)}
        bounds = runtime.safety_bounds(name, chosen, listings(), schedule=schedule, unsafe=unsafe)
        found = {**order, "reclaimable_bytes": reclaimable, "costs": costs, "bounds": bounds}
        print_json({**outcome.to_json(listings()), **found})
    console = people(as_json=as_json)
    print_outcome(console, outcome)
    if outcome.engine is not None and outcome.engine.reason is not None:
        console.print(f"engine: {outcome.engine.name}; {outcome.engine.reason}", soft_wrap=True)
    for operation in outcome.operations:
        for line in plan_lines(operation.plan or {}):
            console.print(f"  {line}", soft_wrap=True)
    if _DEPTH[0] in outcome.metrics:
        before, after = (outcome.metrics[key] for key in _DEPTH)
        console.print(f"clustering depth: a lookup opens {before:g} files on average, after the pass {after:g}")
    print_costs(console, costs, reclaimable)
    return EXIT_OK if outcome.status is PassStatus.SUCCEEDED else print_failed(trouble(outcome))
