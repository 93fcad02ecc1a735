"""The control bucket: JSON documents by which the functions and jobs of a run hand their work to each other."""

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

    def write_page(self, html: str) -> None:
        """Write the report page of the deployment, replacing the last one."""
        self._storage.write(self._path(PAGE), html.encode())

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
            StorageError: it cannot be read, or there is no such bucket.
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

    def find_document(self, key: str, shape: type[AnyShape]) -> AnyShape | None:
        """As :meth:`find_object`, as a checked model."""
        found = self.find(key)
        return None if found is None else self._checked(key, found, shape)

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
            ) from error

    def find_hint(self, key: str) -> Any | None:
        """As :meth:`find`, for a document that only saves work: ``None`` also when it is no JSON."""
        try:
            return self.find(key)
        except StorageError as error:
            if not is_damaged(error):
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


def is_damaged(error: StorageError) -> bool:
    """Whether a document could be read, but somebody changed it so that it is none."""
    return isinstance(error.__cause__, ValueError)


def proposals_key(run_id: str) -> str:
    """The key of a run's tables, a list of :class:`Item`, which the map that plans them reads."""
    return f"runs/{run_id}/proposals.json"


def stage_key(run_id: str, stage: Stage) -> str:
    """The key of what a stage of a run has to do: a list of :class:`StageItem`, or the :class:`Work` of a job."""
    return f"runs/{run_id}/{stage.value}.json"


def report_key(run_id: str) -> str:
    """The key of a run's report; a run that has one has ended."""
    return f"runs/{run_id}/report.json"


def table_folder(run_id: str, spelling: str) -> str:
    """The key prefix of the documents of one table of a run, without the last slash.

    ``spelling`` is the table's :attr:`TableIdentity.spelling`, of which it has one within a run; it is hashed, because
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
        raise StorageError(f"{path} is no JSON document: {error}") from error


# What the documents hold (rule: documents-are-not-trusted): whoever may write to the bucket may have changed them, so
# each is checked when it is read, and none can make a step do more than the table's own policy, which every step reads
# anew.  The work of a job is read by its digest, because it holds the deployment's settings.


class _Document(BaseModel):
    """A JSON object; fields that are not named here are as they were written."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class PlanDocument(_Document):
    """What planning found out about one table of a run.

    It holds no pins, staged loads or grace periods.  Every step reads pins and staged loads from the state, when it
    plans and before each batch of deletions (rule: one-object-decides-deletions); a step does nothing under a policy
    that changed since the table was planned.
    """

    requested_ms: int | None = Field(default=None, ge=0, le=LAST_MS)
    """When the request that the pass serves was filed (epoch milliseconds); ``None``: the pass serves none."""
    started_ms: int = Field(default=0, ge=0, le=LAST_MS)
    """The beginning of the run, epoch milliseconds, for the journal."""
    needless: str = ""
    """Why the table needs no pass any more."""
    head_id: int | None = None
    """The snapshot at the head of the maintained branch; ``None`` for an empty branch.  If files are not looked at, the
    one at which they were looked at last."""
    looked_ms: int | None = Field(default=None, ge=0, le=LAST_MS)
    """If files are not looked at: when they were last."""
    fingerprint: str = ""
    """Digest of the policy."""
    digest: str = ""
    """Digest of the policy and the table's own settings, under which the pass is recorded."""
    routes: Mapping[str, Route] = Field(default_factory=dict)
    """Where each step runs, by the step's name; a step that is not named does not run."""
    outcomes: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Of operations that need no step, because planning found out how they end."""
    size_bytes: int = Field(default=0, ge=0)
    """About how many bytes compaction is going to read."""


class StageItem(_Document):
    """A table in the list of a stage's map, or of the call that cleans up after failed loads."""

    item: Item
    steps: Mapping[str, Literal["function"]]
    """The steps of this stage, by name: what a choice in the state machine asks for."""


class WorkTable(_Document):
    """A table of a job's work."""

    item: Item
    steps: tuple[str, ...]
    """What the job does of its pass, in canonical order."""
    size_bytes: int
    """About how many bytes compaction is going to read."""


class Work(_Document):
    """What one run of a Glue job does; ``tables`` are in the order in which they begin."""

    run_id: RunId
    started_ms: int = Field(ge=0, le=LAST_MS)
    stage: Stage
    tables: tuple[WorkTable, ...]
    workers: int
    """Of the Glue run, its driver included."""
    environment: Mapping[str, str]
    """The deployment's settings."""


class EndedStep(_Document):
    """The outcome of a step."""

    status: str
    summary: str


class BegunStep(_Document):
    """What the first attempt at a step noted before it began."""

    snapshot_ids: list[int]


class StepFailure(_Document):
    """Why the newest attempt at a step, or at planning, raised."""

    error: str
    message: str
    requested_ms: int | None = Field(default=None, ge=0, le=LAST_MS)
    """Of planning: when the request was filed that the pass was to serve."""


class LeftStep(_Document):
    """Why a step was left to a later run."""

    why: str


class ListedOrphans(_Document):
    """What was listed for the removal of orphans."""

    paths: list[str]
    metrics: dict[str, int | float]
    refused: str | None = None
    """Why others stay, of which a person must decide."""


class EndedPass(_Document):
    """How a table's pass ended."""

    status: Literal["succeeded", "partial", "failed", "refused", "skipped"]
    summary: str


PLAN = "plan"
"""The name of planning among the steps that can fail."""
LISTED_ORPHANS = "list_orphans"


class PassDocuments:
    """The documents of one table's pass, of which each is an object of the control bucket.

    Each method raises StorageError when the bucket does not answer, or a document was changed so that it is none.
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
        """What a step that ended has left, as it was written."""
        return self.control.find_object(f"{self.folder}/{step}.json", EndedStep)

    def write_outcome(self, step: str, document: Mapping[str, Any]) -> None:
        self.control.write(f"{self.folder}/{step}.json", document)

    def begun(self, step: str) -> BegunStep | None:
        """What the first attempt at a step noted before it began; with no outcome behind it, it was broken off."""
        return self._found(f"{step}.begun.json", BegunStep)

    def write_begun(self, step: str, document: BegunStep) -> None:
        self.control.write(f"{self.folder}/{step}.begun.json", document.model_dump(mode="json"))

    def failure(self, step: str) -> StepFailure | None:
        """Why the newest attempt at a step raised; it says nothing where a later attempt left an outcome."""
        return self._found(f"{step}.failure.json", StepFailure)

    def write_failure(self, step: str, error: Exception, requested_ms: int | None = None) -> None:
        """Write why an attempt raised; a failure to write is only logged, for it must not hide the error."""
        sentence = masked(" ".join(str(error).split()))[:MAX_SENTENCE]
        document = StepFailure(error=type(error).__name__, message=sentence, requested_ms=requested_ms)
        try:
            self.control.write(f"{self.folder}/{step}.failure.json", document.model_dump(mode="json"))
        except StorageError as failure:
            log.warning("why %s failed cannot be written to the control bucket: %s", step, failure)

    def left(self, step: str) -> str | None:
        """Why a step was left to a later run."""
        found = self._found(f"{step}.left.json", LeftStep)
        return None if found is None else found.why

    def write_left(self, step: str, why: str) -> None:
        self.control.write(f"{self.folder}/{step}.left.json", LeftStep(why=why).model_dump(mode="json"))

    def listed(self, digest: str) -> ListedOrphans:
        """What was listed, by the digest that the list had when it was written.

        Raises:
            OperationRefused: it is another list by now.
        """
        return ListedOrphans.model_validate(self.control.read(f"{self.folder}/{LISTED_ORPHANS}.json", digest))

    def write_listed(self, document: ListedOrphans) -> str:
        """Write the list; its digest."""
        return self.control.write(f"{self.folder}/{LISTED_ORPHANS}.json", document.model_dump(mode="json"))

    def ended(self) -> EndedPass | None:
        """How the pass ended, once it is reported."""
        return self._found("pass.json", EndedPass)

    def write_ended(self, document: Mapping[str, Any]) -> None:
        self.control.write(f"{self.folder}/pass.json", document)

    def listings(self) -> ListingWriter:
        """A writer for lists of files that are too long to stand in an outcome."""
        return self.control.listings(self.folder)

    def _found(self, name: str, shape: type[AnyShape]) -> AnyShape | None:
        return self.control.find_document(f"{self.folder}/{name}", shape)


# Steps that were once too much for a function, by table; plans send them to a Glue job from then on.
#
# A plan chooses by what is known beforehand: the bytes and files that the table refers to.  How many files must be
# listed, or how long rows take to sort, only shows when the step runs; a step that failed so must not fail every time.


def outgrown_steps(control: ControlBucket, item: Item) -> frozenset[str]:
    """The steps of a table that a function could not finish; forgotten with the runs' documents, after 90 days.

    Raises:
        StorageError: the control bucket does not answer.
    """
    found = control.find_hint(_outgrown_key(item))
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


def note_outgrown(control: ControlBucket, item: Item, steps: Set[str]) -> None:
    """Record steps that a function began and did not end: it ran out of time or memory.

    A failure to write is only logged: the next pass then finds it out again.
    """
    if not steps:
        return
    try:
        control.write(_outgrown_key(item), sorted(steps | outgrown_steps(control, item)))
    except StorageError as error:
        log.warning("%s: that %s is too much for a function was not noted: %s", item.table, ", ".join(steps), error)


def _outgrown_key(item: Item) -> str:
    return f"{table_folder('outgrown', item.identity.spelling)}.json"
