"""Work that may take so long and no longer: in a thread that is left to itself where it takes longer.

Nothing in Python ends a thread that waits for a network, or that counts to ten trillion.  One that is left to itself
holds up neither its caller nor the end of the process; its result is discarded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

__all__ = ["in_daemon_thread", "in_limited_time"]

Result = TypeVar("Result")


def in_daemon_thread(work: Callable[[], Result], name: str) -> Future[Result]:
    """What the work will give, which runs in the caller's context; the process ends without waiting for it."""
    given: Future[Result] = Future()
    context = copy_context()

    def run() -> None:
        try:
            result = context.run(work)
        except BaseException as error:
            given.set_exception(error)
        else:
            given.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return given


def in_limited_time(work: Callable[[], Result], limit_s: float, name: str) -> Result:
    """The result of the work, or what it raises.

    Raises:
        TimeoutError: it has not ended within ``limit_s`` seconds, and is left to itself.
    """
    given = in_daemon_thread(work, name)
    try:
        return given.result(limit_s)
    except TimeoutError:
        if given.done():  # an error of the work itself
            raise
        raise TimeoutError(f"it has not ended within {limit_s:g} s") from None
