"""The local stack behaves as AWS does, and moto still needs every patch for that."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from local_stack import jobs
from local_stack.functions import DEPLOYED, DeployedFunction, invoke, wait_for_calls
from local_stack.moto_server import MotoServer
from local_stack.patches import PATCHES, Patch
from local_stack.stack import LocalStack, deployed

TOY = Path(__file__).parent / "toy" / "template.yaml"


@pytest.fixture(scope="module")
def toy(moto_server: MotoServer) -> Iterator[LocalStack]:
    with deployed(moto_server, path=TOY, parameters={"Greeting": "hello"}) as stack:
        yield stack


@pytest.fixture(autouse=True)
def _no_stand_ins(toy: LocalStack) -> Iterator[None]:
    yield
    for function in toy.functions.values():
        function.stand_in = None
    for job in toy.jobs.values():
        job.stand_in = None


def run(toy: LocalStack, *items: dict[str, Any]) -> Any:
    bucket = toy.template.name("ControlBucket")
    toy.moto.client("s3").put_object(Bucket=bucket, Key="items.json", Body=json.dumps(items).encode())
    return toy.run({"who": "the machine"})


def test_moto_still_calls_every_patch(toy: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch that moto no longer calls has no effect."""
    called: set[str] = set()

    def counted(patch: Patch, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            called.add(f"{patch.owner}.{patch.name}")
            return call(*arguments, **options)

        return wrapper

    for patch in PATCHES:
        replaced = patch.replacement
        if isinstance(replaced, property):
            assert replaced.fget is not None
            replaced = property(counted(patch, replaced.fget), replaced.fset)
        elif isinstance(replaced, SimpleNamespace):
            replaced = SimpleNamespace(sleep=counted(patch, replaced.sleep))
        elif isinstance(replaced, staticmethod):
            replaced = staticmethod(counted(patch, replaced.__func__))
        else:
            replaced = counted(patch, replaced)
        monkeypatch.setattr(patch.place, patch.name, replaced)
    toy.start_cold()  # the transient error occurs in a new container only
    execution = run(toy, {"way": "transient"}, {"way": "job", "how": "well"})
    assert execution.status == "SUCCEEDED"
    assert {f"{patch.owner}.{patch.name}" for patch in PATCHES} - called == set()


def test_every_child_has_its_own_execution_history_input_and_end(toy: LocalStack) -> None:
    """The functions of the children return, raise, exceed their time and return no JSON; jobs succeed and fail."""
    jobs = [{"way": "job", "how": how} for how in ("well", "fail")]
    others = [{"way": way} for way in ("good", "poison", "no json", "slow")]
    large = {"way": "good", "filling": "x" * 100_000}
    execution = run(toy, *others, *jobs, large)
    wait_for_calls()
    good, poison, no_json, slow, well, failed, _ = execution.children
    assert [child.input for child in execution.children] == [
        {"from_outside": "the machine", "item": item} for item in (*others, *jobs, large)
    ]
    assert execution.status == "SUCCEEDED"
    assert 100_000 < execution.largest_payload < 150_000
    answer = good.output
    assert (good.names, execution.output["all"][0]) == (["Choose", "Work"], answer)
    assert answer["event"]["item"] == {"way": "good"}
    assert answer["event"]["execution"] not in (execution.name, execution.output["all"][6]["event"]["execution"])
    assert answer["environment"] == {
        "CONTROL": toy.template.name("ControlBucket"),
        "WHO": "everybody",
        "GREETING": f"hello from {toy.template.stack}",
        "STATE": f"dynamodb://{toy.template.name('StateTable')}",
    }
    assert answer["sees_the_bucket"]
    assert 0 < answer["remaining_ms"] <= 2000
    assert answer["name"] == toy.template.name("WorkFunction")
    assert "working on good\n" in [call.output for call in toy.invocations("work")]

    assert poison.names == ["Choose", "Work", "Caught"]
    cause = json.loads(poison.output["failed"]["Cause"])
    assert poison.output["failed"]["Error"] == cause["errorType"] == "Poison"
    assert cause["errorMessage"] == "it is bad"
    assert "work/handler.py" in "".join(cause["stackTrace"])
    assert (no_json.status, no_json.visit("Work").errors[0][0]) == ("FAILED", "TypeError")
    assert execution.output["all"][2] is None  # a child that failed has no result
    assert slow.names == ["Choose", "Slow", "Caught"]
    assert "Task timed out after 1.00 seconds" in slow.output["failed"]["Cause"]

    assert well.output == {"state": "SUCCEEDED"}
    written = toy.moto.client("s3").get_object(Bucket=toy.template.name("ControlBucket"), Key="from-the-job")
    assert written["Body"].read() == b"--JOB_NAME --JOB_RUN_ID --bucket --how --job-bookmark-option"
    assert (failed.names, failed.output["failed"]["Error"]) == (["Choose", "Count", "Caught"], "States.TaskFailed")
    ended = json.loads(failed.output["failed"]["Cause"])
    assert (ended["JobRunState"], ended["ErrorMessage"]) == ("FAILED", "SystemExit: 1")


def test_a_function_that_overran_restores_standard_output_before_another_test(toy: LocalStack) -> None:
    ours = sys.stdout
    run(toy, {"way": "slow"})
    wait_for_calls()
    assert sys.stdout is ours
    with redirect_stdout(StringIO()) as printed:
        print("a later test")
        time.sleep(0.6)  # the slow function is 0.5 s late
        assert sys.stdout is printed


def test_a_call_of_an_abandoned_execution_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a state's timeout or a stopped execution the call runs on within its own time limit."""
    ours = sys.stdout
    begun, may_end = threading.Event(), threading.Event()

    def handle(event: Any, context: Any) -> None:
        begun.set()
        may_end.wait(10)

    module = ModuleType("left_behind")
    module.__dict__["handle"] = handle
    monkeypatch.setitem(sys.modules, "left_behind", module)
    monkeypatch.setitem(DEPLOYED, "left", DeployedFunction("left", "left_behind.handle", {}))
    threading.Thread(target=invoke, args=("left", {}), kwargs={"timeout_s": 60, "memory_mb": 128}, daemon=True).start()
    assert begun.wait(10)
    assert sys.stdout is not ours
    threading.Timer(0.1, may_end.set).start()
    wait_for_calls()
    assert sys.stdout is ours


def test_a_state_ends_at_its_timeout(moto_server: MotoServer) -> None:
    with deployed(moto_server, path=TOY, timeouts={"Count": 1}) as stack:
        execution = run(stack, {"way": "job", "how": "sleep"})
        assert execution.child.names == ["Choose", "Count", "TooLate"]
        (job_run,) = stack.jobs["count"].runs
        process = job_run.process
        assert process is not None
        assert process.poll() is None  # a Glue job runs until it is stopped, here with its stack
    assert process.wait(5) != 0
    assert jobs.DEPLOYED


def test_a_result_over_256_kb_fails_its_task(toy: LocalStack) -> None:
    toy.functions["work"].stand_in = lambda event: "x" * 300_000
    execution = run(toy, {"way": "good"})
    assert execution.child.visit("Work").errors[0][0] == "States.DataLimitExceeded"
