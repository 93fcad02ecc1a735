"""Every event of events/, sent to its function, and what a pass by them does to a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from local_stack.rights.callers import DENIED
from local_stack.stack import LocalStack
from support.lambda_functions import sample
from support.readers import canonical, duckdb_rows
from support.rights_fleet import DATABASE, RightsFleet
from support.table_functions import EVENTS, RUN

# Every event of events/, sent to its function in the order of events/README.md, about one table of a stack.

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


# A table of the Glue Data Catalog that needs every operation, and what a pass by the events of events/ does to it.

_SAID = {
    "expire_partitions": "expired 1 partition(s): dropped 1 data file(s) with 5 row(s)",
    "compact_small": "compacted 3 files into 1 (across 1 bins)",
    "expire_snapshots": "expired 5 snapshot(s), deleted 14 unreferenced file(s)",
    "list_orphans": "would remove 2 orphan file(s)",
    "remove_orphans": "removed 2 orphan file(s)",
    "rewrite_manifests": "rewrote 2 manifests into 1 (1 entries)",
    "clean_staged": "deleted 1 staged file(s) of 1 failed load(s)",
    "report_run": "1 succeeded",
}


class NeedyTable:
    """The stack's one table: small files, a partition of long ago, an orphan, the file of a failed load."""

    name, catalog = f"{DATABASE}.t", "glue"

    def __init__(self, stack: LocalStack, folder: Path) -> None:
        fleet = RightsFleet(stack, folder)
        fleet.give_policy()
        self._s3 = stack.moto.s3_properties
        DENIED.clear()
        self._table = fleet.glue_table("t")
        fleet.leave_orphans(self._table)
        rows = self._rows()
        newest = max(row["day"] for row in rows)
        self._kept = [row for row in rows if row["day"] == newest]

    def _rows(self) -> Any:
        return duckdb_rows(self._table.refresh().metadata_location, s3=self._s3)

    def has_had_its_pass(self, answers: Mapping[str, Any]) -> None:
        """Check what every function answered, that no right was missing, and every row, as DuckDB reads it.

        Raises:
            AssertionError: something is wrong.
        """
        said = {name: answers[name]["summary"] for name in _SAID}
        assert said == _SAID, said
        assert {answers[name]["status"] for name in _SAID} == {"succeeded"}
        assert answers["report_table"]["status"] == "succeeded"
        assert answers["lease_acquire"]["holder"] == "by-hand-1"
        assert answers["lease_release"] == {"released": True}
        assert answers["detect"]["reason"] == "1 of 1 table(s) need maintenance"
        assert answers["maintain_small_table"]["status"] == "waiting"
        assert set(answers["maintain_small"]) in ({"report"}, {"plan", "failures"})
        assert (answers["plan_rest"]["count"], answers["plan_wave"]["proposals"]["count"]) == (1, 1)
        assert not DENIED, [str(one) for one in DENIED]
        assert len(self._kept) == 15
        assert canonical(self._rows()) == canonical(self._kept)
