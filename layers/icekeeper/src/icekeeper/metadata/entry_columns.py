"""Reads chosen fields of manifest entries as flat lists of values; all other fields are passed over.

Fields are found by Avro ``field-id``, or by name where a writer left the ids out.  What is made here for a schema is
used for every manifest that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icekeeper.metadata.avro_fields import is_field, record_of
from icekeeper.metadata.avro_files import WriterSchema
from icekeeper.metadata.avro_types import AvroTypes
from icekeeper.metadata.avro_values import Reader, Skipper, then
from icekeeper.metadata.learned_entries import EntryReader, EntryStep
from icekeeper.metadata.stored_file import LATE_FIELDS, LateReader

__all__ = [
    "BYTES",
    "ENTRY_FIELDS",
    "FILE_FIELDS",
    "LATE",
    "NUMBER",
    "SPAN",
    "TEXT",
    "EntryColumns",
    "entry_columns",
    "require_type",
]

ENTRY_FIELDS = {0: "status", 1: "snapshot_id", 3: "sequence_number", 4: "file_sequence_number"}
FILE_FIELDS = {
    134: "content",
    100: "file_path",
    101: "file_format",
    102: "partition",
    103: "record_count",
    104: "file_size_in_bytes",
    131: "key_metadata",
    135: "equality_ids",
    140: "sort_order_id",
    142: "first_row_id",
    143: "referenced_data_file",
    144: "content_offset",
    145: "content_size_in_bytes",
}
SPAN = (-1, -2)
"""In place of ids of an entry's fields: where the entry begins and ends."""
LATE = (-3, -4)
"""In place of ids of a file's fields: where the stretch with its late fields begins and ends."""

NUMBER = frozenset({"int", "long"})
TEXT = frozenset({"string", "enum"})
BYTES = frozenset({"bytes"})
"""Avro's types of numbers, texts and bytes of Iceberg's."""
_TYPES = {100: TEXT, 101: TEXT, 143: TEXT, 131: BYTES, 102: frozenset({"record"}), 135: frozenset({"array"})}
"""Avro's types of fields that are no numbers."""
_ANY = frozenset({"array", "map"})
_REQUIRED = frozenset({0, 100, 101, 103, 104})

# Their values repeat from entry to entry, and are longer to make than to find among those that are known.
_REPEATED = frozenset({1, 101, 102})
# Their values are each entry's own, or lists, which nobody else shall have.
_OWN = frozenset({100, 103, 104, 135, *LATE_FIELDS})
_MOST_INTERNED = 4096


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """How to read chosen fields of the entries of manifests that have one schema."""

    reader: EntryReader
    """Reads an entry as a list: the value of each field in the order asked for, ``None`` where there is none."""
    missing: frozenset[int]
    """Ids of fields asked for that such manifests do not have."""
    late: LateReader | None
    """Reads the late fields, where they are encoded as the specification says."""


def entry_columns(
    written: WriterSchema,
    entry: Sequence[int],
    file: Sequence[int],
    partition: Callable[[Mapping[str, Any]], Any] | None = None,
) -> EntryColumns:
    """How to read these fields of entries and of their data files, by id.

    ``partition`` makes what is wanted of a partition record.

    Raises:
        LookupError: there is no data file in an entry.
    """
    schema, types = written.schema, written.types
    slots = {field_id: slot for slot, field_id in enumerate((*entry, *file))}
    steps: list[EntryStep] = []
    found: set[int] = set()

    def field_step(field: Mapping[str, Any], names: Mapping[int, str]) -> EntryStep:
        kind = field["type"]
        for field_id, name in names.items():
            if field_id in slots and is_field(field, field_id, name):
                found.add(field_id)
                return _wanted_step(types, kind, slots[field_id], field_id, partition)
        return EntryStep(-1, types.skipper(kind), kind)

    record = record_of(schema, 2, "data_file")
    late = [i for i, f in enumerate(record["fields"]) if any(is_field(f, *one) for one in LATE_FIELDS.items())]
    for field in schema["fields"]:
        if not is_field(field, 2, "data_file"):
            steps.append(field_step(field, ENTRY_FIELDS))
            continue
        if types.defined(field["type"]) != types.defined(record):
            steps.append(EntryStep(-1, *_present(types, field["type"])))
        for number, part in enumerate(record["fields"]):
            if late and number == late[0] and LATE[0] in slots:
                steps.append(EntryStep(slots[LATE[0]], _position))
            steps.append(field_step(part, FILE_FIELDS | LATE_FIELDS))
            if late and number == late[-1] and LATE[1] in slots:
                steps.append(EntryStep(slots[LATE[1]], _position))
    if SPAN[0] in slots:
        steps = [EntryStep(slots[SPAN[0]], _position), *steps, EntryStep(slots[SPAN[1]], _position)]
    between = record["fields"][late[0] : late[-1] + 1] if late else []
    missing = frozenset(field_id for field_id in slots if field_id >= 0) - found
    empty = [0 if field_id in LATE else None for field_id in slots]
    return EntryColumns(EntryReader(steps, empty, types), missing, LateReader.of(types, between))


def _position(data: bytes, at: int) -> tuple[int, int]:
    return at, at


def _present(types: AvroTypes, union: Any) -> tuple[Skipper, Any]:
    """Passes over the branch of a record that may be null (BigQuery's ``data_file``), and demands that it is not.

    The second is the type of what is passed over: one byte.
    """
    branches = [types.defined(branch) for branch in types.defined(union)]
    wanted = next(i for i, b in enumerate(branches) if isinstance(b, dict) and b["type"] == "record")

    def skip(data: bytes, at: int) -> int:
        if data[at] != 2 * wanted:
            raise ValueError("an entry has no data file")
        return at + 1

    return skip, [{"type": "null"}] * len(branches)


def _wanted_step(
    types: AvroTypes, kind: Any, slot: int, field_id: int, partition: Callable[[Mapping[str, Any]], Any] | None
) -> EntryStep:
    wanted = _ANY if field_id in LATE_FIELDS else _TYPES.get(field_id, NUMBER)
    require_type(types, kind, (ENTRY_FIELDS | FILE_FIELDS | LATE_FIELDS)[field_id], wanted)
    read = types.reader(kind)
    if field_id in _REQUIRED and isinstance(types.defined(kind), list):
        read = then(read, _not_null)
    if field_id == 100 and types.defined(kind) == {"type": "string"}:
        return EntryStep(slot, read, kind, _path)
    if field_id in _OWN:
        return EntryStep(slot, read, kind, lambda encoded: read(encoded, 0)[0])
    known = _Known(read, partition if field_id == 102 else None)
    if field_id not in _REPEATED:
        return EntryStep(slot, read, kind, known.__getitem__)
    skip = types.skipper(kind)

    def value(data: bytes, at: int) -> tuple[Any, int]:
        end = skip(data, at)
        return known[data[at:end]], end

    return EntryStep(slot, value, kind, known.__getitem__)


def require_type(types: AvroTypes, kind: Any, name: str, wanted: Collection[str]) -> None:
    """Check that a field's values are nulls or of a wanted type; those of ``equality_ids`` are numbers.

    Raises:
        LookupError: they may be others.
    """
    defined = types.defined(kind)
    branches = [types.defined(branch) for branch in (defined if isinstance(defined, list) else [defined])]
    found = {"union" if isinstance(branch, list) else branch["type"] for branch in branches} - {"null"}
    if name == "equality_ids" and found == {"array"}:
        items = types.defined(next(branch for branch in branches if branch["type"] == "array")["items"])
        found = {"array"} if not isinstance(items, list) and items["type"] in NUMBER else {"array of others"}
    if not found.issubset(wanted):
        raise LookupError(f"has the type {' or '.join(sorted(found))} for {name}; it is not Iceberg's")


def _not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("an entry lacks what every entry has")
    return value


def _path(encoded: bytes) -> str:
    """A text whose length has one byte or two, as those that are learned have."""
    return encoded[1 if encoded[0] < 128 else 2 :].decode()


class _Known(dict[bytes, Any]):
    """Values that repeat, as one object for equal bytes; ``make``: what is made of each."""

    def __init__(self, read: Reader, make: Callable[[Any], Any] | None) -> None:
        super().__init__()
        self._read, self._make = read, make

    def __missing__(self, encoded: bytes) -> Any:
        value, _ = self._read(encoded, 0)
        if self._make is not None:
            value = self._make(value)
        if len(self) >= _MOST_INTERNED:
            self.clear()
        self[encoded] = value
        return value
