"""SIGINT (Ctrl-C) and SIGTERM (systemd, Kubernetes, ECS) end a command in the same way.

The first signal raises KeyboardInterrupt in the main thread; inside :func:`uninterrupted`, at the end of the block.
What is finished is then committed, the rest is cleaned up, and the process ends with 128 and the signal's number.  When
the grace period is over, or after a second signal, it ends at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Timer, current_thread, main_thread
from time import monotonic
from types import FrameType

DEFAULT_GRACE_S = 25.0
"""Kubernetes and ECS kill a process 30 seconds after SIGTERM."""
# ``timeout`` and some supervisors send the signal to a process and again to its group.
_SAME_SIGNAL_S = 1.0


@dataclass(slots=True)
class _State:
    number: int = 0
    """The signal that was received; 0: none."""
    came_s: float = 0.0
    grace_s: float = DEFAULT_GRACE_S
    blocks: int = 0
    """How many blocks must not be interrupted now."""
    is_due: bool = False
    """A signal came during such a block."""


_state = _State()


def listen(numbers: Iterable[int]) -> None:
    """Handle these signals from now on."""
    for number in numbers:
        signal.signal(number, _interrupt)


def set_grace(grace_s: float) -> None:
    """Set the seconds from a signal to the end of the process."""
    _state.grace_s = grace_s


def exit_code() -> int:
    """The exit code of an interrupted command, as shells report it."""
    return 128 + (_state.number or signal.SIGINT)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a signal to the end of the block: a commit is either made and recorded, or not begun."""
    if current_thread() is not main_thread():
        yield
        return
    _state.blocks += 1
    try:
        yield
    finally:
        _state.blocks -= 1
        if _state.is_due and not _state.blocks:
            _state.is_due = False
            raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    now_s = monotonic()
    if _state.number:
        if now_s - _state.came_s >= _SAME_SIGNAL_S:
            os._exit(exit_code())
        return
    _state.number, _state.came_s = number, now_s
    end = Timer(_state.grace_s, _end)
    end.daemon = True
    end.start()
    if _state.blocks:
        _state.is_due = True
        return
    raise KeyboardInterrupt


def _end() -> None:
    sentence = f"error: interrupted; the command did not finish within {_state.grace_s:g} s (--grace)\n"
    os.write(2, sentence.encode())
    os._exit(exit_code())
