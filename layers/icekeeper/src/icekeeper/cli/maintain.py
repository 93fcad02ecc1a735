"""``icekeeper maintain``: a pass over tables that are named or match patterns, or over all tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Engine, Operations, Settings, Unsafe, overrides, time_ms
from icekeeper.cli.console import (
    EXIT_DUE,
    EXIT_OK,
    engine_and_progress,
    listings,
    notify,
    people,
    print_failed,
    print_json,
)
from icekeeper.cli.several import (
    AllTables,
    FailedTable,
    Results,
    Tables,
    chosen_tables,
    names_one,
    of_several,
    run_each,
    trouble_of,
)
from icekeeper.engines.engine import EngineName
from icekeeper.errors import PolicyError
from icekeeper.text import counted

if TYPE_CHECKING:
    from icekeeper.model import TableName
    from icekeeper.report.outcome import PassOutcome


def maintain(
    catalog: CatalogName,
    tables: Tables = None,
    operations: Operations = None,
    settings: Settings = None,
    engine: Engine = EngineName.AUTO,
    all_tables: AllTables = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="report what would be done, and change nothing")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="with --dry-run: exit with 3 if work is due, with 0 if none is")
    ] = False,
    unsafe: Unsafe = False,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="TIME",
            help="wait for another run over the table, at most this long (90s, 30m or 6h); default: do not wait",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Run a maintenance pass over tables: the operations of their policies.

    Only one run at a time maintains a table.  A table that fails does not stop the other tables.
    """
    from icekeeper.maintenance.run_pass import Turn
    from icekeeper.runtime import Runtime

    chosen = overrides(settings, operations, unsafe=unsafe)
    if exit_code and not dry_run:
        raise PolicyError("--exit-code reports what a dry run found; add --dry-run")
    wait_ms = 0 if wait is None else time_ms(wait, "--wait")
    runtime = Runtime.open(catalog)
    names = chosen_tables(runtime.catalog, tables, all_tables=all_tables)
    is_fleet = not names_one(tables)
    with engine_and_progress(engine, as_json=as_json) as (started, progress):
        timeout_s, retries = (None, 0) if dry_run else runtime.limits(chosen, unsafe=unsafe)

        def run(name: TableName) -> PassOutcome:
            return runtime.maintain(
                name,
                chosen,
                started,
                dry_run=dry_run,
                unsafe=unsafe,
                progress=progress,
                turn=Turn(wait_ms=wait_ms, notify=notify, timeout_s=timeout_s, retries=retries),
                names_table=str(name) in (tables or ()),
            )

        results = run_each(catalog, names, run, people(as_json=as_json)) if is_fleet else [run(names[0])]
    return _report(results, catalog, is_fleet=is_fleet, exit_code=exit_code, as_json=as_json)


def _report(results: Results, catalog: str, *, is_fleet: bool, exit_code: bool, as_json: bool) -> int:
    from icekeeper.report.outcome import is_due, order_json
    from icekeeper.report.terminal import print_outcome

    passes = [result for result in results if not isinstance(result, FailedTable)]
    if as_json:
        documents = [result.to_json(listings()) for result in results]
        for document, result in zip(documents, results, strict=True):
            if not isinstance(result, FailedTable) and result.dry_run:
                document["planned_anew"] = order_json(result.operations)
        fleet = {"catalog": catalog, "status": of_several(results), "tables": documents}
        print_json(fleet if is_fleet else documents[0])
    console = people(as_json=as_json)
    if is_fleet:
        good = sum(result.status.value == "succeeded" for result in results)
        console.print(f"{counted(len(results), 'table')}, {good} succeeded, {len(results) - good} did not")
    else:
        print_outcome(console, passes[0])
    if problem := trouble_of(results):
        return print_failed(problem)
    return EXIT_DUE if exit_code and any(map(is_due, passes)) else EXIT_OK
