"""Stand-ins for every function and job of the pipeline, which record the calls of the state machine and may fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from icekeeper.errors import LeaseHeld, TableBusy
from icekeeper.operation_facts import FUNCTIONS, STEP_FACTS, STEPS, Function, Stage
from icekeeper.pipeline.events import split_event
from icekeeper.pipeline.gather import JOB_STAGES, steps_in
from local_stack.functions import StandIn
from local_stack.jobs import StandInJob

STARTED_MS = 1_790_000_000_000
"""The start time of every run in the answer of ``Detect``."""
ROUTES = {step: "function" for step in STEPS if step not in ("expire_partitions", "compute_statistics")}
"""The default routes of a table's steps: the steps of a policy without options, all in functions."""
JOBS = {step.job.script: step.job.stage for step in STEP_FACTS if step.job is not None}
"""The stage of each script."""
_OPERATING = sorted({step.call for step in STEP_FACTS} - {"clean_staged"})
DIGEST = "0" * 64
WORKERS = 3


@dataclass(frozen=True, slots=True)
class Call:
    """``step`` is the step that the event names, or ``job:STAGE``; ``*`` stands for every table."""

    table: str
    step: str
    event: Any


@dataclass(slots=True)
class ScriptedPipeline:
    """Answers as the real functions do; ``happening`` has further actions of a step before its answer."""

    put_object: Callable[[str, bytes], None]
    bucket: str
    tables: tuple[str, ...] = ("ns.t",)
    without_orphans: frozenset[str] = frozenset()
    """Tables without listed orphans."""
    idle: frozenset[str] = frozenset()
    """Tables whose manifests need no rewrite, as their expiry finds."""
    unreadable: frozenset[str] = frozenset()
    """Names of lists that are overwritten."""
    routes: Mapping[str, str] = field(default_factory=lambda: dict(ROUTES))
    own_routes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Routes by table that differ from ``routes``."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the report's answer, which otherwise reports success."""
    left: list[int] = field(default_factory=list)
    """How many tables each report leaves, in reverse order; then none."""
    happening: dict[str, Callable[[Any], object]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    """The other run that maintains a table, by table."""
    items: Mapping[str, Any] = field(default_factory=dict)
    """The proposals by table."""
    most_at_once: int = 0
    """The greatest number of tables in work at the same time."""
    _planned: set[str] = field(default_factory=set)
    _at_work: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # -- for tests

    @property
    def steps(self) -> list[str]:
        return [call.step for call in self.calls]

    def steps_of(self, table: str) -> list[str]:
        return [call.step for call in self.calls if call.table == table]

    def event_of(self, step: str) -> Any:
        """The event of the last call of a step."""
        return next(call.event for call in reversed(self.calls) if call.step == step)

    # -- called by the state machine

    @property
    def functions(self) -> Mapping[str, StandIn]:
        steps: Mapping[str, StandIn] = {
            "detect": self._detect,
            "plan": self._plan,
            "gather": self._gather,
            **{step: self._operating(step) for step in _OPERATING},
            "list_orphans": self._list_orphans,
            "clean_staged": self._clean_staged,
            "report": self._report,
        }

        def stand_in(function: Function) -> StandIn:
            def call(event: Any) -> Any:
                step, rest = split_event(event, [step for step, found in FUNCTIONS.items() if found is function])
                return steps[step](rest)

            return call

        return {function: stand_in(function) for function in Function}

    @property
    def jobs(self) -> Mapping[str, StandInJob]:
        return {script: self._job(stage) for script, stage in JOBS.items()}

    def _detect(self, event: Any) -> Any:
        self._tell("*", "detect", event)
        given = event["input"]
        forced = given.get("table")
        items = [
            {
                "catalog": given.get("catalog", "C"),
                "warehouse": "s3://lake/",
                "table": table,
                "uuid": f"uuid of {table}",
                "location": f"s3://lake/{table}",
                "reasons": ["it needs it"],
                "priority": 0.5,
                "forced": forced is not None,
                "settings": given.get("settings", {}),
                "wait": given.get("wait", False),
            }
            for table in ((forced,) if forced else self.tables)
        ]
        self.items = {item["table"]: item for item in items}
        return {
            "run_id": event["run_id"],
            "started_ms": STARTED_MS,
            "tables": self._listed(event["run_id"], "proposals", items),
            "reason": f"{len(items)} table(s) need maintenance",
            "forced": forced is not None,
        }

    def _plan(self, event: Any) -> Any:
        table = event["item"]["table"]
        with self._at(table, "plan", event):
            self._planned.add(table)
        return {"steps": len(self._routes(table))}

    def _gather(self, event: Any) -> Any:
        """Like the real function, list only planned tables."""
        self._tell("*", "gather", event)
        answer: dict[str, Any] = {}
        for stage in Stage:
            tables = [
                {"item": item, "steps": dict.fromkeys(steps, "function")}
                for table, item in self.items.items()
                if table in self._planned and (steps := steps_in(stage, self._routes(table)))
            ]
            answer[stage.value] = {"count": 0}
            if tables and stage in JOB_STAGES:
                answer[stage.value] = {
                    "key": f"runs/{event['run_id']}/{stage.value}.json",
                    "digest": DIGEST,
                    "count": len(tables),
                    "workers": WORKERS,
                    "worker_type": "G.2X",
                    "execution_class": "FLEX",
                }
            elif tables:
                answer[stage.value] = self._listed(event["run_id"], stage.value, tables)
        return answer

    def _operating(self, step: str) -> StandIn:
        def call(event: Any) -> Any:
            with self._at(event["item"]["table"], step, event):
                is_idle = step == "expire_snapshots" and event["item"]["table"] in self.idle
                return {step: "succeeded: it did", **({"rewrite_manifests": "skipped: it is idle"} if is_idle else {})}

        return call

    def _list_orphans(self, event: Any) -> Any:
        with self._at(event["item"]["table"], "list_orphans", event):
            is_clean = event["item"]["table"] in self.without_orphans
            return {"count": 0, "listed": None} if is_clean else {"count": 2, "listed": DIGEST}

    def _clean_staged(self, event: Any) -> Any:
        self._tell("*", "clean_staged", event)
        return {"cleaned": 1, "left": 0}

    def _job(self, stage: Stage) -> StandInJob:
        return lambda arguments: self._tell("*", f"job:{stage.value}", dict(arguments))

    def _report(self, event: Any) -> Any:
        self._tell("*", "report", event)
        left = self.left.pop() if self.left else 0
        well: dict[str, Any] = {
            "status": "running" if left else "succeeded",
            "summary": "all well",
            "left": left,
            "tables": [],
        }
        return {"run_id": event["run_id"], **well, "error": "", "cause": "", **({} if left else self.report)}

    # -- helpers

    def _routes(self, table: str) -> Any:
        return {**self.routes, **self.own_routes.get(table, {})}

    def _listed(self, run_id: str, name: str, items: Iterable[Any]) -> Any:
        listed = list(items)
        key = f"runs/{run_id}/{name}.json"
        self.put_object(key, b"{}" if name in self.unreadable else json.dumps(listed).encode())
        return {"bucket": self.bucket, "key": key, "count": len(listed)}

    @contextmanager
    def _at(self, table: str, step: str, event: Any) -> Iterator[None]:
        """Work on a table; refuse it while another run maintains it."""
        with self._lock:
            self._at_work += 1
            self.most_at_once = max(self.most_at_once, self._at_work)
        try:
            self._tell(table, step, event)
            if table in self.held:
                raise (TableBusy if event["item"]["wait"] else LeaseHeld)(f"{self.held[table]} maintains {table}")
            yield
        finally:
            with self._lock:
                self._at_work -= 1

    def _tell(self, table: str, step: str, event: Any) -> None:
        with self._lock:
            self.calls.append(Call(table, step, event))
        happens = self.happening.get(step)
        if happens is not None:
            happens(event)
