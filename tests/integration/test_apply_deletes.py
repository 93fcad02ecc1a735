"""Compaction applies deletes: readers see the same rows before and after."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, StructType

from icekeeper.metadata.delete_scope import partition_key
from icekeeper.model import EntryStatus, FileContent, ManifestContent, ManifestEntry
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.rows import equality_keys
from icekeeper.rows.equality_deletes import EqualityLookup
from icekeeper.rows.read_task import DeleteFile
from support.deletes import (
    commit_deletes,
    create_by_region,
    equality_delete,
    position_delete,
    region_rows,
    relist,
    rows_of,
)
from support.deletes import region_rows as rows
from support.maintained_table import MaintainedTable, compacted, local_path, maintained_table, outcome_of
from support.readers import duckdb_rows
from support.rewrites import input_file, task
from support.rewrites import rows as made_rows
from support.rewrites import struct as struct_type
from support.v3 import append, data_files, lineage, live, upgrade, vectors

OTHER = pa.schema([pa.field("other", pa.int64(), metadata={b"PARQUET:field_id": b"9"})])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Two partitions with three files of ten rows each: ids 0.., 100.., 200.. in us, 50.., 150.., 250.. in eu."""
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


def test_deletes_apply_only_to_older_rows_of_their_partition(table: MaintainedTable) -> None:
    """After a delete, an insert of the same key and a compaction, the new row remains
    (rule: deletes-reach-by-sequence-number).  The row with the same key in eu remains, too
    (rule: deletes-reach-one-partition).  DuckDB 1.5 does not show that row (platform: duckdb-deletes-every-partition).
    """
    commit_deletes(table, [equality_delete(103, "us")])
    table.table.append(rows_of(103, 1, "us"))
    before = rows(table)
    assert before[103, "us"] == 1
    outcome = compacted(table)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["compact.rows_deleted"] == 1
    assert rows(table) == before
    assert live_delete_files(table) == 0

    table.table.append(rows_of(103, 1, "eu"))
    before = rows(table)
    commit_deletes(table, [equality_delete(103, "us"), position_delete(file_holding(table, 7, "us"), 7, "us")])
    outcome = compacted(table)
    assert outcome.metrics["compact.rows_deleted"] == 2
    assert outcome.metrics["compact.delete_files_removed"] == 2
    assert rows(table) == before - Counter([(103, "us"), (7, "us")])
    assert live_delete_files(table) == 0
    assert compacted(table).reason == "no files eligible for compaction"


def test_a_delete_file_is_kept_while_a_data_file_needs_it(table: MaintainedTable) -> None:
    """If only one partition is rewritten, the other partition's delete file is kept and still applies."""
    commit_deletes(table, [equality_delete(103, "us"), equality_delete(253, "eu")])
    before = rows(table)
    assert compacted(table, max_files_to_rewrite="3", min_input_files="2").metrics["compact.bins"] == 1
    assert live_delete_files(table) == 1
    assert rows(table) == before
    assert compacted(table, max_files_to_rewrite="3", min_input_files="2").metrics["compact.bins"] == 1
    assert live_delete_files(table) == 0
    assert rows(table) == before


def test_a_large_file_is_rewritten_only_for_its_deletes(table: MaintainedTable) -> None:
    """All files exceed the target; only the file with a delete is rewritten."""
    large = {"target_file_size_mb": "0.0001"}
    path = file_holding(table, 7, "us")
    commit_deletes(table, [position_delete(path, 7, "us")])
    before = rows(table)
    assert compacted(table, **large, delete_compaction_enabled="false").status is Status.SKIPPED
    assert compacted(table, **large, delete_compaction_min_deletes="2").status is Status.SKIPPED
    assert live_delete_files(table) == 1
    outcome = compacted(table, **large)
    assert outcome.summary == "compacted 1 files into 1 (across 1 bins)"
    assert outcome.files_planned == (path,)
    assert rows(table) == before
    assert live_delete_files(table) == 0
    assert compacted(table, **large).status is Status.SKIPPED

    # A dangling delete file is removed although nothing is rewritten: its partition has no data file
    # (rule: drop-deletes-only-when-dangling).
    commit_deletes(table, [equality_delete(1, "nowhere")])
    outcome = compacted(table, **large)
    assert outcome.status is Status.SUCCEEDED
    assert outcome.summary == "dropped 1 delete file(s) that no data file needs"
    assert live_delete_files(table) == 0
    assert rows(table) == before
    assert compacted(table, **large).status is Status.SKIPPED


def test_more_keys_than_are_held_at_once_delete_the_same_rows(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys are read in portions and turned into positions, within a memory limit."""
    commit_deletes(table, [equality_delete(row_id, "us") for row_id in (1, 3, 103, 109, 200)])
    table.table.append(rows_of(3, 1, "us"))
    before = rows(table)
    monkeypatch.setattr(equality_keys, "KEY_BYTES", 2**40)
    outcome = compacted(table)
    assert outcome.metrics["compact.rows_deleted"] == 5
    assert rows(table) == before
    assert live_delete_files(table) == 0


def test_a_key_column_that_was_dropped_still_deletes(table: MaintainedTable) -> None:
    """Its field id resolves in the older schema (rule: equality-keys-by-value)."""
    commit_deletes(table, [equality_delete(103, "us")])
    with table.table.update_schema() as update:
        update.delete_column("id")
    outcome = compacted(table)
    assert outcome.status is Status.SUCCEEDED, outcome.summary
    found = Counter(row["region"] for row in duckdb_rows(table.loaded.metadata_location))
    assert found == Counter({"us": 29, "eu": 30})
    assert live_delete_files(table) == 0


def test_rows_of_an_unreadable_delete_file_do_not_return(table: MaintainedTable) -> None:
    """The pass names the delete file, keeps the files it applies to, and compacts the other partition."""
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


def test_a_delete_file_without_its_key_column_stops_its_group(table: MaintainedTable) -> None:
    """Read as null keys, it would delete every row with a null key."""
    content, described = equality_delete(103, "us")
    commit_deletes(table, [(content.rename_columns(["other"]).cast(OTHER), described)])
    outcome = compacted(table)
    assert outcome.status is Status.SUCCEEDED
    assert "lacks column(s) [1]" in outcome.summary
    assert live_delete_files(table) == 1


def test_deletes_committed_during_a_pass_apply_to_its_outputs(table: MaintainedTable) -> None:
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


@pytest.mark.parametrize("content", [FileContent.POSITION_DELETES, FileContent.EQUALITY_DELETES], ids=str)
def test_a_delete_file_that_lacks_rows_stops_its_group(content: FileContent, tmp_path: Path) -> None:
    """An Avro file truncated between two blocks is valid but has fewer rows; the missing deletes would be lost."""
    schema = struct_type((1, "id", "long"))
    source = input_file(tmp_path / "in.parquet", made_rows(schema, {"id": [1, 2, 3]}))
    if content is FileContent.EQUALITY_DELETES:
        deletes = made_rows(schema, {"id": [1]})
    else:
        deletes = pa.table({"file_path": [source.path], "pos": pa.array([0], pa.int64())})
    path = input_file(tmp_path / "deletes.parquet", deletes).path
    for promised, error in ((0, None), (1, None), (2, f"{path} has 1 rows, but its manifest says 2")):
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
    """Only Java distinguishes a null struct from a null column in it, so the deleted rows are ambiguous
    (rule: equality-keys-by-value)."""
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


def test_a_null_key_is_applied_where_it_is_unambiguous(tmp_path: Path) -> None:
    """A required struct is never null, and a required column in an optional struct is null only if the struct is."""
    for outer, inner in ((True, False), (False, True)):
        leaf = {"id": 2, "name": "n", "required": inner, "type": "string"}
        fields = [{"id": 1, "name": "s", "required": outer, "type": {"type": "struct", "fields": [leaf]}}]
        assert equality_keys.null_means_two_things(fields, (0, 0)) is False
        leaf["required"] = fields[0]["required"] = False
        assert equality_keys.null_means_two_things(fields, (0, 0)) is True
    assert (
        equality_keys.null_means_two_things([{"id": 1, "name": "a", "required": False, "type": "int"}], (0,)) is False
    )


# DuckDB reads the same rows before and after a pass over tables of writers that violate the specification.

MISPLACED = "; 2 were under another spec or partition than their data file"


def add_misplaced_deletes(table: MaintainedTable, *positions: int) -> None:
    """Deletes of the last eu file under partition us, each in its own file and commit."""
    path = max(file.file_path for file in data_files(table) if file.partition == ("eu",))
    for position in positions:
        commit_deletes(table, [position_delete(path, position, "us")])


def count(table: MaintainedTable) -> int:
    return sum(region_rows(table).values())


@pytest.mark.parametrize("rewrite", ["nothing", "everything"])
def test_a_delete_that_names_a_file_of_another_partition_is_not_dangling(table: MaintainedTable, rewrite: str) -> None:
    """If it were removed, its deleted rows would return."""
    add_misplaced_deletes(table, 1, 2, 3, 4, 5, 6)
    before = region_rows(table)
    assert sum(before.values()) == 54
    settings = {"min_input_files": "2" if rewrite == "everything" else "9", "delete_compaction_min_deletes": "99"}
    outcome = compacted(table, delete_compaction_min_ratio="1", **settings)
    assert region_rows(table) == before
    assert outcome.metrics.get("compact.delete_files_removed", 0) == (6 if rewrite == "everything" else 0)
    assert Counter(kind for kind, _ in table.problems()) == Counter(delete_scope=0 if rewrite == "everything" else 6)


def test_deletes_are_merged_under_the_partition_of_their_data_files(table: MaintainedTable) -> None:
    """Each partition has two.  In an output under us, the misplaced deletes would not apply to the eu file."""
    add_misplaced_deletes(table, 1, 2)
    us = [file.file_path for file in data_files(table) if file.partition == ("us",)]
    commit_deletes(table, [position_delete(path, 7, "us") for path in us[:2]])
    before = region_rows(table)
    outcome = outcome_of(table.maintain(operations="rewrite_position_deletes"), Operation.REWRITE_POSITION_DELETES)
    assert outcome.summary == "rewrote 4 position delete files into 2 (across 2 bins)" + MISPLACED
    found = [e.file for _, e in live(table) if e.file.content is not FileContent.DATA]
    assert sorted((file.partition, file.record_count) for file in found) == [(("eu",), 2), (("us",), 2)]
    assert region_rows(table) == before
    table.assert_sound()


def test_a_vector_absorbs_misplaced_deletes(table: MaintainedTable) -> None:
    """A vector replaces all position deletes of its data file; readers would ignore a remaining delete file."""
    add_misplaced_deletes(table, 1, 2)
    eu = max(file.file_path for file in data_files(table) if file.partition == ("eu",))
    commit_deletes(table, [position_delete(eu, position, "eu") for position in (2, 5)])
    upgrade(table)
    append(table, 350, 10, "eu")
    before = region_rows(table)
    assert sum(before.values()) == 67
    outcome = outcome_of(table.maintain(operations="rewrite_position_deletes"), Operation.REWRITE_POSITION_DELETES)
    assert outcome.summary == "rewrote 4 position delete files into 1 (across 1 bins)" + MISPLACED
    assert vectors(table)[eu].file.record_count == 3
    assert region_rows(table) == before
    assert sum(lineage(table).values()) == 67
    table.assert_sound()


@pytest.mark.parametrize("number", [None, 99], ids=["lost", "wrong"])
def test_missing_or_wrong_file_sequence_numbers_change_nothing(table: MaintainedTable, number: int | None) -> None:
    """Such a writer loses them when it rewrites manifests: no refusal, no reported damage, no deleted row returns."""
    path = max(file.file_path for file in data_files(table) if file.partition == ("eu",))
    commit_deletes(table, [position_delete(path, 3, "eu", bounds=False), position_delete(path, 4, "eu")])

    def carried(entry: ManifestEntry) -> list[ManifestEntry]:
        return [replace(entry, status=EntryStatus.EXISTING, file_sequence_number=number)]

    relist(table, carried)
    before = region_rows(table)
    assert sum(before.values()) == 58
    table.assert_sound()
    idle = {"min_input_files": "9", "delete_compaction_min_deletes": "99", "delete_compaction_min_ratio": "1"}
    compacted(table, **idle)
    assert region_rows(table) == before
    for operation in ("rewrite_manifests", "rewrite_position_deletes", "compact"):
        outcome = table.maintain(operations=operation, partial_progress="1")
        assert [part.status for part in outcome.operations] == [Status.SUCCEEDED], operation
        assert len(table.rows()) == 58, operation
    assert region_rows(table) == before
    table.assert_sound()


def test_a_file_listed_twice_is_left_alone_when_only_one_entry_is_in_scope(table: MaintainedTable) -> None:
    """Readers read it twice; replacing a single entry would remove both."""
    twice = max(file.file_path for file in data_files(table) if file.partition == ("us",))

    def listed(entry: ManifestEntry) -> list[ManifestEntry]:
        old = replace(entry, status=EntryStatus.EXISTING, snapshot_id=77)  # of an expired snapshot
        young = replace(entry, status=EntryStatus.EXISTING, file=replace(entry.file, partition=("eu",)))
        return [old, young] if entry.file.file_path == twice else [old]

    relist(table, listed)
    before = count(table)
    assert before == 70
    outcome = compacted(table, where="region = 'us'")
    assert count(table) == before
    assert outcome.metrics["compact.files_merged"] == 2


def test_a_path_removed_and_added_again_during_a_pass_is_another_file(table: MaintainedTable) -> None:
    """The deletes are older than the new file and must not apply to it."""
    path = max(file.file_path for file in data_files(table) if file.partition == ("us",))
    for position in (1, 2, 3):
        commit_deletes(table, [position_delete(path, position, "us")])

    def add_again() -> None:
        held = next(entry for _, entry in live(table) if entry.file.file_path == path)
        relist(table, lambda entry: [] if entry.file.file_path == path else [existing(entry)])
        first = data_files(table)[0].file_path
        new = replace(held, status=EntryStatus.ADDED, snapshot_id=None, sequence_number=None, file_sequence_number=None)
        relist(table, lambda entry: [existing(entry), new] if entry.file.file_path == first else [existing(entry)])

    table.engine.during = add_again
    outcome = compacted(table)
    assert outcome.metrics["compact.bins_dropped"] == 1
    assert len(table.rows()) == 60  # read by PyIceberg: DuckDB also applies older position deletes
    table.assert_sound()
    table.engine.during = lambda: None
    compacted(table)
    assert len(table.rows()) == count(table) == 60


def test_manifests_rewritten_during_a_pass_stop_nothing(table: MaintainedTable) -> None:
    """Nor do manifests that lost their file sequence numbers."""
    relist(table, lambda entry: [existing(entry)])
    table.engine.during = lambda: relist(table, lambda entry: [replace(existing(entry), file_sequence_number=None)])
    assert compacted(table).metrics["compact.files_merged"] == 6
    assert count(table) == 60


def existing(entry: ManifestEntry) -> ManifestEntry:
    return replace(entry, status=EntryStatus.EXISTING)


# Position deletes that spell the path of their data file differently: readers do not apply them
# (rule: unreadable-delete-blocks-its-files).


def under_deletes(table: MaintainedTable, *, spelled: str, named: bool) -> list[str]:
    """Add two delete files that spell the paths of us files with ``spelled``; return the delete files' paths."""
    create_by_region(table, files=2)
    data = [f.file_path for f in table.data_files() if f.content is FileContent.DATA and f.partition == ("us",)]
    paths = [f"{spelled}{path.removeprefix('file://')}" for path in data]
    deletes: list[tuple[pa.Table, dict[str, Any]]] = []
    for position in (3, 4):
        first, about = position_delete(paths[0], position, "us", bounds=named)
        second, _ = position_delete(paths[1], position, "us", bounds=named)
        deletes.append((first if named else pa.concat_tables([first, second]), about))
    commit_deletes(table, deletes)
    return [f.file_path for f in table.data_files() if f.content is FileContent.POSITION_DELETES]


@pytest.mark.parametrize("operation", [Operation.COMPACT, Operation.REWRITE_POSITION_DELETES])
@pytest.mark.parametrize(("spelled", "named"), [("", True), ("file:", False)])
def test_a_delete_in_another_spelling_is_neither_applied_nor_dropped(
    operation: Operation, spelled: str, named: bool, tmp_path: Path
) -> None:
    with maintained_table(tmp_path) as table:
        deletes = under_deletes(table, spelled=spelled, named=named)
        rows = region_rows(table)
        outcome = table.run(operation, rewrite_all=True)
        assert outcome.status is Status.FAILED
        assert f"deletes rows of {spelled}/" in str(outcome.reason)
        assert "which the manifests spell file:///" in str(outcome.reason)
        assert [f.file_path for f in table.data_files() if f.content is FileContent.POSITION_DELETES] == deletes
        assert (region_rows(table), rows.total()) == (rows, 40)


# NaN has many bit patterns: x86 sets the sign bit, Java does not, and both are the same key
# (rule: equality-keys-by-value).
#
# Source: Java's ``Double.equals`` and ``Double.hashCode``, by which ``StructLikeSet`` and ``StructLikeMap`` compare.

NAN = 0x7FF8000000000000
OF_X86 = 0xFFF8000000000000
WITH_PAYLOAD = 0x7FF8000000000001
FIELDS = {pa.float64(): ("<Q", NAN, OF_X86), pa.float32(): ("<I", 0x7FC00000, 0xFFC00000)}


def floats(kind: pa.DataType, code: str, *bits: int) -> pa.Array:
    data = b"".join(struct.pack(code, pattern) for pattern in bits)
    return pa.Array.from_buffers(kind, len(bits), [None, pa.py_buffer(data)])


@pytest.mark.parametrize("kind", list(FIELDS), ids=str)
def test_a_deleted_nan_deletes_every_nan(kind: pa.DataType) -> None:
    code, written, of_x86 = FIELDS[kind]
    zero, minus_zero = 0, 1 << (kind.bit_width - 1)
    keys = floats(kind, code, written, minus_zero)
    lookup = EqualityLookup.build([1], [keys], pa.array([5, 5], pa.int64()))
    rows = floats(kind, code, of_x86, written + 1, written, zero, minus_zero)
    assert lookup.deleted_rows([rows], 1).to_pylist() == [True, True, True, False, True]


def test_rows_of_a_deleted_nan_do_not_return(tmp_path: Path) -> None:
    with maintained_table(tmp_path) as table:
        table.create(pa.schema([("id", pa.int64()), ("x", pa.float64())]), properties={"format-version": "2"})
        for start in (0, 3):
            values = floats(pa.float64(), "<Q", OF_X86, WITH_PAYLOAD, 0)
            table.table.append(pa.table({"id": [start, start + 1, start + 2], "x": values}))
        field = pa.field("x", pa.float64(), metadata={b"PARQUET:field_id": b"2"})
        key = pa.table([floats(pa.float64(), "<Q", NAN)], schema=pa.schema([field]))
        more = {"content": FileContent.EQUALITY_DELETES, "equality_ids": (2,), "partition": ()}
        commit_deletes(table, [(key, more)])
        before = sorted(row["id"] for row in duckdb_rows(table.metadata_location))
        compacted(table)
        assert before == [2, 5] == table.readers_agree()


def test_all_nan_share_a_single_partition() -> None:
    values = [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (NAN, OF_X86, WITH_PAYLOAD)]
    assert len({partition_key(0, (value,)) for value in values}) == 1
    assert partition_key(0, (0.0,)) != partition_key(0, (-0.0,))


# A position delete with an impossible position stops its own group, which the pass reports, and no other group
# (rule: unreadable-delete-blocks-its-files).


def under_odd_positions(table: MaintainedTable, position: int) -> None:
    """Two position deletes in each region; a delete in eu has this position."""
    create_by_region(table, files=2)
    files = {file.partition[0]: file.file_path for file in table.data_files() if file.content is FileContent.DATA}
    deletes = [position_delete(files[region], n, region) for region in ("us", "eu") for n in (3, 4)]
    commit_deletes(table, [*deletes[:3], position_delete(files["eu"], position, "eu")])


@pytest.mark.parametrize(("operation", "us"), [(Operation.COMPACT, 1), (Operation.REWRITE_POSITION_DELETES, 3)])
def test_a_negative_position_stops_only_its_group(operation: Operation, us: int, tmp_path: Path) -> None:
    """In us, two data files and two deletes become a single data file, or the two deletes become a single delete."""
    with maintained_table(tmp_path) as table:
        under_odd_positions(table, -1)
        rows = region_rows(table)
        outcome = table.run(operation)
        assert outcome.status is Status.SUCCEEDED
        assert "deletes position -1, which no row has" in outcome.summary
        assert Counter(entry.file.partition for entry in table.entries()) == {("us",): us, ("eu",): 4}
        assert region_rows(table) == rows
