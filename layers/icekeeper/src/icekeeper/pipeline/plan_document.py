"""The plan of one table's pass: what every function and job of the pass works by, kept in the control bucket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from icekeeper.pipeline.events import Item, Route

__all__ = ["Bounds", "PlanDocument"]


class Bounds(BaseModel):
    """The safety bounds that whoever executes the plan must honour (rule 82); ours are asked again all the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pinned_snapshots: tuple[int, ...]
    staged_loads: tuple[str, ...]
    orphan_older_than_ms: int


class PlanDocument(BaseModel):
    """``head_id`` and ``started_ms`` are those from before the pass, also in a plan that was made again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: str
    item: Item
    attempt: int
    requested_ms: int | None = None
    """When the request was filed that the pass serves."""
    started_ms: int
    planned_ms: int
    metadata_location: str
    head_id: int | None
    fingerprint: str
    """Of the policy; a table whose policy changed meanwhile is planned again."""
    environment: Mapping[str, str]
    """The deployment's settings, for jobs."""
    bounds: Bounds
    routes: Mapping[str, Route]
    outcomes: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Of operations that planning has found nothing to do for."""
    compaction: Mapping[str, Any] | None = None
    """What compaction would do, as ``maintain --dry-run --json`` has it."""
