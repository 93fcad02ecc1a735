"""A table by the specification in plain Python: rows in files, and deletes applied one by one.

Shares no code with Icekeeper.  Rows are dictionaries by field id, as text, so that names never matter; a field that a
row lacks is null.  Sources: specification, "Scan Planning", "Equality Delete Files", "Position Delete Files",
"Deletion Vectors", "Column Projection" (rule: deletes-reach-by-sequence-number, deletes-reach-one-partition)
(rule: deletes-reach-by-sequence-number, equality-keys-by-value, columns-by-field-id).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]
Partition: TypeAlias = tuple[Any, ...]
Defaults: TypeAlias = Mapping[str, Any]
"""Initial defaults by field id: the values of rows that are older than the column."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A data file; position ``n`` is ``rows[n]``."""

    path: str
    sequence_number: int
    spec_id: int
    partition: Partition
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class EqualityDelete:
    """Deletes rows that equal a key in ``field_ids``; without a partition it is global."""

    sequence_number: int
    spec_id: int
    partition: Partition | None
    field_ids: tuple[int, ...]
    keys: tuple[Row, ...]

    def deletes(self, file: ModelFile, row: Row, defaults: Defaults) -> bool:
        """Whether the delete is newer than the file, in its partition, and equals the row in every key column."""
        if self.sequence_number <= file.sequence_number:
            return False
        if self.partition is not None and (self.spec_id, self.partition) != (file.spec_id, file.partition):
            return False
        return any(all(same(_value(row, str(i), defaults), key[str(i)]) for i in self.field_ids) for key in self.keys)


@dataclass(frozen=True, slots=True)
class PositionDelete:
    """A position delete file's share of one data file, or a deletion vector."""

    sequence_number: int
    path: str
    positions: frozenset[int]

    def deletes(self, file: ModelFile, position: int) -> bool:
        """Whether the delete is at least as new as the file."""
        return self.path == file.path and position in self.positions and self.sequence_number >= file.sequence_number


@dataclass(frozen=True, slots=True)
class TableModel:
    """The live files of a snapshot; immutable, so that a rollback restores an older model."""

    files: tuple[ModelFile, ...] = ()
    equality: tuple[EqualityDelete, ...] = ()
    positions: tuple[PositionDelete, ...] = field(default=())

    def with_files(self, *files: ModelFile) -> TableModel:
        return replace(self, files=(*self.files, *files))

    def without(self, paths: Sequence[str]) -> TableModel:
        return replace(self, files=tuple(f for f in self.files if f.path not in paths))

    def with_equality(self, *deletes: EqualityDelete) -> TableModel:
        return replace(self, equality=(*self.equality, *deletes))

    def with_positions(self, *deletes: PositionDelete) -> TableModel:
        return replace(self, positions=(*self.positions, *deletes))

    def live(self, defaults: Defaults) -> Iterator[Row]:
        """Every row without an applicable delete."""
        for file in self.files:
            for position, row in enumerate(file.rows):
                if any(delete.deletes(file, position) for delete in self.positions):
                    continue
                if any(delete.deletes(file, row, defaults) for delete in self.equality):
                    continue
                yield row

    def rows(self, schema: Mapping[str, Any], defaults: Defaults) -> list[dict[str, Any]]:
        """The live rows as a reader returns them, by the names of ``schema``."""
        return [named(schema, row, defaults) for row in self.live(defaults)]


def named(kind: Any, value: Any, defaults: Defaults) -> Any:
    """A value by current names instead of field ids; missing fields have their default or are null."""
    if value is None or not isinstance(kind, Mapping):
        return value
    if kind["type"] == "struct":
        return {f["name"]: named(f["type"], _value(value, str(f["id"]), defaults), defaults) for f in kind["fields"]}
    if kind["type"] == "list":
        return [named(kind["element"], item, defaults) for item in value]
    return [(named(kind["key"], key, defaults), named(kind["value"], item, defaults)) for key, item in value]


def _value(row: Row, field_id: str, defaults: Defaults) -> Any:
    return row[field_id] if field_id in row else defaults.get(field_id)


def same(left: Any, right: Any) -> bool:
    """Null equals null, NaN equals NaN, 0.0 differs from -0.0 (Java's ``Double.compare``)."""
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right)
