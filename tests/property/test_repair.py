"""Plans of repairs: what stays of an entry, which operation the snapshot has, and which row ids files keep."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import assume, given
from hypothesis import strategies as st
from pyarrow import orc

from icekeeper.commit.snapshot import DELETE, OVERWRITE, REPLACE, SnapshotWriter
from icekeeper.metadata.document import Snapshot
from icekeeper.metadata.manifest_write import encode_manifest
from icekeeper.metadata.types import comparable, decode, encode
from icekeeper.metadata.updates import apply_updates
from icekeeper.model import DataFile, EntryStatus, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.repair.damage import duplicates
from icekeeper.repair.file_facts import facts_at
from icekeeper.repair.file_metrics import corrected, decoded_columns, suspicious_columns, with_own_row_ids
from icekeeper.repair.plan import EntryMend, Found, Head, MendKind, RepairOptions, existing, plan_of
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.storage.storage import Storage
from support.listed_manifests import ListedManifests, path_of
from support.plans import data_file

HEAD = 7
Written = tuple[str, int | None, int]
"""Status, first row id and row count of an entry as it is written."""
counts = st.integers(1, 5)
written_entries = st.lists(
    st.one_of(
        st.tuples(st.just("ADDED"), st.none(), counts),
        st.tuples(st.just("EXISTING"), st.one_of(st.none(), st.integers(1000, 2000)), counts),
        st.tuples(st.just("DELETED"), st.none(), counts),
    ),
    min_size=1,
    max_size=4,
)


def listed(manifests: list[list[Written]]) -> tuple[ListedManifests, list[ManifestFile]]:
    """A v3 table whose entries inherit sequence numbers and row ids from manifests 5, 6, ..."""
    table, found = ListedManifests(3), list[ManifestFile]()
    first_row_id = 0
    for number, written in enumerate(manifests):
        entries = [
            ManifestEntry(
                EntryStatus[status],
                None if status == "ADDED" else 3,
                None if status == "ADDED" else 2,
                None if status == "ADDED" else 2,
                data_file(path_of(f"data/{number}-{place}"), 100, records=rows, first_row_id=row_id),
            )
            for place, (status, row_id, rows) in enumerate(written)
        ]
        made = encode_manifest(
            table.metadata,
            spec_id=0,
            content=ManifestContent.DATA,
            entries=entries,
            path=path_of(f"metadata/m{number}.avro"),
            snapshot_id=HEAD,
            sequence_number=5 + number,
        )
        table.objects[made.manifest.manifest_path] = made.data
        found.append(replace(made.manifest, first_row_id=first_row_id))
        first_row_id += 100
    table.snapshot(HEAD, *found, **{"first-row-id": 0, "added-rows": first_row_id})
    table.document |= {"last-sequence-number": 9, "next-row-id": first_row_id}
    return table, table.reader.manifests(table.metadata.snapshots[HEAD])


def head_of(table: ListedManifests, manifests: list[ManifestFile]) -> Head:
    entries = {m.manifest_path: tuple(found) for m, found in table.reader.entries(manifests)}
    snapshot = table.metadata.snapshots[HEAD]
    return Head(metadata=table.metadata, snapshot=snapshot, manifests=tuple(manifests), entries=entries, sizes={})


@given(st.lists(written_entries, min_size=1, max_size=3), st.data())
def test_a_mend_changes_nothing_that_other_entries_inherit(manifests: list[list[Written]], data: st.DataObject) -> None:
    """Row ids follow the counts before an entry, so a corrected count would shift those of all entries after it
    (rule: mends-leave-other-entries)."""
    table, found = listed(manifests)
    head = head_of(table, found)
    mends: list[EntryMend] = []
    expected: dict[str, tuple[Any, ...]] = {}
    for manifest, place, entry in head.live():
        path, rows = entry.file.file_path, entry.file.record_count
        what = data.draw(st.sampled_from(["stays", "goes", "is recorded as deleted", "has more rows"]))
        if what in ("goes", "is recorded as deleted"):
            becomes = None
        else:
            rows += what == "has more rows"
            becomes = replace(existing(entry), file=replace(entry.file, record_count=rows))
            ids = entry.snapshot_id, entry.sequence_number, entry.file_sequence_number, entry.file.first_row_id
            assert None not in ids
            expected[path] = (*ids, rows)
        if what != "stays":
            mends.append(mend_of(manifest, place, entry, becomes, leaves_deleted=what == "is recorded as deleted"))
    plan = plan_of(head, "main", [Found(mends=tuple(mends))])
    writer = SnapshotWriter(
        table.metadata, table.reader, table.objects.__setitem__, lambda paths: None, "main", "run", now_ms=0
    )
    affected = {m.manifest_path for m in found}
    prepared = writer.mend_entries(plan.mended_entries, found, affected, plan.operation)
    after = apply_updates(table.metadata, prepared.updates, metadata_location=None, now_ms=0)
    table.document = dict(after.document)
    new = after.current_snapshot
    assert new is not None
    entries = [entry for _, part in table.reader.entries(table.reader.manifests(new)) for entry in part]
    assert expected == {
        e.file.file_path: (
            e.snapshot_id,
            e.sequence_number,
            e.file_sequence_number,
            e.file.first_row_id,
            e.file.record_count,
        )
        for e in entries
        if e.is_live
    }
    gone = {e.file.file_path for e in entries if not e.is_live}
    assert gone == {m.entry.file.file_path for m in mends if m.leaves_deleted}
    assert new.summary["total-records"] == str(sum(values[-1] for values in expected.values()))


def mend_of(
    manifest: ManifestFile, place: int, entry: ManifestEntry, becomes: ManifestEntry | None, **more: Any
) -> EntryMend:
    return EntryMend(
        kind=MendKind.FILE_METRICS,
        manifest=manifest.manifest_path,
        place=place,
        spec_id=0,
        entry=entry,
        becomes=becomes,
        sentence="",
        **more,
    )


# A head without files: entries are given as they are read.


def plain_head(files: list[DataFile], numbers: list[int], next_row_id: int = 10_000) -> Head:
    """A head with a manifest for each entry."""
    manifests = [
        ManifestFile(manifest_path=f"m{n}", manifest_length=1, partition_spec_id=0, added_snapshot_id=1)
        for n in range(len(files))
    ]
    entries = {
        m.manifest_path: (ManifestEntry(EntryStatus.EXISTING, 1, number, number, file),)
        for m, file, number in zip(manifests, files, numbers, strict=True)
    }
    metadata = replaced_next_row_id(next_row_id)
    snapshot = Snapshot({"snapshot-id": HEAD, "timestamp-ms": 0})
    return Head(metadata=metadata, snapshot=snapshot, manifests=tuple(manifests), entries=entries, sizes={})


def replaced_next_row_id(next_row_id: int) -> Any:
    table = ListedManifests(3)
    table.document |= {"next-row-id": next_row_id}
    return table.metadata


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3)), min_size=1, max_size=6), st.integers(1, 3) | st.none()
)
def test_a_file_keeps_one_of_its_entries_or_all(listed_files: list[tuple[str, int]], keep: int | None) -> None:
    """Equal entries are interchangeable; of others only ``--keep`` chooses, the oldest first."""
    files = [data_file(name, 10) for name, _ in listed_files]
    head = plain_head(files, [number for _, number in listed_files])
    found = duplicates(head, RepairOptions(keep=keep), lambda listed: None)
    gone = Counter((m.entry.file.file_path, m.entry.sequence_number) for m in found.mends)
    for name in {name for name, _ in listed_files}:
        numbers = sorted(number for other, number in listed_files if other == name)
        chosen = 1 if len({*numbers}) == 1 else keep
        if chosen is None or chosen > len(numbers):
            assert not any(path == name for path, _ in gone)
            assert sum(left.path == name for left in found.unmended) == len(numbers)
        else:
            numbers.pop(chosen - 1)
            assert Counter({key: n for key, n in gone.items() if key[0] == name}) == Counter((name, n) for n in numbers)
    plan = plan_of(head, "main", [found])
    assert plan.operation == (OVERWRITE if found.mends else REPLACE)


@given(st.lists(st.tuples(counts, st.integers(0, 3)), min_size=1, max_size=5), st.integers(0, 3))
def test_row_ids_never_overlap_after_counts_are_corrected(files: list[tuple[int, int]], spare: int) -> None:
    """``files``: the stated rows, and how many more the file has; ranges of the stated rows follow each other."""
    made, first_row_id = list[DataFile](), 0
    for number, (rows, _) in enumerate(files):
        made.append(data_file(f"f{number}", 10, records=rows, first_row_id=first_row_id))
        first_row_id += rows
    head = plain_head(made, [1] * len(made), next_row_id=first_row_id + spare)
    mends = [
        mend_of(m, place, entry, replace(existing(entry), file=replace(entry.file, record_count=rows + more)))
        for (m, place, entry), (rows, more) in zip(head.live(), files, strict=True)
        if more
    ]
    after = {m.entry.file.file_path: m.becomes.file for m in with_own_row_ids(head, mends) if m.becomes is not None}
    ranges = [after.get(file.file_path, file) for file in made]
    taken = sorted((f.first_row_id, f.first_row_id + f.record_count) for f in ranges if f.first_row_id is not None)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(taken))
    assert all(end <= first_row_id + spare for _, end in taken)
    last_rows, last_more = files[-1]
    if all(not more for _, more in files[:-1]) and last_more <= spare:  # it fits before the next free id
        assert ranges[-1].first_row_id == first_row_id - last_rows


@given(st.lists(st.sampled_from(["metrics", "path", "count", "duplicate", "dropped"]), min_size=1, max_size=4))
def test_the_operation_never_hides_a_change_of_rows(kinds: list[str]) -> None:
    """``replace`` tells incremental readers that they need not look, ``delete`` that rows only went."""
    files = [data_file(f"f{number}", 10, records=2) for number in range(len(kinds))]
    head, mends = plain_head(files, [1] * len(files)), list[EntryMend]()
    for (manifest, place, entry), kind in zip(head.live(), kinds, strict=True):
        new: dict[str, dict[str, Any]] = {
            "metrics": {"file_size_in_bytes": 11},
            "path": {"file_path": "elsewhere"},
            "count": {"record_count": 3},
        }
        becomes = None if kind not in new else replace(existing(entry), file=replace(entry.file, **new[kind]))
        mends.append(mend_of(manifest, place, entry, becomes, leaves_deleted=kind == "dropped"))
    plan = plan_of(head, "main", [Found(mends=tuple(mends))])
    changes, goes = bool({"count", "duplicate"} & {*kinds}), "dropped" in kinds
    assert plan.operation == (OVERWRITE if changes else DELETE if goes else REPLACE)


@given(st.lists(counts, min_size=2, max_size=4), st.data())
def test_a_plan_is_the_same_after_other_writers_merged_its_manifests(rows: list[int], data: st.DataObject) -> None:
    files = [data_file(f"f{number}", 10, records=count) for number, count in enumerate(rows)]
    head = plain_head(files, [1] * len(files))
    mends = [
        mend_of(m, place, entry, replace(existing(entry), file=replace(entry.file, record_count=9)))
        for m, place, entry in head.live()
    ]
    merged = [replace(mend, manifest="merged", place=place) for place, mend in enumerate(mends)]
    first = plan_of(head, "main", [Found(mends=tuple(mends))])
    assert plan_of(head, "main", [Found(mends=tuple(data.draw(st.permutations(merged))))]).digest == first.digest
    assert plan_of(head, "main", [Found(mends=tuple(merged[1:]))]).digest != first.digest
    assume(rows[0] != 9)
    changed = replace(mends[0], becomes=existing(mends[0].entry))
    assert plan_of(head, "main", [Found(mends=(changed, *mends[1:]))]).digest != first.digest


# What files say about themselves, in every format.

COLUMNS: dict[str, tuple[pa.DataType, Any, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), "long", st.integers(-(2**63), 2**63 - 1)),
    "string": (pa.string(), "string", st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)),
    "double": (pa.float64(), "double", st.floats()),
    "date": (pa.date32(), {"type": "int", "logicalType": "date"}, st.integers(-10_000, 10_000)),
    "binary": (pa.binary(), "bytes", st.binary(max_size=20)),
    "boolean": (pa.bool_(), "boolean", st.booleans()),
    "decimal(9, 2)": (pa.decimal128(9, 2), None, st.integers(-(10**9) + 1, 10**9 - 1)),
}


def stored(kind: str, file_format: str, values: list[Any], path: Path) -> bool:
    """Write a file of a column; false if the writer at hand cannot."""
    arrow, avro, _ = COLUMNS[kind]
    field = pa.field("c", arrow, metadata={"PARQUET:field_id": "1", "iceberg.id": "1"})
    if kind.startswith("decimal"):
        array = pa.array([None if v is None else Decimal(v).scaleb(-2) for v in values], arrow)
    else:
        array = pa.array(values, pa.int32() if kind == "date" else arrow).cast(arrow)
    table = pa.table([array], schema=pa.schema([field]))
    if file_format == "PARQUET":
        pq.write_table(table, path, row_group_size=2)
    elif file_format == "ORC":
        orc.write_table(table, path)
    elif avro is None:
        return False
    else:
        schema = {"type": "record", "name": "r", "fields": [{"name": "c", "type": ["null", avro], "field-id": 1}]}
        with path.open("wb") as sink:
            fastavro.writer(sink, schema, [{"c": value} for value in values])
    return True


@given(st.sampled_from(["PARQUET", "ORC", "AVRO"]), st.sampled_from(sorted(COLUMNS)), st.data())
def test_an_entry_without_truth_gets_that_of_its_file(file_format: str, kind: str, data: st.DataObject) -> None:
    """Whatever an entry says about a column, afterwards its counts are exact and its bounds hold every value."""
    values = data.draw(st.lists(st.none() | COLUMNS[kind][2], min_size=1, max_size=6))
    bounds = st.none() | COLUMNS[kind][2]
    lower, upper = ({1: encode(kind, v)} if v is not None else None for v in (data.draw(bounds), data.draw(bounds)))
    fields = [{"id": 1, "name": "c", "required": False, "type": kind}]
    schema = {"type": "struct", "schema-id": 0, "fields": fields}
    leaves = {leaf.field_id: leaf for leaf in leaf_columns(schema)}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "f"
        assume(stored(kind, file_format, values, path))
        size, storage = path.stat().st_size, Storage({})
        counts: dict[str, Any] = {
            name: {1: data.draw(st.integers(0, 6))} for name in ("value_counts", "null_value_counts")
        }
        entry = data_file(
            str(path), 1, records=9, file_format=file_format, lower_bounds=lower, upper_bounds=upper, **counts
        )
        facts = facts_at(str(path), file_format, storage)
        columns = decoded_columns(entry, suspicious_columns(entry, facts, leaves), schema, storage)
    found = corrected(entry, size, facts, columns, leaves)
    present = [value for value in values if value is not None]
    ordered = sorted(comparable(kind, value) for value in present if value == value)  # NaN differs from itself
    assert (found.file_size_in_bytes, found.record_count) == (size, len(values))
    assert (found.value_counts, found.null_value_counts) == ({1: len(values)}, {1: len(values) - len(present)})
    if ordered and found.lower_bounds:
        assert comparable(kind, decode(kind, found.lower_bounds[1])) <= ordered[0]
    if ordered and found.upper_bounds:
        assert comparable(kind, decode(kind, found.upper_bounds[1])) >= ordered[-1]
    again = suspicious_columns(found, facts, leaves)
    assert corrected(found, size, facts, {i: columns[i] for i in again if i in columns}, leaves) == found
