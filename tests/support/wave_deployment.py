"""A deployment over several local tables, and a run of theirs up to its wave."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from icekeeper.engines.engine import Engine
from icekeeper.machine.clock import system_clock
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import Item, PlanEvent, PlanReference, parse_event
from icekeeper.pipeline.glue_job import End, run_wave
from icekeeper.pipeline.plan_table import plan_table
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.pipeline.wave import WaveDocument, WaveEvent, gather_wave, read_wave
from support.maintained_table import ID_AND_PART
from support.pipeline_deployment import RUN, Pipeline


class Wave:
    """The tables ``ns.t``, ``ns.u`` and ``ns.v`` of 5, 2 and 2 files, planned by a scheduled run for its wave."""

    def __init__(self, pipeline: Pipeline, names: Iterable[str] = ("u", "v"), *, by_real_clock: bool = False) -> None:
        """``by_real_clock``: for a job, which has no other."""
        self.pipeline = pipeline
        for name in names:
            made = pipeline.table.pyiceberg.create_table(f"ns.{name}", schema=ID_AND_PART)
            for start in range(2):
                made.append(pipeline.table.new_rows(start * 10, start * 10 + 1))
        if by_real_clock:
            pipeline.clock.now_ms = system_clock()
        pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_COMPACTION_MB="0")
        self.items = {item.table: item for item in pipeline.detect()[1]}
        self.plans = {name: self.plan(item) for name, item in self.items.items()}
        waiting = [{"key": plan.key, "digest": plan.digest} for plan in self.plans.values()]
        self.answer = gather_wave(self.deployment, parse_event(WaveEvent, {"run_id": RUN, "wave": waiting}))

    @property
    def deployment(self) -> Deployment:
        return self.pipeline.deployment

    @property
    def document(self) -> WaveDocument:
        return read_wave(self.deployment.control.read(self.answer["key"], self.answer["digest"]))

    @property
    def rest(self) -> list[Item]:
        """The items of the map's second turn."""
        found = json.loads((self.pipeline.control / self.answer["proposals"]["key"]).read_text())
        return [parse_event(Item, item) for item in found]

    def plan(self, item: Item, run_id: str = RUN) -> PlanReference:
        """A plan under the table's lease, which is given back as before a wave."""
        acquire_table_lease(self.deployment, run_id, item)
        plan = plan_table(self.deployment, PlanEvent(run_id=run_id, item=item, waves=True))
        release_table_lease(self.deployment, run_id, item)
        return plan

    def run(self, engine: Engine, **options: Any) -> dict[str, End]:
        """Carry the wave out; how each table ended, by its name."""
        ends = run_wave(self.deployment, self.document, engine, **options)
        return {name: ends[item.identity.spelling] for name, item in self.items.items()}

    def outcome(self, name: str, step: str = "compact") -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.pipeline.document(self.items[name], f"{step}.json")
        return found


def files_of(pipeline: Pipeline, name: str) -> int:
    """How many data files a table has now, as PyIceberg sees it."""
    return len(pipeline.table.pyiceberg.load_table(name).inspect.files())


def ids_of(pipeline: Pipeline, name: str) -> list[int]:
    """The ids of a table's rows, as PyIceberg reads them."""
    return sorted(pipeline.table.pyiceberg.load_table(name).scan().to_arrow().column("id").to_pylist())
