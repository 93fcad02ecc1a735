"""The worker of ``icekeeper run``: the cycle in a process that its supervisor may kill at any time."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

from icekeeper.cycle.service import Service, ServiceOptions
from icekeeper.cycle.supervisor import STOP
from icekeeper.engines.names import EngineName
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.machine.clock import Board, show_on
from icekeeper.runtime import open_engine
from icekeeper.state.open import open_state

__all__ = ["work"]

_BEAT_S = 0.5
_PR_SET_PDEATHSIG = 1


def work() -> None:
    """Do what the first line of standard input asks for, and tell the supervisor how it went; never returns.

    A thread that hangs would keep the interpreter from ending, so the process ends without waiting for any.
    """
    _die_with_the_supervisor()
    call: dict[str, Any] = json.loads(sys.stdin.readline())
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda number, frame: None)  # the supervisor says what becomes of it
    board = Board(Path(call["board"]))
    show_on(board)
    messages = os.fdopen(call["messages"], "w", buffering=1)

    def tell(**message: object) -> None:
        messages.write(f"{json.dumps(message)}\n")

    Thread(target=_beat, args=(board,), daemon=True).start()
    stop = Event()
    Thread(target=_obey, args=(stop,), daemon=True).start()
    try:
        with open_engine(EngineName(call["engine"])) as engine:
            options = ServiceOptions(
                catalogs=call["catalogs"],
                environment=os.environ,
                overrides=call["overrides"],
                schedule=call["schedule"],
            )
            service = Service(options, open_state(os.environ), engine, lambda line: tell(line=line), stop)
            is_well = service.run(once=call["once"])
        tell(end=is_well)
    except MaintenanceError as error:
        hint = error.hint() if isinstance(error, PolicyError) else ""
        tell(error=type(error).__name__, message=f"{error}{hint}")
    sys.stdout.flush()
    sys.stderr.flush()
    messages.close()
    os._exit(0)


def _die_with_the_supervisor() -> None:
    """Have Linux kill this process with the one that started it, also where it runs no Python (prctl(2))."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _beat(board: Board) -> None:
    while True:
        board.beat()
        time.sleep(_BEAT_S)


def _obey(stop: Event) -> None:
    """Stop when told so; end at once when the supervisor is gone."""
    for line in sys.stdin:
        if line.strip() == STOP:
            stop.set()
    os._exit(1)
