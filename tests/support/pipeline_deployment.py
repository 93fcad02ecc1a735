"""Deployments over local tables: the pipeline's use cases in the order of the state machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from icekeeper.catalogs.catalog import identity_of
from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.machine.clock import system_clock
from icekeeper.model import TableName
from icekeeper.pipeline.control_bucket import table_folder
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.detect_tables import detect_tables
from icekeeper.pipeline.events import (
    DetectEvent,
    Failure,
    Item,
    MachineInput,
    OperationEvent,
    PlanEvent,
    PlanReference,
    ReportTableEvent,
    parse_event,
)
from icekeeper.pipeline.glue_job import End, run_wave
from icekeeper.pipeline.plan_table import plan_table
from icekeeper.pipeline.report_table import TableReport, report_table
from icekeeper.pipeline.run_leases import acquire_table_lease, release_table_lease
from icekeeper.pipeline.run_step import run_step
from icekeeper.pipeline.wave import WaveDocument, WaveEvent, gather_wave, read_wave
from icekeeper.state.identity import TableIdentity
from icekeeper.state.leases import slot_keys
from support.maintained_table import ID_AND_PART, MaintainedTable, same_clock

# One deployment over one local table: the pipeline's use cases, called in the order of the state machine.

RUN = "run-1"
HOUR_MS = 3_600_000
EAGER = {
    "ICEKEEPER_MIN_INPUT_FILES": "2",
    "ICEKEEPER_MIN_MANIFESTS_TO_REWRITE": "2",
    "ICEKEEPER_MAX_SNAPSHOTS_TO_KEEP": "1",
    "ICEKEEPER_SNAPSHOT_RETENTION_HOURS": "0",
    "ICEKEEPER_TABLE_SETTINGS": "all",
}


class Clock:
    def __init__(self) -> None:
        self.now_ms = 4_000_000_000_000  # all that the tests write is old

    def __call__(self) -> int:
        return self.now_ms


class Pipeline:
    """A deployment whose bucket is a folder, and its one table."""

    def __init__(self, table: MaintainedTable, folder: Path) -> None:
        self.table = table
        self.clock = Clock()
        self.control = folder / "control"
        (folder / "pyiceberg.yaml").write_text(
            f"catalog:\n  local:\n    type: sql\n    uri: sqlite:///{folder / 'catalog.db'}\n"
            f"    warehouse: {(folder / 'warehouse').as_uri()}\n"
        )
        self.environment = {
            **EAGER,
            "ICEKEEPER_CONTROL_BUCKET": str(self.control),
            "ICEKEEPER_CATALOG_FILE": str(folder / "pyiceberg.yaml"),
            "ICEKEEPER_STATE": str(folder / "state.db"),
        }
        self.deployment = self.open()

    def open(self, **environment: str) -> Deployment:
        """As a function does that starts anew."""
        return Deployment.open({**self.environment, **environment}, clock=self.clock, store_clock=same_clock)

    def detect(self, run_id: str = RUN, **wanted: Any) -> tuple[Mapping[str, Any], list[Item]]:
        answer, _ = detect_tables(self.deployment, DetectEvent(run_id=run_id, input=MachineInput(**wanted)))
        proposals = json.loads((self.control / answer["proposals"]["key"]).read_text())
        assert answer["proposals"]["count"] == len(proposals)
        return answer, [parse_event(Item, proposal) for proposal in proposals]

    @property
    def identity(self) -> TableIdentity:
        return identity_of(self.table.catalog, self.table.catalog.load(TableName.parse("ns.t")))

    def begin(self, run_id: str = RUN, **wanted: Any) -> tuple[Item, PlanReference]:
        (item,) = self.detect(run_id, table="ns.t", **wanted)[1]
        acquire_table_lease(self.deployment, run_id, item)
        return item, self.plan(item, run_id)

    def plan(self, item: Item, run_id: str = RUN, attempt: int = 1) -> PlanReference:
        return plan_table(self.deployment, PlanEvent(run_id=run_id, item=item, attempt=attempt))

    def run(self, item: Item, plan: PlanReference, step: str, run_id: str = RUN, **options: Any) -> Mapping[str, Any]:
        event = parse_event(OperationEvent, {"run_id": run_id, "item": item, "plan": plan, "operation": step})
        return run_step(self.deployment, event, LocalEngine(1), **options)

    def report(self, item: Item, plan: PlanReference | None, run_id: str = RUN, **failures: Failure) -> TableReport:
        event = ReportTableEvent(run_id=run_id, item=item, plan=plan, failures=failures)
        return report_table(self.deployment, event)

    def slots(self) -> list[str]:
        """The runs that have a slot of the fleet."""
        leases, now_ms = self.deployment.state.leases, self.clock.now_ms
        found = (leases.current(key, now_ms=now_ms) for key in slot_keys(self.deployment.slots))
        return [lease.holder.partition(" ")[0] for lease in found if lease is not None]

    def journal(self, item: Item) -> list[tuple[str, str, str]]:
        records = self.deployment.state.history(item.identity)
        return [(record.run_id, record.status, record.summary) for record in records]

    def document(self, item: Item, name: str, run_id: str = RUN) -> Any:
        return json.loads((self.control / table_folder(run_id, item.identity.spelling) / name).read_text())


def broken(*_: object) -> None:
    """Stands in for a write that fails."""
    raise StorageError("it crashed")


# A deployment over several local tables, and a run of theirs up to its wave.


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
