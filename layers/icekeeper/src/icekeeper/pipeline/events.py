"""The events that functions get, as checked models, within the limits of payloads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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

from icekeeper.errors import PolicyError
from icekeeper.model import CatalogId, TableName
from icekeeper.operation_facts import Stage
from icekeeper.policy.keys import Scope, refuse_meaningless
from icekeeper.policy.policy_file import check_patterns
from icekeeper.policy.values import TextList
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import LAST_MS, MAX_SETTINGS, requested_table

# What fits into the payloads of the state machine, of which each holds 256 KB.
# Pure.


def fits_payloads(settings: Mapping[str, str]) -> bool:
    """Whether these settings of a table leave enough room in the payloads of its states, each of which repeats them.

    A single item that is too long ends the whole Distributed Map, and so every run that proposes it.
    """
    return len(json.dumps(dict(settings))) <= MAX_SETTINGS


# The events that functions get, as checked models: an unknown or malformed field is a PolicyError.
#
# The state machine (``functions/maintain_tables.asl.yaml``) builds these; people write :class:`MachineInput` in the
# Step Functions console.  A run keeps the definition that it began with, so the functions of the next version must
# understand these events too: a new field has a default, and no field goes (rule: runs-outlive-upgrades).

Route = Literal["none", "function", "glue"]
MAX_PATTERNS = 100
"""How many patterns an input may name: each is compared with every name of the fleet."""
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
    """The input of the state machine: ``{}`` scans the fleet, ``tables`` a part of it, a table forces one pass.

    Operations and settings hold for every pass of the run, except for passes that were requested with their own.
    """

    table: str | None = None
    tables: Annotated[TextList, Field(max_length=MAX_PATTERNS)] | None = None
    """Patterns of the tables that a scan looks at: those that it may maintain."""
    catalog: str | None = None
    """Name or warehouse of the table's catalog; may be left out where the deployment has only one."""
    operations: str | None = None
    settings: Mapping[str, str] = Field(default_factory=dict)
    """As ``--set``, for the passes of this run only."""
    wait: bool = False
    """Whether to wait while another run maintains the table, rather than be refused."""
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
        for text in (self.catalog, *self.patterns, *self.overrides, *self.overrides.values()):
            (text or "").encode()  # a lone surrogate fits no key; its error is a ValueError
        if not fits_payloads(self.overrides):
            raise ValueError(f"settings are longer than {MAX_SETTINGS} bytes, which no payload has room for")
        if self.table is None and self.catalog is not None:
            raise ValueError("a catalog is named, but no table in it; name both, or neither to scan the fleet")
        for name in ("wait", "in_job") if self.table is None else ():
            if getattr(self, name):
                raise ValueError(f"{name} is for a run over one table: name it")
        if self.tables is not None and self.table is not None:
            raise ValueError("table names one table and tables name patterns of a scan; write one of them")
        if self.tables is not None and not self.tables:
            raise ValueError("tables has no pattern; leave it out to scan the whole fleet")
        try:
            check_patterns(self.patterns)
            refuse_meaningless(self.settings, Scope.SCAN if self.table is None else Scope.TABLE)
        except PolicyError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def patterns(self) -> tuple[str, ...]:
        """Those of ``tables``; empty: the whole fleet, or one table."""
        return self.tables or ()

    @property
    def overrides(self) -> dict[str, str]:
        """The settings, with ``operations`` as one of them."""
        return {**self.settings, **({} if self.operations is None else {"operations": self.operations})}


class DetectEvent(_Event):
    """Find the tables of one run; ``run_id`` is the name of the execution, ``started`` its beginning."""

    run_id: RunId
    started: AwareDatetime
    input: MachineInput

    @property
    def started_ms(self) -> int:
        return int(self.started.timestamp() * 1000)


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
        return TableIdentity(CatalogId(self.catalog, self.warehouse), self.name, self.uuid, self.location)


class RunEvent(_Event):
    """Work on all tables of a run: gather what its stages have to do, or clean up after failed loads."""

    run_id: RunId
    started_ms: int = Field(ge=0, le=LAST_MS)
    """The beginning of the execution, epoch milliseconds: what ``now()`` in policies means for every step of the run,
    however late it runs."""


class TableEvent(RunEvent):
    """Plan one table, or carry out the steps of its pass that are this function's."""

    item: Item
    listed: str | None = None
    """The digest of the list of orphans that the state before this one wrote, for their removal."""


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


class TableResult(BaseModel):
    """How one table of a run ended."""

    model_config = ConfigDict(frozen=True)

    table: str
    status: Literal["succeeded", "partial", "failed", "refused", "skipped"]
    summary: str = ""


class RunState(BaseModel):
    """What the state machine knows of a run when it is to be reported; it may have got no further than its input."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    failure: Failure | None = None
    """Why the run got no further: detection failed, or the list of its tables could not be read."""
    input: Any = None
    """What the execution was given, where detection failed; the schedule gives an empty object."""
    jobs: Mapping[Stage, Failure] = Field(default_factory=dict)
    """How the Glue runs of stages failed."""


class ReportEvent(_Event):
    """Gather how the tables of a run ended, and end it; asked again until no table is left."""

    run_id: RunId
    state: RunState = RunState()


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
