"""Which of two values of a policy key is the tighter one: it deletes less, or costs the operator less (pure).

Every key declares its direction (:data:`icekeeper.policy.keys.KEY_FACTS`).  Bounds of the deployment and the limits of
what a table or a request may set go by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = [
    "FALSE",
    "FEWER",
    "HIGHER",
    "HIGHER_OR_ZERO",
    "LOWER",
    "MORE",
    "SET_AND_HIGHER",
    "TRUE",
    "Direction",
    "KeyFacts",
    "first_of",
]


@dataclass(frozen=True, slots=True)
class Direction:
    """How the values of a key compare."""

    words: str
    """Which values are tighter, for people."""
    meet: Callable[[Any, Any], Any]
    """The tighter one of two values; of two lists what is in both, or in either."""

    loosest: tuple[object, ...] = ()
    """The value, where there is one, that is the loosest: a bound with it would bind nothing."""

    def holds(self, limit: object, value: object) -> bool:
        """Whether a value is as tight as the limit, or tighter; of lists the order does not count."""
        held = self.meet(limit, value)
        if isinstance(held, tuple) and isinstance(value, tuple):
            return set(held) == set(value)
        return bool(held == value)


def _of_rank(words: str, rank: Callable[[Any], Any], *loosest: object) -> Direction:
    return Direction(words, lambda one, other: other if rank(other) > rank(one) else one, loosest)


HIGHER = _of_rank("higher", lambda value: math.inf if value is None else value)
"""More is tighter; ``None``, where a key has it, stands for no end."""
LOWER = _of_rank("lower", lambda value: -math.inf if value is None else -value, None)
"""Less is tighter; ``None`` stands for no limit."""
SET_AND_HIGHER = _of_rank("higher", lambda value: -math.inf if value is None else value, None)
"""More is tighter, and ``None`` the loosest."""
HIGHER_OR_ZERO = _of_rank("higher, or 0", lambda value: value or math.inf)
FALSE = _of_rank("false", lambda value: not value, True)
TRUE = _of_rank("true", bool, False)
FEWER = Direction("fewer", lambda one, other: tuple(value for value in one if value in other))
MORE = Direction("more", lambda one, other: tuple(dict.fromkeys((*one, *other))), ((),))
"""The lists of all sources are one: nobody takes an entry away."""


def first_of(*values: object) -> Direction:
    """The direction of a key whose values are these, the tightest first."""
    return _of_rank(f"first of {', '.join(map(str, values))}", lambda value: -values.index(value), values[-1])


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """What a policy key says of itself besides its value."""

    tighter: Direction | None
    """``None``: none of its values deletes or costs more than another; it cannot be bounded."""
    is_of_deployment: bool = False
    """It is about detection and scheduling, which no single table can set."""
    is_of_layout: bool = False
    """How the table's files shall be: what deployment and policy file say is a default, only a bound binds a table."""
    is_of_call: bool = False
    """It counts from the deployment, a policy file or ``--set`` alone, whatever tables may set."""
    table_limit: object = None
    """The loosest value that a table may give itself, unless the deployment names the key; ``None``: any."""
    undermines: tuple[str, ...] = ()
    """The keys that it overrides by its meaning: where one of them is stated or bounded, a table cannot set it."""
