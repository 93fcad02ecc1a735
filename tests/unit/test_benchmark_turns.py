"""Contestants take turns; who fails once has no time at all, and the others go on."""

from __future__ import annotations

from typing import Any

from benchmarks.measure import Contestant, ContestantFailed, Cost
from benchmarks.proof import NotProven
from benchmarks.turns import Found, take_turns


class _Scripted(Contestant):
    """A contestant without a process, that only knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_contestants_take_turns_and_a_failure_costs_all_times_of_one_alone() -> None:
    running: dict[str, Contestant] = {name: _Scripted() for name in ("icekeeper", "rust", "seaweedfs")}
    everybody: dict[str, Any] = dict(running)
    found = {name: Found() for name in running}
    order: list[str] = []

    def one_run(name: str, contestant: Contestant) -> tuple[Cost, str, dict[str, float]]:
        assert contestant is everybody[name]
        order.append(name)
        if name == "rust":
            raise ContestantFailed("it ended")
        if name == "seaweedfs" and len(order) > 3:
            raise NotProven("DuckDB reads other rows")
        return Cost(1.0, 1.0, 1.0, 1.0, 1.0), "right", {"output_ratio": 0.5}

    said: list[str] = []
    take_turns(running, found, 3, one_run, said.append)

    assert order == ["icekeeper", "rust", "seaweedfs", "icekeeper", "seaweedfs", "icekeeper"]
    assert [len(entry.costs) for entry in found.values()] == [3, 0, 0]
    assert found["seaweedfs"].error == "DuckDB reads other rows"
    assert list(running) == ["icekeeper"]
    assert [contestant.closed for contestant in everybody.values()] == [False, True, True]
    assert said[-1].endswith("output_ratio 0.5")
