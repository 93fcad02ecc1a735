"""The documents of a wave: which tables wait for it, and which ones one Glue run maintains at once.

They lie in the control bucket; the job gets key and digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from icekeeper.errors import PlanStale
from icekeeper.pipeline.events import Item, PlanReference, RunId

__all__ = [
    "WaitingPlan",
    "WaveDocument",
    "WaveEvent",
    "WaveTable",
    "left_key",
    "read_wave",
    "wave_key",
    "wave_tables_key",
]


class WaitingPlan(BaseModel):
    """The plan of a pass that waits for the run's wave."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    digest: str


class WaveEvent(BaseModel):
    """Gather the tables that wait for the run's wave."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: RunId
    wave: tuple[WaitingPlan, ...]
    in_one_call: tuple[WaitingPlan, ...] = ()
    """Of the passes that single calls left to it."""


class WaveTable(BaseModel):
    """One table of a wave."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    item: Item
    plan: PlanReference
    """Of the table's pass; its routes are left out."""
    steps: tuple[str, ...]
    """What the wave does of the pass, in canonical order."""
    size_bytes: int
    """Of the files that compaction is planned to rewrite."""


class WaveDocument(BaseModel):
    """``tables`` are in the order in which they begin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: RunId
    tables: tuple[WaveTable, ...]
    workers: int
    """Of the Glue run, its driver included."""
    environment: Mapping[str, str]
    """The deployment's settings, as plans have them."""


def read_wave(document: Any) -> WaveDocument:
    """Check the JSON document of a wave.

    Raises:
        PlanStale: another version of Icekeeper wrote it.
    """
    try:
        return WaveDocument.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the wave"
        raise PlanStale(f"the wave was written by another version of Icekeeper: {where}: {first['msg']}") from None


def wave_key(run_id: str) -> str:
    """The key of a run's wave; a run has one at most."""
    return f"runs/{run_id}/wave.json"


def wave_tables_key(run_id: str) -> str:
    """The key of the wave's tables, for the second turn of the state machine's map."""
    return f"runs/{run_id}/wave-tables.json"


def left_key(folder: str, step: str) -> str:
    """The key of the reason why a wave left out a step of a table; ``folder`` is the table's."""
    return f"{folder}/{step}.left.json"
