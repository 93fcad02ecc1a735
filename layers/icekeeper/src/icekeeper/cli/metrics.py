"""``icekeeper metrics``, and the options of ``icekeeper run`` that serve the same metrics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icekeeper.cli.console import EXIT_OK, print_text, write_output
from icekeeper.errors import PolicyError

if TYPE_CHECKING:
    from icekeeper.state.store import StateStore

MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="N",
        min=0,
        max=65535,
        help="serve /metrics for Prometheus and /healthz for probes on this port; 0: any free port",
    ),
]
MetricsAddress = Annotated[
    str | None,
    typer.Option("--metrics-address", metavar="ADDRESS", help="the address to serve them on; default 127.0.0.1"),
]


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
def served_metrics(
    port: int | None,
    address: str | None,
    catalogs: Sequence[str],
    interval_s: float,
    notify: Callable[[str], object],
    *,
    scans_all: bool,
) -> Iterator[Callable[[float, bool], object]]:
    """Serve the metrics of ``icekeeper run`` while the block runs, if ``port`` is given.

    ``scans_all``: whether the process scans whole catalogs.

    Yields a function to call at the start and end of each cycle, with the interval of the cycles.

    Raises:
        PolicyError: a catalog is not configured, or the port cannot be used.
    """
    if port is None:
        if address is not None:
            raise PolicyError("--metrics-address has no effect without --metrics-port; add --metrics-port")
        yield lambda interval_s, has_ended: None
        return
    from icekeeper.cycle.metrics_server import CycleHealth, served
    from icekeeper.report.metrics import StateMetrics
    from icekeeper.state.open import open_state

    state, health = open_state(os.environ), CycleHealth(interval_s)
    metrics = StateMetrics(state, _recorded_names(catalogs, state), awaits_scan=scans_all)
    with served(address or "127.0.0.1", port, metrics, health) as url:
        notify(f"metrics at {url}/metrics, health at {url}/healthz")
        yield lambda interval_s, has_ended: health.note(interval_s, has_ended=has_ended)
