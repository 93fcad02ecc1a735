"""One row per type of the Iceberg specification, and a small table of each for every operation."""

from __future__ import annotations

import datetime
import decimal
import re
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from icekeeper.metadata.transforms import applies
from icekeeper.model import FileContent
from support.java_table import SharedTable
from support.java_writer import JavaTable, JavaTables, nanos_to_text
from support.judges.served import plain
from support.v3 import commit_keys


@dataclass(frozen=True)
class Kind:
    """A type: two values of it, the first as a literal in a filter, and its default in table metadata."""

    type: Any
    """As in table metadata; nested types have the ids that Java assigns to column 2."""
    values: tuple[Any, Any]
    literal: str = "'x'"
    default: Any = None
    default_value: Any = None
    since: int = 2
    """The format version of its tables."""
    stored: Any = None
    """The type as which Iceberg-Java writes it, if it cannot write the type itself."""

    def applies(self, transform: str) -> bool:
        """Whether the specification allows the transform for the type."""
        return isinstance(self.type, str) and applies(transform, self.type)


def _point(x: float) -> bytes:
    return struct.pack("<BIdd", 1, 1, x, -x)


def _variant(value: bytes) -> bytes:
    """An encoded value behind the metadata of a variant without names."""
    return b"\x01\0\0" + value


_VARIANTS = {_variant(b"\x0c\x07"): "7", _variant(b"\x09ab"): "ab"}
_UTC = datetime.UTC
_DAY, _NOON = datetime.date(1969, 12, 31), datetime.datetime(2024, 2, 29, 12, 30, 15, 123456)
_OLD = datetime.datetime(1969, 12, 31, 23, 59, 58, 999999)
_UUIDS = uuid.UUID(int=(3 << 125) + 7), uuid.UUID(int=(7 << 125) + (1 << 63))
_STRUCT = {
    "type": "struct",
    "fields": [
        {"id": 3, "name": "x", "type": "int", "required": False},
        {"id": 4, "name": "y", "type": "string", "required": False},
    ],
}
_LIST = {"type": "list", "element-id": 3, "element": "int", "element-required": False}
_MAP = {"type": "map", "key-id": 3, "key": "string", "value-id": 4, "value": "int", "value-required": False}
KINDS: Mapping[str, Kind] = {
    "boolean": Kind("boolean", (True, False), "true", True, True),
    "int": Kind("int", (7, -(2**31)), "7", 7, 7),
    "long": Kind("long", (7, -(2**40)), "7", 7, 7),
    "float": Kind("float", (1.5, float("nan")), "1.5", 1.5, 1.5),
    "double": Kind("double", (0.1, float("-inf")), "0.1", 0.1, 0.1),
    "decimal": Kind(
        "decimal(20, 2)",
        (decimal.Decimal("1.25"), decimal.Decimal("-100000000000000000.01")),
        "1.25",
        "1.25",
        decimal.Decimal("1.25"),
    ),
    "date": Kind("date", (_NOON.date(), _DAY), "'2024-02-29'", "2024-02-29", _NOON.date()),
    "time": Kind("time", (_NOON.time(), datetime.time(0)), "'12:30:15.123456'", "12:30:15.123456", _NOON.time()),
    "timestamp": Kind("timestamp", (_NOON, _OLD), f"'{_NOON}'", _NOON.isoformat(), _NOON),
    "timestamptz": Kind(
        "timestamptz",
        (_NOON.replace(tzinfo=_UTC), _OLD.replace(tzinfo=_UTC)),
        f"'{_NOON}+00:00'",
        f"{_NOON.isoformat()}+00:00",
        _NOON.replace(tzinfo=_UTC),
    ),
    "timestamp_ns": Kind(
        "timestamp_ns",
        (1_709_209_815_123_456_789, -1),
        "'2024-02-29T12:30:15.123456789'",
        "2024-02-29T12:30:15.123456789",
        1_709_209_815_123_456_789,
        since=3,
    ),
    "timestamptz_ns": Kind(
        "timestamptz_ns",
        (1_709_209_815_123_456_789, -1),
        "'2024-02-29T12:30:15.123456789+00:00'",
        "2024-02-29T12:30:15.123456789+00:00",
        1_709_209_815_123_456_789,
        since=3,
    ),
    "string": Kind("string", ("ß", "0123456789abcde\U0010ffff and on"), "'ß'", "ß", "ß"),
    "uuid": Kind("uuid", _UUIDS, f"'{_UUIDS[0]}'", str(_UUIDS[0]), _UUIDS[0]),
    "fixed": Kind("fixed[3]", (b"abc", b"\xff" * 3), "X'616263'", "616263", b"abc"),
    "binary": Kind("binary", (b"abc", b"\xff" * 20), "X'616263'", "616263", b"abc"),
    "struct": Kind(_STRUCT, ({"3": 1, "4": "a"}, {"3": None, "4": "b"}), default={}, default_value={"3": 5, "4": "z"}),
    "list": Kind(_LIST, ([1, None], []), default=[], default_value=[]),
    "map": Kind(_MAP, ([("k", 1), ("l", None)], []), default={"keys": [], "values": []}, default_value=[]),
    "unknown": Kind("unknown", (None, None), since=3),
    "geometry": Kind("geometry", (_point(1), _point(2)), since=3, stored="binary"),
    "geography": Kind("geography", (_point(1), _point(2)), since=3, stored="binary"),
    "variant": Kind("variant", (_variant(b"\x0c\x07"), _variant(b"\x09ab")), since=3),
}


# Each operation has a new table, which Iceberg-Java wrote and deleted from.

_IN_A_FILE = 3
TRANSFORMS = ("identity", "bucket[4]", "truncate[2]", "day", "hour")
_ID = {"id": 1, "name": "id", "type": "long", "required": True}


@dataclass
class _Pointer:
    """A catalog's pointer at a metadata file that Java need not be able to read."""

    metadata_location: str

    def take_over(self, metadata_location: str) -> None:
        self.metadata_location = metadata_location


@dataclass(frozen=True)
class Written:
    """A table before its operation, and the rows that it must have afterwards: the values of its columns by id."""

    table: SharedTable
    java: JavaTable
    rows: Mapping[int, tuple[Any, ...]]
    schemas: Any
    """Its schemas in table metadata."""


def written(kind: Kind, operation: str, tables: JavaTables, folder: Path) -> Written:
    """The table of an operation."""
    folder.mkdir()
    column = {"id": 2, "name": "v", "type": kind.stored or kind.type, "required": False}
    by = _manifests_by(kind) if operation == "rewrite_manifests" else None
    spec = {"spec-id": 0, "fields": [_part(by)] if by else []}
    number = {**_ID, "write-default": 0} if kind.since == 3 else _ID
    schema = {"type": "struct", "schema-id": 0, "fields": [number, column]}
    java = tables.create(schema, spec, {"format-version": str(kind.since)}, folder / "table")
    values = _values(kind, operation)
    paths = []
    for first in range(0, len(values), 1 if by else _IN_A_FILE):
        content = [{"1": number, "2": values[number]} for number in range(first, first + (1 if by else _IN_A_FILE))]
        file = java.data_file(content, 0, _partition(kind, by, content[0]), "parquet")
        java.append([file])
        paths.append(str(file.location()))
    gone = _deleted(kind, operation, java, paths, values)
    table = SharedTable(_Pointer(java.metadata_location), folder)  # type: ignore[arg-type]  # all it needs
    if kind.stored or operation in ("default", *TRANSFORMS):
        table.rewrite_document(lambda document: _rewrite(document, kind, operation))
    if operation == "equality deletes" and gone is None:
        commit_keys(table, [_by_hand(kind)])
    more = (kind.default_value,) if operation == "default" else ()
    rows = {n: (value, *more) for n, value in enumerate(values) if n not in (gone or ())}
    return Written(table, java, rows, table.metadata.document["schemas"])


def _part(transform: str) -> dict[str, Any]:
    return {"name": "p", "transform": transform, "source-id": 2, "field-id": 1000}


def _manifests_by(kind: Kind) -> str | None:
    """The transform whose values the rewritten manifests store."""
    if kind.type == "unknown" or not kind.applies("identity"):
        return None
    # platform: java-misreads-fixed-partitions
    return "bucket[4]" if kind.type.startswith("fixed") else "identity"


def _partition(kind: Kind, by: str | None, row: Mapping[str, Any]) -> Any:
    if by is None:
        return []
    if str(kind.type).endswith("_ns"):  # Java's generic writer has no transforms of nanoseconds
        value = row["2"]
        return [value if value is None else nanos_to_text(value) + "+00:00" * ("tz" in kind.type)]
    return row


def _values(kind: Kind, operation: str) -> list[Any]:
    if operation == "where":
        return [value for value in kind.values for _ in range(2 * _IN_A_FILE)]
    # Files are only divided among partitions if there are fewer of them afterwards.
    return [*kind.values, None] * (6 if operation in TRANSFORMS else 3)


def _rewrite(document: dict[str, Any], kind: Kind, operation: str) -> None:
    """Give the document what Java does not make: a type that it cannot write, a default, or another partition spec."""
    (schema,) = document["schemas"]
    schema["fields"][1]["type"] = kind.type
    if operation == "default":
        default = {"initial-default": kind.default, "write-default": kind.default}
        field = {"id": 9, "name": "d", "required": False, "type": _renumbered(kind.type), **default}
        document["schemas"].append({**schema, "schema-id": 1, "fields": [*schema["fields"], field]})
        document |= {"current-schema-id": 1, "last-column-id": 30, "format-version": 3}
        document.setdefault("next-row-id", 0)
    if operation in TRANSFORMS:
        document["partition-specs"].append({"spec-id": 1, "fields": [_part(operation)]})
        document |= {"default-spec-id": 1, "last-partition-id": 1000}


def _renumbered(kind: Any) -> Any:
    """The type with other field ids; the fields of a struct have defaults."""
    if isinstance(kind, str):
        return kind
    made = {key: value + 10 if key.endswith("-id") else value for key, value in kind.items()}
    if "fields" in kind:
        made["fields"] = [
            {**field, "id": field["id"] + 10, "initial-default": default}
            for field, default in zip(kind["fields"], (5, "z"), strict=True)
        ]
    return made


def _deleted(
    kind: Kind, operation: str, java: JavaTable, paths: Sequence[str], values: Sequence[Any]
) -> set[int] | None:
    """Delete rows for the operations that apply or keep deletes; ``None``: Java cannot."""
    if operation == "equality deletes":
        try:
            java.row_delta(deletes=[java.equality_deletes([{"2": kind.values[0]}], [2], 0, [], "parquet")])
        except Py4JJavaError:
            return None
        return {number for number, value in enumerate(values) if value == kind.values[0]}
    if operation not in ("decode", "rewrite_position_deletes"):
        return set()
    if kind.since > 2:
        java.delete_by_vectors({path: [0, 2] for path in paths})
    else:
        for position in (0, 2):
            java.row_delta(deletes=[java.position_deletes({path: [position]}, 0, [], "parquet") for path in paths])
    return {number for number in range(len(values)) if number % _IN_A_FILE != 1}


def _by_hand(kind: Kind) -> tuple[pa.Table, dict[str, Any]]:
    """An equality delete by a column whose type Java's writer does not know."""
    keys = pa.table({"v": pa.array([kind.values[0]], pa.binary())})
    column = keys.schema.field("v").with_metadata({"PARQUET:field_id": "2"})
    entry = {"content": FileContent.EQUALITY_DELETES, "equality_ids": (2,), "partition": ()}
    return keys.cast(pa.schema([column])), entry


# Rows in a form that does not depend on the reader.


def shown(rows: Iterable[Sequence[Any]], kind: Kind) -> list[list[Any]]:
    """Rows (id and values of the type), sorted."""
    return sorted([row[0], *(_shown(value, kind.type) for value in row[1:])] for row in rows)


def _shown(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, str):
        if kind.endswith("_ns") and isinstance(value, int):
            return nanos_to_text(value)
        if kind == "uuid":
            return str(value if isinstance(value, uuid.UUID) else uuid.UUID(hex=plain(value)))
        if kind == "variant":
            if isinstance(value, list):  # DataFusion shows how it is stored
                value = bytes.fromhex("".join(value))
            # Java shows the type, too.
            return _VARIANTS.get(value) or re.sub(r"Variant\(type=\w+, value=(.*)\)", r"\1", str(value))
    elif kind["type"] == "map":
        return sorted(plain(list(value.items() if isinstance(value, Mapping) else value)))
    return plain(value)
