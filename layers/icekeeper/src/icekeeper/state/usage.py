"""What the deployment used that AWS bills, hour by hour; ``icekeeper cost`` makes a month's bill of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["HourOfUse", "UsageStore", "hour_of", "hours_between"]


@dataclass(frozen=True, slots=True)
class HourOfUse:
    """What was used within one hour, by all functions and jobs."""

    hour: str
    """Its beginning in UTC: ``2026-11-22T15``."""
    amounts: Mapping[str, int]
    """By the values of :class:`icekeeper.machine.metering.Amount`."""
    metrics: frozenset[str] = frozenset()
    """The names of CloudWatch's metrics without a table that were written; each is billed once an hour."""


class UsageStore(Protocol):
    """Each method raises StorageError when the store fails."""

    def add(self, used: HourOfUse) -> None:
        """Add to what is recorded of the hour; several processes may do so at once."""
        ...

    def between(self, first: str, last: str) -> tuple[HourOfUse, ...]:
        """The hours from ``first`` to ``last``, both included, in which something was used; in order."""
        ...


def hour_of(time_ms: int) -> str:
    """The hour that a time (epoch milliseconds) lies in."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H")


def hours_between(first: str, last: str) -> int:
    """How many hours after one hour another one begins."""
    begin, end = (datetime.strptime(f"{hour}+0000", "%Y-%m-%dT%H%z") for hour in (first, last))
    return int((end - begin).total_seconds()) // 3600
