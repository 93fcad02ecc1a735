"""The parts of template.yaml that a wave needs: how long its task waits, and what it runs on (platform 61)."""

from __future__ import annotations

from support.stack_template import DOCUMENT
from support.state_machine import MACHINE

FLEX_WAITS_S = 20 * 60


def test_a_wave_that_waits_for_capacity_ends_before_its_task() -> None:
    for minutes, seconds in DOCUMENT["Mappings"]["JobTimes"].items():
        assert seconds["Wave"] >= int(minutes) * 60 + FLEX_WAITS_S + 15 * 60
    machine = DOCUMENT["Resources"]["MaintainTablesStateMachine"]["Properties"]
    assert machine["DefinitionSubstitutions"]["WaveTaskSeconds"] == {
        "Fn::FindInMap": ["JobTimes", {"Ref": "JobTimeoutMinutes"}, "Wave"]
    }


def test_the_longest_wave_and_its_repetition_leave_time_for_the_passes() -> None:
    """Of the twelve hours of an execution."""
    longest = max(seconds["Wave"] for seconds in DOCUMENT["Mappings"]["JobTimes"].values())
    assert 2 * longest < MACHINE.definition["TimeoutSeconds"] - 4 * 3600


def test_only_the_wave_may_run_on_spare_capacity() -> None:
    """Nobody waits for it; FLEX is to be had with G.1X and G.2X, by Glue 3.0 and later."""
    flexible = {
        (level.name, name): state["Parameters"]["WorkerType"]
        for level in MACHINE.levels()
        for name, state in level.states.items()
        if "ExecutionClass" in state.get("Parameters", {})
    }
    assert flexible == {("the machine", "CompactWave"): "G.1X"}
    assert DOCUMENT["Parameters"]["WaveExecutionClass"]["AllowedValues"] == ["FLEX", "STANDARD"]
    assert float(DOCUMENT["Resources"]["CompactDataFilesJob"]["Properties"]["GlueVersion"]) >= 3
