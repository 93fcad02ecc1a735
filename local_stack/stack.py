"""A stack on this machine: what template.yaml describes, created in moto, ready to be run."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from moto.stepfunctions.parser.models import stepfunctions_parser_backends

from icekeeper.pipeline.control_bucket import PAGE, table_folder
from icekeeper.pipeline.events import Item, parse_event
from local_stack import distributed_map, functions
from local_stack.credential_server import KEY_VARIABLES, CredentialServer, running_credential_server
from local_stack.executions import ChildExecution, Execution, require_within_quotas
from local_stack.functions import DeployedFunction, Invocation, StandIn
from local_stack.jobs import DeployedJob, StandInJob
from local_stack.metrics import Metric, metrics_in
from local_stack.moto_dynamodb import dynamodb_that_keeps_its_promises
from local_stack.moto_server import MotoServer
from local_stack.patches import apply_patches
from local_stack.resources import create_functions, create_jobs, create_state_machine, create_storage
from local_stack.rights.callers import StackRights
from local_stack.rights.roles import roles_of
from local_stack.template import ACCOUNT, REGION, Template

ROOT = Path(__file__).resolve().parents[1]
_PACKAGE = ROOT / "layers" / "icekeeper" / "src"


@dataclass(slots=True)
class LocalStack:
    """One stack, until :func:`deployed` ends."""

    moto: MotoServer
    template: Template
    functions: Mapping[str, DeployedFunction]
    """By role: the module of its handler."""
    jobs: Mapping[str, DeployedJob]
    """By role: the name of its script."""
    state_machine: str
    rights: StackRights
    """What each of its roles may do, used and was denied."""
    keys: CredentialServer
    """Gives each function the keys of its own role, called as it is, and each job those of ``job-NAME``."""

    def run(self, machine_input: Any = None, *, name: str | None = None, timeout_s: float = 120.0) -> Execution:
        """Start the state machine and wait for its end."""
        return self.wait(self.start(machine_input, name=name), timeout_s=timeout_s)

    def start(self, machine_input: Any = None, *, name: str | None = None) -> str:
        """Start the state machine; its execution's ARN."""
        started = self._schedule().start_execution(
            stateMachineArn=self.state_machine,
            name=name or f"run-{uuid.uuid4()}",
            input=json.dumps({} if machine_input is None else machine_input),
        )
        return str(started["executionArn"])

    def _schedule(self) -> Any:
        """A client with the rights of the schedule, where the template has one."""
        for _, properties in self.template.resources("AWS::Scheduler::Schedule"):
            return self.moto.client("stepfunctions", self.rights.key_of(properties["Target"]["RoleArn"]))
        return self.moto.client("stepfunctions")

    def wait(self, execution: str, *, timeout_s: float = 120.0) -> Execution:
        """Wait for the end of an execution."""
        # Not through the API: asking it all the time takes as much of the processor as the execution does.
        running = stepfunctions_parser_backends[ACCOUNT][REGION].describe_execution(execution)
        deadline = time.monotonic() + timeout_s
        while running.status == "RUNNING":
            assert time.monotonic() < deadline, f"{execution} still runs after {timeout_s:g} s"
            time.sleep(0.02)
        # Made now: a new client reads the environment, which running functions change.
        client = self.moto.client("stepfunctions")
        described = client.describe_execution(executionArn=execution)
        ended = Execution(
            name=described["name"],
            status=described["status"],
            output=json.loads(described.get("output", "null")),
            error=described.get("error"),
            cause=described.get("cause"),
            events=client.get_execution_history(executionArn=execution)["events"],
            children=[
                ChildExecution(child.label, child.input, child.status, child.output, child.events.get_event_history())
                for child in distributed_map.children_of(execution)
            ],
        )
        require_within_quotas(ended)
        return ended

    def invoke(self, role: str, event: Any) -> Any:
        """Call one function as an operator would; its result.

        Raises:
            AssertionError: it failed.
        """
        answer = self.moto.client("lambda").invoke(
            FunctionName=next(n for n, f in functions.DEPLOYED.items() if f is self.functions[role]),
            Payload=json.dumps(event).encode(),
        )
        result = json.loads(answer["Payload"].read())
        assert "FunctionError" not in answer, result
        return result

    def stand_in(self, stand_ins: Mapping[str, StandIn], stand_in_jobs: Mapping[str, StandInJob]) -> None:
        """Put these in the place of functions and jobs, by role; the others are real (again)."""
        unknown = {*stand_ins, *stand_in_jobs} - {*self.functions, *self.jobs}
        assert not unknown, f"the template has no {sorted(unknown)}"
        for role, function in self.functions.items():
            function.stand_in, function.before = stand_ins.get(role), None
        for role, job in self.jobs.items():
            job.stand_in = stand_in_jobs.get(role)

    def start_afresh(self) -> None:
        """As if it were deployed just now: nothing is recorded, leased or asked for, and nothing was called."""
        name, client = self.template.name("StateTable"), self.moto.client("dynamodb")
        found = client.scan(TableName=name, ProjectionExpression="pk, sk")["Items"]
        for start in range(0, len(found), 25):
            gone = [{"DeleteRequest": {"Key": item}} for item in found[start : start + 25]]
            client.batch_write_item(RequestItems={name: gone})
        self.stand_in({}, {})
        self.start_cold()
        self.forget_calls()

    def start_cold(self, environment: Mapping[str, str] | None = None) -> None:
        """Functions begin anew, as after a deployment; ``environment`` is added to everybody's."""
        functions.forget_modules(self.template.folder / "functions")
        for variables in (
            *(f.environment for f in self.functions.values()),
            *(j.environment for j in self.jobs.values()),
        ):
            variables.update(environment or {})

    def put_control(self, key: str, text: str) -> None:
        """Write an object of the control bucket."""
        bucket = self.template.name("ControlBucket")
        self.moto.client("s3").put_object(Bucket=bucket, Key=key, Body=text.encode())

    def control(self, key: str) -> Any:
        """A JSON document of the control bucket."""
        return json.loads(self._in_control(key))

    def page(self) -> str:
        """The report page that the last run wrote."""
        return self._in_control(PAGE).decode()

    def _in_control(self, key: str) -> bytes:
        bucket = self.template.name("ControlBucket")
        found: bytes = self.moto.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
        return found

    def document_of_pass(self, execution: Execution, name: str, *, of: str | None = None) -> Any:
        """A document of a table's pass, such as ``pass.json``; ``of``: the table; ``None``: the only table."""
        items = [child.input["item"] for child in execution.children]
        item = next(parse_event(Item, one) for one in items if of in (None, one["table"]))
        return self.control(f"{table_folder(execution.name, item.identity.spelling)}/{name}")

    def invocations(self, role: str) -> list[Invocation]:
        """Every call of a function so far."""
        return self.functions[role].invocations

    def forget_calls(self) -> None:
        """Begin anew with what functions and jobs were called for."""
        for function in self.functions.values():
            function.invocations.clear()
        for job in self.jobs.values():
            job.runs.clear()

    @property
    def printed(self) -> str:
        """What functions and jobs wrote: logs and metrics, as CloudWatch would have them."""
        calls = (call.output for function in self.functions.values() for call in function.invocations)
        return "\n".join((*calls, *(run.log for job in self.jobs.values() for run in job.runs)))

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that functions emitted since their calls were last forgotten."""
        return [
            metric for role in self.functions for call in self.invocations(role) for metric in metrics_in(call.output)
        ]


@contextmanager
def deployed(
    moto: MotoServer,
    *,
    path: Path = ROOT / "template.yaml",
    parameters: Mapping[str, str] | None = None,
    timeouts: Mapping[str, int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[LocalStack]:
    """Create what a template describes.

    Functions and jobs have no keys: each asks for those of its own role, which expire (:mod:`.credential_server`).
    ``timeouts`` gives states other TimeoutSeconds: the only change to the definition.  ``environment`` is added to that
    of every function and job.
    """
    apply_patches()
    template = Template(path, f"local-{uuid.uuid4().hex[:12]}", parameters or {})
    aws = {"AWS_ENDPOINT_URL": moto.endpoint, "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION}
    more = dict(environment or {})
    with ExitStack() as ending:
        keys = ending.enter_context(running_credential_server())
        # moto's engine calls its own server, and asks the environment where that is.
        server = {"MOTO_PORT": moto.endpoint.rsplit(":", 1)[1]}
        ending.enter_context(patch.dict(os.environ, {**server, **aws, **keys.environment("operator")}))
        for name in KEY_VARIABLES:
            os.environ.pop(name, None)  # put back by the patch
        ending.enter_context(dynamodb_that_keeps_its_promises())
        if (template.folder / "functions").is_dir():
            ending.enter_context(functions.loadable(template.folder / "functions"))
        rights = ending.enter_context(StackRights(dict(roles_of(template)), keys).enforced())
        for role in rights.roles:
            moto.client("iam").create_role(RoleName=role.rpartition("/")[2], AssumeRolePolicyDocument="{}")
        create_storage(moto, template)
        of_functions = create_functions(moto, template, rights, {**aws, **more})
        of_jobs = create_jobs(moto, template, rights, {**aws, "PYTHONPATH": str(_PACKAGE), **more})
        ending.callback(functions.wait_for_calls)
        for job in of_jobs.values():
            ending.callback(job.stop)
        machine = create_state_machine(moto, template, timeouts or {})
        yield LocalStack(moto, template, of_functions, of_jobs, machine, rights, keys)
