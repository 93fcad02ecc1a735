"""``icekeeper requests``: the requests for a pass that no run has taken yet, and how to take one back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Table, table_name
from icekeeper.cli.command_help import CommandGroup
from icekeeper.cli.console import EXIT_OK, answer
from icekeeper.machine.clock import iso_utc

if TYPE_CHECKING:
    from icekeeper.state.requests import MaintenanceRequest

__all__ = ["requests_app"]

requests_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Requests for a pass that no run has taken yet."
)


@requests_app.command("list")
def requests_list(
    catalog: Annotated[
        str | None, typer.Option("--catalog", metavar="C", help="only those that were filed under this catalog")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print the requests that are pending, oldest first: the order in which runs take them."""
    from icekeeper.machine.clock import system_clock
    from icekeeper.state.detection_mark import SEEN_FOR_HOURS, is_scheduled
    from icekeeper.state.open import open_state

    state = open_state(os.environ)
    pending = [one for one in state.requests.pending() if catalog is None or one.identity.catalog == catalog]
    scheduled = is_scheduled(state.leases, now_ms=system_clock())
    listed = [_request_json(one) for one in pending]
    document = {"catalog": catalog, "status": "succeeded", "scheduled": scheduled, "requests": listed}
    console = answer(document, as_json=as_json)
    for request in pending:
        console.print(_line(request), soft_wrap=True)
    if not pending:
        console.print("no request is pending", soft_wrap=True)
    elif not scheduled:
        console.print(f"no run has looked for requests here in the last {SEEN_FOR_HOURS} hours", soft_wrap=True)
    return EXIT_OK


@requests_app.command("withdraw")
def requests_withdraw(table: Table, catalog: CatalogName, as_json: AsJson = False) -> int:
    """Take back the request for a table; a pass that has begun goes on."""
    from icekeeper.administration.settings import withdraw_request
    from icekeeper.runtime import Runtime

    withdrawn = withdraw_request(Runtime.open(catalog).table(table_name(table)))
    about = {"table": table, "catalog": catalog, "status": "succeeded"}
    console = answer({**about, "withdrawn": _request_json(withdrawn)}, as_json=as_json)
    console.print(f"{table}: the request of {iso_utc(withdrawn.requested_ms)} is withdrawn", soft_wrap=True)
    return EXIT_OK


def _line(request: MaintenanceRequest) -> str:
    settings = " ".join(f"{key}={value}" for key, value in request.settings.items())
    found = request.identity
    return f"{iso_utc(request.requested_ms)} {found.catalog} {found.table} {settings}".rstrip()


def _request_json(request: MaintenanceRequest) -> dict[str, Any]:
    return {
        "table": str(request.identity.table),
        "catalog": request.identity.catalog,
        "requested_ms": request.requested_ms,
        "requested": iso_utc(request.requested_ms),
        "settings": dict(request.settings),
    }
