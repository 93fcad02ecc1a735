"""The definition of template.yaml, executed: tables too large for functions share one Glue run (rule 144)."""

from __future__ import annotations

from typing import Any

import pytest

from local_stack.stack import LocalStack
from support.scripted_pipeline import ROUTES, ScriptedPipeline
from support.whole_pass import OPERATIONS, failing

LARGE = {"compact": "wave", "rewrite_position_deletes": "wave"}
BEFORE_WAVE = ["lease", "plan", "expire_partitions", "release"]
AFTER_WAVE = ["lease", "plan", *OPERATIONS[3:], "report", "release"]


@pytest.fixture
def three(script: ScriptedPipeline) -> ScriptedPipeline:
    """Two large tables and a small one."""
    script.tables = ("ns.a", "ns.small", "ns.b")
    script.own_routes = {"ns.a": LARGE, "ns.b": LARGE}
    return script


def steps_of(script: ScriptedPipeline, table: str) -> list[str]:
    return [call.step for call in script.calls if call.table == table]


def test_large_tables_share_one_run_and_their_passes_go_on_behind_it(
    scripted_stack: LocalStack, three: ScriptedPipeline
) -> None:
    three.own_routes = {**three.own_routes, "ns.a": {**LARGE, "expire_partitions": "function"}}
    execution = scripted_stack.run(name="run-wave")
    assert (execution.status, three.leases) == ("SUCCEEDED", {})
    assert steps_of(three, "*") == ["detect", "gather", "job:wave", "report_run"]
    wave = three.steps.index("job:wave")
    for table in ("ns.a", "ns.b"):
        before = [call.step for call in three.calls[:wave] if call.table == table]
        after = [call.step for call in three.calls[wave:] if call.table == table]
        again = ["expire_partitions"]  # of the stand-in; the real plan knows what has an outcome
        assert (before, [step for step in after if step not in again]) == (BEFORE_WAVE, AFTER_WAVE)
    assert steps_of(three, "ns.small") == ["lease", "plan", *OPERATIONS, "report", "release"]
    told = three.event_of("report_run")
    assert {one["table"]: one["status"] for one in told["earlier"]} == {
        "ns.a": "waiting",
        "ns.small": "succeeded",
        "ns.b": "waiting",
    }
    assert {one["table"]: one["status"] for one in told["tables"]} == {"ns.a": "succeeded", "ns.b": "succeeded"}
    assert execution.names == [
        *("Detect", "AnyProposals", "MaintainTables", "LeftToWave", "AnyLeftToWave", "GatherWave", "CompactWave"),
        *("RestOfPasses", "MaintainTables", "LeftToWave", "AnyLeftToWave", "Report", "HowItWent", "Done"),
    ]


def test_the_job_gets_its_wave_and_its_workers(scripted_stack: LocalStack, three: ScriptedPipeline) -> None:
    scripted_stack.run(name="run-wave-contract")
    gathered = three.event_of("gather")
    assert gathered["run_id"] == "run-wave-contract"
    assert gathered["wave"] == [
        {"key": f"runs/run-wave-contract/{table}/plan.json", "digest": "0" * 64} for table in ("ns.a", "ns.b")
    ]
    handed = three.event_of("job:wave")
    assert {key: value for key, value in handed.items() if key.split("-")[2] in ("wave", "run")} == {
        "--wave-key": "runs/run-wave-contract/wave.json",
        "--wave-digest": "1" * 64,
        "--run-id": "run-wave-contract",
    }
    assert "--operation" not in handed


def test_a_wave_that_fails_is_tried_once_more_and_stops_no_pass(
    scripted_stack: LocalStack, three: ScriptedPipeline
) -> None:
    three.happening["job:wave"] = failing(RuntimeError("it was killed"))
    execution = scripted_stack.run()
    assert three.steps.count("job:wave") == 2
    assert execution.status == "SUCCEEDED"
    for table in ("ns.a", "ns.b"):
        assert steps_of(three, table)[-len(AFTER_WAVE) :][-2:] == ["report", "release"]


def test_a_table_that_is_taken_meanwhile_is_waited_for(scripted_stack: LocalStack, three: ScriptedPipeline) -> None:
    """What the wave did of it is in no journal yet."""
    looks = iter(range(100))

    def take(event: Any) -> None:
        three.leases["ns.b"] = "another run"

    def free_at_the_second(event: Any) -> None:
        if event["item"].get("after_wave") and event["item"]["table"] == "ns.b" and next(looks) == 1:
            three.leases.pop("ns.b", None)

    three.happening |= {"job:wave": take, "lease": free_at_the_second}
    execution = scripted_stack.run()
    assert execution.status == "SUCCEEDED"
    assert steps_of(three, "ns.b")[len(BEFORE_WAVE) :][:3] == ["lease", "lease", "plan"]


def test_tables_that_cannot_be_gathered_are_told(scripted_stack: LocalStack, three: ScriptedPipeline) -> None:
    three.happening["gather"] = failing(ValueError("a bug"))
    execution = scripted_stack.run()
    assert "job:wave" not in three.steps
    assert execution.names[-5:] == ["AnyLeftToWave", "GatherWave", "Report", "HowItWent", "Done"]
    assert {one["table"] for one in three.event_of("report_run")["tables"]} == {"ns.a", "ns.small", "ns.b"}


def test_without_large_tables_a_run_has_two_more_states_and_no_more_calls(
    scripted_stack: LocalStack, script: ScriptedPipeline
) -> None:
    script.routes = dict.fromkeys(ROUTES, "none")
    execution = scripted_stack.run()
    assert script.steps == ["detect", "lease", "plan", "report", "release", "report_run"]
    assert execution.names[3:5] == ["LeftToWave", "AnyLeftToWave"]


def test_a_wave_of_100_tables_fits_into_payloads(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.tables = tuple(f"{'n' * 60}.{'t' * 60}{number:03}" for number in range(100))
    script.routes = {**dict.fromkeys(ROUTES, "none"), **LARGE}
    execution = scripted_stack.run(timeout_s=120)
    assert execution.status == "SUCCEEDED"
    assert script.steps.count("job:wave") == 1
    assert [len(script.event_of("report_run")[part]) for part in ("earlier", "tables")] == [100, 100]
    assert execution.largest_payload < 128 * 1024
