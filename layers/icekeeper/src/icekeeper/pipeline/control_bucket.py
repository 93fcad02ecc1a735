"""The control bucket: JSON documents with which the functions and jobs of a run pass work to each other."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from icekeeper.errors import OperationRefused, StorageError
from icekeeper.machine.foreign_bytes import FileLimits, parsed_json
from icekeeper.operation_facts import Stage
from icekeeper.pipeline.events import MAX_SENTENCE, Item, Route, RunId
from icekeeper.report.outcome import ListingWriter
from icekeeper.state.requests import LAST_MS
from icekeeper.storage.failures import is_missing_bucket
from icekeeper.storage.storage import Storage
from icekeeper.text import masked

log = logging.getLogger(__name__)

PAGE = "report/index.html"
"""The key of the report page (docs/report.md)."""

AnyShape = TypeVar("AnyShape", bound=BaseModel)
Checked = TypeVar("Checked")


class ControlBucket:
    """The deployment's bucket, or a local folder in tests; every method raises StorageError when the store fails."""

    def __init__(self, address: str, storage: Storage | None = None) -> None:
        """``address`` is ``s3://BUCKET`` or a folder."""
        self.address = address.rstrip("/")
        self._storage = storage or Storage({})

    @property
    def name(self) -> str:
        """The bucket's name, as Step Functions expects it."""
        return self.address.removeprefix("s3://")

    def write(self, key: str, document: Any) -> str:
        """Write a JSON document, replacing any under that key; return its SHA-256 in hexadecimal digits."""
        data = _encoded(document)
        try:
            self._storage.write(self._path(key), data)
        except StorageError as error:
            if is_missing_bucket(error):
                raise self._gone() from error
            raise
        return _digest(data)

    def write_page(self, html: str) -> None:
        """Write the deployment's report page, replacing the previous page."""
        self._storage.write(self._path(PAGE), html.encode())

    def read(self, key: str, digest: str) -> Any:
        """The document under a key, if its SHA-256 is ``digest``.

        Raises:
            OperationRefused: the document has been replaced.
        """
        data = self._storage.read(self._path(key))
        if _digest(data) != digest:
            raise OperationRefused(
                f"{self._path(key)} is not the document that this run wrote (its digest differs); start another run"
            )
        return _parse(data, self._path(key))

    def find(self, key: str) -> Any | None:
        """The document under a key; ``None`` when the key does not exist.

        Raises:
            StorageError: the document cannot be read, or the bucket does not exist.
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

    def find_document(self, key: str, shape: type[AnyShape]) -> AnyShape | None:
        """As :meth:`find`, for a JSON object, as a checked model (rule: documents-are-not-trusted).

        Raises:
            StorageError: also when a field is missing or malformed, because somebody changed the document.
        """
        found = self.find(key)
        return None if found is None else self._checked(key, found, shape)

    def find_objects(self, key: str, shape: type[AnyShape]) -> list[AnyShape]:
        """The objects of a JSON list; an empty list when there is no document.

        Raises:
            StorageError: as :meth:`find_document`.
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
                f"{self._path(key)} was changed after this run wrote it ({where}: {first['msg']}); start another run"
            ) from error

    def find_hint(self, key: str) -> Any | None:
        """As :meth:`find`, for a document that only saves work: also ``None`` when it is not JSON."""
        try:
            return self.find(key)
        except StorageError as error:
            if not is_damaged(error):
                raise
            return None

    def listings(self, folder: str) -> ListingWriter:
        """A writer for file lists that are too long for an outcome; each list becomes a document in a folder."""

        def write(name: str, files: Mapping[str, Sequence[str]]) -> str:
            key = f"{folder}/{name}.files.json"
            self.write(key, {kind: list(paths) for kind, paths in files.items()})
            return self._path(key)

        return write

    def _gone(self) -> StorageError:
        return StorageError(
            f"the control bucket {self.name} does not exist; correct ICEKEEPER_CONTROL_BUCKET, or deploy the stack "
            "again, which creates it"
        )

    def _path(self, key: str) -> str:
        return f"{self.address}/{key}"


def is_damaged(error: StorageError) -> bool:
    """Whether a document was read but is malformed, because somebody changed it."""
    return isinstance(error.__cause__, ValueError)


def proposals_key(run_id: str) -> str:
    """The key of a run's tables: a list of :class:`Item`, which the planning map reads."""
    return f"runs/{run_id}/proposals.json"


def stage_key(run_id: str, stage: Stage) -> str:
    """The key of what a stage of a run has to do: a list of :class:`StageItem`, or the :class:`Work` of a job."""
    return f"runs/{run_id}/{stage.value}.json"


def report_key(run_id: str) -> str:
    """The key of a run's report; a run that has a report has ended."""
    return f"runs/{run_id}/report.json"


def table_folder(run_id: str, spelling: str) -> str:
    """The key prefix of the documents of a table of a run, without the last slash.

    ``spelling`` is the table's :attr:`TableIdentity.spelling`, which stays the same within a run. It is hashed, because
    table names may have characters that keys should not have.
    """
    return f"runs/{run_id}/{hashlib.sha256(spelling.encode()).hexdigest()[:32]}"


def _encoded(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _parse(data: bytes, path: str) -> Any:
    try:
        return parsed_json(data, FileLimits(path))
    except ValueError as error:
        raise StorageError(f"{path} is not a JSON document: {error}") from error


# What the documents hold (rule: documents-are-not-trusted).  Anybody with write access to the bucket may have changed
# them.  So each document is checked when it is read, and no document makes a step do more than the table's own policy
# permits; every step reads that policy again.  The work of a job is read by its digest, because it holds the
# deployment's settings.


class _Document(BaseModel):
    """A JSON object; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class PlanDocument(_Document):
    """What planning found out about a table of a run.

    It holds no pins, staged loads or grace periods. Every step reads pins and staged loads from the state when it plans
    and before each batch of deletions (rule: one-object-decides-deletions). A step does nothing if the policy has
    changed since the table was planned.
    """

    requested_ms: int | None = Field(default=None, ge=0, le=LAST_MS)
    """When the request that the pass serves was filed (epoch milliseconds); ``None``: the pass serves no request."""
    started_ms: int = Field(default=0, ge=0, le=LAST_MS)
    """The beginning of the run, epoch milliseconds, for the journal."""
    needless: str = ""
    """Why the table no longer needs a pass."""
    head_id: int | None = None
    """The snapshot at the head of the maintained branch; ``None`` for an empty branch.  If this pass does not look at
    the files, the snapshot at which a pass last did."""
    looked_ms: int | None = Field(default=None, ge=0, le=LAST_MS)
    """When a pass last looked at the files (epoch milliseconds), if this pass does not."""
    fingerprint: str = ""
    """Digest of the policy."""
    digest: str = ""
    """Digest of the policy and the table's own settings, under which the pass is recorded."""
    routes: Mapping[str, Route] = Field(default_factory=dict)
    """Where each step runs, by the step's name; a step without an entry does not run."""
    outcomes: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """The outcomes of operations whose end planning already knows; they need no step."""
    size_bytes: int = Field(default=0, ge=0)
    """About how many bytes compaction is going to read."""
    sorted_bytes: int = Field(default=0, ge=0)
    """About how many bytes its largest file group has, if compaction runs as a Glue job and sorts rows."""
    manifest_bytes: int = Field(default=0, ge=0)
    """The bytes of the branch's manifests, if a step runs as a Glue job."""


class StageItem(_Document):
    """A table in the list of a stage's map, or of the call that cleans up after failed loads."""

    item: Item
    steps: Mapping[str, Literal["function"]]
    """The steps of this stage, by name: what a choice in the state machine asks for."""


class WorkTable(_Document):
    """A table of a job's work."""

    item: Item
    steps: tuple[str, ...]
    """The steps of its pass that the job carries out, in canonical order."""
    size_bytes: int
    """About how many bytes compaction is going to read."""
    manifest_bytes: int = Field(ge=0)
    """The bytes of its manifests, by which the driver's memory is reckoned."""


class Work(_Document):
    """What a run of a Glue job does; ``tables`` are in the order in which they begin."""

    run_id: RunId
    started_ms: int = Field(ge=0, le=LAST_MS)
    stage: Stage
    tables: tuple[WorkTable, ...]
    workers: int
    """The number of workers of the Glue run, including its driver."""
    environment: Mapping[str, str]
    """The deployment's settings."""


class EndedStep(_Document):
    """The outcome of a step, with all that its operation reports."""

    model_config = ConfigDict(extra="allow")

    status: str
    summary: str


class BegunStep(_Document):
    """What the first attempt at a step recorded before it began."""

    snapshot_ids: list[int]


class StepFailure(_Document):
    """Why the newest attempt at a step, or at planning, raised an error."""

    error: str
    message: str
    requested_ms: int | None = Field(default=None, ge=0, le=LAST_MS)
    """For planning: when the request that the pass was to serve was filed."""


class LeftStep(_Document):
    """Why a step was left to a later run."""

    why: str


class ListedOrphans(_Document):
    """The orphan candidates that ``list_orphans`` found."""

    paths: list[str]
    metrics: dict[str, int | float]
    refused: str | None = None
    """Why other files stay until a person decides about them."""


class EndedPass(_Document):
    """How a table's pass ended."""

    status: Literal["succeeded", "partial", "failed", "refused", "skipped"]
    summary: str


PLAN = "plan"
"""The name of planning among the steps that can fail."""
LISTED_ORPHANS = "list_orphans"


class PassDocuments:
    """The documents of a table's pass, each an object in the control bucket.

    Each method raises StorageError when the bucket does not answer or a document is malformed.
    """

    def __init__(self, control: ControlBucket, run_id: str, item: Item) -> None:
        self.control = control
        self.folder = table_folder(run_id, item.identity.spelling)

    def plan(self) -> PlanDocument | None:
        """``None``: the table is not planned, or planning failed."""
        return self._found(f"{PLAN}.json", PlanDocument)

    def write_plan(self, document: PlanDocument) -> None:
        self.control.write(f"{self.folder}/{PLAN}.json", document.model_dump(mode="json"))

    def outcome(self, step: str) -> Mapping[str, Any] | None:
        """The outcome of a step that ended, as it was written."""
        found = self._found(f"{step}.json", EndedStep)
        return None if found is None else found.model_dump()

    def write_outcome(self, step: str, document: Mapping[str, Any]) -> None:
        self.control.write(f"{self.folder}/{step}.json", document)

    def begun(self, step: str) -> BegunStep | None:
        """What the first attempt at a step recorded before it began; without an outcome, that attempt was
        interrupted."""
        return self._found(f"{step}.begun.json", BegunStep)

    def write_begun(self, step: str, document: BegunStep) -> None:
        self.control.write(f"{self.folder}/{step}.begun.json", document.model_dump(mode="json"))

    def failure(self, step: str) -> StepFailure | None:
        """Why the newest attempt at a step raised an error; meaningless if a later attempt wrote an outcome."""
        return self._found(f"{step}.failure.json", StepFailure)

    def write_failure(self, step: str, error: Exception, requested_ms: int | None = None) -> None:
        """Write why an attempt raised an error; a failure to write is only logged, because it must not hide the
        error."""
        sentence = masked(" ".join(str(error).split()))[:MAX_SENTENCE]
        document = StepFailure(error=type(error).__name__, message=sentence, requested_ms=requested_ms)
        try:
            self.control.write(f"{self.folder}/{step}.failure.json", document.model_dump(mode="json"))
        except StorageError as failure:
            log.warning("cannot write to the control bucket why %s failed: %s", step, failure)

    def left(self, step: str) -> str | None:
        """Why a step was left to a later run."""
        found = self._found(f"{step}.left.json", LeftStep)
        return None if found is None else found.why

    def write_left(self, step: str, why: str) -> None:
        self.control.write(f"{self.folder}/{step}.left.json", LeftStep(why=why).model_dump(mode="json"))

    def listed(self, digest: str) -> ListedOrphans:
        """The orphan candidates, if the list still has the digest with which it was written.

        Raises:
            OperationRefused: the list has been replaced.
        """
        return ListedOrphans.model_validate(self.control.read(f"{self.folder}/{LISTED_ORPHANS}.json", digest))

    def write_listed(self, document: ListedOrphans) -> str:
        """Write the list; return its digest."""
        return self.control.write(f"{self.folder}/{LISTED_ORPHANS}.json", document.model_dump(mode="json"))

    def ended(self) -> EndedPass | None:
        """How the pass ended, once it is reported."""
        return self._found("pass.json", EndedPass)

    def write_ended(self, document: Mapping[str, Any]) -> None:
        self.control.write(f"{self.folder}/pass.json", document)

    def listings(self) -> ListingWriter:
        """A writer for file lists that are too long for an outcome."""
        return self.control.listings(self.folder)

    def _found(self, name: str, shape: type[AnyShape]) -> AnyShape | None:
        return self.control.find_document(f"{self.folder}/{name}", shape)


# Steps that a function once could not finish, by table; from then on plans send them to a Glue job.
#
# A plan chooses by what is known beforehand: the bytes and files that the table refers to.  How many files must be
# listed, or how long rows take to sort, only shows when the step runs; a step that failed for this reason must not fail
# on every pass.


def outgrown_steps(control: ControlBucket, item: Item) -> frozenset[str]:
    """The steps of a table that a function could not finish; the record expires with the runs' documents, after 90
    days.

    Raises:
        StorageError: the control bucket does not answer.
    """
    found = control.find_hint(_outgrown_key(item))
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


def note_outgrown(control: ControlBucket, item: Item, steps: Set[str]) -> None:
    """Record steps that a function began but could not end, because it ran out of time or memory.

    A failure to write is only logged; the next pass then finds it out again.
    """
    if not steps:
        return
    try:
        control.write(_outgrown_key(item), sorted(steps | outgrown_steps(control, item)))
    except StorageError as error:
        log.warning("%s: cannot record that %s exceeds what a function can do: %s", item.table, ", ".join(steps), error)


def _outgrown_key(item: Item) -> str:
    return f"{table_folder('outgrown', item.identity.spelling)}.json"
