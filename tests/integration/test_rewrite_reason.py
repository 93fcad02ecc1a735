"""``rewrite_reason``: files that lack a new setting are named, and rewritten once on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform

from icekeeper.cli.passes import plan_lines
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.storage.storage import Storage
from support.maintained_table import MaintainedTable, maintained_table, new_table

# New settings of a table: files that lack them are named, and rewritten once on request.

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


def test_a_new_bloom_filter_is_added_to_old_files(table: MaintainedTable) -> None:
    with table.table.transaction() as change:
        change.set_properties({BLOOM: "true"})
    assert compacted(table, rewrite_reason="codec").status is Status.SKIPPED
    assert compacted(table, rewrite_reason="bloom").status is Status.SUCCEEDED
    footers = [pq.read_metadata(f.file_path.removeprefix("file://")) for f in table.data_files()]
    assert all(footer.row_group(0).column(0).bloom_filter_length for footer in footers)
    assert table.readers_agree() == [1, 2, 3]
    assert compacted(table, rewrite_reason="bloom").status is Status.SKIPPED


def test_files_of_an_old_spec_move_if_their_rows_have_a_single_partition(table: MaintainedTable) -> None:
    with table.table.update_spec() as update:
        update.add_identity("part")
    assert compacted(table).status is Status.SKIPPED
    assert compacted(table, rewrite_reason="spec").status is Status.SUCCEEDED
    assert {file.partition for file in table.data_files()} == {("p",)}
    assert table.readers_agree() == [1, 2, 3]
    assert compacted(table, rewrite_reason="spec").status is Status.SKIPPED


def test_a_file_with_an_unreadable_footer_is_left_alone(table: MaintainedTable) -> None:
    with table.table.transaction() as change:
        change.set_properties({BLOOM: "true"})
    gone = Path(table.data_files()[0].file_path.removeprefix("file://"))
    gone.rename(gone.with_suffix(".away"))
    outcome = compacted(table, rewrite_reason="bloom")
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["compact.files_merged"] == 1


# ``rewrite_reason`` reads footers before the plan, but no manifest again.


def test_a_plan_by_footers_reads_no_manifest_twice(
    local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(local_catalog, tmp_path, appends=3)
    with table.table.transaction() as change:
        change.set_properties({"write.parquet.compression-codec": "gzip"})
    reads: Counter[str] = Counter()
    read = Storage.read

    def counted(self: Storage, path: str) -> bytes:
        reads[path] += path.endswith("-m0.avro")
        return read(self, path)

    monkeypatch.setattr(Storage, "read", counted)
    for _ in range(2):  # the first pass over a table also records its folders
        reads.clear()
        table.run(Operation.COMPACT, dry_run=True, min_input_files="9")
    without = dict(reads)
    reads.clear()
    outcome = table.run(Operation.COMPACT, dry_run=True, rewrite_reason="codec", min_input_files="9")
    assert len(outcome.files_planned) == 3
    assert {path: count for path, count in reads.items() if count} == {p: n for p, n in without.items() if n}


# A dry run names a sort order that no file of the table has yet, and the cost of sorting the existing files.


@pytest.fixture
def table_to_sort(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Two files from before the table had its sort order: too few to be merged and sorted."""
    with maintained_table(tmp_path) as made:
        made.create()
        made.fill(2)
        with made.table.update_sort_order() as update:
            update.asc("id", IdentityTransform())
        yield made


def settings(table_to_sort: MaintainedTable, **policy: str) -> list[dict[str, Any]]:
    plan = table_to_sort.run(Operation.COMPACT, dry_run=True, **{"min_input_files": "5", **policy}).plan or {}
    return list(plan.get("settings", ()))


@pytest.mark.parametrize(
    ("strategy", "how"), [("auto", "rewrite_all=true"), ("binpack", "strategy=sort, rewrite_all=true")]
)
def test_a_new_sort_order_is_named_with_its_cost(table_to_sort: MaintainedTable, strategy: str, how: str) -> None:
    size = sum(file.file_size_in_bytes for file in table_to_sort.data_files())
    (lacking,) = settings(table_to_sort, strategy=strategy)
    assert {key: lacking[key] for key in ("reason", "sampled", "lacking", "files", "bytes", "how")} == {
        "reason": "sort_order",
        "sampled": 2,
        "lacking": 2,
        "files": 2,
        "bytes": size,
        "how": how,
    }
    assert lacking["cost_usd"] > 0
    (line,) = plan_lines({"settings": [lacking]})
    assert line.startswith(f"2 of 2 sampled files lack the table's sort order: {how} would rewrite about ")


def test_a_sort_order_is_not_named_once_files_are_sorted_or_will_be(table_to_sort: MaintainedTable) -> None:
    assert settings(table_to_sort, rewrite_all="true") == []  # this plan sorts them
    assert settings(table_to_sort, strategy="zorder", sort_order="id,part") == []  # another order is wanted
    table_to_sort.run(Operation.COMPACT, rewrite_all="true")
    assert settings(table_to_sort) == []
    table_to_sort.append(99)
    assert settings(table_to_sort) == []  # the new file waits for others, like every new file
