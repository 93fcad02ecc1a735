"""A process that is killed at the n-th of the steps that it takes outwards: nothing of it runs afterwards."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from icekeeper.catalogs.sql import SqlCatalog
from icekeeper.state.sqlite.file import SqliteFile
from icekeeper.storage.storage import Storage

_KILLED, _BROKEN = 9, 1
_LONGEST_S = 120
"""Then the kernel ends the child: a lock that a thread of the parent held at the fork is never given back."""
# What leaves something behind, or takes it away: a death between two reads is one before the next of these.
_STEPS: tuple[tuple[type, str], ...] = (
    (Storage, "write"),
    (Storage, "open_output"),
    (Storage, "delete"),
    (SqliteFile, "write"),
    (SqlCatalog, "commit"),
)
# Blocks: a death at the end of one is before what it does is committed.
_BLOCKS: tuple[tuple[type, str], ...] = ((SqliteFile, "transaction"),)


def dies_at(number: int, work: Callable[[], object]) -> bool:
    """Do the work in a forked child, which dies at its step ``number`` in a way that no code of it can notice.

    Before and after each call outwards is a step.  False: the work ended before it came so far.
    """
    child = os.fork()
    if child == 0:
        status = _BROKEN
        signal.alarm(_LONGEST_S)
        try:
            with _death_at(number):
                work()
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, _KILLED), f"the work broke before step {number}"
    return status == _KILLED


@contextmanager
def _death_at(number: int) -> Iterator[None]:
    taken, lock = 0, threading.Lock()

    def step() -> None:
        nonlocal taken
        with lock:
            taken += 1
            if taken == number:
                os._exit(_KILLED)

    def counted(owner: type, name: str) -> Any:
        original = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            step()
            result = original(*args, **options)
            step()
            return result

        return mock.patch.object(owner, name, call)

    def counted_block(owner: type, name: str) -> Any:
        original = getattr(owner, name)

        @contextmanager
        def block(*args: Any, **options: Any) -> Iterator[Any]:
            step()
            with original(*args, **options) as given:
                yield given
                step()
            step()

        return mock.patch.object(owner, name, block)

    with ExitStack() as patches:
        for owner, name in _STEPS:
            patches.enter_context(counted(owner, name))
        for owner, name in _BLOCKS:
            patches.enter_context(counted_block(owner, name))
        yield
