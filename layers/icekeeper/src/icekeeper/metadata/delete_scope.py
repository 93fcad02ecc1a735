"""Decides which delete file applies to which data file (pure).

Specification, "Scan Planning":

* Equality deletes apply to data files with a lower data sequence number, position deletes and deletion vectors to data
  files with a lower or equal number.  File sequence numbers do not matter, because no reader uses them here.
* Spec and partition must be the same.  Equality deletes under an unpartitioned spec are global.  Iceberg-Java up to
  1.11, DuckDB and PyIceberg apply position deletes that name a single data file in any partition
  (rule: named-deletes-reach-anywhere).
* If a deletion vector applies to a data file, position deletes do not apply to it: the vector contains them.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.types import FLOATS, INTEGER_BITS, PRIMITIVES, UNORDERED, comparable
from icekeeper.model import DataFile, FileContent, ManifestEntry, PartitionValue

# Reserved field ids of position delete files (specification, "Reserved Field IDs").
DELETE_FILE_PATH_ID = 2147483546
DELETE_POSITION_ID = 2147483545

# Types whose bounds exclude no file: NaN is outside all bounds, and Java does not order uuids by their bytes.
_UNCOMPARABLE = FLOATS | UNORDERED | {"uuid"}

PartitionKey: TypeAlias = tuple[int, tuple[object, ...]]


def partition_key(spec_id: int, partition: tuple[PartitionValue, ...]) -> PartitionKey:
    """Spec id and partition as a key: 0.0 and -0.0 are two partitions, all NaNs are the same partition
    (rule: equality-keys-by-value)."""
    for value in partition:
        if isinstance(value, float):
            return spec_id, tuple(_float_key(value) if isinstance(value, float) else value for value in partition)
    return spec_id, partition


def _float_key(value: float) -> bytes:
    return struct.pack("<d", math.nan if math.isnan(value) else value)


def is_unpartitioned(spec: Mapping[str, Any]) -> bool:
    """Whether a spec has only void fields, or none, so that its equality deletes are global (as in Java)."""
    return all(part["transform"] == "void" for part in spec["fields"])


def may_stand_elsewhere(metadata: TableMetadata) -> bool:
    """Whether the files of a table may have different specs or partitions."""
    return len(metadata.specs) > 1 or not all(is_unpartitioned(spec) for spec in metadata.specs.values())


@dataclass(frozen=True, slots=True)
class DeleteIndex:
    """The entries of a snapshot's live delete files, by the data files that they may apply to."""

    vectors: Mapping[str, ManifestEntry]
    """Data file path → its deletion vector."""
    positions_by_path: Mapping[str, tuple[ManifestEntry, ...]]
    """Data file path → the position deletes that name only this file, whatever their partition."""
    positions_by_partition: Mapping[PartitionKey, tuple[ManifestEntry, ...]]
    equality_by_partition: Mapping[PartitionKey, tuple[ManifestEntry, ...]]
    global_equality: tuple[ManifestEntry, ...]

    @property
    def is_empty(self) -> bool:
        return not (
            self.vectors
            or self.positions_by_path
            or self.positions_by_partition
            or self.equality_by_partition
            or self.global_equality
        )

    @property
    def has_equality_deletes(self) -> bool:
        return bool(self.equality_by_partition or self.global_equality)

    @property
    def entries(self) -> Iterator[ManifestEntry]:
        """Every live delete entry."""
        yield from self.vectors.values()
        for groups in (self.positions_by_path, self.positions_by_partition, self.equality_by_partition):
            for entries in groups.values():
                yield from entries
        yield from self.global_equality

    def needed_by(self, data: ManifestEntry, spec_id: int, types: Mapping[int, str]) -> Iterator[ManifestEntry]:
        """The deletes that may remove rows of a live data file, considering bounds; ``types``: by column id."""
        for entry in self.applying_to(data.file, spec_id, data.sequence_number or 0):
            is_equality = entry.file.content is FileContent.EQUALITY_DELETES
            if not is_equality or may_match(entry.file, data.file, types):
                yield entry

    def applying_to(self, file: DataFile, spec_id: int, sequence_number: int) -> Iterator[ManifestEntry]:
        """Every delete that applies to a data file with this data sequence number."""
        key = partition_key(spec_id, file.partition)
        yield from self.positions_of(file.file_path, key, sequence_number)
        for entry in (*self.equality_by_partition.get(key, ()), *self.global_equality):
            if _sequence_number(entry) > sequence_number:
                yield entry

    def positions_of(self, path: str, key: PartitionKey, sequence_number: int) -> Iterator[ManifestEntry]:
        """The deletion vector or the position deletes that apply to the data file at ``path``."""
        vector = self.vectors.get(path)
        if vector is not None and _sequence_number(vector) >= sequence_number:
            yield vector
            return
        for entry in self.positions_by_path.get(path, ()):
            if _sequence_number(entry) >= sequence_number:
                yield entry
        for entry in self.positions_by_partition.get(key, ()):
            if _sequence_number(entry) >= sequence_number and may_name(entry.file, path):
                yield entry


@dataclass(slots=True)
class DeleteIndexBuilder:
    """Collects the entries of delete files, and builds the index."""

    _vectors: dict[str, ManifestEntry] = field(default_factory=dict)
    _by_path: dict[str, list[ManifestEntry]] = field(default_factory=lambda: defaultdict(list))
    _by_partition: dict[PartitionKey, list[ManifestEntry]] = field(default_factory=lambda: defaultdict(list))
    _equality: dict[PartitionKey, list[ManifestEntry]] = field(default_factory=lambda: defaultdict(list))
    _global: list[ManifestEntry] = field(default_factory=list)

    def add(self, spec_id: int, entry: ManifestEntry, *, is_unpartitioned: bool) -> None:
        """Add a live entry of a delete manifest; ``is_unpartitioned``: whether its spec is unpartitioned.

        Raises:
            MetadataUnreadable: the entry is the second deletion vector of a data file
                (rule: deletes-reach-by-sequence-number).
        """
        file = entry.file
        if file.content is FileContent.EQUALITY_DELETES:
            if is_unpartitioned:
                self._global.append(entry)
            else:
                self._equality[partition_key(spec_id, file.partition)].append(entry)
        elif file.content_offset is not None and file.referenced_data_file is not None:
            if file.referenced_data_file in self._vectors:
                raise MetadataUnreadable(
                    f"{file.referenced_data_file} has two deletion vectors in the same snapshot; it is unknown which "
                    "of them is valid"
                )
            self._vectors[file.referenced_data_file] = entry
        elif (named := named_file(file)) is not None:
            self._by_path[named].append(entry)
        else:
            self._by_partition[partition_key(spec_id, file.partition)].append(entry)

    def build(self) -> DeleteIndex:
        return DeleteIndex(
            self._vectors,
            _frozen(self._by_path),
            _frozen(self._by_partition),
            _frozen(self._equality),
            tuple(self._global),
        )


def named_file(delete: DataFile) -> str | None:
    """The path of the only data file that a position delete file names, by ``referenced_data_file`` or by equal bounds.

    ``None``: it may name several files, or its entry does not say.  Readers apply it to that file whatever the
    partition of the delete file (Java's ``ContentFileUtil.referencedDataFile``), so it is dangling only if the file is
    gone.  Truncated bounds are never equal, because the upper bound is rounded up.
    """
    if delete.content is not FileContent.POSITION_DELETES:
        return None
    if delete.referenced_data_file is not None:
        return delete.referenced_data_file
    low, high = _path_bounds(delete)
    if not low or low != high:
        return None
    try:
        return low.decode()
    except UnicodeDecodeError:  # it was truncated within a character, so it is not a whole path
        return None


def may_name(delete: DataFile, path: str) -> bool:
    """Whether a position delete file may contain positions of a data file, by its reference or its path bounds."""
    if delete.referenced_data_file is not None:
        return delete.referenced_data_file == path
    encoded = path.encode()
    low, high = _path_bounds(delete)
    return (low is None or low <= encoded) and (high is None or encoded <= high)


def _path_bounds(delete: DataFile) -> tuple[bytes | None, bytes | None]:
    lower, upper = delete.lower_bounds or {}, delete.upper_bounds or {}
    return lower.get(DELETE_FILE_PATH_ID), upper.get(DELETE_FILE_PATH_ID)


def may_match(delete: DataFile, data: DataFile, types: Mapping[int, str]) -> bool:
    """Whether an equality delete may match a row of a data file, by bounds and null counts.

    ``types``: column id → Iceberg type; a column of unknown type, or without bounds, may always match.
    """
    return all(_columns_overlap(field_id, delete, data, types) for field_id in delete.equality_ids or ())


def _columns_overlap(field_id: int, delete: DataFile, data: DataFile, types: Mapping[int, str]) -> bool:
    kind = types.get(field_id)
    if kind is not None and kind.partition("(")[0] in _UNCOMPARABLE:
        return True
    bounds = [(f.lower_bounds or {}).get(field_id) for f in (delete, data)]
    bounds += [(f.upper_bounds or {}).get(field_id) for f in (delete, data)]
    nulls = [(f.null_value_counts or {}).get(field_id) for f in (delete, data)]
    if kind is None or None in bounds or None in nulls or all(nulls):
        return True
    decoded: list[Any] = [decode_bound(kind, bound) for bound in bounds if bound is not None]
    if None in decoded:
        return True
    delete_low, data_low, delete_high, data_high = (comparable(kind, value) for value in decoded)
    return bool(delete_low <= data_high and data_low <= delete_high)


def decode_bound(kind: str, value: bytes) -> Any:
    """A bound as a raw value; ``None``: its length fits neither the type nor a type that can be promoted to it
    (rule: promoted-values-keep-old-width)."""
    if kind in INTEGER_BITS:
        # Four bytes in a timestamp column are days, from when the column was a date: they cannot be compared.
        widths = (8,) if PRIMITIVES[kind].per_second else (4, 8)
        return int.from_bytes(value, "little", signed=True) if len(value) in widths else None
    if kind == "boolean":
        return value != b"\x00"
    return value


def _sequence_number(entry: ManifestEntry) -> int:
    return entry.sequence_number or 0


def _frozen(groups: Mapping[Any, Iterable[ManifestEntry]]) -> dict[Any, tuple[ManifestEntry, ...]]:
    return {key: tuple(entries) for key, entries in groups.items()}
