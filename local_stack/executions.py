"""What an execution did: its states in order, how each ended, what it was handed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

# AWS Step Functions developer guide, "Quotas": a payload, and the history of an execution.
_LARGEST_PAYLOAD = 256 * 1024
_MOST_EVENTS = 25_000

Event = Mapping[str, Any]


@dataclass(slots=True)
class Visit:
    """One state that was entered; ``errors`` of all its attempts, in order."""

    name: str
    kind: str
    """``Task``, ``Choice``, ``Pass``, …"""
    input: Any
    entered: datetime
    exited: datetime | None = None
    output: Any = None
    errors: list[tuple[str, str]] = field(default_factory=list)
    """``(error name, cause)`` of each attempt that failed."""
    answer: Any = None
    """What the function or job answered that the state called; ``None`` where it failed for good."""

    @property
    def seconds(self) -> float:
        return 0.0 if self.exited is None else (self.exited - self.entered).total_seconds()


class _Visited:
    """A path through states, reconstructed from its events."""

    __slots__ = ()
    events: Sequence[Event]

    @property
    def visits(self) -> list[Visit]:
        return visits_of(self.events)

    @property
    def names(self) -> list[str]:
        """The states it went through, in order."""
        return [visit.name for visit in self.visits]


@dataclass(frozen=True, slots=True)
class ChildExecution(_Visited):
    """The child execution of a Distributed Map for an item."""

    label: str
    """Of the map."""
    input: Any
    status: str
    output: Any
    events: Sequence[Event]

    @property
    def table(self) -> str:
        """The table that it is about."""
        return str(self.input["item"]["table"])

    @property
    def tasks(self) -> list[str]:
        """Of its states the tasks, in order: what was really done."""
        return [visit.name for visit in self.visits if visit.kind == "Task"]

    def visit(self, name: str) -> Visit:
        """The last time that it was in a state."""
        return next(visit for visit in reversed(self.visits) if visit.name == name)


@dataclass(frozen=True, slots=True)
class Execution(_Visited):
    """An execution of the state machine that has ended; children map after map, in the order of their items."""

    name: str
    status: str
    output: Any
    error: str | None
    cause: str | None
    events: Sequence[Event]
    children: Sequence[ChildExecution]

    @property
    def child(self) -> ChildExecution:
        """The only child execution."""
        (child,) = self.children
        return child

    def of_map(self, label: str) -> list[ChildExecution]:
        """The children of a map."""
        return [child for child in self.children if child.label == label]

    @property
    def transitions(self) -> int:
        """How many states were entered, of the children too, which AWS bills."""
        return sum(len(one.visits) for one in (self, *self.children))

    @property
    def largest_payload(self) -> int:
        """Bytes of the largest input, output or parameter of any state, of the children too."""
        return max(largest_payload(events) for events in (self.events, *(child.events for child in self.children)))


def visits_of(events: Iterable[Event]) -> list[Visit]:
    """The states of an execution, in sequence."""
    visits: list[Visit] = []
    for event in events:
        kind = str(getattr(event["type"], "value", event["type"]))  # moto's own are enums, those of its API texts
        if kind.endswith("StateEntered"):
            details = event["stateEnteredEventDetails"]
            visits.append(
                Visit(
                    name=details["name"],
                    kind=kind.removesuffix("StateEntered"),
                    input=json.loads(details.get("input") or "null"),
                    entered=_time(event),
                )
            )
        elif kind.endswith("StateExited"):
            details = event["stateExitedEventDetails"]
            visit = next(v for v in reversed(visits) if v.name == details["name"])
            visit.output = json.loads(details.get("output") or "null")
            visit.exited = _time(event)
        elif kind in ("TaskFailed", "TaskTimedOut", "LambdaFunctionFailed", "MapRunFailed"):
            details = next(value for key, value in event.items() if key.endswith("EventDetails"))
            visits[-1].errors.append((details.get("error", ""), details.get("cause", "")))
        elif kind == "TaskSucceeded":
            answer = json.loads(event["taskSucceededEventDetails"].get("output") or "null")
            visits[-1].answer = answer.get("Payload", answer)
    return visits


def largest_payload(events: Iterable[Event]) -> int:
    """Bytes of the largest text that a state passed to the next state."""
    return max((len(text.encode()) for event in events for text in _payloads(event)), default=0)


def require_within_quotas(execution: Execution) -> None:
    """What moto does not check of an execution and its children.

    Raises:
        AssertionError: a payload or a history is larger than AWS takes.
    """
    largest, longest = execution.largest_payload, max(len(one.events) for one in (execution, *execution.children))
    assert largest <= _LARGEST_PAYLOAD, f"{execution.name} handed on {largest} bytes at once"
    assert longest <= _MOST_EVENTS, f"{execution.name} has a history of {longest} events"


def _payloads(value: Any) -> Iterable[str]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _payloads(item)
        elif key in ("input", "output", "parameters", "cause") and isinstance(item, str):
            yield item


def _time(event: Event) -> datetime:
    moment = event["timestamp"]
    return moment if isinstance(moment, datetime) else datetime.fromisoformat(str(moment).replace("Z", "+00:00"))
