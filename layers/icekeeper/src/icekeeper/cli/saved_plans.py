"""Plans that a person reviews: ``plan --save`` writes one, ``apply`` does exactly what it says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AsJson, Engine, Unsafe, time_ms
from icekeeper.cli.console import (
    EXIT_OK,
    engine_and_progress,
    listings,
    people,
    print_failed,
    print_json,
    tell,
    write_output,
)
from icekeeper.engines.engine import EngineName
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.machine.clock import iso_utc, system_clock

if TYPE_CHECKING:
    from icekeeper.maintenance.saved_plan import SavedPlan, SavedTable
    from icekeeper.report.outcome import ListingWriter, PassOutcome, PassStatus

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
    """Write a plan; an existing file is replaced as a whole, or stays.

    Raises:
        PolicyError: the file cannot be written.
    """
    from icekeeper.maintenance.saved_plan import SavedPlan

    plan = SavedPlan(version=_version(), saved_ms=system_clock(), tables=tuple(tables))
    write_output("--save", path, json.dumps(plan.to_json(), indent=1) + "\n")


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
        typer.Option("--wait", metavar="TIME", help="for other runs, at most so long for each table (90s, 30m or 6h)"),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Do what a saved plan says, and nothing else; an operation that would now change other files is refused.

    The plan holds for 24 hours.  An interrupted call can be repeated.
    """
    from icekeeper.report.outcome import PassOutcome, PassStatus
    from icekeeper.report.terminal import print_outcome, trouble

    wait_ms = 0 if wait is None else time_ms(wait, "--wait")
    saved, console, results = _read(plan), people(as_json=as_json), list[PassOutcome | _Failure]()
    try:
        _apply(saved, engine, results, unsafe=unsafe, wait_ms=wait_ms, as_json=as_json)
    finally:  # an interrupted call has done some tables
        for result in results:
            if isinstance(result, PassOutcome):
                print_outcome(console, result)
    troubles = [
        trouble(one) if isinstance(one, PassOutcome) else one.sentence
        for one in results
        if one.status is not PassStatus.SUCCEEDED
    ]
    if as_json:
        failed = PassStatus.FAILED if len(troubles) == len(results) else PassStatus.PARTIAL
        status = failed if troubles else PassStatus.SUCCEEDED
        tables = [one.to_json(listings()) for one in results]
        print_json({"status": status.value, "saved": iso_utc(saved.saved_ms), "tables": tables})
    return print_failed("; ".join(troubles)) if troubles else EXIT_OK


@dataclass(frozen=True, slots=True)
class _Failure:
    """A table of a plan to which nothing was done."""

    table: SavedTable
    error: MaintenanceError

    @property
    def status(self) -> PassStatus:
        from icekeeper.report.outcome import PassStatus

        return PassStatus.FAILED

    @property
    def sentence(self) -> str:
        text, name = str(self.error), self.table.table
        return text if name in text else f"{name}: {text}"

    def to_json(self, listing: ListingWriter) -> dict[str, Any]:
        error = {"type": type(self.error).__name__, "message": str(self.error)}
        return {
            "table": self.table.table,
            "catalog": self.table.catalog,
            "status": self.status.value,
            "error": error,
        }


def _apply(
    plan: SavedPlan,
    engine: EngineName,
    results: list[PassOutcome | _Failure],
    *,
    unsafe: bool,
    wait_ms: int,
    as_json: bool,
) -> None:
    """Apply the plan to one table after the other, and note each result; an error of one stops no other."""
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
                turn = Turn(command="icekeeper apply", wait_ms=wait_ms, tell=tell, timeout_s=timeout_s, retries=retries)
                results.append(runtime.apply(table, started, unsafe=unsafe, progress=progress, turn=turn))
            except MaintenanceError as error:
                results.append(_Failure(table, error))
