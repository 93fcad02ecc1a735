"""Everything that moto does differently here, in one list, each with its reason.

moto is pinned exactly; ``tests/workflow/test_local_stack.py`` fails when a patch no longer does what it is for.
"""

from __future__ import annotations

import base64
import functools
import importlib
import io
import json
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.awslambda.models import lambda_backends
from moto.core.config import default_user_config
from moto.core.exceptions import JsonRESTError
from moto.glue import models as glue_models
from moto.settings import moto_server_port

from local_stack import distributed_map, functions, jobs
from local_stack.pace import PACE
from local_stack.rights.callers import caller_of
from local_stack.rights.evaluate import Need
from local_stack.template import ACCOUNT, REGION

_ENGINE = "moto.stepfunctions.parser.asl"
_TASK_SERVICES = f"{_ENGINE}.component.state.exec.state_task.service"
_DISTRIBUTED = f"{_ENGINE}.component.state.exec.state_map.iteration.itemprocessor.distributed_item_processor_worker"
_FIRST_POLL_S, _LAST_POLL_S = 0.02, 0.5

_start_job_run = glue_models.FakeJob.start_job_run
_job_run_as_dict = glue_models.FakeJobRun.as_dict


class ServiceFault(Exception):
    """Raised by a stand-in: the service, not the function, failed; ``code`` as in ``Lambda.ServiceException``."""

    def __init__(self, code: str) -> None:
        super().__init__(f"{code}, injected")
        self.code = code


@dataclass(frozen=True, slots=True)
class Patch:
    """What is replaced, and why; ``owner`` is a module, or a module and a class behind a colon."""

    owner: str
    name: str
    replacement: Any
    reason: str

    @property
    def place(self) -> Any:
        """The module or class whose attribute it is."""
        module, _, inside = self.owner.partition(":")
        owner = importlib.import_module(module)
        return getattr(owner, inside) if inside else owner

    def apply(self) -> None:
        assert hasattr(self.place, self.name), f"moto has no {self.owner}.{self.name} any more: {self.reason}"
        setattr(self.place, self.name, self.replacement)


# -- Lambda


def _invoke_function(self: Any, body: str, request_headers: Any, response_headers: Any) -> bytes:
    event = json.loads(body) if body else {}
    result, error = functions.invoke(self.function_name, event, timeout_s=self.timeout, memory_mb=int(self.memory_size))
    if error is None:
        return json.dumps(result).encode()
    if error["errorType"] == ServiceFault.__name__:
        code = str(error["errorMessage"]).partition(",")[0]
        raise JsonRESTError(code, "injected by a test")
    response_headers["x-amz-function-error"] = "Unhandled"
    response_headers["x-amz-log-result"] = base64.b64encode(b"").decode()
    return json.dumps(error).encode()


# -- Glue


def _start_run(self: Any, **options: Any) -> str:
    run_id = str(_start_job_run(self, **options))
    run = next(run for run in self.job_runs if run.job_run_id == run_id)
    arguments = {str(key): str(value) for key, value in (run.arguments or {}).items()}
    run.local = jobs.start(self.name, run_id, arguments, timeout_min=run.timeout)
    return run_id


def _run_state(self: Any) -> str:
    local: jobs.JobRun | None = getattr(self, "local", None)
    return "STARTING" if local is None else local.state


def _describe_run(self: Any) -> dict[str, Any]:
    described = dict(_job_run_as_dict(self))
    local: jobs.JobRun | None = getattr(self, "local", None)
    if local is not None and local.error is not None:
        described["ErrorMessage"] = local.error
    return described


# -- Step Functions


def _await_job_run(
    self: Any, env: Any, resource_runtime_part: Any, normalised_parameters: Any, state_credentials: Any
) -> None:
    look = self._build_sync_resolver(env, resource_runtime_part, normalised_parameters, state_credentials)
    pause_s = _FIRST_POLL_S
    while env.is_running():
        if run := look():
            env.stack.append(json.loads(json.dumps(run, default=str)))
            return
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, _LAST_POLL_S)  # a job that takes long needs the processor more than we do


def _wait(self: Any, env: Any, wait_seconds: float) -> None:
    PACE.sleep(wait_seconds)


class _Lambda:
    """The engine's client of Lambda, without a connection of its own for every call."""

    def __init__(self, region: str, role: str) -> None:
        self._backend = lambda_backends[ACCOUNT][region]
        self._caller = caller_of(role)

    def invoke(self, **parameters: Any) -> dict[str, Any]:
        headers: dict[str, str] = {}
        name = parameters["FunctionName"]
        arn = name if name.startswith("arn:") else f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}"
        need = Need("lambda:InvokeFunction", arn)
        if self._caller is not None and self._caller.refused([need]) is not None:
            details = {"Error": {"Code": "AccessDeniedException", "Message": f"not authorized to perform: {need}"}}
            raise ClientError(details, "Invoke")
        try:
            payload = self._backend.invoke(
                parameters["FunctionName"], None, parameters.get("Payload") or b"", {}, headers
            )
        except JsonRESTError as error:
            details = {"Error": {"Code": error.error_type, "Message": error.message}}
            raise ClientError(
                {**details, "ResponseMetadata": {"HTTPStatusCode": 400, "RequestId": "-"}}, "Invoke"
            ) from error
        assert isinstance(payload, bytes), f"there is no function {parameters['FunctionName']}"
        answer = {"StatusCode": 200, "Payload": io.BytesIO(payload)}
        return {**answer, **({"FunctionError": "Unhandled"} if "x-amz-function-error" in headers else {})}


_clients_lock = threading.Lock()


@functools.cache
def _client(region: str, service: str, port: str, key: str) -> Any:
    return boto3.session.Session().client(
        service,
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name=region,
        aws_access_key_id=key,
        aws_secret_access_key="testing",
        config=Config(
            parameter_validation=False, retries={"total_max_attempts": 1}, read_timeout=900, max_pool_connections=32
        ),
    )


def _engine_client(region: str, service: str, state_credentials: Any) -> Any:
    """A client with the rights of the state machine's role."""
    if service == "lambda":
        return _Lambda(region, state_credentials.role_arn)
    caller = caller_of(state_credentials.role_arn)
    key = "testing" if caller is None else caller.rights.key_of(caller.role)
    with _clients_lock:
        return _client(region, service, moto_server_port(), key)


_parser = importlib.import_module(f"{_ENGINE}.parse.asl_parser").AmazonStateLanguageParser
_parse = functools.lru_cache(maxsize=64)(_parser.parse)
_JSON_PATHS = (f"{_ENGINE}.utils.json_path", f"{_ENGINE}.component.common.path.result_path")

PATCHES: tuple[Patch, ...] = (
    Patch(
        "moto.awslambda.models:LambdaFunction",
        "invoke",
        _invoke_function,
        "moto runs functions in docker, or answers without running them",
    ),
    Patch("moto.glue.models:FakeJob", "start_job_run", _start_run, "moto never runs a job"),
    Patch(
        "moto.glue.models:FakeJobRun",
        "status",
        property(_run_state, lambda self, value: None),
        "the state of a run is that of its process; moto's goes by how often it was asked for",
    ),
    Patch("moto.glue.models:FakeJobRun", "as_dict", _describe_run, "moto's runs never fail, so carry no message"),
    Patch(
        f"{_TASK_SERVICES}.state_task_service_glue:StateTaskServiceGlue",
        "_eval_integration_pattern",
        _await_job_run,
        "glue:startJobRun.sync ends in \"'NoneType' object has no attribute 'interrupt_all'\"",
    ),
    Patch(
        f"{_DISTRIBUTED}:DistributedItemProcessorWorker",
        "_eval_input",
        distributed_map.eval_input,
        "children have no history and no execution of their own, and take $ from a stack that others change",
    ),
    Patch(
        f"{_DISTRIBUTED}:DistributedItemProcessorWorker",
        "_eval_job",
        distributed_map.eval_job,
        "how a child ended is counted, and then forgotten",
    ),
    Patch(
        f"{_ENGINE}.component.state.wait.wait_function.wait_function:WaitFunction",
        "_wait_interval",
        _wait,
        "tests do not sleep",
    ),
    Patch(
        f"{_ENGINE}.component.common.retry.retrier_decl",
        "time",
        SimpleNamespace(sleep=PACE.sleep),
        "tests do not sleep between retries",
    ),
    *(
        Patch(
            module,
            "boto_client_for",
            _engine_client,
            "a client for every task costs more than the task, and the default session is not made for threads",
        )
        for module in (
            f"{_TASK_SERVICES}.state_task_service_glue",
            f"{_ENGINE}.component.state.exec.state_task.lambda_eval_utils",
            f"{_ENGINE}.component.state.exec.state_map.item_reader.eval.resource_eval_s3",
        )
    ),
    Patch(
        f"{_ENGINE}.parse.asl_parser:AmazonStateLanguageParser",
        "parse",
        staticmethod(_parse),
        "every execution parses the definition anew, which takes longer than running it; what is parsed has no state",
    ),
    *(
        Patch(
            module,
            "parse",
            functools.lru_cache(maxsize=4096)(importlib.import_module(module).parse),
            "every look at a path builds a parser anew, half of what the engine does; what is parsed has no state",
        )
        for module in _JSON_PATHS
    ),
)


@functools.cache
def apply_patches() -> None:
    """Apply the list, once per process."""
    default_user_config["stepfunctions"]["execute_state_machine"] = True
    for patch in PATCHES:
        patch.apply()
