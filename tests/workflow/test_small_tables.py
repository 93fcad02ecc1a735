"""The definition of template.yaml, executed: passes that end in one call are one state each (rule 162)."""

from __future__ import annotations

from typing import Any

import pytest

from local_stack.functions import Killed
from local_stack.stack import LocalStack
from support.scripted_pipeline import ROUTES, ScriptedPipeline
from support.whole_pass import failing

AROUND = ["Detect", "AnyProposals", "MaintainSmallTables", "AnyLeft", "Report", "HowItWent", "Done"]
IN_ONE_CALL = ["lease", "small", "release"]
OTHERWISE = ["lease", "plan", "report", "release"]


@pytest.fixture
def small(script: ScriptedPipeline) -> ScriptedPipeline:
    """Three tables of a table bucket, whose passes have no step that needs a state of its own."""
    script.tables = ("ns.a", "ns.b", "ns.c")
    script.small = frozenset(script.tables)
    script.routes = dict.fromkeys(ROUTES, "none")
    return script


def steps_of(script: ScriptedPipeline, table: str) -> list[str]:
    return [call.step for call in script.calls if call.table == table]


def test_a_pass_that_ends_in_one_call_is_one_state(scripted_stack: LocalStack, small: ScriptedPipeline) -> None:
    execution = scripted_stack.run(name="run-of-small")
    assert (execution.status, execution.names) == ("SUCCEEDED", AROUND)
    assert [child.names for child in execution.children] == [["MaintainSmallTable"]] * 3
    assert execution.transitions == len(AROUND) + 3
    assert small.leases == {}
    assert small.event_of("report_run") == {
        "run_id": "run-of-small",
        "tables": [],
        "earlier": [],
        "in_one_call": [{"table": t, "status": "succeeded", "summary": "in one call"} for t in small.tables],
    }


def test_what_a_call_leaves_goes_on_beside_the_tables_that_need_more(
    scripted_stack: LocalStack, small: ScriptedPipeline
) -> None:
    small.small, small.left = frozenset({"ns.a", "ns.b"}), frozenset({"ns.b"})
    execution = scripted_stack.run()
    assert execution.names[2:6] == ["MaintainSmallTables", "AnyLeft", "TakeUpRest", "MaintainTables"]
    assert [(one["table"], one["error"]) for one in small.event_of("take_up")["left"]] == [("ns.b", "")]
    assert steps_of(small, "ns.a") == IN_ONE_CALL
    assert steps_of(small, "ns.b") == [*IN_ONE_CALL, *OTHERWISE]
    assert steps_of(small, "ns.c") == OTHERWISE
    told = small.event_of("report_run")
    assert [(one["table"], one["status"]) for one in told["in_one_call"]] == [
        ("ns.a", "succeeded"),
        ("ns.b", "waiting"),
    ]
    assert [(one["table"], one["status"]) for one in told["tables"]] == [("ns.b", "succeeded"), ("ns.c", "succeeded")]


def test_tables_that_need_more_do_so_where_every_call_was_enough(
    scripted_stack: LocalStack, small: ScriptedPipeline
) -> None:
    small.small = frozenset({"ns.a"})
    execution = scripted_stack.run()
    assert execution.names[2:5] == ["MaintainSmallTables", "AnyLeft", "MaintainTables"]
    assert [len(small.event_of("report_run")[part]) for part in ("in_one_call", "tables")] == [1, 2]


@pytest.mark.parametrize(("attempts", "error"), [(2, "Runtime.ExitError"), (1, "ValueError")])
def test_a_call_that_fails_is_handed_on_with_its_error_and_its_slot_is_free(
    scripted_stack: LocalStack, small: ScriptedPipeline, attempts: int, error: str
) -> None:
    """One that was killed is tried once more."""

    def fail(event: Any) -> None:
        if event["item"]["table"] == "ns.b":
            raise Killed if error == "Runtime.ExitError" else ValueError("a bug")

    small.happening["small"] = fail
    execution = scripted_stack.run()
    assert execution.status == "SUCCEEDED"
    assert steps_of(small, "ns.b") == [*["lease", "small"] * attempts, "release", *OTHERWISE]
    (left,) = small.event_of("take_up")["left"]
    assert left == {"catalog": "C", "warehouse": "s3://lake/", "table": "ns.b", "uuid": "uuid of ns.b", "error": error}
    assert small.steps.index("take_up") > small.steps.index("release")


def test_a_table_that_others_maintain_is_refused(scripted_stack: LocalStack, small: ScriptedPipeline) -> None:
    small.leases["ns.b"] = "another run"
    execution = scripted_stack.run()
    assert [child.output["status"] for child in execution.children] == ["succeeded", "refused", "succeeded"]
    assert execution.children[1].names == ["MaintainSmallTable", "SmallMayWait", "SmallNotOurTurn"]


def test_a_table_that_is_waited_for_is_maintained_in_one_call_then(
    scripted_stack: LocalStack, small: ScriptedPipeline
) -> None:
    small.wait, small.leases["ns.b"] = True, "another run"
    looks = iter(range(100))

    def free_at_the_second(event: Any) -> None:
        if event["item"]["table"] == "ns.b" and next(looks) == 1:
            small.leases.pop("ns.b", None)

    small.happening["lease"] = free_at_the_second
    execution = scripted_stack.run()
    waited = ["MaintainSmallTable", "SmallMayWait", "SmallWaitForTurn", "SmallCountWait", "SmallLease"]
    assert execution.children[1].names == [*waited, "MaintainSmallTable"]
    assert execution.children[1].output["status"] == "succeeded"


def test_tables_that_cannot_be_taken_up_are_told(scripted_stack: LocalStack, small: ScriptedPipeline) -> None:
    small.left = frozenset({"ns.b"})
    small.happening["take_up"] = failing(ValueError("a bug"))
    execution = scripted_stack.run()
    assert execution.names[3:6] == ["AnyLeft", "TakeUpRest", "Report"]
    assert [one["status"] for one in small.event_of("report_run")["in_one_call"]] == [
        "succeeded",
        "waiting",
        "succeeded",
    ]


def test_what_waits_for_a_wave_after_its_call_keeps_all_results(
    scripted_stack: LocalStack, small: ScriptedPipeline
) -> None:
    small.own_routes = {"ns.b": {"compact": "wave"}}
    execution = scripted_stack.run()
    assert execution.status == "SUCCEEDED"
    assert execution.names == [
        *("Detect", "AnyProposals", "MaintainSmallTables", "AnyLeft", "GatherWave", "CompactWave", "RestOfPasses"),
        *("MaintainTables", "LeftToWave", "AnyLeftToWave", "Report", "HowItWent", "Done"),
    ]
    assert [plan["key"].split("/")[2] for plan in small.event_of("gather")["in_one_call"]] == ["ns.b"]
    told = small.event_of("report_run")
    assert {part: [one["table"] for one in told[part]] for part in ("in_one_call", "earlier", "tables")} == {
        "in_one_call": list(small.tables),
        "earlier": [],
        "tables": ["ns.b"],
    }
    assert told["tables"][0]["status"] == "succeeded"


def test_one_wave_takes_large_tables_of_both_maps(scripted_stack: LocalStack, small: ScriptedPipeline) -> None:
    small.small = frozenset({"ns.a", "ns.b"})
    small.own_routes = {"ns.b": {"compact": "wave"}, "ns.c": {"compact": "wave"}}
    execution = scripted_stack.run()
    assert execution.status == "SUCCEEDED"
    gathered = small.event_of("gather")
    assert [len(gathered[part]) for part in ("in_one_call", "wave")] == [1, 1]
    assert small.steps.count("job:wave") == 1
    told = small.event_of("report_run")
    assert {one["table"]: one["status"] for one in told["tables"]} == {"ns.b": "succeeded", "ns.c": "succeeded"}
