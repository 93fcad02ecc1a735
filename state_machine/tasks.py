"""The parts of every task of the state machine: the call of a function or job, its retries, and its catch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from icekeeper.operation_facts import FUNCTIONS, STEP_FACTS, Stage, operations_of_job

State: TypeAlias = Mapping[str, Any]
States: TypeAlias = dict[str, State]

FUNCTION_S = 930
"""Longer than any function's Timeout in template.yaml, so that a slow function reports its own timeout."""


def _retry(
    errors: Sequence[str], *, interval_s: int, attempts: int | str, rate: float = 2, longest_s: int | None = None
) -> State:
    """Tries again after ``interval_s``, then ``rate`` times as long, at most ``longest_s``, with full jitter.

    ``attempts`` may be a substitution of template.yaml.
    """
    return {
        "ErrorEquals": list(errors),
        "IntervalSeconds": interval_s,
        "MaxAttempts": attempts,
        "BackoffRate": rate,
        **({} if longest_s is None else {"MaxDelaySeconds": longest_s}),
        "JitterStrategy": "FULL",
    }


_OF_LAMBDA = _retry(
    [
        "Lambda.ServiceException",
        "Lambda.AWSLambdaException",
        "Lambda.SdkClientException",
        "Lambda.TooManyRequestsException",
        "Lambda.ClientExecutionTimeoutException",
    ],
    interval_s=2,
    attempts=4,
)
# The process was killed, most likely for lack of memory or time (platform: vague-lambda-glue-failures): try once more.
_KILLED = _retry(["Runtime.ExitError", "Runtime.OutOfMemory", "Lambda.Unknown"], interval_s=10, attempts=1)
_PASSING = _retry(["StorageError", "CommitConflict", "CommitStateUnknown"], interval_s=2, attempts=3)
# A crashed attempt blocks its repetition for as long as it could still run: 15 minutes.
_FIRST_MAY_RUN = _retry(["IdempotencyAlreadyInProgressError"], interval_s=60, attempts=12, rate=1.5, longest_s=300)
# Glue reports throttling of its API under its base exception (platform: vague-lambda-glue-failures), as it does a
# missing right: so do not retry for long.
_THROTTLED = _retry(["Glue.AWSGlueException"], interval_s=5, attempts=6, longest_s=60)
_NO_CAPACITY = _retry(
    ["Glue.ConcurrentRunsExceededException", "Glue.ResourceNumberLimitExceededException"],
    interval_s=30,
    attempts=10,
    rate=1.5,
    longest_s=300,
)
# Glue reports every failure of a job under this name.
_JOB_FAILED = _retry(["States.TaskFailed"], interval_s=10, attempts=1)


# Another run has the table, and this run waits for it; or the maximum number of tables is being maintained.  The
# interval does not grow: 960 times 30 s are eight hours of the machine's twelve.
_BUSY: State = {"ErrorEquals": ["TableBusy", "FleetBusy"], "IntervalSeconds": 30, "MaxAttempts": 960, "BackoffRate": 1}


def function_task(step: str, payload: Mapping[str, Any], *, comment: str, waits: bool = False) -> State:
    """A task that calls the function of a step; a retry waits until the first attempt has surely ended.

    It has no ``ResultPath``, ``Catch`` and ``Next`` yet.  ``waits``: it takes a table's lease, and may have to
    wait for it.
    """
    return {
        "Type": "Task",
        "Comment": comment,
        "Resource": "arn:aws:states:::lambda:invoke",
        "TimeoutSeconds": FUNCTION_S,
        "Parameters": {"FunctionName": f"${{{camel(FUNCTIONS[step])}Function}}", "Payload": {"step": step, **payload}},
        "Retry": [_OF_LAMBDA, _KILLED, _PASSING, _FIRST_MAY_RUN, *([_BUSY] if waits else [])],
    }


def job_task(script: str, stage: Stage) -> State:
    """A task that runs a Glue job, by its script in glue_jobs/, over all tables of a stage; as :func:`function_task`.

    It may wait for capacity (platform: glue-flex-waits), so its time limit is longer than the job's.
    """
    of = f"$.stages.{stage.value}"
    return {
        "Type": "Task",
        "Comment": description_of(str(operation) for operation in operations_of_job(script)),
        "Resource": "arn:aws:states:::glue:startJobRun.sync",
        "TimeoutSeconds": "${JobTaskSeconds}",
        "Parameters": {
            "JobName": f"${{{camel(script)}Job}}",
            "ExecutionClass.$": f"{of}.execution_class",
            "WorkerType.$": f"{of}.worker_type",
            "NumberOfWorkers.$": f"{of}.workers",
            "Arguments": {
                "--work-key.$": f"{of}.key",
                "--work-digest.$": f"{of}.digest",
                "--run-id.$": "$.run_id",
                "--control-bucket": "${ControlBucket}",
                "--state": "${State}",
            },
        },
        "Retry": [_THROTTLED, _NO_CAPACITY, _JOB_FAILED],
    }


def description_of(steps: Iterable[str]) -> str:
    """What the steps do, in canonical order, as one sentence."""
    wanted = set(steps)
    first, *others = (facts.description for facts in STEP_FACTS if facts.name in wanted)
    return "; ".join([first, *(other[0].lower() + other[1:] for other in others)])


def catch(errors: Sequence[str], *, to: str, into: str | None) -> State:
    """A catch that goes to the state ``to``, with the error at ``into``, a path in the state's data, or nowhere."""
    return {"ErrorEquals": list(errors), "ResultPath": into, "Next": to}


def given_up(*, to: str, into: str | None = None) -> State:
    """The catch of every error that remains after the retries."""
    return catch(["States.TaskFailed", "States.Timeout"], to=to, into=into)


def camel(name: str) -> str:
    """``CompactDataFiles`` of ``compact_data_files``: as template and console name functions, jobs and steps."""
    return "".join(part.title() for part in name.split("_"))
