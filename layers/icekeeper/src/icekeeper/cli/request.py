"""``icekeeper request``: ask the deployed stack for a pass over one table, outside the schedule."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from icekeeper.cli.arguments import (
    AsJson,
    CatalogName,
    Operations,
    Settings,
    Table,
    overrides,
    table_name,
    time_ms,
)
from icekeeper.cli.console import (
    EXIT_OK,
    people,
    print_failed,
    print_interrupted,
    print_json,
    waiting,
)
from icekeeper.cli.history import pass_json
from icekeeper.errors import PolicyError
from icekeeper.state.detection_mark import SEEN_FOR_HOURS

if TYPE_CHECKING:
    from icekeeper.pipeline.request_pass import Answer
    from icekeeper.state.requests import MaintenanceRequest

__all__ = ["request"]

NEXT_RUN = "the next scheduled run takes it first"
NO_RUN = (
    f"nothing is scheduled: no run has looked for requests here in the last {SEEN_FOR_HOURS} hours; switch the stack's "
    "schedule on, start icekeeper run, or give --state-machine to start a run at once"
)


def request(
    table: Table,
    catalog: CatalogName,
    operations: Operations = None,
    settings: Settings = None,
    state_machine: Annotated[
        str | None,
        typer.Option(
            "--state-machine",
            metavar="ARN",
            envvar="ICEKEEPER_STATE_MACHINE",
            help="the stack's output StateMachineArn: start a run at once; without it the next scheduled run does it",
        ),
    ] = None,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="TIME", help="at most so long, for example 90s, 30m or 6h")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="file the request, start the run, and return")] = False,
    as_json: AsJson = False,
) -> int:
    """Ask the deployed stack for a pass over one table, and wait for its result."""
    from icekeeper.pipeline.executions import StateMachine
    from icekeeper.pipeline.request_pass import (
        Waiting,
        await_pass,
        file_request,
        follow_pass,
        require_shared_state,
        start_pass,
    )
    from icekeeper.runtime import Runtime

    chosen, name = overrides(settings, operations), table_name(table)
    if no_wait and wait is not None:
        raise PolicyError("--wait and --no-wait exclude each other")
    limit_ms = None if wait is None else time_ms(wait, "--wait")
    scheduled = _is_scheduled()
    require_shared_state(os.environ, is_scheduled=scheduled)
    machine = StateMachine.open(state_machine, _profile()) if state_machine else None
    runtime = Runtime.open(catalog)
    filed = file_request(runtime, name, chosen)
    execution = None if machine is None else start_pass(machine, filed)
    answer = _at_first(execution, is_scheduled=scheduled)
    _say(name, answer, as_json)
    if no_wait or (machine is None and limit_ms is None):
        _document(filed, execution, answer, as_json)
        return EXIT_OK
    try:
        with waiting(f"{name}: {answer.summary}") as show:
            tell = partial(_show, show, name)
            if machine is not None and execution is not None:
                answer = follow_pass(machine, execution, runtime.state, filed, Waiting(limit_ms=limit_ms, tell=tell))
            else:
                answer = await_pass(runtime.state, filed, Waiting(limit_ms=limit_ms or 0, tell=tell))
    except KeyboardInterrupt:
        return print_interrupted(_goes_on(execution, is_scheduled=scheduled), as_json=as_json)
    _say(name, answer, as_json)
    _document(filed, execution, answer, as_json)
    return EXIT_OK if answer.is_well else print_failed(f"{name}: {answer.status}: {answer.summary}")


def _show(show: Callable[[str], object], table: object, news: str) -> None:
    show(f"{table}: {news}")


def _goes_on(execution: str | None, *, is_scheduled: bool) -> str:
    if execution is not None:
        return f"interrupted; the run goes on: {execution}"
    return f"interrupted; the request stays filed: {NEXT_RUN if is_scheduled else NO_RUN}"


def _profile() -> str | None:
    """The AWS profile of the state's address: table and state machine are of one stack."""
    from icekeeper.state.address import parse_address

    address = parse_address(os.environ)
    return None if address is None else address.profile


def _is_scheduled() -> bool:
    from icekeeper.machine.clock import system_clock
    from icekeeper.state.detection_mark import is_scheduled
    from icekeeper.state.open import open_state

    return is_scheduled(open_state(os.environ).leases, now_ms=system_clock())


def _at_first(execution: str | None, *, is_scheduled: bool) -> Answer:
    from icekeeper.pipeline.request_pass import Answer

    if execution is None:
        return Answer(status="requested", summary=NEXT_RUN if is_scheduled else NO_RUN)
    return Answer(status="running", summary=f"started as {execution}")


def _say(table: object, answer: Answer, as_json: bool) -> None:
    people(as_json=as_json).print(f"{table}: {answer.status}: {answer.summary}", soft_wrap=True)


def _document(filed: MaintenanceRequest, execution: str | None, answer: Answer, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "table": str(filed.identity.table),
                "catalog": filed.identity.catalog,
                "status": answer.status,
                "summary": answer.summary,
                "requested_ms": filed.requested_ms,
                "settings": dict(filed.settings),
                "execution": execution,
                "pass": None if answer.record is None else pass_json(answer.record),
            }
        )
