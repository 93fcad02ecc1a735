"""The state machine's definition after substitutions, as Step Functions gets it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from local_stack.template import YAML_LOADER

DEFINITION = Path(__file__).parents[2] / "functions" / "maintain_tables.asl.yaml"
_SUBSTITUTION = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Machine:
    """A level: the states of the machine itself, or those of a Map's children."""

    name: str
    definition: Mapping[str, Any]

    @property
    def states(self) -> Mapping[str, Mapping[str, Any]]:
        states: Mapping[str, Mapping[str, Any]] = self.definition["States"]
        return states

    def levels(self) -> Iterator[Machine]:
        """This level and every nested level."""
        yield self
        for name, state in self.states.items():
            if "ItemProcessor" in state:
                yield from Machine(name, state["ItemProcessor"]).levels()

    def next_states(self, name: str) -> list[str]:
        """The possible next states, also after failures."""
        state = self.states[name]
        ways = [state[key] for key in ("Next", "Default") if key in state]
        return ways + [way["Next"] for key in ("Choices", "Catch") for way in state.get(key, ())]

    def after(self, name: str) -> list[str]:
        """Every state that can follow, in no particular order; the state itself only if it can repeat."""
        found: list[str] = []
        open_ends = self.next_states(name)
        while open_ends:
            state = open_ends.pop()
            if state not in found:
                found.append(state)
                open_ends.extend(self.next_states(state))
        return found


def load_machine(values: Mapping[str, str] | None = None) -> Machine:
    """The definition with ``values`` substituted; other substitutions become their names, numbers their defaults, but
    with one table at a time.
    """
    numbers = {"MaxConcurrentTables": "1", "JobTaskSeconds": "6300"}
    known = {**numbers, **(values or {})}
    text = _SUBSTITUTION.sub(lambda found: known.get(found[1], found[1]), DEFINITION.read_text())
    return Machine("the machine", yaml.load(text, Loader=YAML_LOADER))


# The state machine's definition by levels and tasks.

MACHINE = load_machine()
LEVELS = {level.name: level for level in MACHINE.levels()}
"""The machine, and the children of each map by its name."""


def tasks(kind: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every task whose resource contains ``kind``."""
    for level in LEVELS.values():
        for name, state in level.states.items():
            if state["Type"] == "Task" and kind in state["Resource"]:
                yield name, state
