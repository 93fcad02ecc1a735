"""Checks that the commits to a table were linearizable, by a pure function independent of Icekeeper.

A table's history is a line of versions, each made by one commit.  Committers record when they sent a commit, when its
answer came, and the answer; readers record which version they saw.  The history is linearizable if every operation fits
at one moment between these two times: an operation answered before another was sent precedes it.
Source: Herlihy and Wing, "Linearizability: A Correctness Condition for Concurrent Objects" (1990).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

KEY = "contention.commit"
"""Snapshot summary: the name of the commit."""


class Outcome(Enum):
    """The answer to a committer."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit; its name is unique and is stored in the version that it makes."""

    name: str
    invoked_s: float
    answered_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Read:
    """A read of the table, which showed the version that the commit ``seen`` made."""

    seen: str
    invoked_s: float
    answered_s: float


@dataclass(frozen=True, slots=True)
class _Operation:
    what: str
    invoked_s: float
    answered_s: float
    """Infinite if no answer came: the operation may take effect at any later time."""
    moment: tuple[int, int]
    """The place in the order: the version, with its commit before its reads."""


def violations(history: Sequence[str], commits: Iterable[Commit], reads: Iterable[Read] = ()) -> list[str]:
    """The contradictions to linearizability, a sentence each.

    ``history`` has the name of the commit that made each version, oldest first.  It may have names that are not among
    ``commits``: those of writers that record no times.
    """
    counted = Counter(history)
    found = [f"{name} is in the history {count} times" for name, count in counted.items() if count > 1]
    places = {name: place for place, name in enumerate(history)}
    operations = []
    for commit in commits:
        place = places.get(commit.name)
        if commit.outcome is Outcome.REFUSED and place is not None:
            found.append(f"{commit.name} was refused and is in the history")
        elif commit.outcome is Outcome.ACKNOWLEDGED and place is None:
            found.append(f"{commit.name} was acknowledged and is not in the history")
        elif place is not None:
            answered_s = math.inf if commit.outcome is Outcome.UNKNOWN else commit.answered_s
            operations.append(_Operation(commit.name, commit.invoked_s, answered_s, (place, 0)))
    for read in reads:
        place = places.get(read.seen)
        if place is None:
            found.append(f"a read saw {read.seen}, which is not in the history")
        else:
            what = f"a read of {read.seen}"
            operations.append(_Operation(what, read.invoked_s, read.answered_s, (place, 1)))
    return found + _out_of_order(operations)


def _out_of_order(operations: Sequence[_Operation]) -> list[str]:
    """Operations sent after the answer of an operation that is later in the order, each with such an operation."""
    found: list[str] = []
    earliest: _Operation | None = None
    """The operation at any later moment that was answered first."""
    pending: list[_Operation] = []
    for operation in sorted(operations, key=lambda item: item.moment, reverse=True):
        # Reads of the same version have no order.
        if pending and pending[0].moment != operation.moment:
            earliest = min([*pending, *([earliest] if earliest else [])], key=lambda item: item.answered_s)
            pending = []
        pending.append(operation)
        if earliest is not None and earliest.answered_s < operation.invoked_s:
            found.append(f"{earliest.what} was answered before {operation.what} was sent, but comes after it")
    return found


def name_of(snapshot_id: int, summary: Mapping[str, Any]) -> str:
    """The name of the commit that made a snapshot; the snapshot id if the committer stored none."""
    return str(summary.get(KEY) or snapshot_id)  # PyIceberg's summaries have no default


def history_of(document: Mapping[str, Any]) -> list[str]:
    """The names of the commits of a table, oldest first, from its metadata as JSON.

    Raises:
        ValueError: the snapshot log and the line of parents from the head disagree.
    """
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in document["snapshots"]}
    line, next_id = list[int](), document["current-snapshot-id"]
    while next_id is not None:
        line.append(next_id)
        next_id = snapshots[next_id].get("parent-snapshot-id")
    line.reverse()
    log = [entry["snapshot-id"] for entry in document["snapshot-log"]]
    if log != line:
        raise ValueError(f"the snapshot log has {log}, but the parents of the head are {line}")
    return [name_of(snapshot_id, snapshots[snapshot_id]["summary"]) for snapshot_id in line]
