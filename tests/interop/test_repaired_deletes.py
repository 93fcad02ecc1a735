"""Iceberg-Java refuses tables with broken deletes, and reads exactly the promised rows after ``icekeeper repair``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from icekeeper.repair.plan import RepairOptions
from support.iceberg_java import IcebergJava
from support.maintained_table import NAME, local_path
from support.v3 import commit_files, delete_positions, file_of, rows, table_of_version, vectors


def test_java_reads_united_moved_and_dropped_vectors(iceberg_java: IcebergJava, tmp_path: Path) -> None:
    with table_of_version(tmp_path, 3) as table:

        def java_rows() -> Counter[int]:
            return Counter(row["id"] for row in iceberg_java.rows(table.metadata_location))

        every, paths = rows(table), {row: file_of(table, row) for row in (0, 50, 100)}
        delete_positions(table, {paths[0]: [1]})
        older = vectors(table)[paths[0]].file
        delete_positions(table, {paths[0]: [2]})
        commit_files(table, [older], {})
        delete_positions(table, {paths[50]: [3]}, under=("us",))
        lost = delete_positions(table, {paths[100]: [4]})
        local_path(lost).unlink()
        with pytest.raises(Py4JJavaError):
            java_rows()
        damaged = table.metadata.current_snapshot
        for options, operation, deleted in (
            (RepairOptions(), "replace", {1, 2, 53, 104}),
            (RepairOptions(drop_missing=True), "overwrite", {1, 2, 53}),
        ):
            plan = table.runtime.plan_repair(NAME, options).plan
            assert plan is not None
            assert plan.operation == operation
            table.runtime.repair(NAME, options, plan.digest)
            if operation == "overwrite":
                assert java_rows() == rows(table) == every - Counter(deleted)
        assert damaged is not None
        appended = iceberg_java.session.read.format("iceberg").option("start-snapshot-id", str(damaged.snapshot_id))
        assert appended.load(table.metadata_location).count() == 0
