"""Worker processes on this machine.

On Linux they are forked from a server process that has imported the modules of the work once, so that a worker starts
within a few milliseconds.  The server has one thread and only imports, so forking it is safe.  Forking this process is
not: Arrow's and boto3's threads would not survive.  On other systems each worker
is a new interpreter.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
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
_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


@contextmanager
def worker_pool(processes: int, function: Callable[..., Any]) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes whose server has imported the module of ``function``.

    When the block ends, tasks that have not started are dropped.

    Raises:
        StorageError: a worker died.
    """
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        # This has no effect on a running server.
        context.set_forkserver_preload(["icekeeper.engines.worker_server", function.__module__])
        _end_server_at_exit(os.getpid())
        _start_server()
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin_worker, initargs=(dict(os.environ),))
    try:
        yield pool
    except (BrokenProcessPool, KeyboardInterrupt) as end:
        # Their results are not needed any more; files that they started to write are in the job's record.  The pool
        # would terminate them and wait, but they ignore SIGTERM.
        for worker in multiprocessing.active_children():
            if worker not in others:
                worker.kill()
        if isinstance(end, KeyboardInterrupt):
            raise
        raise StorageError("a worker process died, probably for lack of memory; nothing was committed") from end
    finally:
        pool.shutdown(cancel_futures=True)


def _start_server() -> None:
    """Start the server unless it runs, without imports from the current folder (rule: no-imports-from-current-folder).

    The library starts it by ``python -c``, which would search the current folder first.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        multiprocessing.resource_tracker.ensure_running()  # it ignores both signals, and unblocks them here
        with workers_ignore_signals():
            multiprocessing.forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


@contextmanager
def workers_ignore_signals() -> Iterator[None]:
    """Processes that start within the block never receive SIGINT and SIGTERM, which terminals and systemd send to all.

    A process inherits the blocked signals of the thread that starts it.  A signal still reaches this process: after
    the block, or at once in another thread.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_worker_server() -> None:
    """End the server of the workers and wait for it; the next pool starts a new server.

    Only afterwards do measurements of this process include its workers.
    """
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]  # typeshed leaves it out


@cache
def _end_server_at_exit(process: int) -> None:
    """Register once per process; a fork of it must not wait for the server, which is not its child."""
    atexit.register(lambda: end_worker_server() if os.getpid() == process else None)


def _begin_worker(environment: Mapping[str, str]) -> None:
    """Take over the parent's environment, because the server's environment is from its start.

    The worker ends when its parent ends; otherwise it would wait for ever after its parent was killed.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # also if another program started the server
    search_cycles_seldom()
    if logging.lastResort is not None:  # logging is not set up in workers, so this prints warnings of libraries
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
