"""``icekeeper run``: the cycle as a process of its own, for whoever has no AWS."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from icekeeper.cli.arguments import Engine, Settings, overrides, time_ms
from icekeeper.cli.console import EXIT_OK, people, print_failed
from icekeeper.engines.names import EngineName
from icekeeper.errors import PolicyError

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["run", "run_worker"]


def run(
    catalogs: Annotated[
        list[str], typer.Option("--catalog", metavar="C", help="a catalog whose tables are maintained; repeatable")
    ],
    interval: Annotated[
        str | None,
        typer.Option(
            "--interval",
            metavar="TIME",
            help="between two detections, for example 15m or 6h; otherwise 1h, or what detection_interval_s says",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            metavar="N",
            min=1,
            help="tables that this process maintains at once; otherwise 2, or what the policy says",
        ),
    ] = None,
    settings: Settings = None,
    engine: Engine = EngineName.AUTO,
    once: Annotated[
        bool, typer.Option("--once", help="one detection and its passes, then end; 1 when something failed")
    ] = False,
) -> int:
    """Detect and maintain the tables of catalogs, every interval, until stopped (SIGTERM or Ctrl-C)."""
    from icekeeper.cycle.supervisor import Supervisor, WorkerCall

    chosen, schedule = overrides(settings, about="icekeeper run"), dict[str, str]()
    if once and interval is not None:
        raise PolicyError("--once and --interval exclude each other")
    if interval is not None:
        schedule["detection_interval_s"] = str(time_ms(interval, "--interval") // 1000)
    if concurrency is not None:
        schedule["max_concurrent_jobs_per_worker"] = str(concurrency)
    console = people(as_json=False)
    call = WorkerCall(catalogs=catalogs, overrides=chosen, schedule=schedule, engine=engine.value, once=once)
    supervisor = Supervisor(call, os.environ, lambda line: console.print(line, soft_wrap=True))
    with _stopping(supervisor.stop):
        is_well = supervisor.run()
    return (
        EXIT_OK if is_well else print_failed("not every table could be looked at and maintained; see the lines above")
    )


def run_worker() -> None:
    """Maintain tables for ``icekeeper run``, which starts this command and ends it."""
    from icekeeper.cycle.worker import work

    work()


@contextmanager
def _stopping(stop: Callable[[], None]) -> Iterator[None]:
    """While the block runs, the first SIGTERM or SIGINT calls ``stop``; a second one ends the process at once."""
    signals = (signal.SIGTERM, signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        for one in signals:
            signal.signal(one, signal.SIG_DFL)
        # In a thread: what it sets, the interrupted code may hold just now.
        Thread(target=stop).start()

    before = {one: signal.signal(one, handle) for one in signals}
    try:
        yield
    finally:
        for one, earlier in before.items():
            signal.signal(one, earlier)
