"""Processes of this machine that run tasks.

On Linux they are forked from a server process that has imported the work's modules once, so that a worker starts in
some milliseconds.  That is safe where forking this process would not be: the server has one thread and runs nothing but
imports, while Arrow's and boto3's threads here would not survive a fork (platform: forked-workers-start-cheap).
Elsewhere each worker is a new interpreter.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.machine.resources import search_cycles_seldom
from icekeeper.text import MaskingFormatter

_SAFE_PATH = "PYTHONSAFEPATH"


@contextmanager
def worker_pool(processes: int, function: Callable[..., Any]) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes, whose server has imported the module of ``function``; tasks that wait never begin later.

    Of a callable that stands for another one (``__wrapped__``) it is the module of the latter.

    Raises:
        StorageError: a worker died.
    """
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        # Without effect on a server that runs.
        context.set_forkserver_preload(["icekeeper.engines.worker_server", inspect.unwrap(function).__module__])
        _end_server_at_exit(os.getpid())
        _start_server()
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin_worker, initargs=(dict(os.environ),))
    try:
        yield pool
    except BrokenProcessPool as error:
        raise StorageError("a worker process died, probably for lack of memory; nothing was committed") from error
    except KeyboardInterrupt:
        # Nobody waits for their results any more; what they have begun to write is on the job's record.
        for worker in multiprocessing.active_children():
            if worker not in others:
                worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)  # after an error, tasks that have not begun never begin


def _start_server() -> None:
    """Start the server, unless it runs, without the current folder among the places it imports from
    (rule: no-imports-from-current-folder).

    ``python -c``, by which the library starts it, would import from there before anything else.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        with workers_ignore_interrupts():
            multiprocessing.forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


@contextmanager
def workers_ignore_interrupts() -> Iterator[None]:
    """Processes that are started within the block never see SIGINT: a terminal sends it to them, too.

    A process takes over which signals are blocked in the thread that starts it.  This thread still learns of an
    interrupt: right after the block, or at once through another thread.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_worker_server() -> None:
    """End the server that workers are forked from, and wait for it; the next pool starts another one.

    Only then whoever measures this process sees what its workers took.
    """
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]  # typeshed leaves it out


@cache
def _end_server_at_exit(process: int) -> None:
    """Once per process; one that is forked from it must not wait for the server, which is no child of its own."""
    atexit.register(lambda: end_worker_server() if os.getpid() == process else None)


def _begin_worker(environment: Mapping[str, str]) -> None:
    """Take over the environment, of which a server knows only how it was when it started.

    The worker ends when its parent ends: without that, one whose parent was killed would wait for ever.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # whoever has started the server
    search_cycles_seldom()
    if logging.lastResort is not None:  # nobody sets up logging here: it prints what libraries warn of
        logging.lastResort.setFormatter(MaskingFormatter(logging.Formatter("%(message)s")))
    logging.captureWarnings(capture=True)
    if dict(os.environ) != environment:
        os.environ.clear()
        os.environ.update(environment)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.join,), daemon=True).start()


def _exit_after(wait: Callable[[], object]) -> None:
    wait()
    os._exit(1)
