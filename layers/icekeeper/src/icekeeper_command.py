"""The script ``icekeeper``, which answers Ctrl-C and SIGTERM before the package is imported: a module of its own,
because importing one of the package's would import the package first."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

_TOLD = "interrupted; the command did not finish"
# A parent that ignores a signal for its children (nohup) keeps its way.
_OURS = [
    number
    for number in (signal.SIGINT, signal.SIGTERM)
    if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)
]


def _interrupted(number: int, frame: FrameType | None) -> None:
    if "--json" in sys.argv:
        os.write(1, b'{"error": {"type": "Interrupted", "message": "%s"}}\n' % _TOLD.encode())
    os.write(2, f"error: {_TOLD}\n".encode())
    os._exit(128 + number)


for _number in _OURS:
    signal.signal(_number, _interrupted)


def let_commands_interrupt() -> None:
    """From here on both signals raise KeyboardInterrupt, so that a command says what landed."""
    from icekeeper.machine.interrupts import listen

    listen(number for number in _OURS if signal.getsignal(number) is _interrupted)


def main() -> int:
    """Run the command; its exit code."""
    # Modules and their classes live as long as the process; searching them for cycles takes a tenth of a start.
    gc.set_threshold(50_000, *gc.get_threshold()[1:])
    from icekeeper.cli import main as run

    code = run()
    gc.freeze()  # Python would look for garbage once more before it ends
    return code
