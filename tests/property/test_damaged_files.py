"""Damaged files of every kind end in a named error (rule: bound-foreign-bytes)."""

from __future__ import annotations

import builtins
import copy
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from icekeeper.errors import MaintenanceError, MetadataUnreadable, TableUnsupported
from icekeeper.metadata.avro_files import write_avro
from icekeeper.metadata.avro_schemas import manifest_list_schema
from icekeeper.metadata.document_files import parse_document
from icekeeper.metadata.manifest_read import decode_manifest_list
from icekeeper.metadata.puffin import decode_deletion_vector, decode_footer, encode_deletion_vector, encode_puffin
from icekeeper.model import TableName
from icekeeper.operations.orphans.inventory import InventoryFiles
from icekeeper.policy.policy_file import parse_policy_file
from icekeeper.row_group_copy.footer import read_footer
from icekeeper.row_group_copy.footer_structs import CannotCopy
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read_task import ReadableFile
from icekeeper.storage.storage import Storage
from support.deletes import create_by_region
from support.examples import examples
from support.hostile.avro import gzipped, records_of
from support.hostile.parsers import DOCUMENT
from support.maintained_table import NAME, MaintainedTable, maintained_table
from support.rewrites import struct as iceberg_struct
from support.tables import new_document

# Sound files with some bytes changed, cut or doubled: an error of ours or an answer, and no other error
# (rule: bound-foreign-bytes).
#
# Manifests are damaged in ``test_avro_values``.

LIST = manifest_list_schema(2)
LINE: dict[str, Any] = {
    **{field["name"]: 7 for field in LIST["fields"]},
    "manifest_path": "s3://b/m.avro",
    "content": 0,
    "partitions": [{"contains_null": False, "contains_nan": None, "lower_bound": b"a", "upper_bound": None}],
    "key_metadata": None,
}
CSV = b"path,size,last_modified\n" + b"s3://b/t/f,1,2026-01-01T00:00:00Z\n" * 20
POLICY = b"rules:\n- namespace: sales\n  settings:\n    operations: compact\n    target_file_size_mb: 64\n"


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"path": ["s3://b/t/f"] * 20, "size": range(20)}), sink)
    return sink.getvalue()


def listed(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    for _ in InventoryFiles(Storage({}), str(folder / name), "s3://b/t").objects():
        pass


def footer(folder: Path, data: bytes) -> None:
    (folder / "f.parquet").write_bytes(data)
    read_footer(str(folder / "f.parquet"), Storage({})).metadata()


Parse = Callable[[Path, bytes], object]
FILES: dict[str, tuple[bytes, Parse]] = {
    "metadata.json": (json.dumps(DOCUMENT).encode(), lambda _, data: parse_document(data, "s3://b/m.json")),
    "gz.metadata.json": (gzipped(json.dumps(DOCUMENT).encode()), lambda _, data: parse_document(data, "s3://b/m.json")),
    "manifest list": (write_avro(LIST, [LINE] * 5, {}), lambda _, data: decode_manifest_list(data, "s3://b/l.avro")),
    "Puffin": (
        encode_puffin([("s3://b/f", BitMap64(range(9)))], {"a": "b"})[0],
        lambda _, data: decode_footer(data, "s3://b/p.puffin"),
    ),
    "Parquet footer": (parquet(), footer),
    "CSV": (CSV, lambda folder, data: listed(folder, "i.csv", data)),
    "CSV.gz": (gzipped(CSV), lambda folder, data: listed(folder, "i.csv.gz", data)),
    "Parquet": (parquet(), lambda folder, data: listed(folder, "i.parquet", data)),
    "policy": (POLICY, lambda _, data: parse_policy_file(data.decode(errors="replace"), "P")),
}


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """Up to four places of the bytes are others, gone, or there twice."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        end = at + draw(st.integers(1, 12))
        way = draw(st.sampled_from(["other", "other", "gone", "twice", "cut"]))
        if way == "other":
            found[at:end] = draw(st.binary(min_size=1, max_size=12))
        elif way == "gone":
            del found[at:end]
        elif way == "twice":
            found[at:at] = found[at:end]
        else:
            del found[at:]
    return bytes(found)


@pytest.mark.parametrize("kind", FILES)
@settings(
    max_examples=examples(40),
    deadline=timedelta(seconds=10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_changed_bytes_of_sound_files(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    sound, parse = FILES[kind]
    parse(tmp_path, sound)
    told = ""
    try:
        parse(tmp_path, data.draw(changed(sound)))
    except (MaintenanceError, CannotCopy) as error:
        told = str(error)
    assert "\n" not in told


# JSON documents with something wrong somewhere: a value of another kind, a part that is missing, a name misspelt.

_NUMBERS = (0, 1, -1, 2**31, 2**63 - 1, 2**63, 10**30, 0.5)
_PARTS: tuple[Any, ...] = ([], [1], [None], ["x"], [[]], [{}], {}, {"x": 1}, {"type": "x"})
_OTHER_VALUES = st.sampled_from([None, True, False, *_NUMBERS, "", "x", "1", "int", *_PARTS])


@st.composite
def damaged(draw: st.DrawFn, document: Any, most: int = 2) -> Any:
    """The document with one place changed, or with up to ``most``."""
    found = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        places = list(_places(found))
        if not places:
            return found
        parent, key = draw(st.sampled_from(places))
        way = draw(st.sampled_from(["other", "other", "elsewhere", "gone", "twice"]))
        if way == "gone":
            del parent[key]
        elif way == "twice" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        elif way == "elsewhere":
            other, there = draw(st.sampled_from(places))
            parent[key] = copy.deepcopy(other[there])
        else:
            parent[key] = json.loads(json.dumps(draw(_OTHER_VALUES)))
    return found


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
    for key in keys:
        yield node, key
        yield from _places(node[key])


# Damaged files of every kind end in one sentence that names the file, and in bounded time.

SOON = timedelta(seconds=5)
WRITTEN: dict[str, Any] = {
    "type": "record",
    "name": "table",
    "fields": [
        {"name": "id", "type": "long", "field-id": 1},
        {
            "name": "cost",
            "type": [
                "null",
                {"type": "fixed", "name": "d", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
            ],
            "field-id": 2,
        },
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"], "element-id": 4}, "field-id": 3},
        {
            "name": "by_number",
            "type": {
                "type": "array",
                "logicalType": "map",
                "items": {
                    "type": "record",
                    "name": "k6_v7",
                    "fields": [
                        {"name": "key", "type": "int", "field-id": 6},
                        {"name": "value", "type": ["null", "bytes"], "field-id": 7},
                    ],
                },
            },
            "field-id": 5,
        },
        {"name": "by_name", "type": {"type": "map", "values": "double", "key-id": 9, "value-id": 10}, "field-id": 8},
    ],
}
WANTED = iceberg_struct(
    (1, "id", "long"),
    (2, "cost", "decimal(9,2)"),
    (3, "tags", {"type": "list", "element-id": 4, "element": "string", "element-required": False}),
)
ROWS = [
    {"id": n, "cost": b"\0\0\0\1", "tags": ["a", None], "by_number": [{"key": n, "value": b"x"}], "by_name": {"k": 1.5}}
    for n in range(20)
]


def avro_file() -> bytes:
    plain = json.loads(json.dumps(WRITTEN).replace('"logicalType": "decimal", "precision": 9, "scale": 2', '"x": 1'))
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(plain), ROWS, codec="null")
    return sink.getvalue()


def with_schema(data: bytes, schema: Any) -> bytes:
    """The file with another text in its header, as Avro frames it."""
    text = json.dumps(schema).encode()
    head = io.BytesIO()
    fastavro.schemaless_writer(head, {"type": "map", "values": "bytes"}, {"avro.schema": text, "avro.codec": b"null"})
    marker = data[-16:]
    return b"Obj\x01" + head.getvalue() + marker + data[data.index(marker) + 16 :]


def read_rows(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    told = str(path)
    try:
        for _ in projected_rows(ReadableFile(str(path), "AVRO"), WANTED, Storage({})):
            pass
    except TableUnsupported:
        pass  # a sound file of another type, for all that can be told
    except MaintenanceError as error:
        told = str(error)
    assert str(path) in told
    assert "\n" not in told


@settings(max_examples=examples(60), deadline=SOON, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damaged(WRITTEN))
def test_an_avro_file_with_a_damaged_schema(tmp_path: Path, schema: Any) -> None:
    read_rows(tmp_path / "a.avro", with_schema(avro_file(), schema))


@settings(max_examples=examples(60), deadline=SOON, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(0, 255), st.integers(0, 255))
def test_an_avro_file_with_damaged_bytes(tmp_path: Path, place: int, value: int, after: int) -> None:
    data = bytearray(with_schema(avro_file(), WRITTEN))
    data[place % len(data)] = value
    data[(place + 1) % len(data)] = after
    read_rows(tmp_path / "a.avro", bytes(data))


def long(number: int) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, "long", number)
    return sink.getvalue()


@settings(deadline=SOON)
@given(
    st.sampled_from(["null", {"type": "fixed", "name": "f", "size": 0}, {"type": "fixed", "name": "f", "size": 9}])
    | st.sampled_from(["long", "float", "string", {"type": "map", "values": "null"}]),
    st.integers(2**20, 2**62),
    st.booleans(),
    st.booleans(),
)
def test_a_number_of_items_that_cannot_be_is_not_counted_to(items: Any, count: int, sized: bool, is_map: bool) -> None:
    """In a manifest; the number of records of a block likewise (rule: damage-ends-in-a-named-error)."""
    of = {"type": "map", "values": items} if is_map else {"type": "array", "items": items}
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": of}]}
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(schema), [{"x": {} if is_map else []}], codec="null")
    data = sink.getvalue()
    marker = data[-16:]
    head = data[: data.index(marker) + 16]
    claim = long(-count) + long(8) if sized else long(count)
    for records, body in ((1, claim + b"\0\0"), (count, b"\0\0\0")):
        broken = head + long(records) + long(len(body)) + body + marker
        with pytest.raises(MetadataUnreadable, match=r"^s3://b/m\.avro is damaged or truncated: ValueError: \d+ bytes"):
            records_of(broken, "s3://b/m.avro")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MaintainedTable]:
    with maintained_table(tmp_path_factory.mktemp("damaged")) as made:
        create_by_region(made, 2)
        made.table.manage_snapshots().create_tag(made.metadata.refs["main"].snapshot_id, "kept").commit()
        yield made


def rich(document: dict[str, Any]) -> dict[str, Any]:
    """The document with what PyIceberg does not write."""
    rich = copy.deepcopy(document)
    kinds = {"type": "list", "element-id": 4, "element": "timestamptz", "element-required": False}
    prices = {"type": "map", "key-id": 6, "key": "string", "value-id": 7, "value": "int", "value-required": False}
    fields = [{"id": n, "name": f"f{n}", "required": False, "type": kind} for n, kind in ((3, kinds), (5, prices))]
    point = {"id": 8, "name": "p", "required": False, "type": {"type": "struct", "fields": fields}}
    rich["schemas"][0]["fields"].append(point)
    rich["last-column-id"] = 8
    order = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    rich["sort-orders"].append({"order-id": 1, "fields": [order]})
    rich["default-sort-order-id"] = 1
    statistics = {"snapshot-id": rich["snapshots"][-1]["snapshot-id"], "statistics-path": "file:///nowhere/s.puffin"}
    sizes = {"file-size-in-bytes": 100, "file-footer-size-in-bytes": 50, "blob-metadata": []}
    rich["statistics"] = [statistics | sizes]
    rich["properties"] = {"write.parquet.compression-codec": "zstd", "history.expire.max-snapshot-age-ms": "1000"}
    return rich


@settings(max_examples=examples(25), deadline=SOON)
@given(st.data())
def test_a_damaged_metadata_document(table: MaintainedTable, data: st.DataObject) -> None:
    """Whoever looks at the table, or plans its maintenance, says what is wrong, and where, in one sentence."""
    path = Path(table.metadata_location.removeprefix("file://"))
    sound = path.read_bytes()
    path.write_text(json.dumps(data.draw(damaged(rich(json.loads(sound))))))
    try:
        told = [refusal(look) for look in (table.runtime.verify, table.runtime.afresh.health)]
        with suppress(MaintenanceError):
            told += [outcome.reason or "" for outcome in table.maintain(dry_run=True).operations]
    finally:
        path.write_bytes(sound)
    for sentence in told:
        assert "\n" not in sentence
        assert sentence.partition(":")[0] not in vars(builtins), "an error of Python"


def refusal(look: Callable[[TableName], object]) -> str:
    """What a look at the table is refused with; nothing else may be raised."""
    try:
        look(NAME)
    except MaintenanceError as error:
        return str(error)
    return ""


VECTORS = [BitMap64(), BitMap64(range(5)), BitMap64([1, 5, 70_000, 1 << 33]), BitMap64(range(0, 20_000, 2))]


@settings(max_examples=examples(60), deadline=SOON)
@given(st.sampled_from(VECTORS), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3), st.data())
def test_a_vector_with_the_right_checksum_of_a_damaged_bitmap(
    vector: BitMap64, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    body = bytearray(encode_deletion_vector(vector)[4:-4])
    for place, value in changes:
        if place % len(body) >= 4:
            body[place % len(body)] = value
    body = body[: data.draw(st.just(len(body)) | st.integers(4, len(body)))]
    blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    told = "the deletion vector in s3://b/d.puffin is damaged: "
    try:
        positions = list(decode_deletion_vector(blob, "s3://b/d.puffin", len(vector)).to_array())
    except MetadataUnreadable as error:
        told, positions = str(error), list(vector)
    assert told.startswith("the deletion vector in s3://b/d.puffin is damaged: ")
    assert positions == sorted(set(positions))
    assert len(positions) == len(vector)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"snapshots": [{"snapshot-id": 1, "timestamp-ms": "x"}]},
            r"snapshots\[0\].timestamp-ms is 'x'; input should be",
        ),
        ({"snapshots": [{"snapshot-id": 1, "timestamp-ms": 10**18}]}, r"snapshots\[0\].timestamp-ms is 10{18}; "),
        ({"snapshots": {}}, r"snapshots is \{\}; input should be a valid list"),
        ({"schemas": []}, "schemas is missing"),
        (
            {"schemas": [{"fields": [{"id": 1, "name": "a", "required": False}]}]},
            r"schemas\[0\].fields\[0\].type is missing",
        ),
        (
            {"schemas": [{"fields": [{"id": 1, "name": "a", "required": False, "type": {"type": "list"}}]}]},
            r"schemas\[0\].fields\[0\].type.element-id is missing",
        ),
        ({"current-schema-id": 7}, "current-schema-id is 7, but the document has no such schema"),
        ({"default-spec-id": 7}, "default-spec-id is 7, but the document has no such partition spec"),
        (
            {"partition-specs": [{"spec-id": 0, "fields": [{"name": "p", "transform": "identity"}]}]},
            "partition field p has no source-id",
        ),
        (
            {"sort-orders": [{"order-id": 3, "fields": [{"transform": "void", "direction": "asc", "null-order": ""}]}]},
            "a field of sort order 3 has no source-id",
        ),
        ({"refs": {"main": {"type": "branch"}}}, "refs.main.snapshot-id is missing"),
        ({"properties": {"a": 1}}, "properties.a is 1; input should be a valid string"),
        ({"format-version": True}, "format-version is True; input should be a valid integer"),
    ],
    ids=str,
)
def test_a_document_of_another_shape_is_refused_with_the_place(change: dict[str, Any], said: str) -> None:
    sound = new_document("s3://b/t", 2)
    assert parse_document(json.dumps(sound).encode(), "m.json").document == sound
    with pytest.raises(MetadataUnreadable, match=f"^metadata file m.json is not valid Iceberg table metadata: {said}"):
        parse_document(json.dumps({**sound, **change}).encode(), "m.json")


def test_what_verify_reports_is_no_matter_of_shape() -> None:
    """Java refuses these tables, and their owners want to hear all that is wrong with them."""
    odd = {"snapshot-id": 1, "timestamp-ms": 2, "sequence-number": 9, "summary": {"operation": "append", "n": 1}}
    changed = {**new_document("s3://b/t", 2), "snapshots": [odd], "refs": {"x": {"snapshot-id": 5}}, "unknown": [1]}
    summary: Mapping[str, Any] = parse_document(json.dumps(changed).encode(), "m.json").snapshots[1].summary
    assert summary["n"] == 1
