"""A table whose schema and partitioning changed, before and after compaction."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyiceberg.utils.datetime import datetime_to_micros

from icekeeper.model import DataFile
from support.maintained_table import KEEPING_SNAPSHOTS, MaintainedTable, registered_table

# A table of PyIceberg whose schema and partitioning changed, with every v2 type and edge values.

NAME = "ns.evolved"

_MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456)
_BEFORE_EPOCH = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)

# Most texts are longer than the 16 characters of a truncated bound, and hard to round up in the sixteenth place.
TEXTS = [
    "short",
    "",
    "a plain text that is longer than sixteen",
    "fünfzehn Zeichen… und dann noch mehr",
    "0123456789abcde\ud7ff and on",  # the next code point would be a surrogate
    "0123456789abcde\U0010ffff and on",  # there is no next code point
    "\U0010ffff" * 20,  # no earlier character can be increased either
    "😀" * 20,
]
# PyIceberg 0.12 cannot round these up: it makes a surrogate and fails.  So it must not truncate them.
_WHOLE_BOUNDS = {
    f"write.metadata.metrics.column.{name}": "full" for name in ("text", "label_text", "point.label", "point.title")
}

BINARIES = [b"", b"\x00", b"\xff" * 20, b"0123456789abcde\xff and on", b"\x80" * 17, None]
DOUBLES = [float("nan"), -0.0, 0.0, 1.5, float("inf"), float("-inf"), None, -1.5e300]
FLOATS = [float("nan"), -0.0, 0.0, 1.5, float("inf"), float("-inf"), None, -1.5]


def first_schema() -> Schema:
    """The schema before any change; without ``time``, which Spark does not read."""
    point = StructType(
        NestedField(30, "x", FloatType()),
        NestedField(31, "label", StringType()),
        NestedField(32, "inner", StructType(NestedField(33, "deep", IntegerType()))),
    )
    return Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "category", StringType()),
        NestedField(3, "small", IntegerType()),
        NestedField(4, "ratio", FloatType()),
        NestedField(5, "price", DecimalType(9, 2)),
        NestedField(6, "amount", DecimalType(18, 4)),
        NestedField(7, "huge", DecimalType(38, 10)),
        NestedField(8, "flag", BooleanType()),
        NestedField(9, "day", DateType()),
        NestedField(10, "at", TimestamptzType()),
        NestedField(11, "local", TimestampType()),
        NestedField(12, "text", StringType()),
        NestedField(13, "raw", BinaryType()),
        NestedField(14, "code", FixedType(5)),
        NestedField(15, "key", UUIDType()),
        NestedField(16, "value", DoubleType()),
        NestedField(17, "point", point),
        NestedField(18, "tags", ListType(34, StringType(), element_required=False)),
        NestedField(
            19, "points", ListType(35, StructType(NestedField(36, "n", IntegerType())), element_required=False)
        ),
        NestedField(20, "counts", MapType(37, StringType(), 38, IntegerType(), value_required=False)),
        NestedField(21, "doomed", StringType()),
    )


def rows(start: int, *, columns: list[str]) -> list[dict[str, Any]]:
    """Eight rows; the last has nulls in all optional columns."""
    made = []
    for i in range(start, start + 8):
        n = i % 8
        last = n == 7
        row: dict[str, Any] = {
            "id": i,
            "category": ["a", "b", "a", "b", "a", "b", "a", None][n],
            "small": [-(2**31), 2**31 - 1, 0, 1, -1, 2, 3, None][n],
            "ratio": FLOATS[n],
            "price": None if last else decimal.Decimal(n * 100 - 350).scaleb(-2),
            "amount": None if last else decimal.Decimal(10**17 * (n - 3)).scaleb(-4),
            "huge": None
            if last
            else decimal.Decimal(10**37 * (n - 3) + n - 1000 * i).scaleb(-10, decimal.Context(prec=60)),
            "flag": None if last else n % 2 == 0,
            "day": None if last else _MOMENT.date() - datetime.timedelta(days=n * 9000),
            "at": None if last else (_MOMENT if n % 2 else _BEFORE_EPOCH).replace(tzinfo=datetime.UTC),
            "local": None if last else (_BEFORE_EPOCH if n % 2 else _MOMENT),
            "text": None if last and start % 16 else TEXTS[n],
            "raw": BINARIES[n % len(BINARIES)],
            "code": None if last else bytes([n * 36, 0, 255, 128, 1]),
            "key": None if last else uuid.UUID(int=(n << 125) + (n % 2 << 63) + 7).bytes,
            "value": DOUBLES[n],
            "point": [
                {"x": 1.5, "label": TEXTS[4], "inner": {"deep": n}},
                {"x": float("nan"), "label": None, "inner": None},
                None,
                {"x": None, "label": "", "inner": {"deep": None}},
            ][n % 4],
            "tags": [["x", None, TEXTS[2]], [], None, ["y"]][n % 4],
            "points": [[{"n": 1}, None, {"n": None}], [], None, [{"n": i}]][n % 4],
            "counts": [[("k", 1), ("l", None)], [], None, [(TEXTS[4], i)]][n % 4],
            "doomed": f"gone {i}",
            "extra": None if n % 2 else i * 2**40,
        }
        # Values stand under the old and the new names; Arrow takes the names of its type.
        if row["point"] is not None:
            row["point"] |= {"title": row["point"]["label"], "label": row["point"]["label"]}
            row["point"]["more"] = None if n == 0 else f"more {i}"
        row["points"] = row["points"] and [p and {**p, "number": p["n"], "m": i} for p in row["points"]]
        made.append({name: row[name] for name in columns})
    return made


def append(table: Table, start: int) -> None:
    """Append the rows ``start`` … ``start + 7`` in one snapshot, under the table's current names."""
    schema = table.schema().as_arrow()
    today = {"label_text": "text", "small_int": "small"}
    names = [today.get(name, name) for name in schema.names]
    made = rows(start, columns=names)
    arrays = []
    for name, field in zip(names, schema, strict=True):
        values = [row[name] for row in made]
        if isinstance(field.type, pa.BaseExtensionType):
            storage = pa.array(values, field.type.storage_type)
            arrays.append(pa.ExtensionArray.from_storage(field.type, storage))
        else:
            arrays.append(pa.array(values, field.type))
    table.append(pa.Table.from_arrays(arrays, schema=schema))


def evolve_schema(table: Table) -> None:
    """Add, drop, rename, reorder and promote columns, also nested columns."""
    with table.update_schema() as update:
        update.add_column("extra", LongType())
        update.add_column(("point", "more"), StringType())
        update.delete_column("doomed")
        update.rename_column("text", "label_text")
        update.rename_column("small", "small_int")
        update.rename_column(("point", "label"), "title")
        update.move_first(("point", "inner"))
        update.add_column(("points", "element", "m"), LongType())
        update.rename_column(("points", "element", "n"), "number")
        update.update_column("small", field_type=LongType())
        update.update_column("ratio", field_type=DoubleType())
        update.update_column("price", field_type=DecimalType(12, 2))
        update.update_column(("point", "x"), field_type=DoubleType())
        update.update_column(("point", "inner", "deep"), field_type=LongType())
        update.move_first("value")
        update.move_after("id", "tags")


def _by_values(self: Transform[Any, Any], source: IcebergType) -> Callable[[Any], pa.Array]:
    """Transform a column value by value: PyIceberg's column transforms need pyiceberg-core and lack ``void``."""
    transform = self.transform(source)
    kind = pa.int32() if isinstance(self, DayTransform) else schema_to_pyarrow(self.result_type(source))

    def raw(value: Any) -> Any:
        return datetime_to_micros(value) if isinstance(value, datetime.datetime) else value

    return lambda array: pa.array([transform(raw(value)) for value in array.to_pylist()], kind)


@contextmanager
def _transforms_without_core() -> Iterator[None]:
    with ExitStack() as stack:
        for kind in (BucketTransform, DayTransform, TruncateTransform, VoidTransform):
            stack.enter_context(mock.patch.object(kind, "pyarrow_transform", _by_values))
        yield


@_transforms_without_core()
def evolved_table(catalog: Catalog, format_version: int) -> Table:
    """A table with two appends before and after each change: a change of the schema and three of the partitioning."""
    catalog.create_namespace_if_not_exists("ns")
    table = catalog.create_table(
        NAME, schema=first_schema(), properties={"format-version": str(format_version), **_WHOLE_BOUNDS}
    )
    start = 0

    def append_twice() -> None:
        nonlocal start
        for _ in range(2):
            append(table, start)
            start += 8

    append_twice()
    evolve_schema(table)
    append_twice()
    with table.update_spec() as spec:
        spec.add_field("category", IdentityTransform(), "category")
        spec.add_field("day", IdentityTransform(), "we ird")
    append_twice()
    with table.update_spec() as spec:
        spec.remove_field("we ird")
        spec.add_field("id", BucketTransform(2), "id_bucket")
        spec.add_field("price", TruncateTransform(500), "1price")
        spec.add_field("at", DayTransform(), "at_day")
    append_twice()
    with table.update_spec() as spec:
        for name in ("category", "1price", "at_day"):
            spec.remove_field(name)
        spec.add_field("label_text", TruncateTransform(1), "text_start")
        spec.add_field("amount", IdentityTransform(), "amount")
    append_twice()
    table.transaction().remove_properties(*_WHOLE_BOUNDS).commit_transaction()
    return table


# The evolved table before and after a pass that keeps its snapshots.


@dataclass(frozen=True, slots=True)
class Compacted:
    """An evolved table before and after a pass; both metadata files are kept."""

    before: str
    after: str
    table: MaintainedTable

    def files(self) -> dict[str, DataFile]:
        """Live data files by path."""
        return {file.file_path: file for file in self.table.data_files()}

    def outputs(self) -> dict[str, DataFile]:
        """The data files that compaction wrote."""
        return {path: file for path, file in self.files().items() if "/compact-" in path}


def compact_evolved(format_version: int, folder: Path) -> Compacted:
    """Compact the evolved table; files keep their partition spec, which shows which files are merged."""
    catalog = SqlCatalog("made", uri=f"sqlite:///{folder / 'made.db'}", warehouse=(folder / "wh").as_uri())
    before = evolved_table(catalog, format_version).metadata_location
    catalog.close()
    table = registered_table(before, folder)
    table.maintain(**KEEPING_SNAPSHOTS, output_spec="keep")
    return Compacted(before, table.metadata_location, table)
