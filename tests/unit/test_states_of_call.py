"""The states of the state machine that each call of a run accounts for."""

from __future__ import annotations

from typing import Any

import pytest

from icekeeper.operation_facts import Stage
from icekeeper.pipeline.deployment import states_beside, states_of_call

NOTHING = {"count": 0}


def states_of_child(stage: Stage, *calls: str, steps: tuple[str, ...]) -> int:
    """What a table's child enters in all, whose tasks are these calls."""
    return states_beside(stage, steps) + sum(states_of_call(name, {"item": {}}, {}) for name in calls)


@pytest.mark.parametrize(
    ("steps", "calls", "states"),
    [
        (("compact",), ("compact_small",), 2),
        (("rewrite_position_deletes",), ("compact_small",), 2),
        (("expire_partitions", "compact"), ("expire_partitions", "compact_small"), 4),
        (("expire_partitions",), ("expire_partitions",), 4),
    ],
)
def test_the_states_of_a_table_in_the_first_map(steps: tuple[str, ...], calls: tuple[str, ...], states: int) -> None:
    """AnyPartitions, each task, AnyToCompact behind the first of them, and TableCompacted where no task is the last."""
    assert states_of_child(Stage.SMALL, *calls, steps=steps) == states


@pytest.mark.parametrize(
    ("steps", "calls", "states"),
    [
        (("expire_snapshots",), ("expire_snapshots",), 3),
        (("expire_snapshots", "rewrite_manifests"), ("expire_snapshots", "rewrite_manifests"), 3),
        (("compute_statistics",), ("expire_snapshots", "rewrite_manifests"), 3),
        (("remove_orphans",), ("expire_snapshots", "list_orphans"), 5),
        (("remove_orphans",), ("expire_snapshots", "list_orphans", "remove_orphans"), 7),
        (
            ("remove_orphans", "rewrite_manifests"),
            ("expire_snapshots", "list_orphans", "remove_orphans", "rewrite_manifests"),
            7,
        ),
    ],
)
def test_the_states_of_a_table_in_the_second_map(steps: tuple[str, ...], calls: tuple[str, ...], states: int) -> None:
    """Each task, the choice behind each but the last, and TableSwept where no task is the last."""
    assert states_of_child(Stage.SWEEP, *calls, steps=steps) == states


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage not in (Stage.SMALL, Stage.SWEEP)])
def test_the_other_stages_have_no_children(stage: Stage) -> None:
    assert states_beside(stage, ("compact",)) == 0


@pytest.mark.parametrize(
    ("function", "event", "answer", "states"),
    [
        ("detect", {}, {}, 3),
        ("plan", {"item": {}}, {}, 1),
        ("plan", {}, {"small": NOTHING, "sweep": NOTHING}, 7),
        ("plan", {}, {"small": {"count": 2, "states": 3}, "sweep": {"count": 1, "states": 1}}, 13),
        ("clean_staged", {}, {}, 1),
        ("report", {"state": {}}, {"left": 0}, 3),
        ("report", {"state": {}}, {"left": 5}, 2),
        ("report", {"state": {"input": {}}}, {"left": 0}, 4),
    ],
)
def test_the_states_around_tables(function: str, event: dict[str, Any], answer: dict[str, Any], states: int) -> None:
    assert states_of_call(function, event, answer) == states
