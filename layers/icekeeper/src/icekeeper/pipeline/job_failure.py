"""Why a Glue job failed, as the job itself wrote it into the control bucket.

Glue tells the state machine one error name for every failure and a message of its own making (platform 54): a guard
that refused, or a lease that another run took, would look like a crash.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from icekeeper.errors import StorageError
from icekeeper.pipeline.control_bucket import ControlBucket
from icekeeper.pipeline.events import MAX_SENTENCE, Failure, Route
from icekeeper.text import masked

__all__ = ["told_by_jobs", "write_job_failure"]

log = logging.getLogger(__name__)

_FAILED = "States.TaskFailed"


def write_job_failure(control: ControlBucket, folder: str, step: str, error: Exception, *, job_run: str | None) -> None:
    """Write why a run of a job failed into a table's folder of documents; a failure to write is only logged."""
    sentence = masked(" ".join(str(error).split()))[:MAX_SENTENCE]
    document = {"error": type(error).__name__, "message": sentence, "job_run": job_run}
    try:
        control.write(_key(folder, step), document)
    except StorageError as failure:
        log.warning("why %s failed cannot be written to the control bucket: %s", step, failure)


def told_by_jobs(
    control: ControlBucket, folder: str, routes: Mapping[str, Route], failures: Mapping[str, Failure]
) -> dict[str, Failure]:
    """The failures of a pass, those of Glue jobs in the jobs' own words where the same job run has left any.

    Raises:
        StorageError: the control bucket does not answer.
    """
    told = dict(failures)
    for step, failure in failures.items():
        if failure.Error != _FAILED or routes.get(step) != "glue":
            continue
        left = control.find_hint(_key(folder, step))
        if isinstance(left, Mapping) and _is_of(left.get("job_run"), failure):
            message = {"errorMessage": str(left.get("message", ""))}
            told[step] = Failure(Error=str(left.get("error", _FAILED)), Cause=json.dumps(message))
    return told


def _is_of(job_run: object, failure: Failure) -> bool:
    """Whether the job run that left a document is the one that Glue says failed: an earlier one says nothing of it."""
    try:
        named = json.loads(failure.Cause).get("Id")
    except (ValueError, AttributeError):
        named = None
    return job_run is None or named is None or job_run == named


def _key(folder: str, step: str) -> str:
    return f"{folder}/{step}.failure.json"
