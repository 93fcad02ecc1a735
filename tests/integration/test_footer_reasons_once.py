"""``rewrite_reason`` looks at footers before the plan; no manifest is read once more for it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.policy import Operation
from icekeeper.storage.storage import Storage
from support.maintained_table import new_table


def test_a_plan_by_footers_reads_no_manifest_more_often(
    local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(local_catalog, tmp_path)
    table.fill(3)
    with table.table.transaction() as change:
        change.set_properties({"write.parquet.compression-codec": "gzip"})
    reads: Counter[str] = Counter()
    read = Storage.read

    def counted(self: Storage, path: str) -> bytes:
        reads[path] += path.endswith("-m0.avro")
        return read(self, path)

    monkeypatch.setattr(Storage, "read", counted)
    for _ in range(2):  # the first pass over a table also records where it has files
        reads.clear()
        table.run(Operation.COMPACT, dry_run=True, min_input_files="9")
    without = dict(reads)
    reads.clear()
    outcome = table.run(Operation.COMPACT, dry_run=True, rewrite_reason="codec", min_input_files="9")
    assert len(outcome.files_planned) == 3
    assert {path: count for path, count in reads.items() if count} == {p: n for p, n in without.items() if n}
