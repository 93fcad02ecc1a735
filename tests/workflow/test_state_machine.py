"""The definition of template.yaml, executed; functions and jobs are stand-ins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from icekeeper.errors import OperationRefused, PlanStale, StorageError
from local_stack.functions import Killed
from local_stack.moto_server import MotoServer
from local_stack.pace import PACE
from local_stack.patches import ServiceFault
from local_stack.stack import LocalStack, deployed
from support.lambda_functions import sample
from support.scripted_pipeline import FUNCTION_STEPS, JOB_STEPS, ROUTES, ScriptedPipeline

# The operations of a pass in canonical order, as the state machine calls them, and a step that fails.

OPERATIONS = [
    "expire_partitions",
    "compact",
    "rewrite_position_deletes",
    "expire_snapshots",
    "list_orphans",
    "remove_orphans",
    "rewrite_manifests",
    "compute_statistics",
    "clean_staged",
]
WHOLE_PASS = ["detect", "lease", "plan", *OPERATIONS, "report", "release", "report_run"]


def failing(*errors: Exception) -> Any:
    """Raise one after the other, and nothing after the last; a single one every time."""
    rest = iter(errors)

    def fail(event: Any) -> None:
        if error := (errors[0] if len(errors) == 1 else next(rest, None)):
            raise error

    return fail


# The definition of template.yaml, executed; functions and jobs are stand-ins that tell what they were asked.


def test_a_pass_takes_the_operations_in_canonical_order(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    execution = scripted_stack.run(name="run-happy")
    assert execution.status == "SUCCEEDED"
    assert execution.names == [
        *("Detect", "AnyProposals", "MaintainTables", "LeftToWave", "AnyLeftToWave", "Report", "HowItWent", "Done")
    ]
    assert script.steps == WHOLE_PASS
    assert execution.child.output == {"table": "ns.t", "status": "succeeded", "summary": "all well"}
    assert script.event_of("report_run") == {
        "run_id": "run-happy",
        "tables": [execution.child.output],
        "earlier": [],
        "in_one_call": [],
    }
    assert script.leases == {}


def test_every_step_gets_what_the_contract_says(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    scripted_stack.run(name="run-contract")
    item = {
        "catalog": "C",
        "warehouse": "s3://lake/",
        "table": "ns.t",
        "uuid": "uuid of ns.t",
        "location": "s3://lake/ns.t",
        "reasons": ["it needs it"],
        "priority": 0.5,
        "forced": False,
        "settings": {},
        "wait": False,
    }
    plan = {
        "bucket": script.bucket,
        "key": "runs/run-contract/ns.t/plan.json",
        "digest": "0" * 64,
        "attempt": 1,
        "routes": ROUTES,
    }
    assert script.event_of("detect") == {"run_id": "run-contract", "input": {}}
    assert script.event_of("lease") == {"action": "acquire", "run_id": "run-contract", "item": item}
    assert script.event_of("plan") == {
        "run_id": "run-contract",
        "item": item,
        "attempt": 1,
        "waves": True,
    }
    for operation in FUNCTION_STEPS:
        assert script.event_of(operation) == {
            "run_id": "run-contract",
            "item": item,
            "plan": plan,
            "operation": operation,
        }
    assert script.event_of("list_orphans") == script.event_of("remove_orphans")
    assert script.event_of("report") == {"run_id": "run-contract", "item": item, "plan": plan, "failures": {}}
    assert script.event_of("release") == {"action": "release", "run_id": "run-contract", "item": item}


def test_jobs_get_the_plan_by_reference(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.routes = {**ROUTES, **dict.fromkeys(JOB_STEPS, "glue")}
    scripted_stack.run(name="run-jobs")
    done = [step for step in script.steps if step.removeprefix("job:") in FUNCTION_STEPS]
    assert done == [f"job:{name}" if name in JOB_STEPS else name for name in FUNCTION_STEPS]
    assert "list_orphans" not in script.steps
    for operation in JOB_STEPS:
        handed = script.event_of(f"job:{operation}")
        assert {key: value for key, value in handed.items() if key in _CONTRACT} == {
            "--plan-key": "runs/run-jobs/ns.t/plan.json",
            "--plan-digest": "0" * 64,
            "--operation": operation,
            "--run-id": "run-jobs",
            "--control-bucket": script.bucket,
            "--state": f"dynamodb://{scripted_stack.template.name('StateTable')}?region=us-east-1",
        }


_CONTRACT = {"--plan-key", "--plan-digest", "--operation", "--run-id", "--control-bucket", "--state"}


def test_what_needs_no_work_is_not_called(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.routes = dict.fromkeys(ROUTES, "none")
    assert scripted_stack.run().status == "SUCCEEDED"
    assert script.steps == ["detect", "lease", "plan", "report", "release", "report_run"]


def test_without_orphans_nothing_is_removed(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.orphans = 0
    scripted_stack.run()
    assert [step for step in script.steps if step != "remove_orphans"] == script.steps
    assert "list_orphans" in script.steps


def test_without_proposals_the_run_ends_and_says_why(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.tables = ()
    execution = scripted_stack.run()
    assert (execution.status, script.steps) == ("SUCCEEDED", ["detect"])
    assert execution.output["reason"] == "0 table(s) need maintenance"


def test_a_table_that_others_maintain_is_left_alone(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.leases["ns.t"] = "another run"
    execution = scripted_stack.run()
    assert script.steps == ["detect", "lease", "report_run"]
    assert execution.child.output == {
        "table": "ns.t",
        "status": "refused",
        "summary": "another run maintains the table now",
    }
    assert script.leases == {"ns.t": "another run"}


def test_a_forced_pass_waits_for_its_turn_when_asked(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.leases["ns.t"] = "another run"
    looks: Iterator[int] = iter(range(100))

    def free_at_the_third(event: Any) -> None:
        if next(looks) == 2:
            script.leases.clear()

    script.happening["lease"] = free_at_the_third
    execution = scripted_stack.run({"table": "ns.t", "wait": True})
    assert script.steps == ["detect", "lease", "lease", *WHOLE_PASS[1:]]
    assert execution.child.names.count("WaitForTurn") == 2
    assert list(PACE.waits) == [30, 30]
    assert execution.child.output["status"] == "succeeded"


def test_a_stale_plan_is_made_again_and_ends_well(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.happening["expire_snapshots"] = failing(PlanStale("the policy changed"), PlanStale("and again"))
    execution = scripted_stack.run()
    assert [call.event["attempt"] for call in script.calls if call.step == "plan"] == [1, 2, 3]
    assert script.event_of("expire_snapshots")["plan"]["attempt"] == 3
    assert execution.child.output["status"] == "succeeded"
    assert script.event_of("report")["failures"] == {}


def test_a_table_that_makes_every_plan_stale_is_given_up(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    """How often is the plan function's to say; what it raises ends the pass."""

    def give_up(event: Any) -> None:
        if event["attempt"] > 3:
            raise OperationRefused("the table moved away from three plans")

    script.happening["plan"] = give_up
    script.happening["compact"] = failing(PlanStale("again"))
    scripted_stack.run()
    assert [call.event["attempt"] for call in script.calls if call.step == "plan"] == [1, 2, 3, 4]
    assert script.event_of("report")["failures"]["plan"]["Error"] == "OperationRefused"
    assert script.steps[-3:] == ["report", "release", "report_run"]


def test_a_forced_pass_takes_its_table_its_operations_and_its_settings(
    scripted_stack: LocalStack, script: ScriptedPipeline
) -> None:
    asked = {"table": "ns.other", "catalog": "D", "operations": "compact", "settings": {"min_input_files": "2"}}
    execution = scripted_stack.run(asked)
    assert script.event_of("detect")["input"] == asked
    item = script.event_of("plan")["item"]
    assert (item["table"], item["catalog"], item["forced"], item["settings"]) == (
        "ns.other",
        "D",
        True,
        {"min_input_files": "2"},
    )
    assert execution.child.output["table"] == "ns.other"


def test_a_second_start_for_the_same_table_is_refused(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def hold(event: Any) -> None:
        begun.set()
        assert may_go_on.wait(20)

    script.happening["compact"] = hold
    first = scripted_stack.start({"table": "ns.t"})
    assert begun.wait(20)
    second = scripted_stack.run({"table": "ns.t"})
    may_go_on.set()
    assert second.child.output["status"] == "refused"
    assert (second.status, second.error) == ("FAILED", "LeaseHeld")
    assert scripted_stack.wait(first).child.output["status"] == "succeeded"


def test_of_100_tables_never_more_than_four_are_at_work(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.tables = tuple(f"ns.t{number:03}" for number in range(100))
    script.routes = {**dict.fromkeys(ROUTES, "none"), "compact": "function"}
    script.own_routes = {table: {"rewrite_manifests": "glue"} for table in script.tables[::10]}
    broken = "ns.t017"

    four = threading.Barrier(4)

    def meet(event: Any) -> None:
        if event["item"]["table"] in script.tables[:4]:
            four.wait(20)

    def fail_for_one(event: Any) -> None:
        if event["item"]["table"] == broken:
            raise OperationRefused("this one only")

    script.happening |= {"plan": meet, "compact": fail_for_one}
    execution = scripted_stack.run(timeout_s=60)
    assert execution.status == "SUCCEEDED"
    assert [child.output["table"] for child in execution.children] == list(script.tables)
    assert {child.output["table"] for child in execution.children if child.output["status"] != "succeeded"} == {broken}
    assert 2 <= script.most_at_once <= 4  # how many meet is up to the machine's load; the limit is not
    assert script.steps.count("job:rewrite_manifests") == 10
    assert execution.largest_payload < 64 * 1024
    begun = [call.table for call in script.calls if call.step == "lease"]
    assert set(begun[:4]) == set(script.tables[:4])  # in the order of need


@pytest.mark.parametrize("name", ["machine_schedule", "machine_forced", "machine_forced_wait"])
def test_a_sample_of_events_starts_a_run(scripted_stack: LocalStack, script: ScriptedPipeline, name: str) -> None:
    execution = scripted_stack.run(sample(name))
    assert execution.status == "SUCCEEDED"
    assert execution.child.input["item"]["table"] == sample(name).get("table", "ns.t")
    assert execution.child.input["item"]["wait"] is sample(name).get("wait", False)


# The definition of template.yaml, executed while steps fail: the next one runs, and the run is told.


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_that_fails_does_not_stop_the_next(
    scripted_stack: LocalStack, script: ScriptedPipeline, operation: str
) -> None:
    script.happening[operation] = failing(OperationRefused("a guard saw danger"))
    execution = scripted_stack.run()
    lost = ["remove_orphans"] if operation == "list_orphans" else []
    assert script.steps == [step for step in WHOLE_PASS if step not in lost]
    name = "remove_orphans" if operation == "list_orphans" else operation
    failures = script.event_of("report")["failures"]
    assert list(failures) == [name]
    assert failures[name]["Error"] == "OperationRefused"
    assert "a guard saw danger" in failures[name]["Cause"]
    assert execution.status == "SUCCEEDED"
    assert execution.output["report"]["status"] == "partial"
    assert script.leases == {}


@pytest.mark.parametrize("operation", list(JOB_STEPS))
def test_a_job_that_fails_is_retried_once_and_does_not_stop_the_next(
    scripted_stack: LocalStack, script: ScriptedPipeline, operation: str
) -> None:
    script.routes = {**ROUTES, operation: "glue"}
    script.happening[f"job:{operation}"] = failing(RuntimeError("out of memory"))
    scripted_stack.run()
    step = f"job:{operation}"
    expected = [
        step if name == operation else name
        for name in WHOLE_PASS
        if not (operation == "remove_orphans" and name == "list_orphans")
    ]
    at = expected.index(step)
    assert script.steps == [*expected[:at], step, *expected[at:]]
    failures = script.event_of("report")["failures"]
    assert list(failures) == [operation]
    assert failures[operation]["Error"] == "States.TaskFailed"
    assert "RuntimeError: out of memory" in failures[operation]["Cause"]


def test_all_operations_may_fail_and_the_table_is_still_reported_and_released(
    scripted_stack: LocalStack, script: ScriptedPipeline
) -> None:
    script.happening |= {name: failing(StorageError("the store is gone")) for name in OPERATIONS}
    scripted_stack.run()
    assert list(script.event_of("report")["failures"]) == list(FUNCTION_STEPS)
    assert script.steps.count("compact") == 4  # three retries
    assert script.steps[-3:] == ["report", "release", "report_run"]


def test_a_fault_of_lambda_is_retried_and_then_forgotten(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    script.happening["compact"] = failing(ServiceFault("TooManyRequestsException"), ServiceFault("ServiceException"))
    execution = scripted_stack.run()
    assert script.steps.count("compact") == 3
    assert execution.child.output["status"] == "succeeded"
    assert script.event_of("report")["failures"] == {}


def test_an_operation_beyond_its_time_does_not_stop_the_next(moto_server: MotoServer) -> None:
    """The function is not told; it goes on, and its lease keeps it from committing (see test_pipeline.py)."""
    may_end = threading.Event()
    with deployed(moto_server, timeouts={"Compact": 1, "RewriteManifestsJob": 1}) as stack:
        bucket, s3 = stack.template.name("ControlBucket"), stack.moto.client("s3")
        script = ScriptedPipeline(lambda key, body: s3.put_object(Bucket=bucket, Key=key, Body=body), bucket)
        script.routes = {**ROUTES, "rewrite_manifests": "glue"}
        script.happening["compact"] = lambda event: may_end.wait(20)
        script.happening["job:rewrite_manifests"] = lambda event: may_end.wait(20)
        stack.stand_in(script.functions, script.jobs)
        execution = stack.run()
        may_end.set()
    assert execution.child.output["summary"] == "compact, rewrite_manifests"
    failures = script.event_of("report")["failures"]
    assert {name: failure["Error"] for name, failure in failures.items()} == {
        "compact": "States.Timeout",
        "rewrite_manifests": "States.Timeout",
    }
    assert script.steps[-5:] == ["compute_statistics", "clean_staged", "report", "release", "report_run"]


@pytest.mark.parametrize("step", ["lease", "plan"])
def test_a_table_that_cannot_even_begin_is_reported(
    scripted_stack: LocalStack, script: ScriptedPipeline, step: str
) -> None:
    script.happening[step] = failing(StorageError("the store does not answer"))
    scripted_stack.run()
    event = script.event_of("report")
    assert list(event["failures"]) == [step]
    assert event["plan"] is None
    assert script.steps[-3:] == ["report", "release", "report_run"]


@pytest.mark.parametrize(
    ("step", "error"),
    [("detect", "DetectionFailed"), ("report_run", "ReportFailed"), ("report", "PassesFailed")],
)
def test_a_run_that_cannot_be_told_is_red(
    scripted_stack: LocalStack, script: ScriptedPipeline, step: str, error: str
) -> None:
    script.happening[step] = failing(RuntimeError("a bug"))
    execution = scripted_stack.run()
    assert (execution.status, execution.error) == ("FAILED", error)
    if step == "detect":
        assert script.steps == ["detect", "report_run"]
        told = script.event_of("report_run")
        assert (told["run_id"], told["tables"], told["failure"]["Error"]) == (execution.name, [], "RuntimeError")
    if step == "report":
        assert execution.child.output == {
            "table": "ns.t",
            "status": "failed",
            "summary": "the pass could not be reported",
        }
        assert script.leases == {}


# The definition of template.yaml, executed: passes that end in one call are one state each.

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


# The definition of template.yaml, executed: tables too large for functions share one Glue run
# (rule: wave-tables-are-independent).

LARGE = {"compact": "wave", "rewrite_position_deletes": "wave"}
BEFORE_WAVE = ["lease", "plan", "expire_partitions", "release"]
AFTER_WAVE = ["lease", "plan", *OPERATIONS[3:], "report", "release"]


@pytest.fixture
def three(script: ScriptedPipeline) -> ScriptedPipeline:
    """Two large tables and a small one."""
    script.tables = ("ns.a", "ns.small", "ns.b")
    script.own_routes = {"ns.a": LARGE, "ns.b": LARGE}
    return script


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
