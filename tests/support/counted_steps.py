"""Failures at any one of the steps that our code takes outwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from icekeeper.storage.storage import Storage
from support.scripted_catalog import ScriptedCatalog


class Steps:
    """Counts every step outwards (reads, writes, listings, deletions, swaps), and fails at one of them."""

    def __init__(self, fail_at: int | None, failure: Callable[[str], BaseException]) -> None:
        self.taken = 0
        self.where: str | None = None
        self._fail_at, self._failure, self._lock = fail_at, failure, threading.Lock()

    def step(self, what: str) -> None:
        with self._lock:
            self.taken += 1
            fails = self.taken == self._fail_at
        if fails:
            self.where = what
            raise self._failure(what)


@contextmanager
def counted_steps(
    catalog: ScriptedCatalog, fail_at: int | None, failure: Callable[[str], BaseException]
) -> Iterator[Steps]:
    """Every call to storage and catalog is a step; writes, deletions and commits are one before and one after."""
    steps = Steps(fail_at, failure)
    catalog.before_load = lambda: steps.step("load")
    catalog.before_commit = lambda: steps.step("before the commit")
    catalog.after_commit = lambda: steps.step("after the commit")

    def watched(name: str, *, after: bool) -> Any:
        original = getattr(Storage, name)

        def call(self: Storage, *args: Any, **kwargs: Any) -> Any:
            steps.step(f"before {name}")
            result = original(self, *args, **kwargs)
            if after:
                steps.step(f"after {name}")
            return result

        return mock.patch.object(Storage, name, call)

    with (
        watched("read", after=False),
        watched("list", after=False),
        watched("open_input", after=False),
        watched("write", after=True),
        watched("open_output", after=False),
        watched("delete", after=True),
    ):
        try:
            yield steps
        finally:
            catalog.do_nothing_more()
