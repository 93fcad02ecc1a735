"""The control bucket: JSON documents by which functions and jobs hand a pass to each other."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from icekeeper.errors import OperationRefused, PlanStale, StorageError
from icekeeper.machine.foreign_bytes import FileLimits, parsed_json
from icekeeper.pipeline.events import MAX_SENTENCE, Failure, Item, PlanReference, Route
from icekeeper.report.outcome import ListingWriter
from icekeeper.state.store import LAST_MS
from icekeeper.storage.failures import is_missing_bucket
from icekeeper.storage.storage import Storage
from icekeeper.text import masked

# The control bucket: JSON documents that functions and jobs pass to each other by reference, each with its digest.

AnyShape = TypeVar("AnyShape", bound=BaseModel)
Checked = TypeVar("Checked")


class ControlBucket:
    """One bucket, or a local folder in tests; every method raises StorageError when the store fails."""

    def __init__(self, address: str, storage: Storage | None = None) -> None:
        """``address`` is ``s3://BUCKET`` or a folder."""
        self.address = address.rstrip("/")
        self._storage = storage or Storage({})

    @property
    def name(self) -> str:
        """The bucket's name, as Step Functions wants it."""
        return self.address.removeprefix("s3://")

    def write(self, key: str, document: Any) -> str:
        """Write a JSON document, replacing one under that key; returns its SHA-256 in hexadecimal digits."""
        data = _encoded(document)
        try:
            self._storage.write(self._path(key), data)
        except StorageError as error:
            if is_missing_bucket(error):
                raise self._gone() from error
            raise
        return _digest(data)

    def read(self, key: str, digest: str) -> Any:
        """The document under a key, if its SHA-256 is ``digest``.

        Raises:
            OperationRefused: another document is there by now.
        """
        data = self._storage.read(self._path(key))
        if _digest(data) != digest:
            raise OperationRefused(
                f"{self._path(key)} is not the document that this run wrote (its digest differs); start another run"
            )
        return _parse(data, self._path(key))

    def find(self, key: str) -> Any | None:
        """The document under a key, ``None`` when there is none.

        Raises:
            StorageError: it cannot be read, or there is no such bucket (rule: missing-bucket-is-a-failure).
        """
        path = self._path(key)
        try:
            data = self._storage.read(path)
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if is_missing_bucket(error.__cause__):
                raise self._gone() from error
            return None
        return _parse(data, path)

    def find_object(self, key: str, shape: type[BaseModel]) -> Mapping[str, Any] | None:
        """As :meth:`find`, for a JSON object that has at least the fields of ``shape``
        (rule: documents-are-not-trusted).

        Raises:
            StorageError: it has not: somebody changed it.
        """
        found: Mapping[str, Any] | None = self.find(key)
        if found is not None:
            self._checked(key, found, shape)
        return found

    def find_objects(self, key: str, shape: type[AnyShape]) -> list[AnyShape]:
        """The objects of a JSON list; none when there is no document.

        Raises:
            StorageError: as :meth:`find_object`.
        """
        found = self.find(key)
        return [] if found is None else self._checked(key, found, list[shape])  # type: ignore[valid-type]

    def _checked(self, key: str, found: Any, shape: type[Checked]) -> Checked:
        try:
            return TypeAdapter(shape).validate_python(found)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the document"
            raise StorageError(
                f"{self._path(key)} is not as this run wrote it ({where}: {first['msg']}); start another run"
            ) from None

    def find_hint(self, key: str) -> Any | None:
        """As :meth:`find`, for a document that only saves work: ``None`` also when it is no JSON."""
        try:
            return self.find(key)
        except StorageError as error:
            if not isinstance(error.__cause__, ValueError):
                raise
            return None

    def listings(self, folder: str) -> ListingWriter:
        """A writer for lists of files that are too long to stand in an outcome; each becomes a document in a folder."""

        def write(name: str, files: Mapping[str, Sequence[str]]) -> str:
            key = f"{folder}/{name}.files.json"
            self.write(key, {kind: list(paths) for kind, paths in files.items()})
            return self._path(key)

        return write

    def _gone(self) -> StorageError:
        return StorageError(
            f"the control bucket {self.name} does not exist; correct ICEKEEPER_CONTROL_BUCKET, or deploy the stack "
            "again, which makes it"
        )

    def _path(self, key: str) -> str:
        return f"{self.address}/{key}"


def proposals_key(run_id: str) -> str:
    """The key of a run's proposals, which the state machine's map reads."""
    return f"runs/{run_id}/proposals.json"


def report_key(run_id: str) -> str:
    """The key of a run's report; a run that has one has ended."""
    return f"runs/{run_id}/report.json"


def table_folder(run_id: str, spelling: str) -> str:
    """The key prefix of the documents of one table of a run, without the last slash.

    ``spelling`` is the table's :attr:`TableIdentity.spelling`, of which it has one within a run; it is hashed, because
    table names may have characters that keys should not have.
    """
    return f"runs/{run_id}/{hashlib.sha256(spelling.encode()).hexdigest()[:32]}"


def require_of_run(key: str, run_id: str) -> str:
    """The key, if it is that of a document of one of the run's tables (rule: documents-are-not-trusted).

    Raises:
        OperationRefused: it is not: no answer of a state of this run has named it.
    """
    if not re.fullmatch(rf"runs/{re.escape(run_id)}/[0-9a-f]{{32}}/[a-z0-9_-]+\.json", key):
        raise OperationRefused(f"{key!r} is no document of a table of run {run_id}")
    return key


def digest_of(document: Any) -> str:
    """The SHA-256 of a JSON document as it would be written, in hexadecimal digits."""
    return _digest(_encoded(document))


def _encoded(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _parse(data: bytes, path: str) -> Any:
    try:
        return parsed_json(data, FileLimits(path))
    except ValueError as error:
        raise StorageError(f"{path} is no JSON document: {error}") from error


# Why a Glue job failed, as the job itself wrote it into the control bucket.
#
# Glue tells the state machine one error name for every failure and a message of its own making
# (platform: glue-hides-failure-cause): a guard that refused, or a lease that another run took, would look like a crash.

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


# The plan of one table's pass: what every function and job of the pass works by, kept in the control bucket.
#
# A plan holds no pins, staged loads or grace periods.  Every step reads pins and staged loads from the state, when it
# plans and before each batch of deletions (rule: one-object-decides-deletions), and a policy that changed since makes
# the plan stale.  A plan of another version that this one cannot read is stale, too (rule: runs-outlive-upgrades).


class PlannedSchedule(BaseModel):
    """A schedule that the pass carries out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operations: tuple[str, ...]
    interval_ms: int
    fingerprint: str
    """Digest of its settings."""


class PlanDocument(BaseModel):
    """``head_id`` and ``started_ms`` are those from before the pass, also in a plan that was made again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: str
    item: Item
    attempt: int
    requested_ms: int | None = None
    """When the request that the pass serves was filed (epoch milliseconds); ``None``: the pass serves none."""
    started_ms: int
    """What ``now()`` in the policy means for every step of the pass, however late it runs."""
    planned_ms: int
    metadata_location: str
    """The metadata file that was planned on; empty: there is nothing to do, because of ``needless``."""
    needless: str = ""
    """Why the table needs no pass any more."""
    head_id: int | None
    """The snapshot at the head of the maintained branch; ``None`` for an empty branch."""
    fingerprint: str
    """Digest of the policy; a table whose policy changed meanwhile is planned again."""
    environment: Mapping[str, str]
    """The deployment's settings, for jobs."""
    routes: Mapping[str, Route]
    """Where each step runs, by the step's name."""
    outcomes: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Of operations that need no step, because planning found out how they end."""
    compaction: Mapping[str, Any] | None = None
    """What compaction would do, as ``maintain --dry-run --json`` has it."""
    outgrown: tuple[str, ...] = ()
    """The steps that were once too much for a function."""
    left_out: bool = False
    """Whether the run's wave did not get to a step of the pass, so that the table is due again."""
    done: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Outcomes of steps, by name, that the call which planned had carried out when it wrote the plan."""
    schedules: Mapping[str, PlannedSchedule] = Field(default_factory=dict)
    """By name; no two have an operation in common."""

    def schedule_of(self, step: str) -> str | None:
        """The schedule under whose settings a step runs; ``None``: under those of the table."""
        return next((name for name, planned in self.schedules.items() if step in planned.operations), None)


def read_plan(document: Any) -> PlanDocument:
    """Check the JSON document of a plan.

    Raises:
        PlanStale: another version of Icekeeper wrote it, and this one cannot read it: plan again.
    """
    try:
        return PlanDocument.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the plan"
        raise PlanStale(f"the plan was written by another version of Icekeeper: {where}: {first['msg']}") from None


# What the documents must hold that steps of a pass leave for each other in the control bucket
# (rule: documents-are-not-trusted).
#
# Plans and waves are read by their digest.  These are written by one call and found by another that knows only their
# key, so that whoever may write to the bucket may have changed them.


class AnyObject(BaseModel):
    """Any JSON object; fields that are not named here are as they were written."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class EndedPass(AnyObject):
    """How a table's pass ended, as its run's report has it."""

    status: Literal["succeeded", "partial", "failed", "refused", "skipped"]
    summary: str


class EndedStep(AnyObject):
    """The outcome of a step."""

    status: str
    summary: str


class PassPlan(AnyObject):
    """What is read of a pass's first plan by its key alone."""

    started_ms: int = Field(default=0, ge=0, le=LAST_MS)
    head_id: int | None = None
    requested_ms: int | None = Field(default=None, ge=0, le=LAST_MS)
    done: dict[str, EndedStep] = Field(default_factory=dict)


class BegunStep(AnyObject):
    """What the first attempt at a step noted before it began."""

    snapshot_ids: list[int]


class ListedOrphans(AnyObject):
    """What was listed for the removal of orphans."""

    plan: str
    """The digest of the plan under which it was listed."""
    paths: list[str]
    metrics: dict[str, int | float]
    refused: str | None = None
    """Why others stay, of which a person must decide."""


# The documents of one table's pass in the control bucket: its plan, and what each of its steps leaves.
#
# Functions and jobs that carry out one step each find each other's documents there.  A call that carries out a whole
# pass keeps most of them in memory (``kept_pass``).

PLAN = "plan.json"
"""The name of a pass's first plan; plans that are made again have names of their own."""


class PassDocuments(Protocol):
    """Each method raises StorageError when the control bucket does not answer, or the document was changed."""

    def first_plan(self) -> Mapping[str, Any]:
        """The first plan of the pass as JSON, empty when there is none."""
        ...

    def carried_out(self, first: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """The outcomes, by step, that plans hold because the call which planned carried the steps out.

        ``first`` is the first plan.
        """
        ...

    def write_plan(self, document: PlanDocument) -> PlanReference: ...

    def plan(self, reference: PlanReference) -> PlanDocument:
        """The plan that a reference means.

        Raises:
            OperationRefused: it is not the one that was made.
            PlanStale: another version of Icekeeper wrote it, and this one cannot read it.
        """
        ...

    def outcome(self, step: str) -> Mapping[str, Any] | None:
        """What a step that ended has left."""
        ...

    def write_outcome(self, step: str, document: Mapping[str, Any]) -> None: ...

    def begun(self, step: str) -> Mapping[str, Any] | None:
        """What the first attempt at a step noted before it began."""
        ...

    def write_begun(self, step: str, document: Mapping[str, Any]) -> None: ...


class StoredDocuments:
    """:class:`PassDocuments` of which each is an object of the control bucket."""

    def __init__(self, control: ControlBucket, run_id: str, item: Item) -> None:
        self._control, self._after_wave = control, item.after_wave
        self._folder = table_folder(run_id, item.identity.spelling)

    def first_plan(self) -> Mapping[str, Any]:
        return self._found(PLAN, PassPlan) or {}

    def carried_out(self, first: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        plans = [first, *([self._found(_after_wave(PLAN), PassPlan) or {}] if self._after_wave else [])]
        return {step: outcome for plan in plans for step, outcome in plan.get("done", {}).items()}

    def write_plan(self, document: PlanDocument) -> PlanReference:
        reference = self.reference(document)
        self._control.write(reference.key, document.model_dump(mode="json"))
        return reference

    def reference(self, document: PlanDocument) -> PlanReference:
        """What says where a plan is once it is written."""
        # Each attempt has a document of its own: if this answer is lost, the plan that the state machine knows remains.
        name = PLAN if document.attempt == 1 else f"plan-{document.attempt}.json"
        return PlanReference(
            bucket=self._control.name,
            key=f"{self._folder}/{_after_wave(name) if self._after_wave else name}",
            digest=digest_of(document.model_dump(mode="json")),
            attempt=document.attempt,
            routes=dict(document.routes),
            outgrown=document.outgrown,
        )

    def plan(self, reference: PlanReference) -> PlanDocument:
        if reference.key.rpartition("/")[0] != self._folder:
            raise OperationRefused(f"{reference.key!r} is no document of this pass, whose folder is {self._folder}")
        return read_plan(self._control.read(reference.key, reference.digest))

    def outcome(self, step: str) -> Mapping[str, Any] | None:
        return self._found(f"{step}.json", EndedStep)

    def write_outcome(self, step: str, document: Mapping[str, Any]) -> None:
        self._control.write(f"{self._folder}/{step}.json", document)

    def begun(self, step: str) -> Mapping[str, Any] | None:
        return self._found(f"{step}.begun.json", BegunStep)

    def write_begun(self, step: str, document: Mapping[str, Any]) -> None:
        self._control.write(f"{self._folder}/{step}.begun.json", document)

    def _found(self, name: str, shape: type[AnyObject]) -> Mapping[str, Any] | None:
        return self._control.find_object(f"{self._folder}/{name}", shape)


def _after_wave(name: str) -> str:
    return f"after-wave-{name}"
