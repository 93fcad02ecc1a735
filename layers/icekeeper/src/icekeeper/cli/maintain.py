"""``icekeeper maintain``: a pass over one table, over the tables of a pattern, or over all tables of a catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from icekeeper.cli.arguments import (
    AllTables,
    AsJson,
    CatalogName,
    Engine,
    Operations,
    Settings,
    Tables,
    Unsafe,
    chosen_tables,
    is_pattern,
    overrides,
    time_ms,
)
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
from icekeeper.engines.engine import EngineName
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from icekeeper.model import TableName
    from icekeeper.report.outcome import ListingWriter, PassOutcome, PassStatus


def maintain(
    catalog: CatalogName,
    table: Tables = None,
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
    names = chosen_tables(runtime.catalog, table, all_tables=all_tables, notify=notify)
    is_fleet = all_tables or is_pattern(table)
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
                names_table=not is_fleet,
            )

        results = run_each(catalog, names, run, people(as_json=as_json)) if is_fleet else [run(names[0])]
    return _report(results, catalog, is_fleet=is_fleet, exit_code=exit_code, as_json=as_json)


@dataclass(frozen=True, slots=True)
class FailedTable:
    """One of several tables, whose pass ended with an error."""

    table: str
    catalog: str
    error: MaintenanceError

    @property
    def status(self) -> PassStatus:
        """The status, as that of a pass."""
        from icekeeper.report.outcome import PassStatus

        return PassStatus.FAILED

    @property
    def sentence(self) -> str:
        """The sentence of the error, with the table's name."""
        return str(self.error) if self.table in str(self.error) else f"{self.table}: {self.error}"

    def to_json(self, listing: ListingWriter) -> dict[str, Any]:
        """An element of ``tables``."""
        error = {"type": type(self.error).__name__, "message": str(self.error)}
        return {"table": self.table, "catalog": self.catalog, "status": self.status.value, "error": error}


Results: TypeAlias = Sequence["PassOutcome | FailedTable"]


def run_each(
    catalog: str, names: Sequence[TableName], run: Callable[[TableName], PassOutcome], console: Console
) -> Results:
    """Run a pass over each table in turn, and print a line for each; an error does not stop the others."""
    from icekeeper.report.terminal import changes_sentence, print_line

    results: list[PassOutcome | FailedTable] = []
    for name in names:
        try:
            results.append(run(name))
        except MaintenanceError as error:
            results.append(FailedTable(str(name), catalog, error))
        last = results[-1]
        sentence = str(last.error) if isinstance(last, FailedTable) else changes_sentence(last)
        print_line(console, last.table, last.status, sentence)
    return results


def of_several(results: Results) -> str:
    """How several passes ended: ``failed`` if none succeeded, ``partial`` if some did not."""
    from icekeeper.report.outcome import PassStatus

    good = sum(result.status is PassStatus.SUCCEEDED for result in results)
    ended = PassStatus.SUCCEEDED if good == len(results) else PassStatus.PARTIAL if good else PassStatus.FAILED
    return ended.value


def trouble_of(results: Results) -> str:
    """A sentence about all passes that did not succeed; empty if all succeeded."""
    from icekeeper.report.outcome import PassStatus
    from icekeeper.report.terminal import trouble

    bad = [result for result in results if result.status is not PassStatus.SUCCEEDED]
    return "; ".join(result.sentence if isinstance(result, FailedTable) else trouble(result) for result in bad)


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
