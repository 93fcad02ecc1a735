"""Variants by Iceberg-Java and DuckDB: each storage, under each operation, on each engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.operations.compaction.work import exchange
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.clustered_tables import limit_memory
from support.deletes import equality_delete
from support.java_writer import JavaTables
from support.maintained_table import MaintainedTable, maintained_table
from support.v3 import commit_keys, data_files, delete_positions
from support.variants import (
    BUCKETS,
    FIELDS,
    JAVA_CANNOT_READ,
    SHREDDINGS,
    WRITERS,
    Kept,
    append,
    delete_as_v2,
    partition_by,
    seen_by_java,
    variant_table,
)

STORAGES = [(s, w) for s in SHREDDINGS for w in WRITERS if (s, w) != ("plain", "duckdb")]
NULL = "Variant(type=NULL, value=null)"


@pytest.fixture(params=["local", "spark"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "local":
        return LocalEngine(2)
    return SparkEngine(request.getfixturevalue("spark_session").sparkContext)


@pytest.mark.parametrize(("how", "writer"), [(s, w) for s, w in STORAGES if s != JAVA_CANNOT_READ])
def test_java_reads_each_storage_and_each_kind_of_null(
    how: str, writer: str, tmp_path: Path, java_tables: JavaTables
) -> None:
    with maintained_table(tmp_path) as made:
        table = variant_table(made)
        append(table, range(100, 110), "us", how, writer)
        found = {number: json.loads(row) for number, row in seen_by_java(table, java_tables).items()}
    assert (found[0]["3"], found[0]["4"], found[0]["6"]) == (None, None, None)
    assert found[100]["3"] == (None if writer == "arrow" else NULL)
    assert found[101]["3"] == NULL
    assert found[101]["4"] == ({"5": NULL} if writer == "arrow" else None)
    fields = "a: Variant(type=INT64, value=102), b: Variant(type=STRING, value=text 102)"
    assert found[102]["3"] == f"VariantObject(fields={{{fields}}})"


class _Judged:
    """A table whose rows both readers must find unchanged after each step."""

    def __init__(self, table: MaintainedTable, java_tables: JavaTables | None) -> None:
        self.table, self._java = table, java_tables

    def seen(self) -> tuple[Kept, dict[int, str]]:
        return Kept.of(self.table), {} if self._java is None else seen_by_java(self.table, self._java)

    def run(self, operation: Operation, **more: Any) -> Mapping[str, Any]:
        before = self.seen()
        outcome = self.table.run(operation, **more)
        assert outcome.status is Status.SUCCEEDED, outcome
        assert self.seen() == before, operation
        assert self.table.problems() == {}
        return outcome.metrics


@pytest.mark.parametrize(("how", "writer"), STORAGES)
def test_every_operation_keeps_each_storage(
    how: str, writer: str, engine: Engine, tmp_path: Path, java_tables: JavaTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    with maintained_table(tmp_path) as made:
        # DuckDB's files have no other variant, so the table has none: then they are copied.
        table = variant_table(made, delete_as_v2, FIELDS[:1] if writer == "duckdb" else FIELDS)
        judged = _Judged(table, None if how == JAVA_CANNOT_READ else java_tables)
        starts = iter(range(100, 2000, 10))

        def more(files: int) -> list[str]:
            numbers = [next(starts) for _ in range(files)]
            return [append(table, range(n, n + 10), "us", how, writer) for n in numbers]

        settings: dict[str, Any] = {"engine": engine, "proof": "full"}
        delete_positions(table, dict.fromkeys(more(3), (1, 4)))
        commit_keys(table, [equality_delete(row_id, "us") for row_id in (3, 102, 113)])
        judged.run(Operation.REWRITE_MANIFESTS)
        judged.run(Operation.REWRITE_POSITION_DELETES, convert_equality_deletes="true")
        assert table.live_deletes() == {"POSITION_DELETES": 4}
        assert judged.run(Operation.COMPACT, **settings)["compact.bytes_copied"] == 0
        more(2)
        copied = judged.run(Operation.COMPACT, min_row_group_copy_bytes="100", **settings)["compact.bytes_copied"]
        assert (copied > 0) is ((how, writer) != ("types", "duckdb"))  # Arrow writes long decimals in fewer bytes
        more(2)
        judged.run(Operation.COMPACT, strategy="sort", sort_order="id desc", **settings)
        more(2)
        judged.run(Operation.COMPACT, strategy="zorder", sort_order="id, region", **settings)
        with monkeypatch.context() as patched:
            limit_memory(patched)
            patched.setattr(exchange, "RANGE_BYTES", 1)
            patched.setattr(exchange, "_SPLIT_BYTES", 1)
            delete_positions(table, dict.fromkeys(more(2), (2, 6)))
            judged.run(Operation.COMPACT, strategy="sort", sort_order="region, id", **settings)
        more(5)
        partition_by(table, [BUCKETS])
        judged.run(Operation.COMPACT, **settings)
        assert {(0,), (1,)} <= {file.partition for file in data_files(table)}
        judged.run(Operation.EXPIRE_SNAPSHOTS)
        table.plant("data/orphan.parquet")
        judged.run(Operation.REMOVE_ORPHANS)
        assert table.unreferenced() == set()
