"""The state machine's definition by levels and tasks, and what each task sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from support.state_machine import load_machine

MACHINE = load_machine()
LEVELS = list(MACHINE.levels())
CHILD = next(level for level in LEVELS if level.name == "MaintainTables")


def job_tasks() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tasks that run a Glue job for one table; that of a wave is for many."""
    return ((name, state) for name, state in tasks("glue") if name != "CompactWave")


def tasks(kind: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every task whose resource has ``kind`` in it."""
    for level in LEVELS:
        for name, state in level.states.items():
            if state["Type"] == "Task" and kind in state["Resource"]:
                yield name, state


def payload(state: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = state["Parameters"]["Payload"]
    return found


def fields(sent: Mapping[str, Any]) -> set[str]:
    return {key.removesuffix(".$") for key in sent}
