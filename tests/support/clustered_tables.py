"""Tables of random ids to cluster, and the bounds of their files."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pyarrow.parquet as pq
import pytest

from icekeeper.model import DataFile
from icekeeper.operations.compaction.work import exchange
from icekeeper.operations.compaction.work import sort_files as cluster_work
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.storage.paths import normalise
from support.maintained_table import MaintainedTable
from support.readers import duckdb_rows, pyiceberg_rows

BY_ID = {"strategy": "sort", "sort_order": "id"}
NOTHING_ELIGIBLE = "no files eligible for compaction"


def limit_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a worker's memory to 64 KB, so that every group is split among workers."""
    monkeypatch.setattr(exchange, "RANGE_BYTES", 64 * 1024)
    monkeypatch.setattr(exchange, "_SPLIT_BYTES", 128 * 1024)
    monkeypatch.setattr(cluster_work, "RUN_BYTES", 32 * 1024)
    monkeypatch.setattr(cluster_work, "_SLICE_BYTES", 4 * 1024)


def fill(table: MaintainedTable, files: int, rows: int, *, seed: int = 0) -> None:
    """Append files of random ids, each over the whole range."""
    rng = random.Random(seed)
    for _ in range(files):
        table.append(*(rng.randrange(10**9) for _ in range(rows)))


def compacted(table: MaintainedTable, **more: Any) -> OperationOutcome:
    outcome = table.run(Operation.COMPACT, **{"min_input_files": "5", **more})
    assert outcome.status in (Status.SUCCEEDED, Status.SKIPPED), outcome
    return outcome


def column(file: DataFile, name: str = "id") -> list[Any]:
    values: list[Any] = pq.read_table(normalise(file.file_path), columns=[name])[name].to_pylist()
    return values


def bounds(file: DataFile, field_id: int) -> tuple[int, int]:
    """The bounds of a long column in the manifest."""
    assert file.lower_bounds is not None
    assert file.upper_bounds is not None
    low, high = struct.unpack("<q", file.lower_bounds[field_id]), struct.unpack("<q", file.upper_bounds[field_id])
    return low[0], high[0]


def by_lower(files: Sequence[DataFile]) -> list[DataFile]:
    return sorted(files, key=lambda file: bounds(file, 1))


def both_read(table: MaintainedTable) -> Counter[tuple[Any, ...]]:
    """The rows of large tables without nested values or floats; PyIceberg and DuckDB must read the same."""
    location = table.loaded.metadata_location
    read = pyiceberg_rows(location), duckdb_rows(location)
    names = sorted(read[0][0])
    by_pyiceberg, by_duckdb = (Counter(map(itemgetter(*names), rows)) for rows in read)
    assert by_duckdb == by_pyiceberg
    return by_pyiceberg
