"""The plan of one table's pass: what every function and job of the pass works by, kept in the control bucket.

A plan holds no pins, staged loads or grace periods.  Every step reads pins and staged loads from the state, when it
plans and before each batch of deletions (rule 82), and a policy that changed since makes the plan stale.  A plan of
another version that this one cannot read is stale, too (rule 148).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from icekeeper.errors import PlanStale
from icekeeper.pipeline.events import Item, Route

__all__ = ["PlanDocument", "PlannedSchedule", "read_plan"]


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
