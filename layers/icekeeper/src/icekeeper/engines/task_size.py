"""How much tasks read, as far as they say so (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

__all__ = ["ReadsBytes", "total_input_bytes"]


@runtime_checkable
class ReadsBytes(Protocol):
    """A task that knows how many bytes of data files take as long to decode as all of its work takes.

    That is what it reads, with an allowance for each file that it opens.
    """

    @property
    def input_bytes(self) -> int: ...


def total_input_bytes(tasks: Iterable[Any]) -> int | None:
    """The bytes that all tasks read together; ``None`` when one of them does not say."""
    total = 0
    for task in tasks:
        if not isinstance(task, ReadsBytes):
            return None
        total += task.input_bytes
    return total
