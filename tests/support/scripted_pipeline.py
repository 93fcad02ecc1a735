"""Stand-ins for every function and job of the pipeline: what the state machine asked for, in order, and what failed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from icekeeper.errors import LeaseHeld
from local_stack.functions import StandIn
from local_stack.jobs import StandInJob

# Canonical order (rule: canonical-operation-order), the opt-in ones at their places.
FUNCTION_STEPS = {
    "expire_partitions": "expire_partitions",
    "compact": "compact_small",
    "rewrite_position_deletes": "compact_small",
    "expire_snapshots": "expire_snapshots",
    "remove_orphans": "remove_orphans",
    "rewrite_manifests": "rewrite_manifests",
    "compute_statistics": "compact_small",
    "clean_staged": "clean_staged",
}
"""Operation → the function that carries it out."""
JOB_STEPS = {
    "compact": "compact_data_files",
    "rewrite_position_deletes": "compact_data_files",
    "remove_orphans": "remove_orphans",
    "rewrite_manifests": "rewrite_manifests",
    "compute_statistics": "compact_data_files",
}
"""Operation → the job that carries it out."""
ROUTES = dict.fromkeys(FUNCTION_STEPS, "function")


@dataclass(frozen=True, slots=True)
class Call:
    """``step`` is ``lease``, ``plan``, …, an operation, or ``job:OPERATION``."""

    table: str
    step: str
    event: Any


@dataclass(slots=True)
class ScriptedPipeline:
    """Answers as the real functions do; ``happening`` says what else a step does, before it answers."""

    put_object: Callable[[str, bytes], None]
    bucket: str
    tables: tuple[str, ...] = ("ns.t",)
    wait: bool = False
    small: frozenset[str] = frozenset()
    """Tables that detection assigns to one call each."""
    left: frozenset[str] = frozenset()
    """Those of them of which a call leaves something."""
    orphans: int = 2
    routes: Mapping[str, str] = field(default_factory=lambda: dict(ROUTES))
    own_routes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By table, where they are not those of all."""
    happening: dict[str, Callable[[Any], object]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    leases: dict[str, str] = field(default_factory=dict)
    items: Mapping[str, Any] = field(default_factory=dict)
    """What was proposed, by table."""
    most_at_once: int = 0
    """Tables that were leased at the same time."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # -- what a test asks

    @property
    def steps(self) -> list[str]:
        return [call.step for call in self.calls]

    def event_of(self, step: str) -> Any:
        """What a step was handed the last time."""
        return next(call.event for call in reversed(self.calls) if call.step == step)

    # -- what the state machine calls

    @property
    def functions(self) -> Mapping[str, StandIn]:
        return {
            "detect": self._detect,
            "maintain_small": self._maintain_small,
            "lease": self._lease,
            "plan": self._plan,
            "list_orphans": self._list_orphans,
            "report": self._report,
            **dict.fromkeys(set(FUNCTION_STEPS.values()), self._operation),
        }

    @property
    def jobs(self) -> Mapping[str, StandInJob]:
        return dict.fromkeys(set(JOB_STEPS.values()), self._job)

    def _detect(self, event: Any) -> Any:
        self._tell("*", "detect", event)
        forced = event["input"].get("table")
        tables = (forced,) if forced else self.tables
        items = [
            {
                "catalog": event["input"].get("catalog", "C"),
                "warehouse": "s3://lake/",
                "table": table,
                "uuid": f"uuid of {table}",
                "location": f"s3://lake/{table}",
                "reasons": ["it needs it"],
                "priority": 0.5,
                "forced": forced is not None,
                "settings": event["input"].get("settings", {}),
                "wait": event["input"].get("wait", self.wait),
            }
            for table in tables
        ]
        self.items = {item["table"]: item for item in items}
        key = f"runs/{event['run_id']}/proposals.json"
        self.put_object(key, json.dumps(items).encode())
        return {
            "run_id": event["run_id"],
            "proposals": {"bucket": self.bucket, "key": key, "count": len(items)},
            "in_one_call": self._listed(event, "small", [item for item in items if item["table"] in self.small]),
            "rest": self._listed(event, "others", [item for item in items if item["table"] not in self.small]),
            "reason": f"{len(items)} table(s) need maintenance",
            "forced": forced is not None,
        }

    def _maintain_small(self, event: Any) -> Any:
        """As the real one in an ordinary bucket: it leaves every step but the lease and the plan to the states."""
        if event.get("hands_on"):
            return self._small_table(event)
        self._lease({**event, "action": "acquire"})
        return {"plan": self._plan({**event, "attempt": 1, "waves": True}), "failures": {}}

    def _small_table(self, event: Any) -> Any:
        """As the real one in a table bucket: it does all, or hands on what it leaves."""
        table = event["item"]["table"]
        self._lease({**event, "action": "acquire"})
        self._tell(table, "small", event)
        self._lease({**event, "action": "release"})
        if "wave" in self.own_routes.get(table, {}).values():
            plan = {"key": f"runs/{event['run_id']}/{table}/plan.json", "digest": "0" * 64}
            return {"table": table, "status": "waiting", "summary": "the wave follows", "plan": plan}
        if table in self.left:
            named = {name: event["item"][name] for name in ("catalog", "warehouse", "table", "uuid")}
            return {"table": table, "status": "waiting", "summary": "more follows", "left": {**named, "error": ""}}
        return {"table": table, "status": "succeeded", "summary": "in one call"}

    def _take_up(self, event: Any) -> Any:
        self._tell("*", "take_up", event)
        wanted = {one["table"] for one in event["left"]} | (set(self.tables) - self.small)
        return self._listed(event, "taken-up", [self.items[table] for table in self.tables if table in wanted])

    def _listed(self, event: Any, name: str, items: list[Any]) -> Any:
        key = f"runs/{event['run_id']}/{name}.json"
        self.put_object(key, json.dumps(items).encode())
        return {"bucket": self.bucket, "key": key, "count": len(items)}

    def _lease(self, event: Any) -> Any:
        table, run_id = event["item"]["table"], event["run_id"]
        step = "lease" if event["action"] == "acquire" else "release"
        self._tell(table, step, event)
        with self._lock:
            if step == "release":
                return {"released": self.leases.pop(table, None) == run_id}
            holder = self.leases.setdefault(table, run_id)
            self.most_at_once = max(self.most_at_once, len(self.leases))
        if holder != run_id:
            raise LeaseHeld(f"{holder} maintains {table}")
        return {"holder": run_id, "expires_ms": 1}

    def _plan(self, event: Any) -> Any:
        if "wave" in event:
            return self._gather(event)
        if "left" in event:
            return self._take_up(event)
        self._tell(event["item"]["table"], "plan", event)
        return {
            "bucket": self.bucket,
            "key": f"runs/{event['run_id']}/{event['item']['table']}/plan.json",
            "digest": "0" * 64,
            "attempt": event["attempt"],
            "routes": {**self.routes, **self.own_routes.get(event["item"]["table"], {})},
        }

    def _gather(self, event: Any) -> Any:
        """As the real one: the items go on behind the wave, and their plans leave nothing more to it."""
        self._tell("*", "gather", event)
        tables = [plan["key"].split("/")[2] for plan in (*event["in_one_call"], *event["wave"])]
        self.own_routes = {
            **self.own_routes,
            **{table: {"compact": "none", "rewrite_position_deletes": "none"} for table in tables},
        }
        items = [{**self.items[table], "after_wave": True, "wait": True} for table in tables]
        key = f"runs/{event['run_id']}/wave-tables.json"
        self.put_object(key, json.dumps(items).encode())
        rest = {"bucket": self.bucket, "key": key, "count": len(items)}
        return {"key": f"runs/{event['run_id']}/wave.json", "digest": "1" * 64, "workers": 3, "proposals": rest}

    def _list_orphans(self, event: Any) -> Any:
        self._tell(event["item"]["table"], "list_orphans", event)
        return {"status": "succeeded", "summary": f"{self.orphans} orphan file(s)", "count": self.orphans}

    def _operation(self, event: Any) -> Any:
        self._tell(event["item"]["table"], event["operation"], event)
        return {"status": "succeeded", "summary": f"{event['operation']} done"}

    def _job(self, arguments: Mapping[str, str]) -> None:
        if "--wave-key" in arguments:
            self._tell("*", "job:wave", dict(arguments))
            return
        self._tell(arguments["--plan-key"].split("/")[2], f"job:{arguments['--operation']}", dict(arguments))

    def _report(self, event: Any) -> Any:
        if "item" not in event:
            self._tell("*", "report_run", event)
            tables = [*event.get("earlier", []), *event["tables"]]
            statuses = {table["status"] for table in tables if table is not None} - {"waiting"}
            (status,) = statuses if len(statuses) == 1 else ("partial",)
            return {"status": status, "summary": f"{len(event['tables'])} table(s)"}
        table = event["item"]["table"]
        self._tell(table, "report", event)
        failed = ", ".join(event["failures"])
        return {"table": table, "status": "partial" if failed else "succeeded", "summary": failed or "all well"}

    # -- how

    def _tell(self, table: str, step: str, event: Any) -> None:
        with self._lock:
            self.calls.append(Call(table, step, event))
        happens = self.happening.get(step)
        if happens is not None:
            happens(event)
