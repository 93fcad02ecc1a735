"""One moment for a whole pass: what ``now()`` in its filter means does not change from step to step."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField

from icekeeper.pipeline.run_leases import release_table_lease
from support.maintained_table import MaintainedTable, our_catalog
from support.pipeline_deployment import RUN, Pipeline

TODAY = date(2096, 10, 2)
YESTERDAY = TODAY - timedelta(days=1)
MIDNIGHT = datetime(2096, 10, 3, tzinfo=UTC)
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "day", DateType()))
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))


class DatedTable(MaintainedTable):
    def add(self, files: int, day: date) -> None:
        for number in range(files):
            self.table.append(pa.table({"id": pa.array([number], pa.int64()), "day": pa.array([day], pa.date32())}))

    def files_by_day(self) -> dict[date, int]:
        """How many files each day has."""
        days = [date(1970, 1, 1) + timedelta(days=int(file.partition[0] or 0)) for file in self.data_files()]
        return {day: days.count(day) for day in days}


@pytest.fixture
def pipeline(local_catalog: SqlCatalog, tmp_path: Path) -> Pipeline:
    table = DatedTable(our_catalog(tmp_path), tmp_path, pyiceberg=local_catalog)
    table.create(SCHEMA, partition_spec=SPEC)
    for day in (YESTERDAY, TODAY):
        table.add(2, day)
    return Pipeline(table, tmp_path)


def test_a_step_after_midnight_works_on_the_day_of_its_plan(pipeline: Pipeline) -> None:
    table = pipeline.table
    assert isinstance(table, DatedTable)
    pipeline.clock.now_ms = int(MIDNIGHT.timestamp() * 1000) - 1000
    item, plan = pipeline.begin(settings={"where": "day < current_date"}, operations="compact")
    assert pipeline.document(item, "plan.json")["started_ms"] == pipeline.clock.now_ms
    pipeline.clock.now_ms += 60_000
    again = pipeline.plan(item, attempt=2)
    assert pipeline.document(item, "plan-2.json")["started_ms"] == pipeline.clock.now_ms - 60_000
    answer = pipeline.run(item, again, "compact")
    assert answer["summary"] == "compacted 2 files into 1 (across 1 bins)"
    assert table.files_by_day() == {YESTERDAY: 1, TODAY: 2}
    # The next run has a moment of its own.
    assert release_table_lease(pipeline.deployment, RUN, item)
    item, plan = pipeline.begin("run-2", settings={"where": "day < current_date"}, operations="compact")
    pipeline.run(item, plan, "compact", "run-2")
    assert table.files_by_day() == {YESTERDAY: 1, TODAY: 1}
