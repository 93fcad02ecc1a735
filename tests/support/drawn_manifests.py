"""Manifests as hypothesis draws them: entries of a table that is partitioned by every type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import EncodedManifest, NewSnapshot, encode_manifest
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry
from support.tables import new_document

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**40)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def fixed(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


# Column name, type, raw values: every type that partitions, two of each that Avro names, names that Avro forbids.
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
FIELDS = [{"id": i, "name": n, "required": False, "type": t} for i, (n, t, _) in enumerate(COLUMNS, start=1)]
SPEC = [
    {"name": name, "transform": "identity", "source-id": i, "field-id": 999 + i}
    for i, (name, _, _) in enumerate(COLUMNS, start=1)
]
PARTITIONS = st.tuples(*(st.none() | values for _, _, values in COLUMNS))


def table(format_version: int, fields: Sequence[Mapping[str, Any]] = FIELDS, spec: Any = SPEC) -> TableMetadata:
    schema = {"type": "struct", "schema-id": 0, "fields": list(fields)}
    specs = [{"spec-id": 0, "fields": spec}]
    return TableMetadata(
        new_document("s3://b/t", format_version, schemas=[schema], partition_specs=specs)
        | {
            "partition-specs": specs,
        }
    )


def mapped(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Mapping[int, Any] | None]:
    return st.none() | st.dictionaries(st.integers(1, 200), values, max_size=4)


def files(format_version: int) -> st.SearchStrategy[DataFile]:
    modern = format_version > 1
    listed = st.none() | st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3).map(tuple)
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
        metadata, spec_id=0, content=content, entries=made, path="s3://b/m.avro", snapshot=NewSnapshot(42, number)
    )
