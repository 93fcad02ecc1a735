"""Compaction applies deletes: the rows that readers showed before are the rows after; no useless delete file stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, StructType

from icekeeper.model import FileContent, ManifestContent
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.report.outcome import Status
from icekeeper.rows import apply_deletes
from icekeeper.rows.read_task import DeleteFile
from support.deletes import commit_deletes, compacted, create_by_region, equality_delete, position_delete, rows_of
from support.deletes import region_rows as rows
from support.maintained_table import MaintainedTable, local_path, maintained_table
from support.readers import duckdb_rows
from support.rewrites import input_file, struct, task
from support.rewrites import rows as made_rows

OTHER = pa.schema([pa.field("other", pa.int64(), metadata={b"PARQUET:field_id": b"9"})])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Partitioned by region, three files of ten rows each: ids 0.., 100.., 200.. in us, 50.., 150.., 250.. in eu."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 3)
        yield made


def live_delete_files(table: MaintainedTable) -> int:
    reader = table.reader
    head = reader.metadata.current_snapshot
    assert head is not None
    deletes = [m for m in reader.manifests(head) if m.content is ManifestContent.DELETES]
    return sum(entry.is_live for _, entries in reader.entries(deletes) for entry in entries)


def file_holding(table: MaintainedTable, row_id: int, region: str) -> str:
    scan = StaticTable.from_metadata(table.loaded.metadata_location).scan(f"id = {row_id} and region = '{region}'")
    (task,) = scan.plan_files()
    return task.file.file_path


def test_rows_that_come_back_after_their_delete_stay(table: MaintainedTable) -> None:
    """Delete a key, insert it again, compact: the new row is there (rule 6)."""
    commit_deletes(table, [equality_delete(103, "us")])
    table.table.append(rows_of(103, 1, "us"))
    before = rows(table)
    assert before[103, "us"] == 1
    outcome = compacted(table)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["compact.rows_deleted"] == 1
    assert rows(table) == before
    assert live_delete_files(table) == 0


def test_a_delete_in_one_partition_leaves_the_others_alone(table: MaintainedTable) -> None:
    """The same key lives in eu (rule 7).  DuckDB 1.5 did not show it: it ignores partitions (platform 25)."""
    table.table.append(rows_of(103, 1, "eu"))
    before = rows(table)
    commit_deletes(table, [equality_delete(103, "us"), position_delete(file_holding(table, 7, "us"), 7, "us")])
    outcome = compacted(table)
    assert outcome.metrics["compact.rows_deleted"] == 2
    assert outcome.metrics["compact.delete_files_removed"] == 2
    assert rows(table) == before - Counter([(103, "us"), (7, "us")])
    assert live_delete_files(table) == 0
    assert compacted(table).reason == "no files eligible for compaction"


def test_a_delete_file_stays_while_a_data_file_needs_it(table: MaintainedTable) -> None:
    """With room for one partition only, the other one's delete file is carried along and still applies."""
    commit_deletes(table, [equality_delete(103, "us"), equality_delete(253, "eu")])
    before = rows(table)
    assert compacted(table, max_files_to_rewrite="3", min_input_files="2").metrics["compact.bins"] == 1
    assert live_delete_files(table) == 1
    assert rows(table) == before
    assert compacted(table, max_files_to_rewrite="3", min_input_files="2").metrics["compact.bins"] == 1
    assert live_delete_files(table) == 0
    assert rows(table) == before


def test_a_large_file_is_rewritten_for_its_deletes_alone(table: MaintainedTable) -> None:
    """Every file is large by this target; only the one with a delete is rewritten, by itself."""
    path = file_holding(table, 7, "us")
    commit_deletes(table, [position_delete(path, 7, "us")])
    before = rows(table)
    outcome = compacted(table, target_file_size_mb="0.0001")
    assert outcome.summary == "compacted 1 files into 1 (across 1 bins)"
    assert outcome.files_planned == (path,)
    assert rows(table) == before
    assert live_delete_files(table) == 0
    assert compacted(table, target_file_size_mb="0.0001").status is Status.SKIPPED


def test_deletes_need_not_be_a_reason_to_rewrite(table: MaintainedTable) -> None:
    commit_deletes(table, [position_delete(file_holding(table, 7, "us"), 7, "us")])
    large = {"target_file_size_mb": "0.0001"}
    assert compacted(table, **large, delete_compaction_enabled="false").status is Status.SKIPPED
    assert compacted(table, **large, delete_compaction_min_deletes="2").status is Status.SKIPPED
    assert live_delete_files(table) == 1


def test_more_keys_than_are_held_at_once_delete_the_same_rows(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are then taken in portions, each turned into positions: memory stays bounded."""
    commit_deletes(table, [equality_delete(row_id, "us") for row_id in (1, 3, 103, 109, 200)])
    table.table.append(rows_of(3, 1, "us"))
    before = rows(table)
    monkeypatch.setattr(apply_deletes, "KEY_BYTES", 2**40)
    outcome = compacted(table)
    assert outcome.metrics["compact.rows_deleted"] == 5
    assert rows(table) == before
    assert live_delete_files(table) == 0


def test_a_key_column_that_was_dropped_still_deletes(table: MaintainedTable) -> None:
    """By its field id, from the older schema (rule 10)."""
    commit_deletes(table, [equality_delete(103, "us")])
    with table.table.update_schema() as update:
        update.delete_column("id")
    outcome = compacted(table)
    assert outcome.status is Status.SUCCEEDED, outcome.summary
    found = Counter(row["region"] for row in duckdb_rows(table.loaded.metadata_location))
    assert found == Counter({"us": 29, "eu": 30})
    assert live_delete_files(table) == 0


def test_a_delete_file_that_cannot_be_read_keeps_its_rows_from_coming_back(table: MaintainedTable) -> None:
    """It is named, what it applies to stays as it is, and the other partition is compacted."""
    commit_deletes(table, [equality_delete(103, "us")])
    (found,) = [path for path in table.files() if "/delete-" in path]
    path = local_path(found)
    content = path.read_bytes()
    path.write_bytes(b"PAR1")
    outcome = compacted(table)
    assert outcome.status is Status.SUCCEEDED
    assert "; left 1 file(s) out: file " in outcome.summary
    assert f"{path.name} cannot be read: " in outcome.summary
    assert outcome.metrics["compact.bins"] == 1
    path.write_bytes(content)
    assert rows(table)[103, "us"] == 0
    assert live_delete_files(table) == 1


def test_a_delete_file_without_its_key_column_deletes_nothing_and_stops_its_group(table: MaintainedTable) -> None:
    """Read as a key of nulls it would delete every row whose key is null."""
    content, described = equality_delete(103, "us")
    commit_deletes(table, [(content.rename_columns(["other"]).cast(OTHER), described)])
    outcome = compacted(table)
    assert outcome.status is Status.SUCCEEDED
    assert "lacks column(s) [1]" in outcome.summary
    assert live_delete_files(table) == 1


def test_deletes_that_arrive_meanwhile_join_those_that_were_there(table: MaintainedTable) -> None:
    commit_deletes(table, [equality_delete(103, "us")])
    before = rows(table)
    table.engine.during = lambda: commit_deletes(table, [equality_delete(104, "us")])
    outcome = compacted(table)
    assert outcome.metrics["compact.rows_deleted"] == 1
    assert rows(table) == before - Counter([(104, "us")])
    assert live_delete_files(table) == 1
    table.engine.during = lambda: None
    compacted(table)
    assert rows(table) == before - Counter([(104, "us")])
    assert live_delete_files(table) == 0


def test_a_dangling_delete_file_goes_although_nothing_is_rewritten(table: MaintainedTable) -> None:
    """No data file is in its partition, so it deletes nothing (rule 12)."""
    before = rows(table)
    commit_deletes(table, [equality_delete(1, "nowhere")])
    large = {"target_file_size_mb": "0.0001"}
    outcome = compacted(table, **large)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.summary == "dropped 1 delete file(s) that no data file needs"
    assert live_delete_files(table) == 0
    assert rows(table) == before
    assert compacted(table, **large).status is Status.SKIPPED


@pytest.mark.parametrize("content", [FileContent.POSITION_DELETES, FileContent.EQUALITY_DELETES], ids=str)
def test_a_delete_file_that_lacks_rows_stops_its_group(content: FileContent, tmp_path: Path) -> None:
    """Avro that is cut off between two blocks is a whole file of fewer rows: theirs would come back."""
    schema = struct((1, "id", "long"))
    source = input_file(tmp_path / "in.parquet", made_rows(schema, {"id": [1, 2, 3]}))
    if content is FileContent.EQUALITY_DELETES:
        deletes = made_rows(schema, {"id": [1]})
    else:
        deletes = pa.table({"file_path": [source.path], "pos": pa.array([0], pa.int64())})
    path = input_file(tmp_path / "deletes.parquet", deletes).path
    for promised, error in ((0, None), (1, None), (2, f"{path} holds 1 rows, its manifest says 2")):
        delete = DeleteFile(
            path=path,
            file_format="PARQUET",
            content=content,
            sequence_number=1,
            record_count=promised,
            equality_ids=(1,) if content is FileContent.EQUALITY_DELETES else (),
        )
        made = task(schema, [replace(source, deletes=(0,))], tmp_path, deletes=(delete,))
        result = rewrite_group(made)
        assert result.error == error
        assert [file.record_count for file in result.written] == ([2] if error is None else [])


@pytest.mark.parametrize("is_null_struct", [True, False])
def test_a_null_key_within_an_optional_struct_stops_its_group(is_null_struct: bool, tmp_path: Path) -> None:
    """Java tells a null struct from a null column in it, others do not: whom it deletes is not known (rule 242)."""
    name = NestedField(4, "name", StringType(), required=False)
    owner = NestedField(3, "owner", StructType(name), required=False)
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    owners = [None, {"name": None}, {"name": "a"}, {"name": "b"}]
    field = pa.field("name", pa.string(), metadata={b"PARQUET:field_id": b"4"})
    kind = pa.field("owner", pa.struct([field]), metadata={b"PARQUET:field_id": b"3"})

    def key(region: str, value: object) -> tuple[pa.Table, dict[str, object]]:
        described = {"content": FileContent.EQUALITY_DELETES, "partition": (region,), "equality_ids": (4,)}
        return pa.table([pa.array([value], kind.type)], schema=pa.schema([kind])), described

    with maintained_table(tmp_path) as table:
        table.pyiceberg.create_namespace("ns")
        schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "region", StringType()), owner)
        made = table.pyiceberg.create_table("ns.t", schema, partition_spec=spec, properties={"format-version": "2"})
        for region in ("us", "eu"):
            for half in (owners[:2], owners[2:]):
                made.append(
                    pa.table({"id": [1, 2], "region": [region] * 2, "owner": half}, schema=made.schema().as_arrow())
                )
        commit_deletes(table, [key("us", None if is_null_struct else {"name": None}), key("eu", {"name": "a"})])
        outcome = compacted(table, min_input_files="2")
        assert outcome.status is Status.FAILED
        assert "deletes rows by a null in owner.name" in (outcome.reason or "")
        files = Counter((entry.file.partition[0], entry.file.content.name) for entry in table.entries())
        assert files == {("us", "DATA"): 2, ("us", "EQUALITY_DELETES"): 1, ("eu", "DATA"): 1}
        (merged,) = [entry.file.file_path for entry in table.entries() if entry.file.partition == ("eu",)]
        left = pq.read_table(local_path(merged), partitioning=None)["owner"].to_pylist()
        assert sorted(left, key=str) == [None, {"name": "b"}, {"name": None}]


def test_a_null_key_is_applied_where_it_can_mean_one_thing_only(tmp_path: Path) -> None:
    """A required struct is never null, and what is required in an optional one is null with it alone."""
    for outer, inner in ((True, False), (False, True)):
        leaf = {"id": 2, "name": "n", "required": inner, "type": "string"}
        fields = [{"id": 1, "name": "s", "required": outer, "type": {"type": "struct", "fields": [leaf]}}]
        assert apply_deletes.null_means_two_things(fields, (0, 0)) is False
        leaf["required"] = fields[0]["required"] = False
        assert apply_deletes.null_means_two_things(fields, (0, 0)) is True
    assert (
        apply_deletes.null_means_two_things([{"id": 1, "name": "a", "required": False, "type": "int"}], (0,)) is False
    )
