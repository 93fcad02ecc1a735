"""Moments at which another writer acts, defined by calls of Icekeeper's code and not by the number of table loads.

The number of loads changes with every refactoring; the requests to a store, a state or a catalog do not.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from enum import Enum
from typing import Any
from unittest import mock

from icekeeper.catalogs.sql import SqlCatalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.maintenance import run_pass
from icekeeper.operations.orphans import delete_orphans
from icekeeper.operations.orphans import remove_orphans as compare_listing
from icekeeper.report import activity
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.listing import Listed
from icekeeper.storage.storage import Storage


class Moment(Enum):
    """A place in Icekeeper's code, when it is reached for the first time."""

    OPERATION_STARTED = "an operation has logged that it starts; it has not yet loaded the table"
    OPERATIONS_DONE = "all operations of the pass are done; staged files are not yet cleaned, nothing is recorded"
    MAY_DELETE_ASKED = "the store has answered whether it deletes; nothing of the table was read yet to plan a deletion"
    BEFORE_LISTING = "what the table references has been read; its files are about to be listed"
    AFTER_LISTING = "a listing has come to its end; what it found has not yet been judged"
    AFTER_EXCHANGE = "an engine's workers have listed and compared; as AFTER_LISTING"
    DELETION_DECIDED = "the files to delete are decided; references were not read again, nothing is deleted"
    AFTER_DELETION = "the store has deleted, one batch if there are several"
    PIN_RECORDED = "the state has a new pin; it was not checked whether its snapshot is still there"
    BEFORE_COMMIT = "the catalog is about to be asked for a commit"
    AFTER_COMMIT = "the catalog has committed, and its answer has not arrived"


@contextmanager
def at(moment: Moment, action: Callable[[], object]) -> Iterator[None]:
    """Call ``action`` once, when the code reaches the moment; fail if it never does.

    An error of the action is raised at the moment, as in a process that dies.
    """
    comes = _Once(action)
    with _SEAMS[moment](comes):
        yield
    assert comes.has_come, f"this moment never came: {moment.value}"


class _Once:
    """Acts only the first time, so that an action may itself reach the moment again."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action, self._lock = action, threading.Lock()
        self.has_come = False

    def __call__(self) -> None:
        with self._lock:
            if self.has_come:
                return
            self.has_come = True
        self._action()


def _around(
    owner: object, *names: str, before: bool = False
) -> Callable[[Callable[[], None]], AbstractContextManager[None]]:
    """The moment just before or after calls of methods, or of a module's functions."""

    @contextmanager
    def seam(comes: Callable[[], None]) -> Iterator[None]:
        def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **more: Any) -> Any:
                if before:
                    comes()
                answer = original(*args, **more)
                if not before:
                    comes()
                return answer

            return called

        with ExitStack() as patched:
            for name in names:
                patched.enter_context(mock.patch.object(owner, name, wrapped(getattr(owner, name))))
            yield

    return seam


def _any_of(
    *seams: Callable[[Callable[[], None]], AbstractContextManager[None]],
) -> Callable[[Callable[[], None]], AbstractContextManager[None]]:
    @contextmanager
    def seam(comes: Callable[[], None]) -> Iterator[None]:
        with ExitStack() as entered:
            for seam_of in seams:
                entered.enter_context(seam_of(comes))
            yield

    return seam


@contextmanager
def _after_listing(comes: Callable[[], None]) -> Iterator[None]:
    original = Storage.list_unread

    def to_its_end(found: Iterator[Listed]) -> Iterator[Listed]:
        yield from found
        comes()

    with mock.patch.object(Storage, "list_unread", lambda self, prefix: to_its_end(original(self, prefix))):
        yield


def _logged(event: str) -> Callable[[Callable[[], None]], AbstractContextManager[None]]:
    """The moment of a log record that programs read."""

    @contextmanager
    def seam(comes: Callable[[], None]) -> Iterator[None]:
        def seen(record: logging.LogRecord) -> bool:
            if getattr(record, "event", None) == event:
                comes()
            return True

        log, level = activity.log, activity.log.level
        log.addFilter(seen)
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.setLevel(level)
            log.removeFilter(seen)

    return seam


_SEAMS: dict[Moment, Callable[[Callable[[], None]], AbstractContextManager[None]]] = {
    Moment.OPERATION_STARTED: _logged("operation_started"),
    Moment.OPERATIONS_DONE: _around(run_pass, "clean_staged_files", before=True),
    Moment.MAY_DELETE_ASKED: _around(Storage, "can_delete"),
    Moment.BEFORE_LISTING: _around(compare_listing, "find_candidates", before=True),
    Moment.AFTER_LISTING: _after_listing,
    Moment.AFTER_EXCHANGE: _around(LocalEngine, "exchange"),
    Moment.DELETION_DECIDED: _any_of(
        _around(delete_orphans, "delete_unneeded", before=True), _around(TableMemory, "expect_deletions")
    ),
    Moment.AFTER_DELETION: _around(Storage, "delete"),
    Moment.PIN_RECORDED: _around(SqliteStateStore, "add_pin"),
    Moment.BEFORE_COMMIT: _around(SqlCatalog, "commit", before=True),
    Moment.AFTER_COMMIT: _around(SqlCatalog, "commit"),
}
