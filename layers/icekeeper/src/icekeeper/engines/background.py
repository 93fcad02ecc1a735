"""Work in a thread of its own, for whose result another one waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["in_background"]

Result = TypeVar("Result")


def in_background(work: Callable[[], Result], *, daemon: bool) -> Future[Result]:
    """What the work will give; the process waits for the end of work that is no ``daemon``.

    Ctrl-C meets the thread that waits for the result, outside of any call to Java: in the midst of one it would become
    an error of that call (platform 43).
    """
    given: Future[Result] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            given.set_exception(error)
        else:
            given.set_result(result)

    threading.Thread(target=run, daemon=daemon).start()
    return given
