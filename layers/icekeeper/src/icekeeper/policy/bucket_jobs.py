"""Whether a table bucket's own maintenance, which is switched on, really works on a table (rule 140, platform 58).

Source: Amazon S3 user guide, "S3 Tables maintenance job status" and "Considerations and limitations for maintenance
jobs"; Amazon S3 API reference, "TableMaintenanceJobStatusValue".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from icekeeper.operation_facts import BuiltIn

__all__ = ["BucketJobs", "Job", "JobStatus", "lasting_failure", "stands_still"]

# Parts of the messages of failures that last for as long as the table is as it is.  All others may pass: time limits,
# conflicts, missing keys, internal errors.  gc.enabled=false lasts too, but forbids our own deletions likewise.
_LASTING: Mapping[BuiltIn, tuple[str, ...]] = {
    BuiltIn.SNAPSHOT_MANAGEMENT: ("user defined tags or references", "history.expire."),
}


class JobStatus(StrEnum):
    """How the last run of one of the bucket's own operations on a table ended, in the words of the S3 Tables API."""

    NOT_YET_RUN = "Not_Yet_Run"
    SUCCESSFUL = "Successful"
    FAILED = "Failed"
    DISABLED = "Disabled"


@dataclass(frozen=True, slots=True)
class Job:
    """The last run of one of the bucket's own operations on a table."""

    status: str
    """A :class:`JobStatus`, or a word that came later, which means nothing here."""
    message: str = ""
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class BucketJobs:
    """The last runs of the bucket's own operations on one table, as far as they are known."""

    jobs: Mapping[BuiltIn, Job] = field(default_factory=dict)
    unreadable: str = ""
    """Why they are not known."""


def lasting_failure(built_in: BuiltIn, job: Job | None) -> str | None:
    """The message of a failure that will last, so that the bucket does not do this for the table; else ``None``."""
    if job is None or job.status != JobStatus.FAILED:
        return None
    said = job.message.lower()
    return job.message if any(part in said for part in _LASTING.get(built_in, ())) else None


def stands_still(built_in: BuiltIn, job: Job | None) -> bool:
    """Whether the bucket does not do this for the table, although it is switched on."""
    return job is not None and (job.status == JobStatus.DISABLED or lasting_failure(built_in, job) is not None)
