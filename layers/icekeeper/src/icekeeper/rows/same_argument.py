"""Remembers what pure functions made of the mappings that they were last given.

A group of small files asks for the Arrow schema and the leaf columns of one and the same Iceberg schema ten times, and
the next group of the table asks again: of 2,000 columns each takes milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

__all__ = ["same_argument"]

Result = TypeVar("Result")
# The schema of the table, that of one reading of it with fewer columns, and those of some threads' tables.
_REMEMBERED = 8


def same_argument(function: Callable[[Mapping[str, Any]], Result]) -> Callable[[Mapping[str, Any]], Result]:
    """The function, which is not called again for a mapping that it was called with lately: the object itself, not an
    equal one, because comparing schemas takes as long.

    Only for mappings that nobody changes, and results that nobody changes either.
    """
    # The mapping is kept beside the result, so that no other one can take its place in memory.
    lately: deque[tuple[Mapping[str, Any], Result]] = deque(maxlen=_REMEMBERED)

    @wraps(function)
    def remembering(argument: Mapping[str, Any]) -> Result:
        for known, result in tuple(lately):
            if known is argument:
                return result
        result = function(argument)
        lately.append((argument, result))
        return result

    return remembering
