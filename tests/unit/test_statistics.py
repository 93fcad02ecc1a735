"""Statistics: what is stale, what must be read, and what verify checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from struct import pack
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow import BufferReader

from icekeeper.detection.assess import assess
from icekeeper.detection.proposal import Proposal
from icekeeper.detection.signals import statistics_signals
from icekeeper.errors import PolicyError, TableUnsupported
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.manifest_write import encode_manifest
from icekeeper.metadata.puffin import THETA_SKETCH, PuffinBlob, encode_blobs, footer_size
from icekeeper.metadata.statistics import StatisticsFile, statistics_by_snapshot, statistics_entry
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile, Nothing
from icekeeper.operations.statistics.compute_statistics import appended_files, live_files
from icekeeper.operations.statistics.partition_statistics import (
    PartitionFileFormat,
    PartitionStatistics,
    encode_partition_file,
    partition_fields,
    partition_statistics,
)
from icekeeper.operations.statistics.plan_statistics import (
    NO_COLUMNS,
    NO_SNAPSHOT,
    TYPE_KEY,
    UP_TO_DATE,
    Reading,
    RowFile,
    StatisticsPlan,
    StoredBlob,
    plan_statistics,
    registered_blobs,
    statistics_columns,
)
from icekeeper.operations.statistics.staleness import Staleness, staleness, why_not_yet
from icekeeper.verification.checks import Problem, ProblemKind, statistics_problems
from support.listed_manifests import ListedManifests, path_of
from support.plans import data_file
from support.settings import NOW_MS, policy
from support.state_stores import look, looks
from support.tables import new_document, snapshot

# Partition statistics from manifest entries; ``tests/interop/test_statistics.py`` compares them with Java's.

NAN = float("nan")
BY_ID = {"field-id": 1000, "source-id": 1, "name": "id_part", "transform": "identity"}
BY_RATIO = {"field-id": 1001, "source-id": 2, "name": "ratio", "transform": "identity"}
FIELDS = [
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {"id": 2, "name": "ratio", "required": False, "type": "double"},
]
METADATA = TableMetadata(
    new_document(
        "s3://b/t",
        3,
        schemas=[{"type": "struct", "schema-id": 0, "fields": FIELDS}],
        **{
            "partition-specs": [
                {"spec-id": 0, "fields": [BY_ID]},
                {"spec-id": 1, "fields": [{**BY_ID, "name": "renamed", "transform": "void"}, BY_RATIO]},
                {"spec-id": 2, "fields": []},
            ]
        },
        snapshots=[snapshot(i, format_version=3, timestamp_ms=i * 100) for i in (1, 2)],
    )
)


def entry(
    spec_id: int,
    partition: tuple[Any, ...],
    content: FileContent = FileContent.DATA,
    status: EntryStatus = EntryStatus.ADDED,
    snapshot_id: int = 1,
    **more: Any,
) -> tuple[ManifestFile, ManifestEntry]:
    manifest = ManifestFile(manifest_path="m", manifest_length=1, partition_spec_id=spec_id, added_snapshot_id=1)
    known: dict[str, Any] = {"file_path": "f", "file_format": "PARQUET", "record_count": 10, "file_size_in_bytes": 100}
    file = DataFile(content=content, partition=partition, **(known | more))
    return manifest, ManifestEntry(status, snapshot_id, 1, 1, file)


def counted(*entries: tuple[ManifestFile, ManifestEntry]) -> list[PartitionStatistics]:
    return partition_statistics(METADATA, entries)


def rows(*entries: tuple[ManifestFile, ManifestEntry]) -> list[int | None]:
    return [row.total_record_count for row in counted(*entries)]


DATA = entry(0, (1,))


def test_a_field_has_the_newest_specs_name_and_its_type_before_void() -> None:
    assert partition_fields(METADATA) == [
        {"id": 1000, "name": "renamed", "required": False, "type": "long"},
        {"id": 1001, "name": "ratio", "required": False, "type": "double"},
    ]


def test_partitions_sort_nulls_first_and_nan_last_and_keep_both_zeros_apart() -> None:
    found = counted(*(entry(1, (None, v)) for v in (NAN, 1.5, None, 0.0, -0.0, NAN)), entry(0, (-7,)))
    assert [str(row.partition) for row in found] == [
        "(None, None)",
        "(None, -0.0)",
        "(None, 0.0)",
        "(None, 1.5)",
        "(None, nan)",
        "(-7, None)",
    ]
    assert [row.data_file_count for row in found] == [1, 1, 1, 1, 2, 1]
    assert [row.spec_id for row in found] == [1, 1, 1, 1, 1, 0]


def test_deleted_entries_count_only_for_the_last_update() -> None:
    """Partition statistics are counted from manifest entries, one row per spec and partition."""
    gone = entry(0, (1,), status=EntryStatus.DELETED, snapshot_id=2)
    (row,) = counted(DATA, gone)
    assert (row.data_record_count, row.last_updated_at, row.last_updated_snapshot_id) == (10, 200, 2)
    (row,) = counted(gone)
    assert (row.data_file_count, row.total_record_count) == (0, 0)
    (row,) = counted(entry(0, (1,), snapshot_id=99))
    assert (row.last_updated_at, row.last_updated_snapshot_id) == (None, None), "that snapshot has expired"


def test_row_counts_after_deletes_are_given_only_where_known() -> None:
    vector = entry(0, (1,), FileContent.POSITION_DELETES, file_format="PUFFIN", record_count=3)
    positions = entry(0, (1,), FileContent.POSITION_DELETES, record_count=3)
    by_key = entry(0, (1,), FileContent.EQUALITY_DELETES, record_count=3)
    everywhere = entry(2, (), FileContent.EQUALITY_DELETES, record_count=3)
    other = entry(0, (2,))
    assert rows(DATA, other) == [10, 10]
    assert rows(DATA, vector, other) == [7, 10]
    assert rows(DATA, positions, other) == [None, 10]
    assert rows(DATA, by_key, other) == [None, 10]
    assert rows(DATA, other, everywhere) == [None, None, None]
    (row,) = counted(DATA, vector, positions)
    assert (row.dv_count, row.position_delete_file_count, row.position_delete_record_count) == (1, 1, 6)


@pytest.mark.parametrize("file_format", PartitionFileFormat)
def test_a_partition_statistics_file_without_rows_is_valid(file_format: PartitionFileFormat) -> None:
    data = encode_partition_file(METADATA, [], file_format)
    if file_format is PartitionFileFormat.PARQUET:
        assert pq.read_table(BufferReader(data)).num_rows == 0
    else:
        assert data.startswith(b"Obj\x01")


# ``verify`` compares the metadata of a statistics file with its footer.

PATH = "s3://b/t/metadata/1.stats"
BLOBS = [(PuffinBlob("kind", (n,), 0, 0, {"ndv": "3"}, snapshot_id=1, sequence_number=4), b"blob") for n in (1, 2)]
PUFFIN, PUFFIN_BLOBS = encode_blobs(BLOBS, {})
FOOTER_SIZE = footer_size(PUFFIN, "x")


def stated(change: Callable[[dict[str, Any]], object] = lambda entry: None) -> StatisticsFile:
    """The statistics file that the metadata describes, with a change."""
    entry = statistics_entry(1, PATH, PUFFIN, PUFFIN_BLOBS)
    change(entry)
    (file,) = statistics_by_snapshot(TableMetadata(new_document("s3://b/t", 2, statistics=[entry]))).values()
    return file


def problems(file: StatisticsFile, data: bytes = PUFFIN) -> list[tuple[ProblemKind, str]]:
    found: list[Problem] = list(statistics_problems(file, data[-file.footer_size :]))
    assert {problem.path for problem in found} <= {PATH}
    return [(problem.kind, problem.detail) for problem in found]


def test_every_part_of_a_blob_is_compared() -> None:
    assert problems(stated()) == []
    unnamed = "it has a blob kind of fields [{}] that the metadata does not list"
    for change in (
        {"type": "other"},
        {"fields": [9]},
        {"snapshot-id": 9},
        {"sequence-number": 9},
        {"properties": {"ndv": "4"}},
    ):
        found = problems(stated(lambda entry, change=change: entry["blob-metadata"][0].update(change)))  # type: ignore[misc]
        assert [kind for kind, _ in found] == [ProblemKind.STATISTICS] * 2
        assert found[0][1].startswith("the metadata lists a blob ")
        assert found[1][1] == unnamed.format(1)
    found = problems(stated(lambda entry: entry["blob-metadata"].pop()))
    assert found == [(ProblemKind.STATISTICS, unnamed.format(2))]


def test_a_wrong_footer_size_and_a_blob_that_reaches_into_the_footer_are_problems() -> None:
    longer = replace(stated(), footer_size=FOOTER_SIZE + 2)
    detail = f"the table says that its footer has {FOOTER_SIZE + 2} bytes, it has {FOOTER_SIZE}"
    assert problems(longer) == [(ProblemKind.WRONG_SIZE, detail)]
    assert problems(replace(stated(), footer_size=FOOTER_SIZE - 2))[0][0] is ProblemKind.UNREADABLE_METADATA
    found = problems(stated(), PUFFIN.replace(b'"length": 4', b'"length": 9'))
    assert found == [(ProblemKind.STATISTICS, "a blob kind reaches into the footer")] * 2
    compressed = bytearray(PUFFIN)
    compressed[-8] = 1
    assert problems(stated(lambda entry: entry["blob-metadata"].clear()), bytes(compressed)) == [], "legal, not opened"


# Files whose rows cannot be read: no statistics are better than wrong statistics (rule: read-faithfully-or-not-at-all).

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "at", "required": False, "type": "timestamp"}]}
FAR_FROM_NOW = data_file(path_of("data/a"), 10, file_format="ORC", upper_bounds={1: pack("<q", 2**63 - 1)})


def manifest_of(table: ListedManifests, file: DataFile) -> ManifestFile:
    is_data = file.content is FileContent.DATA
    written = encode_manifest(
        table.metadata,
        spec_id=0,
        content=ManifestContent.DATA if is_data else ManifestContent.DELETES,
        entries=[ManifestEntry(EntryStatus.ADDED, 1, 1 if is_data else 2, 1, file)],
        path=path_of(f"metadata/m{len(table.objects)}.avro"),
        snapshot_id=1,
        sequence_number=1,
    )
    table.objects[written.manifest.manifest_path] = written.data
    return written.manifest


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (data_file(path_of("data/a"), 10, key_metadata=b"key"), "is encrypted"),
        (data_file(path_of("data/a"), 10, file_format="LANCE"), "is LANCE, which is not read"),
        (FAR_FROM_NOW, "is ORC with timestamps before 1678 or after 2261"),
    ],
)
def test_an_unreadable_data_file_is_named(file: DataFile, why: str) -> None:
    table = ListedManifests(schemas=[SCHEMA])
    manifest = manifest_of(table, file)
    table.snapshot(1, manifest)
    with pytest.raises(TableUnsupported, match=f"data/a {why}"):
        live_files(table.reader, [manifest])
    with pytest.raises(TableUnsupported, match=f"data/a {why}"):
        appended_files(table.reader, list(table.metadata.snapshots.values()))


def test_an_encrypted_delete_file_is_named() -> None:
    table = ListedManifests()
    delete = data_file(path_of("data/d"), 10, content=FileContent.EQUALITY_DELETES, equality_ids=(1,))
    manifests = [manifest_of(table, data_file(path_of("data/a"), 10)), manifest_of(table, delete)]
    assert len(live_files(table.reader, manifests)) == 1
    manifests[1] = manifest_of(table, replace(delete, key_metadata=b"key"))
    with pytest.raises(TableUnsupported, match=r"data/a needs delete file .*data/d, which is encrypted"):
        live_files(table.reader, manifests)


# Which statistics are stale, and the fewest files that must be read for them.

TYPES = {1: "long", 2: "string"}


def row_file(path: str) -> RowFile:
    return RowFile(path, "PARQUET", (), 1, 1, None, 0, 1)


EVERYTHING = (row_file("everything"),)


def blob(field_id: int, snapshot_id: int, kind: str | None = "long", type: str = THETA_SKETCH) -> dict[str, Any]:
    properties = {"ndv": "1"} | ({} if kind is None else {TYPE_KEY: kind})
    return {
        "type": type,
        "snapshot-id": snapshot_id,
        "sequence-number": snapshot_id,
        "fields": [field_id],
        "properties": properties,
    }


def file(snapshot_id: int, *blobs: dict[str, Any], path: str | None = None) -> dict[str, Any]:
    return {
        "snapshot-id": snapshot_id,
        "statistics-path": path or f"{snapshot_id}.stats",
        "file-size-in-bytes": 9,
        "file-footer-size-in-bytes": 5,
        "blob-metadata": list(blobs),
    }


def table(*summaries: str | Mapping[str, str], statistics: Sequence[dict[str, Any]] = (), **more: Any) -> TableMetadata:
    """A table of long columns 1 and 2 with a line of snapshots 1, 2, … with these summaries or operations."""
    snapshots = [
        snapshot(
            i,
            format_version=2,
            sequence_number=i,
            parent_id=i - 1 or None,
            summary={"operation": summary} if isinstance(summary, str) else dict(summary),
        )
        for i, summary in enumerate(summaries, start=1)
    ]
    fields = [{"id": i, "name": f"c{i}", "required": False, "type": "long"} for i in (1, 2)]
    known = {
        "schemas": [{"schema-id": 0, "type": "struct", "fields": fields}],
        "refs": {"main": {"type": "branch", "snapshot-id": len(snapshots)}} if snapshots else {},
        "statistics": list(statistics),
    }
    return TableMetadata(new_document("s3://b/t", 2, snapshots=snapshots, **{**known, **more}))


def plan(
    metadata: TableMetadata, types: dict[int, str] | None = None, *, appends_are_plain: bool = True, **more: Any
) -> StatisticsPlan | Nothing:
    def appended(snapshots: Sequence[Snapshot]) -> Sequence[RowFile] | None:
        return [row_file(f"added by {s.snapshot_id}") for s in snapshots] if appends_are_plain else None

    chosen = {1: "long"} if types is None else types
    return plan_statistics(metadata, metadata.current_snapshot, chosen, lambda: EVERYTHING, appended, **more)


def made(answer: StatisticsPlan | Nothing) -> StatisticsPlan:
    assert isinstance(answer, StatisticsPlan)
    return answer


def read(answer: StatisticsPlan | Nothing) -> dict[tuple[int, ...], list[str]]:
    """Columns → the files that the plan reads for them."""
    return {tuple(r.types): [f.file_path for f in r.files] for r in made(answer).readings}


def carried(answer: StatisticsPlan | Nothing) -> list[tuple[str, int, int]]:
    return [(s.path, s.blob.fields[0], s.blob.snapshot_id) for s in made(answer).carried]


ALL: dict[tuple[int, ...], list[str]] = {(1,): ["everything"]}
OURS = [file(1, blob(1, 1))]
BROKEN = {"snapshot-id": 1, "statistics-path": "1.stats"}
BESIDE = file(1, blob(1, 1), blob(3, 1), blob(1, 1, None, "presto-sum"))
PLANS: dict[str, tuple[str, list[dict[str, Any]], dict[tuple[int, ...], list[str]], list[tuple[str, int, int]]]] = {
    # A rewrite keeps the rows, so a sketch still names the snapshot that it was computed from.
    "rewrites": ("append replace replace", OURS, {}, [("1.stats", 1, 1)]),
    **{
        f"after '{operation}'": (f"append {operation} append", OURS, ALL, [])
        for operation in ("overwrite", "delete", "-", "unheard-of")
    },
    # Sketches by another writer, or from before the promotion of the column.
    **{f"a sketch of {kind}": ("append append", [file(1, blob(1, 1, kind))], ALL, []) for kind in (None, "int")},
    **{
        f"a sketch of {kind}, rewritten": ("append replace", [file(1, blob(1, 1, kind))], {}, [("1.stats", 1, 1)])
        for kind in (None, "int")
    },
    "ours, whose snapshot has expired": ("replace append", [file(1, blob(1, 77))], {(1,): ["added by 2"]}, []),
    "another writer's, whose snapshot has expired": ("replace append", [file(2, blob(1, 77, None))], ALL, []),
    # A blob that another writer registered for the head is carried, unless the policy names its column.
    "another writer's for the head": (
        "append overwrite",
        [file(2, blob(1, 1, None), blob(9, 1, None))],
        ALL,
        [("2.stats", 9, 1)],
    ),
    "another branch": ("append", [file(99, blob(1, 99))], ALL, []),
    "an entry that cannot be understood": ("append", [BROKEN], ALL, []),
}


@pytest.mark.parametrize(("operations", "statistics", "expected", "carries"), PLANS.values(), ids=PLANS)
def test_a_plan_lists_the_files_to_read_and_the_blobs_to_carry(
    operations: str,
    statistics: list[dict[str, Any]],
    expected: dict[tuple[int, ...], list[str]],
    carries: list[tuple[str, int, int]],
) -> None:
    answer = plan(table(*operations.replace("-", "").split(" "), statistics=statistics))
    assert (read(answer), carried(answer)) == (expected, carries)
    assert [reading.base for reading in made(answer).readings if reading.files == EVERYTHING] in ([], [{}])


def test_a_table_without_stale_statistics_has_nothing_to_compute() -> None:
    assert plan(table()) == Nothing(NO_SNAPSHOT)
    assert plan(table("append"), {}) == Nothing(NO_COLUMNS)
    assert plan(table("append", statistics=OURS)) == Nothing(UP_TO_DATE)
    assert plan(table("replace", "append", statistics=[file(2, blob(1, 77))])) == Nothing(UP_TO_DATE)


def test_only_missing_columns_are_read_and_other_blobs_are_carried() -> None:
    """These include a sketch of a column outside the policy, and blobs of other kinds."""
    answer = plan(table("append", statistics=[BESIDE]), TYPES)
    assert read(answer) == {(2,): ["everything"]}
    assert carried(answer) == [("1.stats", 1, 1), ("1.stats", 3, 1), ("1.stats", 1, 1)]
    statistics = [file(1, blob(1, 1)), file(2, blob(2, 2, "string"))]
    answer = plan(table("append", "append", "append", statistics=statistics), {**TYPES, 3: "date"})
    assert read(answer) == {(1,): ["added by 3", "added by 2"], (2,): ["added by 3"], (3,): ["everything"]}
    assert [f.file_path for f in made(answer).files] == ["added by 3", "added by 2", "everything"]


def test_all_files_are_read_after_an_append_with_deletes_and_for_an_unreadable_blob_file() -> None:
    assert read(plan(table("append", "append", statistics=OURS), appends_are_plain=False)) == ALL
    assert read(plan(table("append", statistics=OURS), unreadable={"1.stats"})) == ALL


def test_the_first_computation_reads_all_files() -> None:
    answer = made(plan(table("append", "overwrite"), TYPES))
    assert (answer.snapshot_id, answer.sequence_number, answer.partitions, answer.blobs) == (2, 2, False, 2)
    assert answer.readings == (Reading(TYPES, EVERYTHING, {}),)
    assert answer.carried == ()


def test_after_appends_only_the_appended_files_are_read() -> None:
    metadata = table("append", "append", "replace", "append", statistics=[file(1, blob(1, 1))])
    answer = made(plan(metadata))
    assert read(answer) == {(1,): ["added by 4", "added by 2"]}
    (base,) = answer.readings[0].base.values()
    assert (base.path, base.blob.snapshot_id, answer.carried) == ("1.stats", 1, ())


PARTITIONED = [{"spec-id": 0, "fields": [{"field-id": 1000, "source-id": 1, "name": "p", "transform": "identity"}]}]


def test_partition_statistics_are_computed_once() -> None:
    metadata = table("append", statistics=[file(1, blob(1, 1))], **{"partition-specs": PARTITIONED})
    answer = made(plan(metadata))
    assert (answer.partitions, answer.readings, answer.carried, answer.blobs) == (True, (), (), 0)
    counted = [{"snapshot-id": 1, "statistics-path": "p.parquet", "file-size-in-bytes": 1}]
    metadata = TableMetadata({**metadata.document, "partition-statistics": counted})
    assert plan(metadata) == Nothing(UP_TO_DATE)
    assert not made(plan(metadata, TYPES)).partitions


PLANNED_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "at.home", "required": False, "type": "timestamp_ns"},
        {"id": 3, "name": "tags", "required": False, "type": {"type": "list", "element": "string"}},
        {"id": 5, "name": "shape", "required": False, "type": "geometry"},
        {
            "id": 6,
            "name": "point",
            "required": False,
            "type": {"type": "struct", "fields": [{"id": 7, "name": "x", "required": True, "type": "decimal(9, 2)"}]},
        },
    ],
}


def test_statistics_columns_default_to_primitive_top_level_columns() -> None:
    metadata = table(schemas=[PLANNED_SCHEMA])
    assert statistics_columns(metadata, ()) == {1: "long", 2: "timestamp_ns"}
    assert statistics_columns(metadata, ("point.x", "id")) == {7: "decimal(9, 2)", 1: "long"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ids", "is not a column of this table; columns are: id, at.home, tags, shape, point, point.x"),
        ("tags", "is of type list, for which there are no statistics"),
        ("shape", "is of type geometry, for which there are no statistics"),
    ],
)
def test_an_unknown_or_unsupported_column_is_a_policy_error(name: str, why: str) -> None:
    with pytest.raises(PolicyError) as caught:
        statistics_columns(table(schemas=[PLANNED_SCHEMA]), (name,))
    assert str(caught.value) == f"policy key statistics_columns names '{name}', which {why}"


# How far statistics are behind the head, by summary counters alone, and how detection and a pass decide.

COMPUTES = {"operations": "compute_statistics"}


def statistics_of(snapshot_id: int, *fields: int, kind: str | None = "long") -> dict[str, Any]:
    return file(snapshot_id, *(blob(field, 1, kind) for field in fields))


def added(rows: int, total: int, operation: str = "append", **more: int) -> dict[str, str]:
    counters = {"added-records": rows, "total-records": total, **{k.replace("_", "-"): v for k, v in more.items()}}
    return {"operation": operation, **{key: str(value) for key, value in counters.items()}}


def found(metadata: TableMetadata) -> Staleness:
    head = metadata.current_snapshot
    assert head is not None
    return staleness(metadata, head, {1: "long", 2: "long"})


def reasons(metadata: TableMetadata, **settings: str) -> list[str]:
    head = metadata.current_snapshot
    assert head is not None
    return [signal.reason for signal in statistics_signals(metadata, head, policy(**settings).policy)]


FIRST = added(1000, 1000)
BOTH = [statistics_of(1, 1, 2)]
DELETED = {"operation": "delete", "added-position-deletes": "3", "added-equality-deletes": "2", "total-records": "9"}


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ([], Staleness(rows_changed=0, rows=1000)),
        ([added(9, 1009), added(1, 1010)], Staleness(rows_changed=10, rows=1010)),
        ([added(500, 1000, "replace", deleted_records=500)], Staleness(rows_changed=0, rows=1000)),
        ([added(7, 1000, "overwrite", deleted_records=7)], Staleness(rows_changed=14, rows=1000)),
        ([DELETED], Staleness(rows_changed=5, rows=9)),
        # A summary may omit counters that are 0.
        ([{"operation": "append", "total-records": "1000"}], Staleness(rows_changed=0, rows=1000)),
        ([{"operation": "append"}, added(9, 1009)], Staleness(rows_changed=None, rows=1009)),
        ([{"operation": "append", "added-records": "9"}], Staleness(rows_changed=9, rows=None)),
        ([{"operation": "append", "added-records": "many"}], Staleness(rows_changed=None, rows=None)),
    ],
)
def test_counters_show_how_many_rows_changed(later: list[dict[str, str]], expected: Staleness) -> None:
    assert found(table(FIRST, *later, statistics=BOTH)) == expected


def test_the_oldest_statistics_in_use_count() -> None:
    summaries = [added(100, 100 * number) for number in range(1, 5)]
    assert found(table(*summaries, statistics=[])) == Staleness(columns_missing=2, rows_changed=0, rows=400)
    first = [statistics_of(1, 1)]
    assert found(table(*summaries, statistics=first)) == Staleness(columns_missing=1, rows_changed=300, rows=400)
    # The newest blob of each column counts, and of these the oldest.
    newer = [statistics_of(1, 1, 2), statistics_of(3, 1)]
    assert found(table(*summaries, statistics=newer)).rows_changed == 300
    assert found(table(*summaries, statistics=[*newer, statistics_of(2, 2)])).rows_changed == 200
    # Another writer's blob counts from its own snapshot, not from the snapshot of its statistics file.
    others = [statistics_of(4, 1, 2, kind=None)]
    assert found(table(*summaries, statistics=others)).rows_changed == 300


def test_partition_statistics_are_missing_or_stale_separately() -> None:
    summaries = [FIRST, added(50, 1050), added(50, 1100)]
    partitioned: dict[str, Any] = {"partition-specs": PARTITIONED, "default-spec-id": 0}
    up_to_date = [statistics_of(3, 1, 2)]
    bare = TableMetadata({**table(*summaries, statistics=up_to_date).document, **partitioned})
    assert found(bare) == Staleness(partitions_missing=True, rows_changed=0, rows=1100)
    assert reasons(bare) == ["partitions have no statistics"]
    counted = {"partition-statistics": [{"snapshot-id": 2, "statistics-path": "p", "file-size-in-bytes": 1}]}
    assert found(TableMetadata({**bare.document, **counted})) == Staleness(rows_changed=50, rows=1100)


def test_detection_states_why_statistics_are_due() -> None:
    assert reasons(table(FIRST, statistics=[])) == ["2 columns have no statistics"]
    assert reasons(table(FIRST, statistics=[statistics_of(1, 1)])) == ["1 column has no statistics"]
    assert reasons(table(FIRST, statistics=[statistics_of(1, 1)]), statistics_columns="c1") == []
    assert reasons(table(FIRST, statistics=BOTH)) == []
    assert reasons(table(FIRST, added(100, 1100), statistics=BOTH)) == []
    grown = table(FIRST, added(120, 1120), statistics=BOTH)
    assert reasons(grown) == ["120 rows changed since statistics were computed, 10.7 % of 1120"]
    assert reasons(table(FIRST, added(0, 1000), statistics=BOTH)) == []
    (unknown,) = reasons(table(FIRST, {"operation": "append"}, statistics=BOTH))
    assert unknown == "it is unknown how many rows changed since statistics were computed"


def proposal(metadata: TableMetadata, settings: Mapping[str, str], **seen: Any) -> tuple[str, ...]:
    resolved = policy(**settings)
    last = looks(look(NOW_MS, **seen), resolved.digest_over(metadata)) if seen else None
    answer = assess("ns.t", metadata, resolved, now_ms=NOW_MS, expirable=0, seen=last)
    return answer.reasons if isinstance(answer, Proposal) else ()


def test_tables_are_proposed_for_statistics_only_if_the_policy_computes_them() -> None:
    """After an idle pass, the table is not proposed again: another pass cannot add the missing counters."""
    metadata = table({"operation": "append"}, statistics=[])
    assert proposal(metadata, {}) == ()
    assert proposal(metadata, COMPUTES) == ("2 columns have no statistics",)
    assert proposal(metadata, COMPUTES, snapshot_id=1, is_done=True) == ()
    assert proposal(metadata, COMPUTES, snapshot_id=1, is_done=False) != ()


def test_a_pass_without_a_request_reads_columns_again_only_after_enough_changes() -> None:
    metadata = table(FIRST, statistics=BOTH)
    (stored, _) = registered_blobs(metadata, list(metadata.ancestors(1)))

    def planned(base: Mapping[int, StoredBlob]) -> StatisticsPlan:
        return StatisticsPlan(1, 1, (), (Reading({1: "long"}, (), base),), False)

    few = Staleness(rows_changed=30, rows=1000)
    assert why_not_yet(planned({}), few) == (
        "30 rows changed since statistics were computed, 3 % of 1000; they are computed again from 10 % on"
    )
    # Reading only appended files is cheap, and so is carrying a blob over.
    assert why_not_yet(planned({1: stored}), few) is None
    assert why_not_yet(StatisticsPlan(1, 1, (stored,), (), True), few) is None
    for due in (
        Staleness(rows_changed=100, rows=1000),
        Staleness(rows_changed=30, rows=0),
        Staleness(rows_changed=0, rows=1000),
        Staleness(rows_changed=None, rows=1000),
        Staleness(columns_missing=1, rows_changed=30, rows=1000),
        Staleness(partitions_missing=True, rows_changed=30, rows=1000),
    ):
        assert why_not_yet(planned({}), due) is None
    assert why_not_yet(planned({}), Staleness(rows_changed=100, rows=1000)) is None
