"""Manifests: in memory, planned, and drawn by hypothesis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar
from unittest import mock

from hypothesis import strategies as st

from icekeeper.commit.manifest_lanes import manifest_header_bytes
from icekeeper.engines.engine import Engine
from icekeeper.errors import StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_read import decode_manifest
from icekeeper.metadata.manifest_write import EncodedManifest, encode_manifest
from icekeeper.metadata.table_reader import TableReader
from icekeeper.metadata.types import summarise_partitions
from icekeeper.model import (
    DataFile,
    EntryStatus,
    FileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Nothing,
    PartitionFieldSummary,
    PartitionValue,
)
from icekeeper.operations.manifests import lanes
from icekeeper.operations.manifests import rewrite_manifests as write_manifests
from icekeeper.operations.manifests.plan_manifests import ManifestPlan, plan_manifests
from icekeeper.operations.manifests.rewrite_manifests import RewrittenManifests, write_planned
from icekeeper.policy import Policy
from icekeeper.storage.paths import PathSet
from support.plans import HEAD, HEAD_SEQUENCE, data_file, table
from support.tables import new_document
from support.values import ORDERS, uuid_values

# Manifests in memory that the real work unit rewrites.


class MemoryStorage:
    """A table's files in memory, shared by all instances."""

    files: ClassVar[dict[str, bytes]] = {}

    def __init__(self, properties: Mapping[str, str]) -> None:
        pass

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise StorageError(f"{path} does not exist")
        return self.files[path]

    def write(self, path: str, data: bytes) -> None:
        self.files[path] = data

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.files.pop(path, None)


@contextmanager
def memory_storage(stored: Sequence[EncodedManifest], lane_bytes: int | None = None) -> Iterator[dict[str, bytes]]:
    """Give the work unit these manifests; ``lane_bytes``, if given, is the size of a lane."""
    MemoryStorage.files = {m.manifest.manifest_path: m.data for m in stored}
    with mock.patch.object(lanes, "Storage", MemoryStorage):
        if lane_bytes is None:
            yield MemoryStorage.files
            return
        with mock.patch.multiple(write_manifests, _LANE_BYTES=lane_bytes, _SPLIT_BYTES=lane_bytes):
            yield MemoryStorage.files


def rewritten(
    metadata: TableMetadata,
    stored: Sequence[EncodedManifest],
    plan: ManifestPlan,
    engine: Engine,
    lane_bytes: int | None = None,
) -> tuple[list[EncodedManifest], RewrittenManifests]:
    """The manifests of the table after the plan, and the record of written manifests."""
    into, recorded = RewrittenManifests(), set[str]()
    storage: Any = MemoryStorage({})
    with memory_storage(stored, lane_bytes) as files:
        write_planned(
            TableReader(metadata, storage.read),
            storage,
            plan,
            {},
            engine,
            into=into,
            will_write=recorded.update,
            on_done=lambda done, total: None,
        )
        gone = {m.manifest_path for m in plan.manifests}
        kept = [m for m in stored if m.manifest.manifest_path not in gone and m.manifest.may_have_live_files]
        assert [m.manifest_path for m in into.written] == into.staged
        assert all(PathSet(recorded).may_contain(path) for path in into.staged)
        assert len(files) == len(stored) + len(into.written)
        return [*(EncodedManifest(files[m.manifest_path], m) for m in into.written), *kept], into


def entries_of(metadata: TableMetadata, stored: Iterable[EncodedManifest]) -> list[tuple[ManifestFile, ManifestEntry]]:
    """Every entry with its manifest."""
    return [
        (m.manifest, entry)
        for m in stored
        for entry in decode_manifest(m.data, m.manifest, metadata.specs[m.manifest.partition_spec_id])
    ]


# Manifests drawn by hypothesis: entries of a table partitioned by every type.

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.sampled_from([0, 1, 63, 64, 8191, 8192, 2**31]) | st.integers(0, 2**40)  # Avro's lengths change there
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def fixed(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


# Column name, type, raw values: every type for partitions, named Avro types twice, and names that Avro forbids.
COLUMNS: Sequence[tuple[str, str, st.SearchStrategy[Any]]] = (
    ("plain", "boolean", st.booleans()),
    ("we ird", "int", INTS),
    ("1x", "long", LONGS),
    ("a.b", "float", st.floats(width=32)),
    ("ünï", "double", st.floats()),
    ("😀", "date", INTS),
    ("_", "time", st.integers(0, 86_399_999_999)),
    ("x-y", "timestamp", LONGS),
    ("tz", "timestamptz", LONGS),
    ("text", "string", TEXTS),
    ("raw", "binary", st.binary(max_size=20)),
    ("key", "uuid", fixed(16)),
    ("key2", "uuid", fixed(16)),
    ("code", "fixed[3]", fixed(3)),
    ("code2", "fixed[3]", fixed(3)),
    ("price", "decimal(9,2)", fixed(4)),
    ("price2", "decimal(9,2)", fixed(4)),
    ("huge", "decimal(38,10)", fixed(16)),
)
DRAWN_FIELDS = [{"id": i, "name": n, "required": False, "type": t} for i, (n, t, _) in enumerate(COLUMNS, start=1)]
SPEC = [
    {"name": name, "transform": "identity", "source-id": i, "field-id": 999 + i}
    for i, (name, _, _) in enumerate(COLUMNS, start=1)
]
PARTITIONS = st.tuples(*(st.none() | values for _, _, values in COLUMNS))


def drawn_table(
    format_version: int, fields: Sequence[Mapping[str, Any]] = DRAWN_FIELDS, spec: Any = SPEC
) -> TableMetadata:
    schema = {"type": "struct", "schema-id": 0, "fields": list(fields)}
    specs = [{"spec-id": 0, "fields": spec}]
    return TableMetadata(new_document("s3://b/t", format_version, schemas=[schema], **{"partition-specs": specs}))


def mapped(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Mapping[int, Any] | None]:
    return st.none() | st.dictionaries(st.integers(1, 200), values, max_size=4)


def files(format_version: int) -> st.SearchStrategy[DataFile]:
    modern = format_version > 1
    listed = st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)
    return st.builds(
        DataFile,
        content=st.sampled_from(FileContent) if modern else st.just(FileContent.DATA),
        file_path=st.text(st.characters(codec="utf-8"), min_size=1),
        file_format=st.sampled_from(["PARQUET", "AVRO", "ORC"]),
        partition=PARTITIONS,
        record_count=COUNTS,
        file_size_in_bytes=COUNTS,
        column_sizes=mapped(COUNTS),
        value_counts=mapped(COUNTS),
        null_value_counts=mapped(COUNTS),
        nan_value_counts=mapped(COUNTS),
        lower_bounds=mapped(st.binary()),
        upper_bounds=mapped(st.binary()),
        key_metadata=st.none() | st.binary(),
        split_offsets=listed,
        equality_ids=listed if modern else st.none(),
        sort_order_id=st.none() | st.integers(0, 5),
        referenced_data_file=st.none() | TEXTS if modern else st.none(),
        first_row_id=st.none() | COUNTS if format_version > 2 else st.none(),
        content_offset=st.none() | COUNTS if format_version > 2 else st.none(),
        content_size_in_bytes=st.none() | COUNTS if format_version > 2 else st.none(),
    )


@st.composite
def entries(draw: st.DrawFn, format_version: int) -> list[ManifestEntry]:
    made = []
    numbers = st.integers(0, 1000) if format_version > 1 else st.just(0)
    for file in draw(st.lists(files(format_version), max_size=3)):
        status = draw(st.sampled_from(EntryStatus))
        added = status is EntryStatus.ADDED
        made.append(
            ManifestEntry(
                status,
                draw(st.none() | LONGS) if added and format_version > 1 else draw(LONGS),
                draw(st.none() | numbers) if added else draw(numbers),
                None if added else draw(numbers),
                file,
            )
        )
    return made


def encoded(metadata: TableMetadata, made: Sequence[ManifestEntry], content: ManifestContent) -> EncodedManifest:
    number = 0 if metadata.format_version == 1 else 7
    return encode_manifest(
        metadata, spec_id=0, content=content, entries=made, path="s3://b/m.avro", snapshot_id=42, sequence_number=number
    )


# Manifests of a table with three specs, drawn or encoded, and the plan for them.

PLANNED_FIELDS = [
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {"id": 2, "name": "x", "required": False, "type": "double"},
    {"id": 3, "name": "region", "required": False, "type": "string"},
    {"id": 4, "name": "key", "required": False, "type": "uuid"},
]


def part(field_id: int, source: int, name: str) -> dict[str, object]:
    return {"field-id": field_id, "source-id": source, "name": name, "transform": "identity"}


MORE: dict[str, Any] = {
    "schemas": [{"type": "struct", "schema-id": 0, "fields": PLANNED_FIELDS}],
    "partition-specs": [
        {"spec-id": 0, "fields": [part(1000, 3, "region"), part(1001, 2, "x")]},
        {"spec-id": 1, "fields": []},
        {"spec-id": 2, "fields": [part(1000, 3, "region"), part(1002, 4, "key")]},
    ],
}
TABLE = table(**MORE)
KINDS = [(spec_id, content) for spec_id in TABLE.specs for content in ManifestContent]
HEADERS = {kind: manifest_header_bytes(TABLE, *kind) for kind in KINDS}
HEADER = HEADERS[0, ManifestContent.DATA]
regions = st.sampled_from([None, "", "eu", "us", "é"])
numbers = st.sampled_from([None, math.nan, -0.0, 0.0, 1.5, -math.inf])
keys = st.none() | uuid_values
partitions = {0: st.tuples(regions, numbers), 1: st.just(()), 2: st.tuples(regions, keys)}
statuses = st.sampled_from([EntryStatus.ADDED, EntryStatus.EXISTING, EntryStatus.EXISTING, EntryStatus.DELETED])


def encoded_manifests(
    spec_id: int,
    entries: Sequence[ManifestEntry],
    path: str,
    metadata: TableMetadata = TABLE,
    content: ManifestContent = ManifestContent.DATA,
) -> EncodedManifest:
    return encode_manifest(
        metadata,
        spec_id=spec_id,
        content=content,
        entries=entries,
        path=path,
        snapshot_id=HEAD,
        sequence_number=HEAD_SEQUENCE,
    )


def described(path: str, partition: tuple[PartitionValue, ...], wide: bool) -> DataFile:
    """A file with bounds, some short and some long, so that manifests compress differently."""
    bound = (path * 8).encode()[:64] if wide else b"b"
    return data_file(
        path, 1000, partition, lower_bounds={3: bound}, upper_bounds={3: bound}, value_counts={1: 10, 3: 10}
    )


@st.composite
def stored_manifests(draw: st.DrawFn) -> list[EncodedManifest]:
    found = []
    for number in range(draw(st.integers(0, 25))):
        spec_id, is_data = draw(st.sampled_from([0, 0, 1, 2, 2])), draw(st.sampled_from([True, True, False]))
        entries = []
        for i in range(draw(st.sampled_from([1, 1, 2, 5, 20]))):
            partition = draw(partitions[spec_id])
            file = described(f"s3://b/t/data/{number:03}-{i:03}.parquet", partition, draw(st.booleans()))
            file = replace(file, content=FileContent.DATA if is_data else FileContent.POSITION_DELETES)
            entries.append(ManifestEntry(draw(statuses), number + 1, number + 1, number + 1, file))
        content = ManifestContent.DATA if is_data else ManifestContent.DELETES
        made = encoded_manifests(spec_id, entries, f"m{number}", content=content)
        if spec_id == 2 and draw(st.booleans()):
            made = replace(made, manifest=as_another_writer(made.manifest, entries, draw(st.sampled_from(ORDERS))))
        found.append(made)
    return found


def as_another_writer(
    manifest: ManifestFile, entries: Sequence[ManifestEntry], order: Callable[[bytes], Any]
) -> ManifestFile:
    """The manifest with bounds of uuids that hold only in one order."""
    regions = summarise_partitions(["string"], [entry.file.partition[:1] for entry in entries])
    found = [key for entry in entries if isinstance(key := entry.file.partition[1], bytes)]
    ends = [choose(found, key=order, default=None) for choose in (min, max)]
    keys = PartitionFieldSummary(len(found) < len(entries), False, *ends)
    return replace(manifest, partitions=(*(regions or ()), keys))


def plan(stored: Sequence[EncodedManifest], chosen: Policy, target: int) -> ManifestPlan | Nothing:
    return plan_listed([m.manifest for m in stored], chosen, target)


def plan_listed(manifests: Sequence[ManifestFile], chosen: Policy, target: int) -> ManifestPlan | Nothing:
    return plan_manifests(TABLE, TABLE.snapshots[HEAD], manifests, chosen, target_bytes=target, header_bytes=HEADERS)


def live(stored: Sequence[EncodedManifest]) -> Counter[str]:
    """Live entries as a multiset, without their status; as text, in which NaN equals NaN."""
    return Counter(
        repr((m.partition_spec_id, m.content, e.snapshot_id, e.sequence_number, e.file_sequence_number, e.file))
        for m, e in entries_of(TABLE, stored)
        if e.is_live
    )


targets = st.one_of(st.integers(HEADER + 1, HEADER + 3000), st.sampled_from([1, HEADER, 8 * 1024 * 1024]))
lane_sizes = st.sampled_from([None, 1, 2000])


LARGE = 8 * 1024 * 1024
