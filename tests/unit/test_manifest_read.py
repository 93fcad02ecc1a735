"""Reading manifest entries: additional fields, unusual encodings, damage."""

from __future__ import annotations

import io
import json
import operator
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.avro_files import open_avro
from icekeeper.metadata.avro_schemas import manifest_schema
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.entry_columns import StoredFile
from icekeeper.metadata.manifest_read import decode_live_files, decode_manifest, entry_status
from icekeeper.metadata.manifest_write import encode_manifest
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile
from support.hostile.avro import avro_file, avro_long, encoded
from support.manifests import drawn_table

# An entry with an unknown status makes its manifest unreadable.


def test_the_error_of_an_unknown_status_names_the_manifest() -> None:
    known = [EntryStatus.EXISTING, EntryStatus.ADDED, EntryStatus.DELETED]
    assert [entry_status(code, "m.avro") for code in (0, 1, 2)] == known
    for code in (-1, 3, 2**40):
        with pytest.raises(MetadataUnreadable, match=f"^manifest m.avro has an entry with the unknown status {code}$"):
            entry_status(code, "m.avro")


# A manifest that is shorter than its length in the manifest list is an error.


def test_a_manifest_shorter_than_its_listed_length_is_an_error() -> None:
    """The length of inline manifests (v1) is unknown; a smaller listed length is accepted."""
    reader = TableReader(TableMetadata({"format-version": 2, "location": "t"}), lambda path: b"data")
    listed = ManifestFile(manifest_path="m", manifest_length=0, partition_spec_id=0, added_snapshot_id=1)
    for listed_length in (0, 3, 4):
        manifest = replace(listed, manifest_length=listed_length)
        assert list(reader.contents([manifest])) == [(manifest, b"data")]
    with pytest.raises(MetadataUnreadable, match="manifest m has 4 bytes, but its manifest list says 5"):
        list(reader.contents([replace(listed, manifest_length=5)]))


AvroSchema = dict[str, Any]
FIELDS = [{"id": 1, "name": "d", "required": False, "type": "double"}]
SPEC = [{"name": "d", "transform": "identity", "source-id": 1, "field-id": 1000}]
TABLE = drawn_table(2, FIELDS, SPEC)
MANIFEST = ManifestFile(
    manifest_path="s3://b/m.avro", manifest_length=1, partition_spec_id=0, sequence_number=7, added_snapshot_id=42
)
METRICS: dict[str, Any] = {
    "column_sizes": {1: 900, 70: 2**40},
    "value_counts": {1: 10},
    "null_value_counts": {},
    "nan_value_counts": None,
    "lower_bounds": {1: b"low", 70: b""},
    "upper_bounds": {1: b"x" * 200},
}
FILE: dict[str, Any] = {
    "content": 0,
    "file_path": "s3://b/f.parquet",
    "file_format": "PARQUET",
    "partition": {"d": 1.5},
    "record_count": 10,
    "file_size_in_bytes": 1000,
    "split_offsets": [4, 2**40],
}
EXPECTED = DataFile(
    content=FileContent.DATA,
    file_path="s3://b/f.parquet",
    file_format="PARQUET",
    partition=(1.5,),
    record_count=10,
    file_size_in_bytes=1000,
    split_offsets=(4, 2**40),
    **METRICS,
)


def pairs(metric: dict[int, Any] | None) -> list[dict[str, Any]] | None:
    return None if metric is None else [{"key": key, "value": value} for key, value in metric.items()]


def written(
    files: Sequence[dict[str, Any] | None], change: Callable[[AvroSchema], object] = lambda schema: None
) -> bytes:
    """A manifest with these files; ``change`` alters the schema of a data file."""
    schema = manifest_schema(2, TABLE.schemas_current_first, TABLE.specs[0])
    data_file = next(field for field in schema["fields"] if field["name"] == "data_file")
    change(data_file)
    sink = io.BytesIO()
    entries = [{"status": 1, "data_file": file} for file in files]
    fastavro.writer(sink, fastavro.parse_schema(schema), entries, metadata={"format-version": "2"})
    return sink.getvalue()


def read(data: bytes) -> list[ManifestEntry]:
    return list(decode_manifest(data, MANIFEST, TABLE.specs[0]))


STORED = FILE | {name: pairs(metric) for name, metric in METRICS.items()}


def test_a_stored_file_equals_a_file_with_the_same_fields() -> None:
    (found,) = (entry.file for entry in read(written([STORED])))
    assert isinstance(found, StoredFile)
    assert found == EXPECTED
    assert operator.eq(EXPECTED, found)
    assert found == next(entry.file for entry in read(written([STORED])))
    assert found != replace(EXPECTED, upper_bounds=None)
    assert repr(found).partition("(")[2] == repr(EXPECTED).partition("(")[2]
    for copied in (pickle.loads(pickle.dumps(found)), replace(found, record_count=11)):
        assert type(copied) is DataFile
        assert replace(copied, record_count=10) == EXPECTED
    ids = [entry.file.equality_ids for entry in read(written([FILE | {"equality_ids": i} for i in ([], None, [2, 1])]))]
    assert ids == [(), None, (2, 1)]
    (bare,) = (entry.file for entry in read(written([FILE | {"split_offsets": None}])))
    assert (bare.lower_bounds, bare.split_offsets) == (None, None)
    assert hash(bare) == hash(pickle.loads(pickle.dumps(bare)))


def nullable(data_file: AvroSchema) -> None:
    """Make the data file nullable, as BigQuery does."""
    data_file["type"] = ["null", data_file["type"]]


def with_a_tree(data_file: AvroSchema) -> None:
    """Insert an unknown field with a recursive type before all others."""
    tree = {"type": "record", "name": "tree", "fields": [{"name": "sub", "type": {"type": "array", "items": "tree"}}]}
    default = {"sub": [{"sub": []}, {"sub": [{"sub": []}]}]}
    data_file["type"]["fields"].insert(0, {"name": "tree", "type": tree, "default": default})


def without_ids(data_file: AvroSchema) -> None:
    for field in data_file["type"]["fields"]:
        del field["field-id"]


def narrow(data_file: AvroSchema) -> None:
    """Declare counts as ints, which have the same encoding as longs."""
    counts = next(field for field in data_file["type"]["fields"] if field["name"] == "value_counts")
    counts["type"][1]["items"]["fields"][1]["type"] = "int"


def with_another_metric(data_file: AvroSchema) -> None:
    """Insert a further metric, as early versions of Java do (``distinct_counts``, field 111)."""
    fields = data_file["type"]["fields"]
    between = next(number for number, field in enumerate(fields) if field["name"] == "nan_value_counts")
    fields.insert(between, {"name": "other", "field-id": 999, "type": ["null", "string"], "default": None})


def rewritten(entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    """Write the entries as a commit that deletes them does, and read them again."""
    gone = [replace(entry, status=EntryStatus.DELETED, snapshot_id=43) for entry in entries]
    made = encode_manifest(
        TABLE, spec_id=0, content=ManifestContent.DATA, entries=gone, path="m", snapshot_id=43, sequence_number=8
    )
    found = list(decode_manifest(made.data, made.manifest, TABLE.specs[0]))
    assert [replace(entry, file=EXPECTED) for entry in found] == [replace(entry, file=EXPECTED) for entry in gone]
    return found


def test_a_commit_copies_the_bytes_of_metrics() -> None:
    """They keep the order of their manifest; a writer that decodes and encodes them would sort them
    (rule: damage-ends-in-a-named-error)."""
    turned = dict(reversed(METRICS["lower_bounds"].items()))
    (found,) = rewritten(read(written([STORED | {"lower_bounds": pairs(turned)}])))
    assert found.file == EXPECTED
    assert found.file.lower_bounds is not None
    assert list(found.file.lower_bounds) == [70, 1]
    (changed,) = rewritten([replace(found, file=replace(found.file, sort_order_id=1))])
    assert changed.file == replace(EXPECTED, sort_order_id=1)


@pytest.mark.parametrize("change", [narrow, with_another_metric, without_ids, with_a_tree, nullable])
def test_layouts_of_other_writers_are_read_and_encoded_again(change: Callable[[AvroSchema], object]) -> None:
    data = written([STORED, STORED], change)
    entries = read(data)
    assert [type(entry.file) for entry in entries] == [StoredFile, StoredFile]
    assert [entry.file for entry in entries] == [EXPECTED, EXPECTED]
    assert [file.path for file in decode_live_files(data, "m")] == [EXPECTED.file_path] * 2
    assert [entry.file for entry in rewritten(entries)] == [EXPECTED, EXPECTED]


def test_metrics_in_avro_maps_are_read() -> None:
    def as_maps(data_file: AvroSchema) -> None:
        for field in data_file["type"]["fields"]:
            if field["name"] in METRICS:
                value = "bytes" if "bounds" in field["name"] else "long"
                field["type"] = ["null", {"type": "map", "values": value}]

    as_text = {name: m and {str(key): value for key, value in m.items()} for name, m in METRICS.items()}
    (found,) = read(written([FILE | as_text], as_maps))
    assert type(found.file) is DataFile
    assert found.file == EXPECTED


def test_an_entry_without_a_file_is_refused() -> None:
    data = written([STORED, None], nullable)
    with pytest.raises(MetadataUnreadable, match=r"m\.avro.*an entry has no data file"):
        read(data)


def test_partitions_zero_and_minus_zero_differ() -> None:
    """Python considers 0.0 and -0.0 equal (rule: deletes-reach-one-partition)."""
    found = read(written([STORED | {"partition": {"d": value}} for value in (0.0, -0.0, 0.0, None)]))
    assert [repr(entry.file.partition) for entry in found] == ["(0.0,)", "(-0.0,)", "(0.0,)", "(None,)"]
    assert found[0].file.partition is found[2].file.partition


def test_arrays_in_several_blocks_with_their_sizes_are_read() -> None:
    """Writers do so that do not know the number of items in advance (rule: damage-ends-in-a-named-error)."""
    opened = open_avro(written([STORED]), "m.avro")
    ((_, record),) = opened.unpacked_blocks()
    kinds = {"key": "int", "value": "long"}
    items = {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    sizes = pairs(METRICS["column_sizes"])
    assert sizes is not None
    singles = [encoded(items, item) for item in sizes]
    in_blocks = b"".join(avro_long(-1) + avro_long(len(item)) + item for item in singles) + b"\0"
    changed = record.replace(encoded({"type": "array", "items": items}, sizes), in_blocks)
    assert len(changed) > len(record)

    def container(block: bytes) -> bytes:
        return avro_file(opened.schema_text, [(1, block)])

    assert [entry.file for entry in read(container(changed))] == [EXPECTED]
    assert [file.size for file in decode_live_files(container(changed), "m")] == [1000]
    with pytest.raises(MetadataUnreadable, match="bytes after its last record"):
        read(container(changed + b"\0"))
    with pytest.raises(MetadataUnreadable, match=r"ends after its block|IndexError"):
        read(container(changed[:-1]))


@pytest.mark.parametrize(
    ("again", "of_file", "name"),
    [
        ({"name": "data_file", "type": "string"}, False, "data_file"),
        ({"name": "other", "type": "string", "field-id": 2}, False, "data_file"),
        ({"name": "file_path", "type": "string"}, True, "file_path"),
        ({"name": "other", "type": "string", "field-id": 100}, True, "file_path"),
    ],
)
def test_a_duplicate_field_is_refused(again: dict[str, Any], of_file: bool, name: str) -> None:
    """Readers disagree on which of the two counts."""
    schema: Any = manifest_schema(2, [{"schema-id": 0, "fields": []}], {"spec-id": 0, "fields": []})
    schema = json.loads(json.dumps(schema))
    record = next(field for field in schema["fields"] if field["name"] == "data_file")["type"] if of_file else schema
    record["fields"] = (
        [f for f in record["fields"] if f["name"] != again["name"]]
        + [again]
        + [{**f, "name": f"{f['name']}_too"} for f in record["fields"] if f["name"] == again["name"]]
    )
    listed = ManifestFile(manifest_path="m.avro", manifest_length=1, partition_spec_id=0, added_snapshot_id=1)
    for read in (
        lambda data: list(decode_manifest(data, listed, {"spec-id": 0, "fields": []})),
        lambda data: list(decode_live_files(data, "m.avro")),
    ):
        with pytest.raises(MetadataUnreadable, match=f"^manifest m.avro has two fields {name}; it is not an Iceberg"):
            read(avro_file(schema, []))


@pytest.mark.parametrize("items", [{"type": "array", "items": "int"}, {"type": "map", "values": "int"}], ids=str)
def test_a_partition_of_lists_is_refused(items: Any) -> None:
    """Partition values must be hashable, and lists are not."""
    spec = {"spec-id": 0, "fields": [{"field-id": 1000, "source-id": 1, "name": "p", "transform": "identity"}]}
    columns = [{"id": 1, "name": "p", "required": False, "type": "string"}]
    schema: Any = json.loads(json.dumps(manifest_schema(2, [{"schema-id": 0, "fields": columns}], spec)))
    file = next(field for field in schema["fields"] if field["name"] == "data_file")["type"]
    record = next(field for field in file["fields"] if field["name"] == "partition")["type"]
    record["fields"][0]["type"] = ["null", items]
    listed = ManifestFile(manifest_path="m.avro", manifest_length=1, partition_spec_id=0, added_snapshot_id=1)
    message = rf"^manifest m.avro has the type {items['type']} for partition field p; Iceberg's manifests do not"
    with pytest.raises(MetadataUnreadable, match=message):
        list(decode_manifest(avro_file(schema, []), listed, spec))
