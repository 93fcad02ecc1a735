"""The events that functions receive, as validated models within the payload limits."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from icekeeper.errors import PolicyError, StepRefused
from icekeeper.model import CatalogId, TableName
from icekeeper.operation_facts import Stage
from icekeeper.policy.keys import Scope, refuse_meaningless
from icekeeper.policy.policy_file import check_patterns
from icekeeper.policy.values import TextList
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import LAST_MS, MAX_SETTINGS, requested_table

# The events as validated models: an unknown or malformed field raises PolicyError.
#
# The state machine (``functions/maintain_tables.asl.yaml``) builds these; people write :class:`MachineInput` in the
# Step Functions console. A run keeps the definition with which it began, so the functions of the next version must
# understand these events too: a new field has a default, and no field is removed.

Route = Literal["none", "function", "glue"]
MAX_PATTERNS = 100
"""The most patterns in an input; each is compared with every table name of the fleet."""
MAX_SENTENCE = 500
"""The most characters of a message that the state machine passes on."""


def _run_id(value: str) -> str:
    if value in (".", "..") or not re.fullmatch(r"[^\x00-\x20\x7f-\x9f/\\]{1,80}", value):
        raise ValueError(
            "write 1 to 80 characters without space, slash or backslash, and not only dots: keys contain it"
        )
    return value


RunId: TypeAlias = Annotated[str, AfterValidator(_run_id)]
"""The name of the run's execution; the caller that starts the run may choose it (platform: execution-names)."""


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MachineInput(_Event):
    """The input of the state machine: ``{}`` scans the fleet, ``tables`` a part of it; ``table`` forces one pass.

    Operations and settings apply to every pass of the run, except to requested passes that have settings of their own.
    """

    table: str | None = None
    tables: Annotated[TextList, Field(max_length=MAX_PATTERNS)] | None = None
    """Patterns of the tables that a scan may maintain."""
    catalog: str | None = None
    """Name or warehouse of the table's catalog; optional if the deployment has only one catalog."""
    operations: str | None = None
    settings: Mapping[str, str] = Field(default_factory=dict)
    """Settings for the passes of this run only."""
    wait: bool = False
    """Whether to wait while another run maintains the table; without it the run is refused."""
    in_job: bool = False
    """Whether operations that have a Glue job run in it even for a small table."""

    @field_validator("table")
    @classmethod
    def _is_a_table(cls, value: str | None) -> str | None:
        if value is not None:
            requested_table(value)
        return value

    @model_validator(mode="after")
    def _can_be_carried_out(self) -> Self:
        for text in (self.catalog, *self.patterns, *self.overrides, *self.overrides.values()):
            (text or "").encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError: no key can hold it
        # Each state of a table repeats its settings, and a payload holds 256 KB.  A single item that is too long ends
        # the whole Distributed Map, and with it every run that proposes the table.
        if len(json.dumps(self.overrides)) > MAX_SETTINGS:
            raise ValueError(f"settings are longer than {MAX_SETTINGS} bytes and do not fit into a payload")
        if self.table is None and self.catalog is not None:
            raise ValueError("catalog is set, but table is not; set both, or neither to scan the fleet")
        for name in ("wait", "in_job") if self.table is None else ():
            if getattr(self, name):
                raise ValueError(f"{name} is for a run over one table; set table")
        if self.tables is not None and self.table is not None:
            raise ValueError("table names one table and tables holds the patterns of a scan; set only one of them")
        if self.tables is not None and not self.tables:
            raise ValueError("tables is empty; leave it out to scan the whole fleet")
        try:
            check_patterns(self.patterns)
            refuse_meaningless(self.settings, Scope.SCAN if self.table is None else Scope.TABLE)
        except PolicyError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of ``tables``; empty for the whole fleet or a single table."""
        return self.tables or ()

    @property
    def overrides(self) -> dict[str, str]:
        """The settings, including ``operations``."""
        return {**self.settings, **({} if self.operations is None else {"operations": self.operations})}


class DetectEvent(_Event):
    """Find the tables of a run; ``run_id`` is the name of the execution, ``started`` its start time."""

    run_id: RunId
    started: AwareDatetime
    input: MachineInput

    @property
    def started_ms(self) -> int:
        return int(self.started.timestamp() * 1000)


class Item(_Event):
    """A table of a run, as every state of its pass receives it."""

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
    detected_ms: int | None = None
    """When the scheduled detection that proposed the table began; ``None`` for a run over one requested table."""

    @model_validator(mode="after")
    def _fits_keys(self) -> Self:
        # A lone surrogate raises UnicodeEncodeError, a ValueError as for a name without a dot: no key can hold it.
        f"{self.identity.spelling}{self.location}".encode()
        return self

    @property
    def is_scheduled(self) -> bool:
        """Whether its pass counts towards ``max_concurrent_jobs``."""
        return self.detected_ms is not None

    @property
    def is_proposed(self) -> bool:
        """Whether detection proposed the pass and no person requested it."""
        return self.is_scheduled and not self.forced

    @property
    def name(self) -> TableName:
        return TableName.parse(self.table)

    @property
    def identity(self) -> TableIdentity:
        return TableIdentity(CatalogId(self.catalog, self.warehouse), self.name, self.uuid, self.location)


class StepEvent(BaseModel):
    """What every event of a function has: the step that the function is to do; the step's own model has the rest."""

    model_config = ConfigDict(extra="allow", frozen=True)

    step: str


class RunEvent(_Event):
    """Work on all tables of a run: gather the work of its stages, or clean up after failed loads."""

    run_id: RunId
    started_ms: int = Field(ge=0, le=LAST_MS)
    """The start of the execution, epoch milliseconds: the value of ``now()`` in policies for every step of the run,
    however late the step runs."""


class TableEvent(RunEvent):
    """Plan a table, or carry out a step of its pass."""

    item: Item
    listed: str | None = None
    """The digest of the orphan list that the previous state wrote, for the removal of the orphans."""


class Failure(BaseModel):
    """What Step Functions reports about a task that failed."""

    model_config = ConfigDict(frozen=True)

    Error: str = "Unknown"
    Cause: str = ""

    @property
    def sentence(self) -> str:
        """Error and message in one line; the message comes from the JSON that Lambda and Glue return as cause."""
        try:
            cause = json.loads(self.Cause)
            message = cause.get("errorMessage") or cause.get("ErrorMessage") or self.Cause
        except (ValueError, AttributeError):
            message = self.Cause
        return f"{self.Error}: {' '.join(str(message).split())}".removesuffix(": ")


class TableResult(BaseModel):
    """How a table of a run ended."""

    model_config = ConfigDict(frozen=True)

    table: str
    status: Literal["succeeded", "partial", "failed", "refused", "skipped"]
    summary: str = ""


class RunState(BaseModel):
    """What the state machine knows about a run when it reports it; a run may have failed right after its input."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    failure: Failure | None = None
    """Why the run ended early: detection failed, or the list of its tables could not be read."""
    input: Any = None
    """The input of the execution, if detection failed; the schedule sends an empty object."""
    jobs: Mapping[Stage, Failure] = Field(default_factory=dict)
    """The failures of the stages' Glue runs."""


class ReportEvent(_Event):
    """Report how the tables of a run ended and end it; the state machine repeats this until no table is left."""

    run_id: RunId
    state: RunState = RunState()


AnyEvent = TypeVar("AnyEvent", bound=BaseModel)


def split_event(event: Any, own: Collection[str]) -> tuple[str, dict[str, Any]]:
    """The step that an event names, which is one of ``own``, and the event without it.

    Raises:
        StepRefused: the function does not do this step.
        PolicyError: the event is malformed.
    """
    step = parse_event(StepEvent, event).step
    if step not in own:
        raise StepRefused(f"this function does only {', '.join(own)}: it does not do {step}")
    return step, {name: value for name, value in event.items() if name != "step"}


def parse_event(model: type[AnyEvent], event: Any) -> AnyEvent:
    """The event as a validated model.

    Raises:
        PolicyError: the event is malformed; the message names the field.
    """
    try:
        return model.model_validate(event)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the event"
        raise PolicyError(f"malformed event: {where}: {first['msg'].removeprefix('Value error, ')}") from None
