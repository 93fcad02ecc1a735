"""A request for a pass from a laptop, and the Step Functions executions that it reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from icekeeper.errors import MaintenanceError, PolicyError, StorageError
from icekeeper.model import CatalogId, TableName
from icekeeper.pipeline.events import Failure, MachineInput, TableResult, parse_event
from icekeeper.pipeline.executions import Execution, StateMachine, region_of
from icekeeper.pipeline.request_pass import Answer, Waiting, await_pass, follow_pass, machine_input, start_pass
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import PassRecord
from support.settings import forget_credentials
from support.state_stores import look, remember

# Waiting for a requested pass.

ARN = "arn:aws:states:eu-west-1:123456789012:stateMachine:m"
EXECUTION = "arn:aws:states:eu-west-1:123456789012:execution:m:request-1"
IDENTITY = TableIdentity(CatalogId("C", "s3://lake"), TableName(("ns",), "t"), "u")
NOON_MS = 1_767_268_800_000
REQUEST = MaintenanceRequest(identity=IDENTITY, requested_ms=NOON_MS, settings={"operations": "compact", "branch": "b"})
DONE = Execution("SUCCEEDED", TableResult(table="ns.t", status="skipped", summary="dropped"))
RUNNING = Execution("RUNNING")


class Machine(StateMachine):
    """Returns the given answers in order and repeats the last."""

    def __init__(self, *answers: Execution | Exception) -> None:
        super().__init__(ARN, None)
        self.answers = list(answers)

    def start(self, name: str, machine_input: Any) -> str:
        return str(self._answer())

    def describe(self, execution: str) -> Execution:
        answer = self._answer()
        assert isinstance(answer, Execution)
        return answer

    def _answer(self) -> object:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class World:
    """A clock that advances only by sleeping; ``happens`` are events during the sleeps."""

    def __init__(self, folder: Path) -> None:
        self.state = SqliteStateStore(folder / "state.db")
        self.now_ms = NOON_MS
        self.pauses: list[float] = []
        self.notified: list[str] = []
        self.happens: Iterator[Callable[[], object]] = iter(())

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_ms += round(seconds * 1000)
        next(self.happens, lambda: None)()

    def follow(self, machine: StateMachine, limit_ms: int | None = None) -> Answer:
        return follow_pass(machine, EXECUTION, self.state, REQUEST, self.waiting(limit_ms))

    def wait(self, limit_ms: int = 60_000) -> Answer:
        return await_pass(self.state, REQUEST, self.waiting(limit_ms))

    def waiting(self, limit_ms: int | None) -> Waiting:
        return Waiting(limit_ms=limit_ms, notify=self.notified.append, clock=lambda: self.now_ms, sleep=self.sleep)

    def record(
        self,
        run_id: str = "request-1",
        started_ms: int = NOON_MS,
        status: str = "partial",
        *,
        finished_ms: int | None = None,
    ) -> PassRecord:
        record = PassRecord(
            identity=IDENTITY,
            run_id=run_id,
            started_ms=started_ms,
            finished_ms=finished_ms or started_ms + 1,
            status=status,
            summary=f"by {run_id}",
            engine="pipeline",
        )
        self.state.record_pass(record)
        return record

    def lease(self, holder: str) -> None:
        self.state.leases.acquire(IDENTITY.lease_key, holder, now_ms=self.now_ms, ttl_ms=3_600_000)

    def unlease(self) -> None:
        lease = self.state.leases.current(IDENTITY.lease_key, now_ms=self.now_ms)
        assert lease is not None
        self.state.leases.release(lease)

    def claim(self) -> None:
        assert self.state.requests.claim(REQUEST)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_machine_input_repeats_the_request() -> None:
    assert machine_input(REQUEST) == {
        "table": "ns.t",
        "catalog": "C",
        "operations": "compact",
        "settings": {"branch": "b"},
        "wait": True,
    }
    minimal = MaintenanceRequest(identity=IDENTITY, requested_ms=1)
    assert machine_input(minimal) == {"table": "ns.t", "catalog": "C", "settings": {}, "wait": True}
    for request in (REQUEST, minimal):
        event = parse_event(MachineInput, machine_input(request))
        operations = {} if event.operations is None else {"operations": event.operations}
        assert {**event.settings, **operations} == request.settings  # so the pass claims the request


@pytest.mark.parametrize("error", [PolicyError("no machine"), StorageError("denied")], ids=["missing", "denied"])
def test_a_run_that_cannot_start_leaves_the_request_filed(error: Exception) -> None:
    with pytest.raises(type(error), match=f"^{error}; the request stays filed, and the next scheduled run takes it"):
        start_pass(Machine(error), REQUEST)


def test_pauses_between_polls_grow_to_30_seconds(world: World) -> None:
    world.follow(Machine(*[RUNNING] * 12, DONE))
    assert world.pauses[:4] == [1.0, 1.5, 2.25, 3.375]
    assert world.pauses[-2:] == [30.0, 30.0]


def test_the_answer_is_the_pass_in_the_journal_or_else_the_result_of_the_run(world: World) -> None:
    world.record("another")
    assert world.follow(Machine(DONE)) == Answer(status="skipped", summary="dropped")
    nothing = Answer(status="skipped", summary="the run found nothing to do")
    assert world.follow(Machine(Execution("SUCCEEDED"))) == nothing
    record = world.record()
    assert world.follow(Machine(DONE)) == Answer(status="partial", summary="by request-1", record=record)


def test_a_failed_run_is_explained_by_its_error_and_cause(world: World) -> None:
    failed = Execution("FAILED", None, Failure(Error="DetectionFailed", Cause="see Detect"))
    assert world.follow(Machine(failed)) == Answer(status="failed", summary="DetectionFailed: see Detect")
    held = Execution("FAILED", None, Failure(Error="LeaseHeld", Cause="another run maintains it"))
    answer = world.follow(Machine(held))
    assert (answer.status, answer.summary, answer.is_well) == ("refused", "LeaseHeld: another run maintains it", False)
    stopped = world.follow(Machine(Execution("ABORTED")))
    assert (stopped.status, stopped.summary) == ("failed", f"the run ended as ABORTED: {EXECUTION}")


def test_waiting_survives_short_network_failures(world: World) -> None:
    with pytest.raises(StorageError, match=f"^there is none; the run itself continues: {EXECUTION}$"):
        world.follow(Machine(PolicyError("there is none")))
    assert world.pauses == [], "an error that lasts is reported at once"
    unreachable = StorageError("AWS Step Functions cannot be reached")
    assert world.follow(Machine(*[unreachable] * 5, RUNNING, *[unreachable] * 5, DONE)).status == "skipped"
    with pytest.raises(StorageError, match=f"cannot be reached; the run itself continues: {EXECUTION}$"):
        world.follow(Machine(unreachable))


def test_waiting_for_a_run_ends_at_its_limit(world: World) -> None:
    answer = world.follow(Machine(RUNNING), limit_ms=10_000)
    assert answer == Answer(status="running", summary=f"the run is still running after 10 s: {EXECUTION}")
    assert sum(world.pauses) == 10.0


def test_progress_names_the_run_that_holds_the_table(world: World) -> None:
    world.lease("night-run")
    world.happens = iter([world.unlease, lambda: world.lease("request-1")])
    world.follow(Machine(RUNNING, RUNNING, RUNNING, DONE))
    assert world.notified == [
        *("waiting for night-run to finish", "the run continues", "the table is being maintained")
    ]


def test_a_run_that_timed_out_leaves_the_request_filed(world: World) -> None:
    world.state.requests.file(REQUEST)
    answer = world.follow(Machine(Execution("TIMED_OUT")))
    assert answer == Answer(
        status="failed",
        summary=f"the run ended as TIMED_OUT: {EXECUTION}; the request stays filed, and the next scheduled run takes "
        "it first",
    )


def test_waiting_ends_when_a_scheduled_run_claims_the_request(world: World) -> None:
    """A run records its pass and then claims the request: a record before the claim belongs to another pass."""
    world.state.requests.file(REQUEST)
    world.record("earlier", NOON_MS - 1)

    def report() -> None:
        world.record("night-run", NOON_MS - 60_000, "succeeded", finished_ms=NOON_MS + 2_000)  # planned after noon
        world.claim()

    happens = [lambda: world.lease("night-run"), lambda: world.record("day-run", NOON_MS - 9, finished_ms=NOON_MS + 1)]
    world.happens = iter([*happens, world.unlease, report])
    answer = world.wait()
    assert (answer.status, answer.summary, answer.is_well) == ("succeeded", "by night-run", True)
    assert world.notified == [
        "waiting for the next scheduled run",
        *["night-run maintains the table"] * 2,
        "waiting for the next scheduled run",
    ]


def test_waiting_for_a_request_without_a_run_ends_at_the_limit(world: World) -> None:
    world.state.requests.file(REQUEST)
    world.lease("day-run")
    world.happens = iter([lambda: world.record("day-run", NOON_MS - 1), world.unlease])
    answer = world.wait()
    assert answer == Answer(status="requested", summary="no run has served the request within 60 s; it stays filed")


def remember_look(world: World, finished_ms: int) -> None:
    remember(world.state, IDENTITY, look(finished_ms))


def test_a_claimed_request_without_a_record_was_skipped_or_failed(world: World) -> None:
    world.record("earlier", NOON_MS - 9)
    lost = Answer(status="failed", summary="the run that took the request ended without an entry in the journal")
    assert world.wait() == lost
    remember_look(world, NOON_MS + 30 * 86_400_000)  # from a clock that was ahead
    assert world.wait() == lost
    remember_look(world, NOON_MS)
    assert world.wait() == Answer(status="skipped", summary="the pass found nothing to change")


def test_the_newest_pass_since_the_request_is_the_answer(world: World) -> None:
    world.now_ms = NOON_MS + 60_000
    record = world.record("day-run", NOON_MS)
    remember_look(world, record.finished_ms)
    assert world.wait() == Answer(status="partial", summary="by day-run", record=record)
    remember_look(world, record.finished_ms + 1)
    assert world.wait() == Answer(status="skipped", summary="the pass found nothing to change")


# Step Functions: ARNs, executions, and refusals.

MACHINE_ARN = "arn:aws:states:eu-west-1:123456789012:stateMachine:icekeeper-maintain-tables"
EXECUTION_ARN = "arn:aws:states:eu-west-1:123456789012:execution:icekeeper-maintain-tables:request-1"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RESULT = TableResult(table="ns.t", status="partial", summary="compact failed")
OUTPUT = {
    "tables": {"bucket": "b", "key": "k", "count": 1},
    "report": {"status": "failed", "tables": [RESULT.model_dump()], "error": "PassesFailed"},
}
DESCRIBED = {
    "executionArn": EXECUTION_ARN,
    "stateMachineArn": MACHINE_ARN,
    "startDate": NOON,
    "inputDetails": {"included": True},
}


class Stubbed:
    """A state machine with stubbed AWS responses."""

    def __init__(self) -> None:
        client = boto3.client(
            "stepfunctions", region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="secret"
        )
        self.stub = Stubber(client)
        self.machine = StateMachine(MACHINE_ARN, client)
        self.stub.activate()

    def described(self, **answer: Any) -> Execution:
        self.stub.add_response("describe_execution", {**DESCRIBED, **answer}, {"executionArn": EXECUTION_ARN})
        return self.machine.describe(EXECUTION_ARN)


@pytest.fixture
def stubbed() -> Stubbed:
    return Stubbed()


def test_the_region_comes_from_the_arn() -> None:
    for arn in (MACHINE_ARN, f"{MACHINE_ARN}:live", MACHINE_ARN.replace("arn:aws:", "arn:aws-us-gov:")):
        assert region_of(arn) == "eu-west-1"
    wrong = ["", "icekeeper", EXECUTION_ARN, f"{MACHINE_ARN} x", MACHINE_ARN.rpartition(":")[0]]
    for text in (*wrong, MACHINE_ARN.replace("123456789012", "me")):
        with pytest.raises(PolicyError, match="is not the ARN of a state machine"):
            StateMachine.open(text)


def test_a_run_starts_with_its_name_and_input(stubbed: Stubbed) -> None:
    sent = {"stateMachineArn": MACHINE_ARN, "name": "request-1", "input": '{"table": "ns.zürich"}'}
    stubbed.stub.add_response("start_execution", {"executionArn": EXECUTION_ARN, "startDate": NOON}, sent)
    assert stubbed.machine.start("request-1", {"table": "ns.zürich"}) == EXECUTION_ARN


def test_an_execution_has_its_status_result_and_failure(stubbed: Stubbed) -> None:
    assert stubbed.described(status="RUNNING").is_running
    done = stubbed.described(status="SUCCEEDED", output=json.dumps(OUTPUT))
    assert done == Execution("SUCCEEDED", RESULT)
    assert not done.is_running
    failed = stubbed.described(status="FAILED", error="DetectionFailed", cause="see Detect")
    assert failed == Execution("FAILED", None, Failure(Error="DetectionFailed", Cause="see Detect"))


def test_an_output_without_table_results_has_no_result(stubbed: Stubbed) -> None:
    reports = ['{"report": []}', '{"report": {"tables": []}}', '{"report": {"tables": [null]}}']
    others = ["[]", "null", '{"tables": {"bucket": "b", "key": "k", "count": 1}}', "x"]
    for output in (*reports, '{"report": {"tables": [{"a": 1}]}}', *others):
        assert stubbed.described(status="SUCCEEDED", output=output) == Execution("SUCCEEDED"), output


Call = Callable[[StateMachine], object]


def start(machine: StateMachine) -> object:
    return machine.start("request-1", {})


def describe(machine: StateMachine) -> object:
    return machine.describe(EXECUTION_ARN)


@pytest.mark.parametrize(
    ("call", "code", "kind", "sentence", "in_vain"),
    [
        (
            start,
            "StateMachineDoesNotExist",
            PolicyError,
            f"state machine {MACHINE_ARN} does not exist: take the stack's output StateMachineArn",
            True,
        ),
        (
            start,
            "AccessDeniedException",
            StorageError,
            f"no permission to start a run of {MACHINE_ARN}: states:StartExecution is required",
            True,
        ),
        (
            describe,
            "AccessDeniedException",
            StorageError,
            f"no permission to follow a run of {MACHINE_ARN}: states:DescribeExecution is required",
            True,
        ),
        (
            describe,
            "ThrottlingException",
            StorageError,
            "AWS Step Functions failed with ThrottlingException: said AWS",
            False,
        ),
        (
            describe,
            "ExpiredTokenException",
            StorageError,
            "AWS Step Functions failed with ExpiredTokenException: said AWS; sign in again, or name a profile or role, "
            "whose keys are renewed",
            False,
        ),
    ],
)
def test_a_refusal_by_aws_is_one_sentence(
    stubbed: Stubbed, call: Call, code: str, kind: type[MaintenanceError], sentence: str, in_vain: bool
) -> None:
    method = "start_execution" if call is start else "describe_execution"
    stubbed.stub.add_client_error(method, code, "said AWS")
    with pytest.raises(MaintenanceError) as caught:
        call(stubbed.machine)
    assert (type(caught.value), str(caught.value)) == (kind, sentence)
    assert stubbed.machine.is_denied(caught.value) is in_vain


def test_a_run_without_credentials_fails_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    forget_credentials(monkeypatch, tmp_path)
    with pytest.raises(StorageError, match=r"^AWS Step Functions cannot be reached: no AWS credentials"):
        StateMachine.open(MACHINE_ARN).start("request-1", {})
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StorageError, match=r"^AWS Step Functions cannot be used: The config profile \(nobody\)"):
        StateMachine.open(MACHINE_ARN)
