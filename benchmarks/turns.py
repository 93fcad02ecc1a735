"""Contestants take turns on one row, and a result counts only when it is proven."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    warm_ups: int = 0
    """Runs of the whole work before the first that counts."""


OneRun = Callable[[str, Contestant], tuple[Cost, str, dict[str, float]]]
"""One run of the contestant of that name: its cost, what was proven, other figures."""
OneCost = Callable[[str, Contestant], Cost]
"""One run of it, of which nothing is proven."""

_AGREE = 1.05
"""Two runs agree if neither takes more than so many times as long as the other."""
MOST_WARM_UPS, MOST_ROUNDS = 10, 5
_MOST_WARMING_S = 120.0
_FEW_S = 60.0
"""Where one run of every contestant takes no longer together, there are five rounds instead of three."""


def warm(
    running: dict[str, Contestant],
    found: Mapping[str, Found],
    run: OneCost,
    say: Callable[[str], None],
    most: int = MOST_WARM_UPS,
) -> float:
    """Let each contestant do the whole work until two runs in a row agree, ``most`` times or for two minutes at most.

    Returns the wall seconds of the last runs, added up.  Who fails is closed and leaves ``running``.
    """
    total_s = 0.0
    for name, contestant in list(running.items()):
        walls: list[float] = []
        try:
            while len(walls) < most and not _is_warm(walls):
                walls.append(run(name, contestant).wall_s)
        except ContestantFailed as error:
            found[name].error = str(error)
            say(f"  {CONTESTANTS[name].title}: {error}")
            running.pop(name).close()
            continue
        found[name].warm_ups = len(walls)
        total_s += walls[-1]
    return total_s


def _is_warm(walls: Sequence[float]) -> bool:
    if sum(walls) >= _MOST_WARMING_S:
        return True
    return len(walls) > 1 and max(walls[-2:]) <= _AGREE * min(walls[-2:])


def rounds_for(total_s: float) -> int:
    """How many rounds, where one run of every contestant takes so many seconds together."""
    return MOST_ROUNDS if total_s <= _FEW_S else 3


def take_turns(
    running: dict[str, Contestant], found: Mapping[str, Found], rounds: int, one_run: OneRun, say: Callable[[str], None]
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
