"""Plans that a person reviews: ``plan --save`` writes one, ``apply`` does exactly what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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
    from icekeeper.report.outcome import PassOutcome
    from icekeeper.runtime import Runtime

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
    from icekeeper.report.outcome import PassStatus
    from icekeeper.report.terminal import print_outcome, trouble

    wait_ms = 0 if wait is None else time_ms(wait, "--wait")
    saved, console = _read(plan), people(as_json=as_json)
    documents: list[dict[str, Any]] = []
    troubles: list[str] = []
    for table, found in _applied(saved, engine, unsafe=unsafe, wait_ms=wait_ms, as_json=as_json):
        if isinstance(found, MaintenanceError):
            about = {"table": table.table, "catalog": table.catalog, "status": PassStatus.FAILED.value}
            documents.append({**about, "error": {"type": type(found).__name__, "message": str(found)}})
            troubles.append(str(found) if table.table in str(found) else f"{table.table}: {found}")
            continue
        documents.append(found.to_json(listings()))
        print_outcome(console, found)
        if found.status is not PassStatus.SUCCEEDED:
            troubles.append(trouble(found))
    if as_json:
        failed = PassStatus.FAILED if len(troubles) == len(documents) else PassStatus.PARTIAL
        status = failed if troubles else PassStatus.SUCCEEDED
        print_json({"status": status.value, "saved": iso_utc(saved.saved_ms), "tables": documents})
    return print_failed("; ".join(troubles)) if troubles else EXIT_OK


def _applied(
    plan: SavedPlan, engine: EngineName, *, unsafe: bool, wait_ms: int, as_json: bool
) -> Iterator[tuple[SavedTable, PassOutcome | MaintenanceError]]:
    """Apply the plan to one table after the other; an error of one stops no other."""
    from icekeeper.maintenance.run_pass import Turn
    from icekeeper.runtime import Runtime

    opened: dict[str, Runtime] = {}
    for table in plan.tables:
        try:
            if table.catalog not in opened:
                opened[table.catalog] = Runtime.open(table.catalog)
            runtime = opened[table.catalog]
            timeout_s, retries = runtime.limits(table.settings, unsafe=unsafe)
            turn = Turn(command="icekeeper apply", wait_ms=wait_ms, tell=tell, timeout_s=timeout_s, retries=retries)
            with engine_and_progress(engine, as_json=as_json) as (started, progress):
                yield table, runtime.apply(table, started, unsafe=unsafe, progress=progress, turn=turn)
        except MaintenanceError as error:
            yield table, error
