"""Fuzzed metadata: table documents, manifests, Puffin files; sound files of each format, and Icekeeper's readers.

A reader returns a valid result or raises a documented error.  Two readers of the same bytes agree.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from icekeeper.advice.advise import advise
from icekeeper.advice.read_tables import summarise
from icekeeper.cli.tables import described
from icekeeper.detection.assess import assess
from icekeeper.errors import MaintenanceError, MetadataUnreadable
from icekeeper.health.examine import lake_counters, lake_warnings
from icekeeper.health.layout import timeline
from icekeeper.metadata.document import TableMetadata, require_writable, schema_digest, table_digest
from icekeeper.metadata.document_files import leading_uuid, parse_document, render_document
from icekeeper.metadata.manifest_read import (
    decode_identities,
    decode_live_files,
    decode_live_paths,
    decode_manifest,
    decode_manifest_list,
)
from icekeeper.metadata.manifest_write import EntryCopier, encode_manifest, encode_manifest_list
from icekeeper.metadata.puffin import (
    PuffinBlob,
    decode_deletion_vector,
    decode_footer,
    encode_blobs,
    encode_deletion_vector,
    encode_puffin,
)
from icekeeper.metadata.statistics import (
    BlobMetadata,
    blob_metadata,
    encode_theta,
    sketch_of,
    statistics_by_snapshot,
    statistics_entry,
)
from icekeeper.metadata.updates import apply_updates
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile, PartitionFieldSummary
from icekeeper.operations.compaction.terms.recipe import choose_recipe
from icekeeper.operations.compaction.terms.write_properties import output_properties
from icekeeper.operations.expiry.retention import expiry_at
from icekeeper.operations.expiry.unreferenced import unused_metadata
from icekeeper.operations.statistics.compute_statistics import StatisticsFileUnusable, stored_sketch
from icekeeper.operations.statistics.plan_statistics import StoredBlob
from icekeeper.policy import Policy
from icekeeper.policy.partition_time import partition_times
from icekeeper.policy.resolve import resolve
from icekeeper.rows.apply_deletes import vector_positions
from icekeeper.rows.arrow_schema import arrow_schema
from icekeeper.storage.storage import Storage
from icekeeper.verification.checks import document_problems, row_id_problems
from support.hostile.avro import gzipped, uncompressed
from support.manifests import drawn_table
from support.plans import data_file
from support.rewrites import struct as iceberg_struct
from support.tables import CREATED_MS, new_document, snapshot


@dataclass(frozen=True)
class Target:
    """A format: its sound files, its reader, and the documented errors of the reader."""

    seeds: Sequence[bytes]
    read: Callable[[bytes], object]
    named: tuple[type[Exception], ...] = (MaintenanceError,)
    deletes: bool = False
    """Whether the result may lead to deletions, which the reader itself checks."""


STORAGE = Storage({})
NOW_MS = CREATED_MS + 10**9
FIELDS = iceberg_struct(
    (1, "id", "long"),
    (2, "cost", "decimal(9,2)"),
    (3, "tags", {"type": "list", "element-id": 4, "element": "string", "element-required": False}),
    (5, "by", {"type": "map", "key-id": 6, "key": "string", "value-id": 7, "value": "int", "value-required": False}),
    (8, "point", iceberg_struct((9, "x", "double"), (10, "day", "date"))),
    (11, "at", "timestamptz"),
    (12, "raw", "binary"),
    (13, "flag", "boolean"),
    (14, "name", "string"),
)


# Metadata.


def metadata_json(_: Path) -> Target:
    plain = [json.dumps(_document(version)).encode() for version in (1, 2, 3)]
    return Target([*plain, gzipped(plain[1])], _read_document)


def _document(version: int) -> dict[str, Any]:
    snapshots = [
        snapshot(n, format_version=version, sequence_number=n, parent_id=n - 1 or None, timestamp_ms=CREATED_MS + n)
        for n in (1, 2)
    ]
    field = {"source-id": 1, "field-id": 1000, "name": "id_bucket", "transform": "bucket[4]"}
    order = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    blob = {"type": "t", "fields": [1], "snapshot-id": 2, "sequence-number": 2, "properties": {"ndv": "3"}}
    puffin, blobs = encode_blobs([(PuffinBlob("t", (1,), 0, 0, {}), b"x")], {})
    schema = {**FIELDS, "schema-id": 0, "identifier-field-ids": []}
    more: dict[str, Any] = {
        "schemas": [schema],
        "last-column-id": 14,
        "partition-specs": [{"spec-id": 0, "fields": [field]}],
        "sort-orders": [{"order-id": 1, "fields": [order]}],
        "default-sort-order-id": 1,
        "snapshots": snapshots,
        "current-snapshot-id": 2,
        "last-sequence-number": 2,
        "snapshot-log": [{"snapshot-id": n, "timestamp-ms": CREATED_MS + n} for n in (1, 2)],
        "metadata-log": [{"metadata-file": "s3://b/t/0.json", "timestamp-ms": CREATED_MS}],
        "properties": {"write.parquet.compression-codec": "zstd", "history.expire.max-snapshot-age-ms": "1000"},
        "statistics": [statistics_entry(2, "s3://b/t/s.puffin", puffin, blobs) | {"blob-metadata": [blob]}],
    }
    if version == 1:
        return new_document("s3://b/t", 1, **more) | {"schema": schema, "partition-spec": [field]}
    ref = {"snapshot-id": 2, "type": "branch", "max-ref-age-ms": 10**12, "min-snapshots-to-keep": 1}
    return new_document("s3://b/t", version, **more) | {
        "refs": {"main": ref, "kept": {"snapshot-id": 1, "type": "tag"}}
    }


def _read_document(data: bytes) -> None:
    metadata = parse_document(data, "s3://b/t/m.json")
    assert parse_document(render_document(metadata), "m").document == metadata.document
    uuid = leading_uuid(data)
    assert uuid is None or uuid == metadata.uuid or data.count(b'"table-uuid"') > 1
    facts = (
        *(metadata.format_version, metadata.location, metadata.last_updated_ms, metadata.next_row_id, metadata.uuid),
        *(metadata.schemas_current_first, metadata.current_schema_id, metadata.specs, metadata.default_spec_id),
        *(metadata.default_sort_order_fields, metadata.snapshot_times_ms, metadata.locations, metadata.head_ids),
        *(metadata.metadata_log, metadata.partition_statistics, table_digest(metadata), schema_digest(metadata)),
        *(timeline(metadata), statistics_by_snapshot(metadata)),
    )
    assert len(repr(facts)) > 0
    assert not any("\n" in problem.detail for problem in document_problems(metadata, "m"))
    tuple(row_id_problems(metadata, "m"))
    for look in LOOKS:
        with suppress(MaintenanceError):
            look(metadata)


def _expiry(metadata: TableMetadata) -> None:
    plan = expiry_at(metadata, Policy(), now_ms=NOW_MS)
    kept = {ref.snapshot_id for name, ref in metadata.refs.items() if name not in plan.refs}
    assert not kept.intersection(plan.snapshot_ids), "a snapshot of a ref expires"
    removals = [{"action": "remove-snapshots", "snapshot-ids": list(plan.snapshot_ids)}]
    removals += [{"action": "remove-snapshot-ref", "ref-name": name} for name in plan.refs]
    after = apply_updates(metadata, removals, metadata_location="s3://b/t/m.json", now_ms=NOW_MS)
    assert parse_document(render_document(after), "m").snapshots.keys() == metadata.snapshots.keys() - plan.snapshot_ids


def _health(metadata: TableMetadata) -> None:
    head = metadata.current_snapshot
    lake_warnings(metadata, lake_counters(metadata, head, now_ms=NOW_MS), Policy(), now_ms=NOW_MS)
    advise(summarise("t", metadata, head, Policy(), deletes=tuple, data=tuple))


LOOKS: Sequence[Callable[[TableMetadata], object]] = (
    require_writable,
    _expiry,
    _health,
    described,
    output_properties,
    lambda metadata: assess("ns.t", metadata, resolve([]), now_ms=NOW_MS, expirable=0),
    lambda metadata: arrow_schema(metadata.current_schema),
    lambda metadata: choose_recipe(metadata, Policy()),
    lambda metadata: unused_metadata(metadata, (), (), False),
    lambda metadata: partition_times(metadata, Policy()),
)
"""Other results that depend only on a table document."""


MANIFEST = "s3://b/t/m.avro"
PARTITION: tuple[Any, ...] = (
    True,
    -1,
    2**40,
    1.5,
    -0.0,
    20_000,
    1,
    2,
    3,
    "é",
    b"\0",
    b"k" * 16,
    b"l" * 16,
    b"abc",
    b"def",
    b"\0\0\1\2",
    b"\0\0\1\3",
    bytes(14) + b"\1\2",
)


def manifest_list(_: Path) -> Target:
    summary = PartitionFieldSummary(contains_null=False, contains_nan=None, lower_bound=b"a", upper_bound=None)
    counts = ("added_files_count", "existing_files_count", "deleted_files_count")
    counted: Any = dict.fromkeys((*counts, "added_rows_count", "existing_rows_count", "deleted_rows_count"), 3)
    listed = replace(LISTED, partitions=(summary,) * 2, **counted)
    numbers: Any = {"snapshot_id": 2, "parent_snapshot_id": 1, "sequence_number": 7}
    lists: dict[int, Any] = {1: [listed], 2: [listed] * 3, 3: [replace(listed, first_row_id=4)] * 2}
    seeds = [encode_manifest_list(version, found, first_row_id=4, **numbers) for version, found in lists.items()]
    seeds += [uncompressed(seed) for seed in seeds]
    return Target(seeds, lambda data: repr(decode_manifest_list(data, "s3://b/t/l.avro")))


def manifest(_: Path) -> Target:
    sound = [_manifest(version, count) for version in (1, 2, 3) for count in (1, 6)]
    return Target([*map(uncompressed, sound), _manifest(2, 3)], _read_manifest)


def _manifest(version: int, count: int) -> bytes:
    more: dict[str, Any] = {
        "column_sizes": {1: 40, 2: 50},
        "value_counts": {1: 10},
        "null_value_counts": {1: 0},
        "lower_bounds": {1: b"\0" * 8, 3: b"a"},
        "upper_bounds": {1: b"\xff" * 8},
        "split_offsets": (4, 100),
    }
    if version > 1:
        more |= {"referenced_data_file": "s3://b/t/d0"}
    statuses = [*EntryStatus] if version > 1 else [EntryStatus.ADDED]
    entries = []
    for n in range(count):
        status = statuses[n % len(statuses)]
        known = None if status is EntryStatus.ADDED else 5
        entries.append(ManifestEntry(status, 41, known, known, data_file(f"s3://b/t/d{n}", 900 + n, PARTITION, **more)))
    return encode_manifest(
        drawn_table(version),
        spec_id=0,
        content=ManifestContent.DATA,
        entries=entries,
        path=MANIFEST,
        snapshot_id=42,
        sequence_number=0 if version == 1 else 7,
    ).data


LISTED = ManifestFile(
    manifest_path=MANIFEST, manifest_length=9, partition_spec_id=0, added_snapshot_id=42, sequence_number=7
)
COPIERS = [EntryCopier(drawn_table(version), 0) for version in (1, 2, 3)]
SPEC = drawn_table(3).specs[0]


def _read_manifest(data: bytes) -> None:
    """All readers of manifests find the same live files, or refuse the manifest."""
    refusals: list[str] = []  # an error would keep the memory of its reader

    def keys(found: Iterator[Any], key: Callable[[Any], Any]) -> list[Any] | None:
        try:
            return [key(item) for item in found]
        except MetadataUnreadable as error:
            refusals.append(str(error))
            return None

    entries = decode_manifest(data, replace(LISTED, first_row_id=9), SPEC)
    answers = [
        keys((e for e in entries if len(repr(e)) and e.is_live), lambda entry: entry.file.key),
        keys(decode_live_files(data, MANIFEST), lambda file: (file.path, file.content_offset)),
        keys(decode_identities(data, LISTED), lambda pair: pair[0]),
    ]
    whole = {tuple(found) for found in answers if found is not None}
    assert len(whole) < 2, "readers of a manifest disagree on its live files"
    paths = keys(decode_live_paths(data, MANIFEST), list)
    if whole and paths is not None:
        assert [path for block in paths for path in block] == [path for path, _ in whole.pop()]
    keys(COPIERS[zlib.crc32(data) % 3].copy(data, LISTED), repr)
    if refusals:
        raise MetadataUnreadable(refusals[0])


# Puffin files.


def puffin_footer(_: Path) -> Target:
    vectors = encode_puffin([("s3://b/f", BitMap64(range(9))), ("s3://b/g", BitMap64([2**40]))], {"a": "b"})[0]
    about = PuffinBlob("t", (1,), 0, 0, {"ndv": "2"}, 3, 4, "zstd")
    other, _blobs = encode_blobs([(about, b"x" * 9)], {})
    return Target(
        [vectors, other], lambda data: {blob_metadata(blob) for blob in decode_footer(data, "s3://b/p.puffin")}
    )


VECTORS = (BitMap64(), BitMap64(range(5)), BitMap64([1, 5, 70_000, 1 << 33]), BitMap64(range(0, 10_000, 2)))


def deletion_vector(folder: Path) -> Target:
    path = folder / "v.puffin"

    def read(data: bytes) -> None:
        """Read the vector with a manifest entry that the attacker chooses."""
        path.write_bytes(data)
        try:
            count = 3
            decode_deletion_vector(data, str(path), count)
        except MetadataUnreadable as error:
            found = re.search(r"it contains (\d+) positions, but its manifest", str(error))
            if found is None:
                raise
            count = int(found[1])
        positions = pa.array(vector_positions(str(path), 0, len(data), count, STORAGE).to_array(), pa.uint64())
        assert len(positions) == count
        assert pc.all(pc.greater(positions.slice(1), positions.slice(0, max(0, count - 1)))).as_py() is not False

    return Target([encode_deletion_vector(vector) for vector in VECTORS], read)


def sketch(_: Path) -> Target:
    stored = StoredBlob(path="s3://b/p.stats", blob=BlobMetadata("t", (1,), 1, 1), registered_for=1)

    def read(data: bytes) -> None:
        codec, _, packed = data.partition(b":")
        blob = PuffinBlob("t", (1,), 4, len(packed), {}, compression_codec=codec.decode(errors="replace") or None)
        assert stored_sketch(stored, blob, packed).estimate >= 0

    made = [encode_theta(sketch_of(range(1, count * 99, 99))) for count in (0, 1, 50, 5000)]
    packed = bytes(pa.Codec("zstd").compress(made[2], asbytes=True))
    return Target(
        [b":" + made[0], b":" + made[1], b":" + made[2], b":" + made[3], b"zstd:" + packed],
        read,
        (StatisticsFileUnusable,),
    )
