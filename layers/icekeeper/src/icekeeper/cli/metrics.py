"""``icekeeper metrics``, and the options of ``icekeeper run`` that serve the same metrics and the page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icekeeper.cli.console import EXIT_OK, print_text, write_output
from icekeeper.errors import PolicyError

if TYPE_CHECKING:
    from icekeeper.state.store import StateStore

HttpPort = Annotated[
    int | None,
    typer.Option(
        "--http",
        metavar="PORT",
        min=0,
        max=65535,
        help="serve /metrics for Prometheus and /healthz for probes on this port; 0: any free port",
    ),
]
HttpAddress = Annotated[
    str | None,
    typer.Option("--http-address", metavar="ADDRESS", help="the address to serve them on; default 127.0.0.1"),
]
HttpPage = Annotated[
    bool, typer.Option("--http-page", help="serve the page of icekeeper report as / to everyone who reaches the port")
]


@dataclass(frozen=True, slots=True)
class OnEvents:
    """What the server does at events of the service."""

    cycle: Callable[[float, bool], object] = lambda interval_s, has_ended: None
    """At the start and end of a cycle, with the interval of the cycles."""
    ended_pass: Callable[[], object] = lambda: None


def metrics(
    catalogs: Annotated[
        list[str] | None, typer.Option("--catalog", "-c", metavar="C", help="only this catalog; repeatable")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE.prom", help="replace this file, for a textfile collector; otherwise print"
        ),
    ] = None,
) -> int:
    """Print metrics of all catalogs for Prometheus, from what scans and passes have recorded in the state."""
    from icekeeper.report.metrics import StateMetrics
    from icekeeper.state.open import open_state

    state = open_state(os.environ)
    text = StateMetrics(state, _recorded_names(catalogs or (), state)).text()
    if output is None:
        print_text(text)
    else:
        write_output("--output", output, text, mode=0o644)  # node_exporter runs as another user
    return EXIT_OK


def _recorded_names(catalogs: Iterable[str], state: StateStore) -> list[str]:
    """The names of these catalogs in the state, where a table bucket has its own name instead of its ARN.

    Raises:
        PolicyError: a catalog is neither in the state nor configured.
    """
    from icekeeper.catalogs.load import configured_catalog
    from icekeeper.report.metrics import recorded_catalogs

    recorded = {catalog.name for catalog in recorded_catalogs(state)}
    return [name if name in recorded else configured_catalog(name).name for name in catalogs]


@contextmanager
def served_http(
    port: int | None,
    address: str | None,
    has_page: bool,
    catalogs: Sequence[str],
    interval_s: float,
    notify: Callable[[str], object],
    *,
    scans_all: bool,
) -> Iterator[OnEvents]:
    """Serve metrics, and with ``has_page`` the page, while the block runs, if ``port`` is given.

    ``scans_all``: whether the process scans whole catalogs.

    Raises:
        PolicyError: a catalog is not configured, or the port cannot be used.
    """
    if port is None:
        for option, is_given in (("--http-address", address is not None), ("--http-page", has_page)):
            if is_given:
                raise PolicyError(f"{option} has no effect without --http; add --http PORT")
        yield OnEvents()
        return
    from icekeeper.cycle.metrics_server import CycleHealth, ServedPage, served
    from icekeeper.machine.clock import system_clock
    from icekeeper.report.metrics import StateMetrics
    from icekeeper.state.open import open_state

    state, health, page = open_state(os.environ), CycleHealth(interval_s), None
    names = _recorded_names(catalogs, state)
    if has_page:
        from icekeeper.report.page import recorded_page, security_policy

        page = ServedPage(lambda: recorded_page(state, system_clock(), names), security_policy())

    def on_cycle(interval_s: float, has_ended: bool) -> None:
        health.note(interval_s, has_ended=has_ended)
        if page is not None and has_ended:
            page.note_change()

    metrics = StateMetrics(state, names, awaits_scan=scans_all)
    with ExitStack() as stack:
        url = stack.enter_context(served(address or "127.0.0.1", port, metrics, health, page))
        if page is not None:
            stack.enter_context(page.kept_current())
        what = {"page": "/", "metrics": "/metrics", "health": "/healthz"}
        notify(", ".join(f"{name} at {url}{path}" for name, path in what.items() if page is not None or name != "page"))
        yield OnEvents(on_cycle, lambda: None if page is None else page.note_change())
