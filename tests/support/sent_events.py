"""Every event of events/, sent to its function, and the effects of such a pass on a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from icekeeper.machine.clock import system_clock
from local_stack.rights.callers import DENIED
from local_stack.stack import LocalStack
from support.lambda_functions import sample
from support.readers import canonical, duckdb_rows
from support.rights_fleet import DATABASE, RightsFleet
from support.table_functions import EVENTS, RUN

# Every event of events/, sent to its function in the order of events/README.md, for one table of a stack.

Call: TypeAlias = Callable[[str, Any], Any]
"""Calls a function by its role with an event and returns the answer."""


@dataclass
class SentEvents:
    """The events sent so far with their answers; :meth:`all` needs a table that needs a pass."""

    stack: LocalStack
    call: Call
    answers: dict[str, Any] = field(default_factory=dict)

    def all(self, table: str, catalog: str) -> Mapping[str, Any]:
        """Send every event once; return all answers by the name of the event."""
        found = self._send("detect_forced", input={"table": table, "catalog": catalog})
        (item,) = self.stack.control(found["tables"]["key"])
        self._send("plan", item=item)
        self._send("gather")
        for name in ("expire_partitions", "compact", "expire_snapshots"):
            self._send(name, item=item)
        listed = self._send("list_orphans", item=item)["listed"]
        self._send("remove_orphans", item=item, listed=listed)
        self._send("rewrite_manifests", item=item)
        for name in ("clean_staged", "report"):
            self._send(name)
        self._send("detect", run_id="another")
        assert set(self.answers) == set(EVENTS)
        return self.answers

    def _send(self, name: str, **changed: Any) -> Any:
        event = {**sample(name), "run_id": RUN, **changed}
        if "started_ms" in event:
            event["started_ms"] = system_clock()  # a run ignores files that are younger than its start
        self.answers[name] = self.call(EVENTS[name], event)
        return self.answers[name]


# A table of the Glue Data Catalog that needs every operation, and the results of a pass by the events of events/.

_EXPECTED = {
    "expire_partitions": {
        "expire_partitions": "succeeded: expired 1 partition(s): dropped 1 data file(s) with 5 row(s)"
    },
    "compact": {"compact": "succeeded: compacted 3 files into 1 (across 1 bins)"},
    "expire_snapshots": {"expire_snapshots": "succeeded: expired 5 snapshot(s), deleted 14 unreferenced file(s)"},
    "remove_orphans": {"remove_orphans": "succeeded: removed 2 orphan file(s)"},
    "rewrite_manifests": {"rewrite_manifests": "succeeded: rewrote 2 manifests into 1 (1 entries)"},
    "clean_staged": {"cleaned": 1, "left": 0},
}


class NeedyTable:
    """The stack's only table: small files, an old partition, an orphan, the file of a failed load."""

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
        """Check every function's answer, that no right was missing, and every row, as DuckDB reads it.

        Raises:
            AssertionError: a check fails.
        """
        assert {name: answers[name] for name in _EXPECTED} == _EXPECTED
        assert answers["list_orphans"]["count"] == 2
        report = answers["report"]
        assert (report["status"], report["summary"], report["left"]) == ("succeeded", "1 succeeded", 0)
        assert [(entry["table"], entry["status"]) for entry in report["tables"]] == [(self.name, "succeeded")]
        assert answers["detect"]["reason"] == "1 of 1 table(s) need maintenance"
        assert not DENIED, [str(entry) for entry in DENIED]
        assert len(self._kept) == 15
        assert canonical(self._rows()) == canonical(self._kept)
