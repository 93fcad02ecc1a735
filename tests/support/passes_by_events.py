"""A table of the Glue Data Catalog that needs every operation, and what a pass by the events of events/ does to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from local_stack.rights.callers import DENIED
from local_stack.stack import LocalStack
from support.readers import canonical, duckdb_rows
from support.rights_fleet import DATABASE, RightsFleet

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
