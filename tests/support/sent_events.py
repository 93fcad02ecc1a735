"""Every event of events/, sent to its function in the order of events/README.md, about one table of a stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from local_stack.stack import LocalStack
from support.lambda_functions import sample
from support.table_functions import EVENTS, RUN

Call: TypeAlias = Callable[[str, Any], Any]
"""Calls a function by its role with an event; its answer."""

STEPS_OF_EVENTS = (
    *("expire_partitions", "compact_small", "expire_snapshots", "list_orphans", "remove_orphans"),
    *("rewrite_manifests", "clean_staged"),
)


@dataclass
class SentEvents:
    """What was sent and answered so far; the caller sends :meth:`all` over a table that needs a pass."""

    stack: LocalStack
    call: Call
    answers: dict[str, Any] = field(default_factory=dict)
    second: Any = None
    """What the other operation of ``compact_small`` came to, which has no event of its own."""

    def all(self, table: str, catalog: str) -> Mapping[str, Any]:
        """Send every event once; all answers, by the name of the event."""
        found = self._send("detect_forced", input={"table": table, "catalog": catalog})
        (item,) = self.stack.control(found["proposals"]["key"])
        self._send("lease_acquire", item)
        plan = self._send("plan", item)
        for name in STEPS_OF_EVENTS:
            self._send(name, item, plan)
        self.second = self._answer("compact_small", item, plan, operation="rewrite_position_deletes")
        told = self._send("report_table", item, plan, failures={})
        self._send("report_run", tables=[told])
        self._send("lease_release", item)
        self._send("detect", run_id="another")
        self._send("maintain_small", item, run_id="in-one-call")
        self._send("maintain_small_table", item, run_id="in-one-call")
        named = {name: item[name] for name in ("catalog", "warehouse", "table", "uuid")}
        self._send("plan_rest", left=[named])
        self._send("plan_wave", wave=[{name: plan[name] for name in ("key", "digest")}])
        assert set(self.answers) == set(EVENTS)
        return self.answers

    def _send(self, name: str, item: Any = None, plan: Any = None, **changed: Any) -> Any:
        self.answers[name] = self._answer(name, item, plan, **changed)
        return self.answers[name]

    def _answer(self, name: str, item: Any = None, plan: Any = None, **changed: Any) -> Any:
        event = {"run_id": RUN, **sample(name)}
        if item is not None:
            event["item"] = item
        if plan is not None:
            event["plan"] = plan
        return self.call(EVENTS[name], {**event, **changed})
