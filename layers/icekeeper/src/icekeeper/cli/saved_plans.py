"""Plans that a person reviews: ``plan --save`` writes a plan, ``apply`` does exactly what it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AsJson, Engine, Unsafe, time_ms
from icekeeper.cli.console import (
    EXIT_OK,
    engine_and_progress,
    listings,
    notify,
    people,
    print_failed,
    print_json,
    write_output,
)
from icekeeper.cli.several import FailedTable, of_several, run_each, trouble_of
from icekeeper.engines.engine import EngineName
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.machine.clock import iso_utc, system_clock
from icekeeper.text import counted

if TYPE_CHECKING:
    from icekeeper.maintenance.saved_plan import SavedPlan, SavedRepair, SavedTable
    from icekeeper.model import TableName
    from icekeeper.report.outcome import PassOutcome

SaveAs = Annotated[
    Path | None,
    typer.Option(
        "--save", metavar="FILE", dir_okay=False, help="write the plan, with every file, for review and icekeeper apply"
    ),
]


def _version() -> str:
    from importlib.metadata import version

    return version("icekeeper")


def save_plan(path: Path, tables: Sequence[SavedTable]) -> None:
    """Write a plan; an existing file is replaced as a whole, or stays as it was.

    Raises:
        PolicyError: the file cannot be written.
    """
    from icekeeper.maintenance.saved_plan import SavedPlan

    _write(path, SavedPlan(version=_version(), saved_ms=system_clock(), tables=tuple(tables)))


def save_repair(path: Path, repair: SavedRepair) -> None:
    """Write the plan of a repair; as :func:`save_plan`."""
    from icekeeper.maintenance.saved_plan import SavedPlan

    _write(path, SavedPlan(version=_version(), saved_ms=system_clock(), repairs=(repair,)))


def _write(path: Path, plan: SavedPlan) -> None:
    write_output("--save", path, json.dumps(plan.to_json(), indent=1) + "\n")


def plan_each(
    catalog: str,
    names: Sequence[TableName],
    plan: Callable[[TableName], tuple[SavedTable | None, PassOutcome]],
    save: Path | None,
    *,
    as_json: bool,
) -> int:
    """Plan the passes over several tables, print a line for each, and save the plans that could be made."""
    from icekeeper.report.outcome import in_turn

    console = people(as_json=as_json)
    saved: list[SavedTable] = []

    def run(name: TableName) -> PassOutcome:
        table, answers = plan(name)
        if table is not None:
            saved.append(table)
        return in_turn(answers)

    results = run_each(catalog, names, run, console)
    if as_json:
        tables = [result.to_json(listings()) for result in results]
        print_json({"catalog": catalog, "status": of_several(results), "tables": tables})
    if save is not None and saved:
        save_plan(save, saved)
        about = f"the plans of {counted(len(saved), 'table')} are saved"
        console.print(f"{about}; icekeeper apply {save} does them within 24 hours", soft_wrap=True)
    trouble = trouble_of(results)
    return print_failed(trouble) if trouble else EXIT_OK


def _read(path: Path) -> SavedPlan:
    from icekeeper.maintenance.saved_plan import read_plan

    try:
        text = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"{path} cannot be read: {error.strerror}") from error
    plan = read_plan(text, str(path))
    plan.require(_version(), system_clock())
    return plan


def apply(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="written by icekeeper plan --save")],
    engine: Engine = EngineName.AUTO,
    unsafe: Unsafe = False,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait", metavar="TIME", help="wait for other runs, at most this long per table (90s, 30m or 6h)"
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Do what a saved plan says, and nothing else; an operation that would now change other files is refused.

    A plan is valid for 24 hours.  An interrupted call can be repeated.
    """
    from icekeeper.report.terminal import print_outcome

    wait_ms = 0 if wait is None else time_ms(wait, "--wait")
    saved, console = _read(plan), people(as_json=as_json)
    if saved.repairs:
        return _apply_repairs(saved, as_json=as_json)
    results: list[PassOutcome | FailedTable] = []
    try:
        _apply(saved, engine, results, unsafe=unsafe, wait_ms=wait_ms, as_json=as_json)
    finally:  # an interrupted call may have finished some tables
        for result in results:
            if not isinstance(result, FailedTable):
                print_outcome(console, result)
    if as_json:
        tables = [result.to_json(listings()) for result in results]
        print_json({"status": of_several(results), "saved": iso_utc(saved.saved_ms), "tables": tables})
    trouble = trouble_of(results)
    return print_failed(trouble) if trouble else EXIT_OK


def _apply(
    plan: SavedPlan,
    engine: EngineName,
    results: list[PassOutcome | FailedTable],
    *,
    unsafe: bool,
    wait_ms: int,
    as_json: bool,
) -> None:
    """Apply the plan to each table in turn, and append each result; an error does not stop the others."""
    from icekeeper.maintenance.run_pass import Turn
    from icekeeper.runtime import Runtime

    opened: dict[str, Runtime] = {}
    with engine_and_progress(engine, as_json=as_json) as (started, progress):
        for table in plan.tables:
            try:
                if table.catalog not in opened:
                    opened[table.catalog] = Runtime.open(table.catalog)
                runtime = opened[table.catalog]
                timeout_s, retries = runtime.limits(table.settings, unsafe=unsafe)
                turn = Turn(
                    command="icekeeper apply", wait_ms=wait_ms, notify=notify, timeout_s=timeout_s, retries=retries
                )
                results.append(runtime.apply(table, started, unsafe=unsafe, progress=progress, turn=turn))
            except MaintenanceError as error:
                results.append(FailedTable(table.table, table.catalog, error))


def _apply_repairs(plan: SavedPlan, *, as_json: bool) -> int:
    """Repair each table of a plan as it was reviewed; an error does not stop the others."""
    from icekeeper.runtime import Runtime

    console, documents, trouble = people(as_json=as_json), list[Mapping[str, Any]](), list[str]()
    for saved in plan.repairs:
        try:
            done, verified = Runtime.open(saved.catalog).apply_repair(saved)
        except MaintenanceError as error:
            failed = FailedTable(saved.table, saved.catalog, error)
            failed.show(console)
            documents.append(failed.document)
            trouble.append(failed.problem)
        else:
            console.print(f"{done.table}: {done.summary}", soft_wrap=True)
            documents.append(done.to_json())
            if verified is not None and not verified.ok:
                trouble.append(f"{done.table}: verify still finds {counted(len(verified.problems), 'problem')}")
    if as_json:
        status = "failed" if trouble else "succeeded"
        print_json({"status": status, "saved": iso_utc(plan.saved_ms), "tables": [], "repairs": documents})
    return print_failed("; ".join(trouble)) if trouble else EXIT_OK
