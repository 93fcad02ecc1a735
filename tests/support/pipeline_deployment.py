"""Deployments over local tables: the pipeline's use cases in the order of the state machine (one function each)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from icekeeper.catalogs.catalog import identity_of
from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.machine.clock import system_clock
from icekeeper.model import TableName
from icekeeper.operation_facts import Stage
from icekeeper.pipeline.control_bucket import PassDocuments, PlanDocument, Work, table_folder
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.detect_tables import detect_tables
from icekeeper.pipeline.events import DetectEvent, Item, MachineInput, ReportEvent, RunEvent, TableEvent, parse_event
from icekeeper.pipeline.gather import gather
from icekeeper.pipeline.glue_job import End, run_work
from icekeeper.pipeline.plan_table import plan_table
from icekeeper.pipeline.report import report_run
from icekeeper.pipeline.run_step import TableWork, list_orphans, run_steps
from icekeeper.state.identity import TableIdentity
from icekeeper.state.leases import slot_keys
from support.maintained_table import ID_AND_PART, MaintainedTable, same_clock

# A deployment over one local table: the pipeline's use cases, called in the order of the state machine.

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
        self.now_ms = 4_000_000_000_000  # all files of the tests are older

    def __call__(self) -> int:
        return self.now_ms


class Pipeline:
    """A deployment whose bucket is a folder, and its only table."""

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
        """Open the deployment as a cold function does."""
        return Deployment.open({**self.environment, **environment}, clock=self.clock, store_clock=same_clock)

    def detect(self, run_id: str = RUN, **wanted: Any) -> tuple[Mapping[str, Any], list[Item]]:
        """The answer of detection, and the tables of the run."""
        started = datetime.fromtimestamp(self.clock.now_ms / 1000, UTC)
        event = DetectEvent(run_id=run_id, started=started, input=MachineInput(**wanted))
        answer, _ = detect_tables(self.deployment, event)
        proposals = json.loads((self.control / answer["tables"]["key"]).read_text())
        assert answer["tables"]["count"] == len(proposals)
        return answer, [parse_event(Item, proposal) for proposal in proposals]

    @property
    def identity(self) -> TableIdentity:
        return identity_of(self.table.catalog, self.table.catalog.load(TableName.parse("ns.t")))

    def begin(self, run_id: str = RUN, **wanted: Any) -> tuple[Item, PlanDocument]:
        """Begin a requested run over the table, and return its item and plan."""
        (item,) = self.detect(run_id, table="ns.t", **wanted)[1]
        return item, self.plan(item, run_id)

    def plan(self, item: Item, run_id: str = RUN) -> PlanDocument:
        return plan_table(self.deployment, TableEvent(run_id=run_id, started_ms=self.clock.now_ms, item=item))

    def work(self, item: Item, run_id: str = RUN, engine: Engine | None = None, **options: Any) -> TableWork:
        """The work of a function or job in the table's pass."""
        return TableWork(
            deployment=self.deployment,
            run_id=run_id,
            started_ms=self.clock.now_ms,
            item=item,
            engine=engine or LocalEngine(1),
            **options,
        )

    def run(self, item: Item, *steps: str, run_id: str = RUN, **options: Any) -> Mapping[str, str]:
        """Run steps, as functions do; return step → message."""
        return run_steps(self.work(item, run_id, **options), steps)

    def list_orphans(self, item: Item, run_id: str = RUN) -> tuple[int, str | None]:
        return list_orphans(self.work(item, run_id))

    def gather(self, run_id: str = RUN) -> Mapping[str, Any]:
        return gather(self.deployment, RunEvent(run_id=run_id, started_ms=self.clock.now_ms))

    def report(self, run_id: str = RUN, **state: Any) -> Mapping[str, Any]:
        """The answer of the run's report."""
        return report_run(self.deployment, parse_event(ReportEvent, {"run_id": run_id, "state": state})).answer

    def documents(self, item: Item, run_id: str = RUN) -> PassDocuments:
        return PassDocuments(self.deployment.control, run_id, item)

    def slots(self) -> list[str]:
        """The runs that hold a slot."""
        leases, now_ms = self.deployment.state.leases, self.clock.now_ms
        found = (leases.current(key, now_ms=now_ms) for key in slot_keys(self.deployment.slots))
        return [lease.holder.partition(" ")[0] for lease in found if lease is not None]

    def journal(self, item: Item) -> list[tuple[str, str, str]]:
        records = self.deployment.state.history(item.identity)
        return [(record.run_id, record.status, record.summary) for record in records]

    def document(self, item: Item, name: str, run_id: str = RUN) -> Any:
        return json.loads((self.control / table_folder(run_id, item.identity.spelling) / name).read_text())


def broken(*_: object) -> None:
    """A replacement for a write, which fails."""
    raise StorageError("it crashed")


# A deployment over several local tables, and a run over them up to its wave.


class Wave:
    """The tables ``ns.t``, ``ns.u`` and ``ns.v`` of 5, 2 and 2 files, planned and gathered by a scheduled run."""

    def __init__(self, pipeline: Pipeline, names: Iterable[str] = ("u", "v"), *, by_real_clock: bool = False) -> None:
        """``by_real_clock``: a job has only the real clock."""
        self.pipeline = pipeline
        for name in names:
            made = pipeline.table.pyiceberg.create_table(f"ns.{name}", schema=ID_AND_PART)
            for start in range(2):
                made.append(pipeline.table.new_rows(start * 10, start * 10 + 1))
        if by_real_clock:
            pipeline.clock.now_ms = system_clock()
        pipeline.deployment = pipeline.open(ICEKEEPER_SMALL_COMPACTION_MB="0")
        self.items = {item.table: item for item in pipeline.detect()[1]}
        self.plans = {name: pipeline.plan(item) for name, item in self.items.items()}
        self.answer = pipeline.gather()

    @property
    def deployment(self) -> Deployment:
        return self.pipeline.deployment

    def work(self, stage: Stage = Stage.COMPACTION) -> Work:
        """The input of the job of a stage."""
        shown = self.answer[stage.value]
        return Work.model_validate(self.deployment.control.read(shown["key"], shown["digest"]))

    def run(self, engine: Engine, **options: Any) -> dict[str, End]:
        """Run the compaction; return the end of each table by its name."""
        ends = run_work(self.deployment, self.work(), engine, **options)
        return {name: ends[item.identity.spelling] for name, item in self.items.items()}

    def outcome(self, name: str, step: str = "compact") -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.pipeline.document(self.items[name], f"{step}.json")
        return found


def files_of(pipeline: Pipeline, name: str) -> int:
    """The current number of a table's data files, as PyIceberg reads it."""
    return len(pipeline.table.pyiceberg.load_table(name).inspect.files())


def ids_of(pipeline: Pipeline, name: str) -> list[int]:
    """The ids of a table's rows, as PyIceberg reads them."""
    return sorted(pipeline.table.pyiceberg.load_table(name).scan().to_arrow().column("id").to_pylist())
