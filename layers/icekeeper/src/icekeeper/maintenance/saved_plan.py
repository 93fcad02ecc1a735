"""A plan that a person saves, reviews and applies: the content of its file, and when it is stale.

The file names every file that each operation may rewrite or delete.  Applying it is a pass of its own: it plans again
under the table's current policy, as of the time of the plan, and every operation refuses a file that the plan does not
name (rule: apply-only-what-was-reviewed).  So a changed file can make a pass do less, never more than the policy
allows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError

from icekeeper.errors import PlanStale, PolicyError
from icekeeper.machine.clock import HOUR_MS, iso_utc
from icekeeper.operation_facts import Operation
from icekeeper.pass_context.context import Reviewed
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status, skipped
from icekeeper.text import masked_document

HOLDS_MS = 24 * HOUR_MS
"""How long a saved plan can be applied."""
# The clocks of two machines may differ by this much.
_AHEAD_MS = 5 * 60 * 1000
_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedOperation:
    """The dry run of an operation, planned after the earlier operations."""

    __pydantic_config__ = _STRICT

    operation: str
    status: str
    summary: str
    files: tuple[str, ...]
    """All files that it may rewrite or delete, except files that an earlier operation will write: they have no name
    yet."""
    snapshots: tuple[int, ...]
    """The snapshots that it may expire."""
    refs: tuple[str, ...]
    """The branches and tags that it may expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTable:
    """The plan for a table."""

    __pydantic_config__ = _STRICT

    catalog: str
    table: str
    uuid: str | None
    run_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
    """The run id of the pass that applies the plan; a repeated pass recognises its own snapshots by it."""
    settings: Mapping[str, str]
    """The settings of the call; they permit no more than the table's policy."""
    policy: str
    """The fingerprint of the policy."""
    planned_ms: int
    """The time at which the plan was made; the ages of snapshots, partitions and orphans count until then, however late
    the plan is applied."""
    snapshot_id: int | None
    """The head of the policy's branch."""
    bytes_reclaimable: int
    operations: tuple[SavedOperation, ...]

    def require(self, uuid: str | None, policy: str) -> None:
        """Raise PlanStale if the table or its policy has changed since the plan was saved."""
        if uuid != self.uuid:
            raise PlanStale(f"{self.table} was replaced by another table since the plan was saved; save a new plan")
        if policy != self.policy:
            raise PlanStale(f"the policy of {self.table} has changed since the plan was saved; save a new plan")

    def of(self, operation: Operation) -> Reviewed | OperationOutcome:
        """What an operation may do, or the outcome if the plan has nothing for it."""
        for saved in self.operations:
            if saved.operation == operation.value:
                if saved.status == Status.SUCCEEDED:
                    return Reviewed(frozenset(saved.files), frozenset(saved.snapshots), frozenset(saved.refs))
                return skipped(operation, f"not in the plan, where it was {saved.status}: {saved.summary}")
        return skipped(operation, "not in the plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRepair:
    """The plan of a repair of a table."""

    __pydantic_config__ = _STRICT

    catalog: str
    table: str
    uuid: str | None
    options: Mapping[str, bool | int | str | None]
    """The fields of :class:`icekeeper.repair.plan.RepairOptions`."""
    shown: str
    """The digest of the plan; applying makes the plan anew, and refuses another one."""
    mends: tuple[str, ...]
    """What the repair does, a sentence for each mend, for the reviewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """The plans for several tables, saved together; either passes or repairs."""

    __pydantic_config__ = _STRICT

    version: str
    """The version of Icekeeper."""
    saved_ms: int
    tables: tuple[SavedTable, ...] = field(default=())
    repairs: tuple[SavedRepair, ...] = field(default=())

    def require(self, version: str, now_ms: int) -> None:
        """Raise PlanStale if the plan is of another version of Icekeeper, or too old."""
        if version != self.version:
            raise PlanStale(f"the plan was saved by Icekeeper {self.version}, but this is {version}; save a new plan")
        saved = f"the plan was saved at {iso_utc(self.saved_ms)}"
        if now_ms > self.saved_ms + HOLDS_MS:
            raise PlanStale(f"{saved}, more than {HOLDS_MS // HOUR_MS} hours ago; save a new plan")
        if now_ms < self.saved_ms - _AHEAD_MS:
            raise PlanStale(
                f"{saved}, which is in the future by this machine's clock; set the clock, or save a new plan"
            )

    def to_json(self) -> dict[str, Any]:
        """The document of the file, with secrets masked and a digest of the rest."""
        document = masked_document(_ADAPTER.dump_python(self, mode="json"))
        return {**document, "digest": digest_of(document)}


_ADAPTER = TypeAdapter(SavedPlan)


def digest_of(document: Mapping[str, Any]) -> str:
    """The digest of a plan's document without its own field ``digest``."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def saved_table(
    outcome: PassOutcome,
    *,
    uuid: str | None,
    run_id: str,
    settings: Mapping[str, str],
    policy: str,
    planned_ms: int,
    snapshot_id: int | None,
    bytes_reclaimable: int,
) -> SavedTable:
    """The plan for a table, from the outcome of its dry run, in which each operation is planned after the earlier
    operations."""
    return SavedTable(
        catalog=outcome.catalog,
        table=outcome.table,
        uuid=uuid,
        run_id=run_id,
        settings=dict(settings),
        policy=policy,
        planned_ms=planned_ms,
        snapshot_id=snapshot_id,
        bytes_reclaimable=bytes_reclaimable,
        operations=tuple(
            SavedOperation(
                operation=planned.operation.value,
                status=planned.status.value,
                summary=planned.summary,
                files=planned.files_planned,
                snapshots=planned.expiring,
                refs=planned.expiring_refs,
            )
            for planned in outcome.operations
        ),
    )


def read_plan(text: str | bytes, name: str) -> SavedPlan:
    """Read the file ``name`` of a saved plan.

    Raises:
        PolicyError: the file is not a saved plan, was changed after it was saved, or has a planning time after that
            time, at which more files would be old enough to delete.
    """
    hint = "save a new plan with icekeeper plan --save"
    try:
        document = json.loads(text)
        digest = document.pop("digest")
        plan = _ADAPTER.validate_json(json.dumps(document))
    except (ValueError, ValidationError, KeyError, AttributeError, TypeError, RecursionError):
        raise PolicyError(f"{name} is not a saved plan; {hint}") from None
    # Both checks find mistakes.  The digest is not a signature: anybody who changes the file can also change its
    # digest.
    if digest != digest_of(document):
        raise PolicyError(f"{name} was changed after it was saved; {hint}")
    if late := next((table for table in plan.tables if table.planned_ms > plan.saved_ms), None):
        raise PolicyError(
            f"{name} has a plan for {late.table} whose time is after the time at which it was saved; {hint}"
        )
    return plan
