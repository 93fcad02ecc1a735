"""How long a pass may read another table: one that is never done with holds up nobody else's maintenance (rule 271).

A look that takes too long is an error like any other: what that table may need stays.  It is remembered, and such a
table is not looked at again for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from icekeeper.catalogs.catalog import Catalog
from icekeeper.errors import StorageError
from icekeeper.machine.clock import at_work, in_limited_time
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.claims import Entry
from icekeeper.state.cut_offs import LATEST_LOOK_S, LEAST_LIMIT_S, CutWork, cut_again, look_reason, waiting_cuts

__all__ = ["LimitedLooks", "follow_for_a_while"]

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Beside so many tables that hang, each of the others has a short time: a function ends after 15 minutes.
_MOST_GIVEN_UP = 16
_SHORT_S = 5.0


class LimitedLooks:
    """The looks of a pass at the tables of one catalog, each for at most ``detection_timeout_s``."""

    def __init__(self, context: OperationContext, catalog: Catalog) -> None:
        """Raises StorageError if the state cannot be read."""
        self.catalog = catalog
        self._context = context
        self._limit_s = context.policy.detection_timeout_s
        self._given_up = 0
        cuts = context.state.cut_offs.of_catalog(catalog.name, catalog.warehouse)
        self._once_cut = {one.entry[2] for one in cuts if one.work is CutWork.LOOK}
        self._waiting = waiting_cuts(cuts, CutWork.LOOK, context.clock())

    def look(self, name: TableName, work: Callable[[], Result]) -> Result:
        """The result of work that reads a table, or what it raises.

        Raises:
            StorageError: it took too long, now or a short while ago.
        """
        if (cut := self._waiting.get(name.key)) is not None:
            raise StorageError(f"{name} is not read: {cut.sentence}")
        why = look_reason(self._limit_s)
        entry = self.catalog.name, self.catalog.warehouse, name.key
        is_short = self._given_up >= _MOST_GIVEN_UP
        limit_s = min(_SHORT_S, self._limit_s) if is_short else self._limit_s
        cut_offs = self._context.state.cut_offs
        try:
            result = in_limited_time(_shown(work, entry, limit_s, why), limit_s, "table-look")
        except TimeoutError:
            self._given_up += 1
            if is_short:
                raise StorageError(f"{name} is not read: {self._given_up - 1} others took too long") from None
            if limit_s < LEAST_LIMIT_S:
                raise StorageError(f"{name} is not read: {why}") from None
            cut = cut_again(cut_offs, entry, CutWork.LOOK, why, now_ms=self._context.clock())
            raise StorageError(f"{name} is not read: {cut.sentence}") from None
        if name.key in self._once_cut:
            cut_offs.forget(entry, CutWork.LOOK)
        return result


def follow_for_a_while(
    context: OperationContext, catalog: Catalog, name: TableName, work: Callable[[], Result]
) -> Result:
    """The result of work that reads all references of another table, which may take half of the pass' own time.

    Raises:
        StorageError: it took longer.
    """
    limit_s = context.policy.job_timeout_s / 2
    why = f"reading what {name} references did not end within half of job_timeout_s {context.policy.job_timeout_s}"
    entry = catalog.name, catalog.warehouse, name.key
    try:
        return in_limited_time(_shown(work, entry, limit_s, why), limit_s, "table-look")
    except TimeoutError:
        raise StorageError(why) from None


def _shown(work: Callable[[], Result], entry: Entry, limit_s: float, why: str) -> Callable[[], Result]:
    """The work, which shows its table for as long as its thread is at it, also once nobody waits for it."""

    def shown() -> Result:
        with at_work(CutWork.LOOK, entry, limit_s=limit_s + LATEST_LOOK_S, why=why):
            return work()

    return shown
