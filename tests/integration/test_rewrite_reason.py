"""Settings that are new to a table: files that lack them are named, and rewritten once where that is asked for."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from support.maintained_table import MaintainedTable, new_table

LARGE = {"target_file_size_mb": "0.0001", "min_input_files": "5"}
"""Every file is large enough to be left alone."""
BLOOM = "write.parquet.bloom-filter-enabled.column.id"


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    table = new_table(local_catalog, tmp_path)
    table.append(1, 2)
    table.append(3)
    return table


def compacted(table: MaintainedTable, **more: object) -> OperationOutcome:
    return table.run(Operation.COMPACT, **LARGE, **more)


def codecs(table: MaintainedTable) -> set[str]:
    footers = [pq.read_metadata(f.file_path.removeprefix("file://")) for f in table.data_files()]
    return {footer.row_group(0).column(0).compression for footer in footers}


def test_a_new_codec_is_named_and_files_are_rewritten_once(table: MaintainedTable) -> None:
    before = codecs(table)
    new = "gzip" if "GZIP" not in before else "snappy"
    with table.table.transaction() as change:
        change.set_properties({"write.parquet.compression-codec": new})
    planned = compacted(table, dry_run=True)
    assert planned.status is Status.SKIPPED
    assert planned.plan is not None
    (named,) = planned.plan["settings"]
    size = sum(file.file_size_in_bytes for file in table.data_files())
    assert {key: named[key] for key in ("reason", "sampled", "lacking", "files", "bytes", "how")} == {
        "reason": "codec", "sampled": 2, "lacking": 2, "files": 2, "bytes": size, "how": "rewrite_reason=codec",
    }  # fmt: skip
    assert compacted(table).status is Status.SKIPPED
    would = compacted(table, rewrite_reason="codec", dry_run=True)
    assert would.plan is not None
    assert [group["reasons"] for group in would.plan["groups"]] == [["codec"], ["codec"]]
    assert compacted(table, rewrite_reason="codec").status is Status.SUCCEEDED
    assert codecs(table) == {new.upper()}
    assert table.readers_agree() == [1, 2, 3]
    assert compacted(table, rewrite_reason="codec,bloom,spec").status is Status.SKIPPED


def test_a_new_bloom_filter_reaches_old_files(table: MaintainedTable) -> None:
    with table.table.transaction() as change:
        change.set_properties({BLOOM: "true"})
    assert compacted(table, rewrite_reason="codec").status is Status.SKIPPED
    assert compacted(table, rewrite_reason="bloom").status is Status.SUCCEEDED
    footers = [pq.read_metadata(f.file_path.removeprefix("file://")) for f in table.data_files()]
    assert all(footer.row_group(0).column(0).bloom_filter_length for footer in footers)
    assert table.readers_agree() == [1, 2, 3]
    assert compacted(table, rewrite_reason="bloom").status is Status.SKIPPED


def test_files_of_an_old_spec_move_where_their_rows_have_one_partition(table: MaintainedTable) -> None:
    with table.table.update_spec() as update:
        update.add_identity("part")
    assert compacted(table).status is Status.SKIPPED
    assert compacted(table, rewrite_reason="spec").status is Status.SUCCEEDED
    assert {file.partition for file in table.data_files()} == {("p",)}
    assert table.readers_agree() == [1, 2, 3]
    assert compacted(table, rewrite_reason="spec").status is Status.SKIPPED


def test_a_footer_that_cannot_be_read_leaves_its_file_alone(table: MaintainedTable) -> None:
    with table.table.transaction() as change:
        change.set_properties({BLOOM: "true"})
    gone = Path(table.data_files()[0].file_path.removeprefix("file://"))
    gone.rename(gone.with_suffix(".away"))
    outcome = compacted(table, rewrite_reason="bloom")
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["compact.files_merged"] == 1
