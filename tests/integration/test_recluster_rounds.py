"""Rounds of new data over the same keys, clustered again and again on a real table: what lookups open; its price."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from support.maintained_table import MaintainedTable, new_table
from support.readers import duckdb_rows

ROUNDS, ROWS, FACTOR, LIMIT = 9, 2_000, 3, 2
SCHEMA = pa.schema([pa.field("x", pa.int64()), pa.field("y", pa.int64())])
LARGEST = 10**6
Row = tuple[int, int]
SETTINGS = {
    "target_file_size_mb": "0.008",
    "min_input_files": "5",
    "max_clustering_depth": str(LIMIT),
    "clustering_tier_factor": str(FACTOR),
}
BY_X = {"strategy": "sort", "sort_order": "x"}
CURVE = {"strategy": "zorder", "zorder_columns": "x,y"}


X, Y = 0, 1


class Box(NamedTuple):
    """The bounds of a file, and which snapshot added it: its run."""

    low: Row
    high: Row
    run: int | None

    def holds(self, row: Row, columns: Sequence[int]) -> bool:
        return all(self.low[n] <= row[n] <= self.high[n] for n in columns)


class Round(NamedTuple):
    """The files before a compaction and after it, and what it tells."""

    before: list[Box]
    after: list[Box]
    outcome: OperationOutcome

    @property
    def runs(self) -> int:
        return len({box.run for box in self.after})


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    return new_table(local_catalog, tmp_path, schema=SCHEMA)


def boxes(table: MaintainedTable) -> list[Box]:
    def bounds(found: Mapping[int, bytes] | None) -> Row:
        assert found is not None
        return struct.unpack("<q", found[1])[0], struct.unpack("<q", found[2])[0]

    entries = table.entries()
    return [Box(bounds(e.file.lower_bounds), bounds(e.file.upper_bounds), e.snapshot_id) for e in entries]


def opened(files: list[Box], rows: list[Row], *columns: int) -> float:
    """How many files a lookup opens on average that names these columns of a row."""
    return mean(sum(box.holds(row, columns) for box in files) for row in rows)


def play(table: MaintainedTable, settings: dict[str, str]) -> tuple[list[Round], list[Row]]:
    """Rounds of as many new rows, anywhere in the range of both columns; and all rows."""
    rng = random.Random(5)
    rows: list[Row] = []
    played = []
    for _ in range(ROUNDS):
        new = [(rng.randrange(LARGEST), rng.randrange(LARGEST)) for _ in range(ROWS)]
        rows += new
        table.table.append(pa.table({"x": [x for x, _ in new], "y": [y for _, y in new]}, schema=SCHEMA))
        before = boxes(table)
        outcome = table.run(Operation.COMPACT, **SETTINGS, **settings)
        played.append(Round(before, boxes(table), outcome))
    return played, rows


@pytest.mark.parametrize(
    ("settings", "measured"), [(BY_X, (X,)), (CURVE, (X, Y))], ids=["a sort order", "a z-order curve"]
)
def test_lookups_stay_cheap_round_after_round(
    table: MaintainedTable, settings: dict[str, str], measured: tuple[int, ...]
) -> None:
    """Never more runs than the limit or ``factor - 1`` a tier; a row is written once, and once more for every tier."""
    played, rows = play(table, settings)
    some = rows[::100]
    for number, one in enumerate(played, start=1):
        assert one.outcome.status is Status.SUCCEEDED
        assert one.runs <= max(LIMIT, (FACTOR - 1) * (1 + math.floor(math.log(number, FACTOR)))), number
        told = {key: one.outcome.metrics[f"compact.depth_{key}"] for key in ("before", "after")}
        for key, files in (("before", one.before), ("after", one.after)):
            assert told[key] == pytest.approx(mean(opened(files, some, n) for n in measured), rel=0.15), (number, key)
    rewritten = sum(int(one.outcome.metrics["compact.rows_rewritten"]) for one in played)
    assert rewritten <= len(rows) * (1 + math.log(ROUNDS, FACTOR))
    assert [one.runs for one in played] == [1, 2, 1, 2, 3, 2, 3, 4, 1]
    last = played[-1]
    assert opened(last.after, some, *measured) < opened(last.before, some, *measured) / 2
    assert last.outcome.metrics["compact.depth_after"] < last.outcome.metrics["compact.depth_before"]
    read = [(row["x"], row["y"]) for row in duckdb_rows(table.metadata_location)]
    assert sorted(read) == sorted(rows)
    assert table.verify().problems == ()
