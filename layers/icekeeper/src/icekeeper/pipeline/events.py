"""The events that functions and jobs get, as checked models, within the limits of payloads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from icekeeper.errors import PolicyError
from icekeeper.model import TableName
from icekeeper.policy import Operation
from icekeeper.policy.keys import Scope, refuse_meaningless
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import MAX_SETTINGS, requested_table

# What fits into the payloads of the state machine, of which each holds 256 KB (platform: step-functions-payload-limit).
# Pure.


def fits_payloads(settings: Mapping[str, str]) -> bool:
    """Whether these settings of a table leave enough room in the payloads of its states, each of which repeats them.

    A single item that is too long ends the whole Distributed Map, and so every run that proposes it.
    """
    return len(json.dumps(dict(settings))) <= MAX_SETTINGS


# The events that functions and jobs get, as checked models: an unknown or malformed field is a PolicyError.
#
# The state machine (``functions/maintain_tables.asl.yaml``) builds these; people write :class:`MachineInput` in the
# Step Functions console.  A run keeps the definition that it began with, so events of the version before must be
# understood too: a new field has a default, and no field goes (rule: runs-outlive-upgrades).

Route = Literal["none", "function", "glue", "wave"]
WAITING = "waiting"
"""The status of a table's execution that ended because the rest of its pass follows the run's wave."""
MAX_SENTENCE = 500
"""How many characters of a sentence travel through the state machine."""


def _run_id(value: str) -> str:
    if value in (".", "..") or not re.fullmatch(r"[^\x00-\x20\x7f-\x9f/\\]{1,80}", value):
        raise ValueError("write 1 to 80 characters without space, slash or backslash, and not dots alone: keys hold it")
    return value


RunId: TypeAlias = Annotated[str, AfterValidator(_run_id)]
"""The name of the run's execution, which the one who starts it may choose (platform: execution-names)."""


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MachineInput(_Event):
    """The input of the state machine: ``{}`` scans the fleet, a table forces one pass.

    Operations and settings hold for every pass of the run, except for passes that were requested with their own.
    """

    table: str | None = None
    catalog: str | None = None
    """Name or warehouse of the table's catalog; may be left out where the deployment has only one."""
    operations: str | None = None
    settings: Mapping[str, str] = Field(default_factory=dict)
    """As ``--set``, for the passes of this run only."""
    wait: bool = False
    """Whether to wait while another run maintains the table, rather than be refused."""
    schedule: str | None = None
    """The schedule of the table's policy that runs, due or not; without one, what is due does."""
    in_job: bool = False
    """Whether operations that have a Glue job run there, however small the table is."""

    @field_validator("table")
    @classmethod
    def _is_a_table(cls, value: str | None) -> str | None:
        if value is not None:
            requested_table(value)
        return value

    @model_validator(mode="after")
    def _can_be_carried_out(self) -> Self:
        for text in (self.catalog, self.schedule, *self.overrides, *self.overrides.values()):
            (text or "").encode()  # a lone surrogate fits no key; its error is a ValueError
        if not fits_payloads(self.overrides):
            raise ValueError(f"settings are longer than {MAX_SETTINGS} bytes, which no payload has room for")
        if self.table is None and self.catalog is not None:
            raise ValueError("a catalog is named, but no table in it; name both, or neither to scan the fleet")
        if self.table is None and self.in_job:
            raise ValueError("in_job is for a run over one table: name it")
        if self.table is None and self.schedule is not None:
            raise ValueError("a schedule is named, but no table that has it; a scan runs every schedule that is due")
        try:
            refuse_meaningless(self.settings, Scope.SCAN if self.table is None else Scope.TABLE)
        except PolicyError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def overrides(self) -> dict[str, str]:
        """The settings, with ``operations`` as one of them."""
        return {**self.settings, **({} if self.operations is None else {"operations": self.operations})}


class DetectEvent(_Event):
    """Find the tables of one run; ``run_id`` is the name of the execution."""

    run_id: RunId
    input: MachineInput


class Item(_Event):
    """One table of a run, as every state of its pass gets it."""

    catalog: str
    warehouse: str
    table: str
    uuid: str
    location: str
    """The table's location, normalised."""
    reasons: tuple[str, ...] = ()
    priority: float = 0.0
    forced: bool = False
    settings: Mapping[str, str] = Field(default_factory=dict)
    wait: bool = False
    in_job: bool = False
    schedules: tuple[str, ...] = ()
    """The schedules of its policy that the pass carries out."""
    only_schedules: bool = False
    """Whether the operations that no schedule names are left out."""
    after_wave: bool = False
    """Whether the run's wave has had its turn: what follows is the rest of the table's pass."""
    detected_ms: int | None = None
    """When the scheduled detection began that proposed the table; ``None`` for a run that was asked for one table."""

    @model_validator(mode="after")
    def _fits_keys(self) -> Self:
        # A lone surrogate fits no key; its error is a ValueError, as that of a name without a dot.
        f"{self.identity.spelling}{self.location}".encode()
        return self

    @property
    def is_scheduled(self) -> bool:
        """Whether its pass counts towards ``max_concurrent_jobs``."""
        return self.detected_ms is not None

    @property
    def is_proposed(self) -> bool:
        """Whether nobody asked for its pass but detection."""
        return self.is_scheduled and not self.forced

    @property
    def name(self) -> TableName:
        return TableName.parse(self.table)

    @property
    def identity(self) -> TableIdentity:
        return TableIdentity(self.catalog, self.warehouse, self.name, self.uuid, self.location)


class LeaseEvent(_Event):
    """Take or give back a table's lease."""

    action: Literal["acquire", "release"]
    run_id: RunId
    item: Item


class Failure(BaseModel):
    """What Step Functions says about a task that failed."""

    model_config = ConfigDict(frozen=True)

    Error: str = "Unknown"
    Cause: str = ""

    @property
    def sentence(self) -> str:
        """Error and message in one line; the message is taken out of the JSON that Lambda and Glue give as cause."""
        try:
            cause = json.loads(self.Cause)
            message = cause.get("errorMessage") or cause.get("ErrorMessage") or self.Cause
        except (ValueError, AttributeError):
            message = self.Cause
        return f"{self.Error}: {' '.join(str(message).split())}".removesuffix(": ")


class PlanEvent(_Event):
    """Plan one table; ``attempt`` counts from 1."""

    run_id: RunId
    item: Item
    attempt: int = Field(default=1, ge=1)
    waves: bool = False
    """Whether the state machine that asks knows waves; one of an earlier version, whose run is under way, does not."""
    call: Failure | None = None
    """How the call ended that was to carry out as much of the pass as it could, where it failed."""


class PlanReference(_Event):
    """Where a plan is: never its content, which may be of any size (a Step Functions payload holds 256 KB)."""

    bucket: str
    key: str
    digest: str
    """SHA-256 of the document, in hexadecimal digits."""
    attempt: int = 1
    routes: Mapping[str, Route] = Field(default_factory=dict)
    outgrown: tuple[str, ...] = Field(default=(), exclude=True)
    """The steps that were too much for a function; known where the plan was made, and told to nobody else."""


class OperationEvent(_Event):
    """Run one operation of a planned pass."""

    run_id: RunId
    item: Item
    plan: PlanReference
    operation: Operation | Literal["clean_staged"]

    @property
    def step(self) -> str:
        """The name of the operation, which is part of the keys of its documents in the control bucket."""
        return str(self.operation.value) if isinstance(self.operation, Operation) else self.operation


class ReportTableEvent(_Event):
    """Gather the outcomes of one table's pass."""

    run_id: RunId
    item: Item
    plan: PlanReference | None = None
    failures: Mapping[str, Failure] = Field(default_factory=dict)


class TableResult(BaseModel):
    """How one table of a run ended."""

    model_config = ConfigDict(frozen=True)

    table: str
    status: Literal["succeeded", "partial", "failed", "refused", "skipped"]
    summary: str = ""


class ReportRunEvent(_Event):
    """Gather the tables of a run, and end it; ``tables`` is the output of the state machine's Distributed Map.

    For a child execution that failed, that output has no result: AWS puts the execution's description there (Step
    Functions Developer Guide, "ResultWriter": "returns its execution result unchanged"), emulators nothing or ``null``.
    """

    run_id: RunId
    tables: tuple[TableResult, ...] = ()
    earlier: tuple[TableResult, ...] = ()
    """Of the passes that had ended before the run's wave began; ``tables`` are then those of the wave."""
    in_one_call: tuple[TableResult, ...] = ()
    """Of the passes that were carried out in one call each."""
    failure: Failure | None = None

    @field_validator("tables", "earlier", "in_one_call", mode="before")
    @classmethod
    def _of_children(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        results = (_failed_child(child) if _is_description(child) else child for child in value)
        return [result for result in results if result is not None and not _is_waiting(result)]


def _is_waiting(child: Any) -> bool:
    """Whether it is no result yet; the table's report, or that there is none, says how its pass ended."""
    return isinstance(child, Mapping) and child.get("status") == WAITING


def _is_description(child: Any) -> bool:
    """Whether an entry of the Map's output is AWS's description of an execution, and not the execution's result."""
    return isinstance(child, Mapping) and "Status" in child and "status" not in child


def _failed_child(child: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The result for a table whose execution failed; ``None`` where the description does not tell the table's name."""
    try:
        sent = json.loads(child.get("Input", "null"))
        table = sent["item"]["table"]
    except (ValueError, TypeError, KeyError):
        return None
    told = f"its execution ended as {child['Status']}: {child.get('Error', '')}: {child.get('Cause', '')}"
    return {"table": table, "status": "failed", "summary": " ".join(told.split())[:MAX_SENTENCE].rstrip(": ")}


AnyEvent = TypeVar("AnyEvent", bound=BaseModel)


def parse_event(model: type[AnyEvent], event: Any) -> AnyEvent:
    """The event as a checked model.

    Raises:
        PolicyError: it is malformed; the message names the field.
    """
    try:
        return model.model_validate(event)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the event"
        raise PolicyError(f"malformed event: {where}: {first['msg'].removeprefix('Value error, ')}") from None
