"""What every task of the state machine is made of: how a function or job is called, tried again and given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

State: TypeAlias = Mapping[str, Any]
States: TypeAlias = dict[str, State]

# Each is longer than its function's Timeout in template.yaml, so that a slow function says so itself.
FUNCTION_S = 930
LEASE_S = 60
REPORT_S = 150


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
# A crashed attempt bars its repetition for as long as it could still run: 15 minutes.
_FIRST_MAY_RUN = _retry(["IdempotencyAlreadyInProgressError"], interval_s=60, attempts=12, rate=1.5, longest_s=300)
# Glue's throttle of its API has the name of Glue's base exception (platform: vague-lambda-glue-failures), as a missing
# right has: not for long.
_THROTTLED = _retry(["Glue.AWSGlueException"], interval_s=5, attempts=6, longest_s=60)
_NO_CAPACITY = _retry(
    ["Glue.ConcurrentRunsExceededException", "Glue.ResourceNumberLimitExceededException"],
    interval_s=30,
    attempts=10,
    rate=1.5,
    longest_s=300,
)
# Glue reports every failure of a job under this one name: try once more, unless JobRetryLimit says otherwise.
_JOB_FAILED = _retry(["States.TaskFailed"], interval_s=10, attempts="${JobRetryLimit}")


def function_task(
    function: str, payload: Mapping[str, Any], *, comment: str, timeout_s: int, answers: Sequence[str]
) -> State:
    """A task that calls a function, by its folder in functions/, and keeps the fields of its answer that are named.

    It has no ``ResultPath``, ``Catch`` and ``Next`` yet.  A repeated task waits until its first attempt surely ended;
    only ``lease`` does not, because taking a lease twice is the same as once.
    """
    first = () if function == "lease" else (_FIRST_MAY_RUN,)
    selected = {"ResultSelector": {f"{name}.$": f"$.Payload.{name}" for name in answers}} if answers else {}
    return {
        "Type": "Task",
        "Comment": comment,
        "Resource": "arn:aws:states:::lambda:invoke",
        "TimeoutSeconds": timeout_s,
        "Parameters": {"FunctionName": f"${{{camel(function)}Function}}", "Payload": payload},
        **selected,
        "Retry": [_OF_LAMBDA, _KILLED, _PASSING, *first],
    }


def job_task(script: str, operation: str, *, comment: str) -> State:
    """A task that runs a Glue job, by its script in glue_jobs/; no ``ResultPath``, ``Catch`` and ``Next`` yet."""
    return {
        "Type": "Task",
        "Comment": comment,
        "Resource": "arn:aws:states:::glue:startJobRun.sync",
        "TimeoutSeconds": "${JobTaskSeconds}",
        "Parameters": {
            "JobName": f"${{{camel(script)}Job}}",
            "Arguments": {
                "--plan-key.$": "$.plan.key",
                "--plan-digest.$": "$.plan.digest",
                "--operation": operation,
                "--run-id.$": "$.run_id",
                "--control-bucket": "${ControlBucket}",
                "--state": "${State}",
                "--workers": "${GlueWorkers}",
                "--worker-type": "${GlueWorkerType}",
            },
        },
        "ResultSelector": {"status.$": "$.JobRunState"},
        "Retry": [_THROTTLED, _NO_CAPACITY, _JOB_FAILED],
    }


def wave_task(script: str, *, comment: str) -> State:
    """A task that runs a Glue job for many tables, with as many workers as ``$.wave`` says.

    It may wait for capacity, for which its time is longer than that of other jobs (platform: glue-flex-waits).
    """
    return {
        "Type": "Task",
        "Comment": comment,
        "Resource": "arn:aws:states:::glue:startJobRun.sync",
        "TimeoutSeconds": "${WaveTaskSeconds}",
        "Parameters": {
            "JobName": f"${{{camel(script)}Job}}",
            "ExecutionClass": "${WaveExecutionClass}",
            "WorkerType": "G.1X",  # by which the number of workers is reckoned, and which is to be had as FLEX
            "NumberOfWorkers.$": "$.wave.workers",
            "Arguments": {
                "--wave-key.$": "$.wave.key",
                "--wave-digest.$": "$.wave.digest",
                "--run-id.$": "$.run_id",
                "--control-bucket": "${ControlBucket}",
                "--state": "${State}",
                "--workers.$": "States.Format('{}', $.wave.workers)",
                "--execution-class": "${WaveExecutionClass}",
            },
        },
        "ResultSelector": {"status.$": "$.JobRunState"},
        "Retry": [_THROTTLED, _NO_CAPACITY, _JOB_FAILED],
    }


def catch(errors: Sequence[str], *, to: str, into: str) -> State:
    """A catch that goes to the state ``to``, with the error at ``into``, a path in the state's data."""
    return {"ErrorEquals": list(errors), "ResultPath": into, "Next": to}


def given_up(*, to: str, into: str) -> State:
    """The catch of every error that remains after the retries; it comes last."""
    return catch(["States.TaskFailed", "States.Timeout"], to=to, into=into)


def camel(name: str) -> str:
    """``CompactSmall`` of ``compact_small``: as the template and the console name folders, scripts and operations."""
    return "".join(part.title() for part in name.split("_"))
