"""Tables of which every fact but a few is as it should be, for rules of advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from icekeeper.advice.advise import MB, Advice, ColumnFacts, StatisticsFacts, TableSummary
from icekeeper.metadata.overlap_depth import OverlapDepth

Rule = Callable[[TableSummary], Iterator[Advice]]


def summary(**facts: Any) -> TableSummary:
    """A table that is well laid, but for these facts."""
    facts = {"statistics": StatisticsFacts(exist=True)} | facts
    return TableSummary(
        table="ns.t", format_version=2, target_bytes=256 * MB, small_bytes=192 * MB, depth_limit=4, **facts
    )


def one(rule: Rule, **facts: Any) -> Advice | None:
    found = list(rule(summary(**facts)))
    assert len(found) <= 1
    assert all(a.message and a.gain and a.statement and a.numbers for a in found)
    return found[0] if found else None


def column(point: float, **facts: Any) -> ColumnFacts:
    """A column over each of whose values ``point`` files of 40 lie."""
    depth = OverlapDepth(files=40, size=40, point=point, small_range=point, deepest=round(point))
    known: dict[str, Any] = {"name": "id", "type": "long", "depth": depth}
    return ColumnFacts(**(known | facts))
