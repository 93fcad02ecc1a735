"""Tables that Iceberg-Java 1.10.2 writes through its API: data files, every kind of delete, evolution, history.

Rows are dictionaries by field id, as text, of plain Python values (structs again by field id, maps as pairs).  The Java
side (``java/LocalTable.java``) is compiled at its first use by Spark's compiler.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import SparkSession

Row: TypeAlias = Mapping[str, Any]
Struct: TypeAlias = Mapping[str, Any]
Partition: TypeAlias = Sequence[Any] | Row
"""The values of the partition, or any row in it."""

_SOURCE = Path(__file__).parent / "java" / "LocalTable.java"
_LINEAGE = (2147483540, 2147483539)
ID_AND_REGION = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {"id": 2, "name": "region", "type": "string", "required": True},
    ],
}
BY_REGION = {"spec-id": 0, "fields": [{"name": "region", "transform": "identity", "source-id": 2, "field-id": 1000}]}
"""Field ids of ``_row_id`` and ``_last_updated_sequence_number``."""


class JavaTables:
    """Makes tables; there is one instance per session."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session._jvm
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setTargetVersion(8)
        compiler.setParentClassLoader(jvm.java.lang.Class.forName("org.apache.iceberg.Table").getClassLoader())
        compiler.cook(_SOURCE.read_text())
        self._java = compiler.getClassLoader().loadClass("support.LocalTable").newInstance()
        self.jvm = jvm

    def create(self, schema: Struct, spec: Struct, properties: Mapping[str, str], folder: Path) -> JavaTable:
        """Create an empty table; Java assigns new field ids, see :attr:`JavaTable.schema`."""
        location = folder.as_uri().replace("file:///", "file:/", 1)
        return JavaTable(self._java.create(json.dumps(schema), json.dumps(spec), dict(properties), location), self.jvm)

    def open(self, metadata_location: str) -> JavaTable:
        """The table of a metadata file."""
        table = JavaTable(self._java.getClass().newInstance(), self.jvm)
        table.take_over(metadata_location)
        return table


class JavaTable:
    """A table; only methods below "commits" commit."""

    def __init__(self, java: Any, jvm: Any) -> None:
        self._java = java
        self._types = jvm.org.apache.iceberg.types.Types
        self.iceberg = jvm.org.apache.iceberg

    # -- state

    @property
    def metadata_location(self) -> str:
        return str(self._java.metadataLocation())

    @property
    def table(self) -> Any:
        """``org.apache.iceberg.Table``."""
        return self._java.table()

    @property
    def schema(self) -> Struct:
        return self.schema_of(self.table.schema().schemaId())

    def schema_of(self, schema_id: int) -> Struct:
        found: Struct = json.loads(self._java.schemaJson(schema_id))
        return found

    @property
    def spec(self) -> Struct:
        """The current partition spec."""
        return self.spec_of(self.table.spec().specId())

    def spec_of(self, spec_id: int) -> Struct:
        found: Struct = json.loads(self._java.specJson(spec_id))
        return found

    @property
    def snapshot_id(self) -> int | None:
        head = self.table.currentSnapshot()
        return None if head is None else int(head.snapshotId())

    @property
    def sequence_number(self) -> int:
        """The sequence number of the current snapshot."""
        return int(self.table.currentSnapshot().sequenceNumber())

    def rows(self, *, lineage: bool = False) -> list[dict[str, Any]]:
        """The rows that Iceberg-Java's generic reader finds; with ``lineage``, also row lineage."""
        fields = list(self.schema["fields"])
        if lineage:
            fields += [{"id": field_id, "type": "long"} for field_id in _LINEAGE]
        struct = {"type": "struct", "fields": fields}
        return [_from_json(struct, row) for row in json.loads(self._java.rows(lineage))]

    def ids_where(self, condition: Any) -> list[int]:
        """Column ``id`` of the rows that a planned scan finds; ``condition`` is an ``Expression``."""
        return list(self._java.idsWhere(condition))

    def ids_without_planning(self, conditions: Sequence[Any]) -> list[list[int]]:
        """The same for each condition, but by a filter on every single row."""
        return [list(found) for found in self._java.idsWithoutPlanning(list(conditions))]

    def rows_of(self, snapshot_id: int) -> str:
        """The rows of a retained snapshot by the generic reader with the snapshot's schema: JSON, in order of files."""
        return str(self._java.rowsOf(snapshot_id))

    def ids_of(self, snapshot_id: int) -> list[int]:
        """The column with field id 1 in a retained snapshot."""
        return [row["1"] for row in json.loads(self.rows_of(snapshot_id))]

    def reachable(self) -> set[str]:
        """Every file that a snapshot, the metadata log or a statistics entry needs, as Iceberg-Java finds them."""
        return set(self._java.reachable())

    def take_over(self, metadata_location: str) -> None:
        """Continue from the commit of another writer."""
        self._java.takeOver(metadata_location)

    # -- files before their commit

    def partitions(self, spec_id: int, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """The partition of every row by Java's transforms; values are those of JSON."""
        return [tuple(values) for values in json.loads(self._java.partitionOf(spec_id, _rows(self.schema, rows)))]

    def data_file(self, rows: Sequence[Row], spec_id: int, partition: Partition, file_format: str) -> Any:
        return self._java.writeData(spec_id, self._partition(partition), file_format, _rows(self.schema, rows))

    def _partition(self, partition: Partition) -> str:
        return json.dumps(_to_json(self.schema, partition) if isinstance(partition, Mapping) else list(partition))

    def equality_deletes(
        self,
        keys: Sequence[Row],
        field_ids: Sequence[int],
        spec_id: int,
        partition: Partition,
        file_format: str,
        schema_id: int | None = None,
    ) -> Any:
        """Write with ``GenericAppenderFactory.newEqDeleteWriter``; ``schema_id`` may be an older schema."""
        known = self.table.schema().schemaId() if schema_id is None else schema_id
        rows = _rows(self.schema_of(known), keys)
        return self._java.writeEqualityDeletes(
            known, list(field_ids), spec_id, self._partition(partition), file_format, rows
        )

    def position_deletes(
        self,
        positions: Mapping[str, Sequence[int]],
        spec_id: int,
        partition: Partition,
        file_format: str,
        *,
        whole_paths: bool = True,
    ) -> Any:
        """Without ``whole_paths``, the bounds do not identify the data files."""
        return self._java.writePositionDeletes(
            spec_id, self._partition(partition), file_format, json.dumps(positions), whole_paths
        )

    def vectors(self, positions: Mapping[str, Sequence[int]], spec_id: int, partition: Partition) -> list[Any]:
        """Write deletion vectors in one Puffin file, for data files of the same commit."""
        return list(self._java.writeVectors(spec_id, self._partition(partition), json.dumps(positions)))

    # -- commits

    def append(self, files: Iterable[Any]) -> None:
        self._java.append(list(files))

    def row_delta(self, files: Iterable[Any] = (), deletes: Iterable[Any] = ()) -> None:
        self._java.rowDelta(list(files), list(deletes))

    def replace(self, paths: Iterable[str], files: Iterable[Any] = ()) -> None:
        """Remove data files by path and add others."""
        self._java.replace(list(paths), list(files))

    def delete_by_vectors(self, positions: Mapping[str, Sequence[int]]) -> None:
        """Commit deletion vectors in one Puffin file; each replaces the old vector of its data file."""
        self._java.deleteByVectors(json.dumps(positions))

    def evolve(self, change: Callable[[Any], object]) -> None:
        """``change`` gets an ``UpdateSchema``."""
        update = self.table.updateSchema()
        change(update)
        update.commit()

    def repartition(self, change: Callable[[Any], object]) -> None:
        """``change`` gets an ``UpdatePartitionSpec``."""
        update = self.table.updateSpec()
        change(update)
        update.commit()

    def roll_back(self, snapshot_id: int) -> None:
        self.table.manageSnapshots().rollbackTo(snapshot_id).commit()

    def tag(self, name: str) -> None:
        self.table.manageSnapshots().createTag(name, self.snapshot_id).commit()

    def set_property(self, key: str, value: str) -> None:
        self.table.updateProperties().set(key, value).commit()

    def type(self, name: str) -> Any:
        """A primitive type by its name in the specification."""
        return self._types.fromPrimitiveString(name)

    def literal(self, value: int | str) -> Any:
        """A default value of a column."""
        return self.iceberg.expressions.Literal.of(value)


def _rows(schema: Struct, rows: Sequence[Row]) -> str:
    return json.dumps([_to_json(schema, row) for row in rows])


def _to_json(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, Mapping):
        if kind["type"] == "struct":
            types = {str(field["id"]): field["type"] for field in kind["fields"]}
            return {key: _to_json(types[key], item) for key, item in value.items() if key in types}
        if kind["type"] == "list":
            return [_to_json(kind["element"], item) for item in value]
        return [[_to_json(kind["key"], key), _to_json(kind["value"], item)] for key, item in value]
    if kind.endswith("_ns"):
        return nanos_to_text(value) + ("Z" if kind.startswith("timestamptz") else "")
    if isinstance(value, float):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, str(value).replace("nan", "NaN"))
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return value if isinstance(value, bool | int | str) else str(value)


def nanos_to_text(value: int) -> str:
    seconds, nanos = divmod(value, 10**9)
    return f"{(_EPOCH + datetime.timedelta(seconds=seconds)).isoformat()}.{nanos:09d}"


def _nanos(text: str | int) -> int:
    if isinstance(text, int):  # Java's generic reader leaves partition values as they are
        return text
    seconds, _, fraction = text.rstrip("Z").partition(".")
    since = datetime.datetime.fromisoformat(seconds) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 10**9 + int(fraction.ljust(9, "0"))


_EPOCH = datetime.datetime(1970, 1, 1)
_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "float": float,
    "double": float,
    "decimal": decimal.Decimal,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timestamp": datetime.datetime.fromisoformat,
    "timestamptz": datetime.datetime.fromisoformat,
    "timestamp_ns": _nanos,
    "timestamptz_ns": _nanos,
    "uuid": uuid.UUID,
    "fixed": bytes.fromhex,
    "binary": bytes.fromhex,
}


def _from_json(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, Mapping):
        if kind["type"] == "struct":
            return {str(f["id"]): _from_json(f["type"], value[str(f["id"])]) for f in kind["fields"]}
        if kind["type"] == "list":
            return [_from_json(kind["element"], item) for item in value]
        return [(_from_json(kind["key"], key), _from_json(kind["value"], item)) for key, item in value]
    name = re.sub(r"[(\[].*", "", kind)
    return _PARSERS.get(name, _same)(value)


def _same(value: Any) -> Any:
    return value
