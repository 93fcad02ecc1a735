"""What the documents must hold that steps of a pass leave for each other in the control bucket (rule 188).

Plans and waves are read by their digest.  These are written by one call and found by another that knows only their key,
so that whoever may write to the bucket may have changed them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from icekeeper.state.requests import LAST_MS

__all__ = ["AnyObject", "BegunStep", "EndedPass", "EndedStep", "ListedOrphans", "PassPlan"]


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
