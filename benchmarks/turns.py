"""Contestants take turns on one row, and a result counts only when it is proven."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.contestants import CONTESTANTS
from benchmarks.measure import Contestant, ContestantFailed, Cost
from benchmarks.proof import NotProven


@dataclass(slots=True)
class Found:
    """Of one contestant: its runs, or why there are none."""

    costs: list[Cost] = field(default_factory=list)
    proof: str = ""
    more: dict[str, float] = field(default_factory=dict)
    """Figures that are no costs, of the last run."""
    error: str = ""


OneRun = Callable[[str, Contestant], tuple[Cost, str, dict[str, float]]]
"""One run of the contestant of that name: its cost, what was proven, other figures."""


def take_turns(
    running: dict[str, Contestant],
    found: Mapping[str, Found],
    rounds: int,
    one_run: OneRun,
    say: Callable[[str], None],
) -> None:
    """Every round each contestant once; who fails is closed, leaves ``running`` and has no time at all."""
    for _ in range(rounds):
        for name, contestant in list(running.items()):
            entry, title = found[name], CONTESTANTS[name].title
            try:
                cost, entry.proof, entry.more = one_run(name, contestant)
            except (ContestantFailed, NotProven) as error:
                entry.error, entry.costs[:] = str(error), []
                say(f"  {title}: {entry.error}")
                running.pop(name).close()
            else:
                entry.costs.append(cost)
                more = ", ".join(f"{figure} {value:.4g}" for figure, value in entry.more.items())
                say(
                    f"  {title:28} {cost.wall_s:7.2f} s {cost.cpu_s:7.2f} CPU s {cost.peak_mb_beside_java:6.0f} MB"
                    f"  {more}".rstrip()
                )
