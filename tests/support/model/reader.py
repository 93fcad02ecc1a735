"""A naive reader of small local tables by the specification, which shares no code with Icekeeper.

Fastavro reads the manifests, PyArrow the Parquet files, pyroaring the vectors.  Sources: specification,
"Scan Planning", "Row Lineage", "Deletion Vectors", "Column Projection"
(rule: deletes-reach-by-sequence-number, deletes-reach-one-partition)
(rule: equality-keys-by-value, columns-by-field-id).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pyarrow.parquet as pq
from pyroaring import BitMap64

DATA, POSITIONS, EQUALITY = 0, 1, 2
DELETED = 2
ROW_ID, CHANGED = 2147483540, 2147483539
PATH, POSITION = 2147483546, 2147483545
ID = 1
"""The field id of the column with unique values."""


@dataclass(frozen=True)
class File:
    """A live data or delete file with its inherited values."""

    content: int
    path: str
    format: str
    spec_id: int
    partition: tuple[Any, ...]
    sequence_number: int
    size: int
    records: int
    first_row_id: int | None
    equality_ids: tuple[int, ...]
    referenced: str | None
    offset: int | None
    length: int | None

    @property
    def key(self) -> tuple[str, int | None]:
        return self.path, self.offset


@dataclass(frozen=True)
class Row:
    """A live row: its place, its values by field id, and its lineage (``None`` if it has none yet)."""

    file: File
    position: int
    values: Mapping[int, Any]
    row_id: int | None
    changed: int | None

    @property
    def id(self) -> int:
        return int(self.values[ID])


def local(path: str) -> str:
    """The path of a ``file:`` address without escapes."""
    return path.removeprefix("file://") if path.startswith("file://") else path.removeprefix("file:")


@dataclass
class NaiveReader:
    """Caches manifests and Parquet files, which never change."""

    resolve: Callable[[str], str] = local
    """Returns the path of a file by its address."""
    _lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _manifests: dict[tuple[str, int | None], list[File]] = field(default_factory=dict)
    _columns: dict[str, list[dict[int, Any]]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """The size of every file that was read, which must not change while the file is needed."""

    def manifests(self, manifest_list: str) -> list[dict[str, Any]]:
        """The manifests of a snapshot from its manifest list."""
        path = self.resolve(manifest_list)
        if path not in self._lists:
            with open(self._seen(manifest_list), "rb") as source:
                self._lists[path] = [dict(record) for record in fastavro.reader(source)]  # type: ignore[arg-type]
        return self._lists[path]

    def files(self, manifest_list: str) -> list[File]:
        """The live data and delete files of a snapshot."""
        return [file for manifest in self.manifests(manifest_list) for file in self.entries(manifest)]

    def needed(self, manifest_list: str) -> set[str]:
        """All files that a reader of the snapshot opens."""
        return {
            manifest_list,
            *(manifest["manifest_path"] for manifest in self.manifests(manifest_list)),
            *(file.path for file in self.files(manifest_list)),
        }

    def lost(self, manifest_list: str) -> set[str]:
        """The files among them that are missing or changed."""
        return {path for path in self.needed(manifest_list) if not self._is_there(path)}

    def _is_there(self, path: str) -> bool:
        try:
            size = os.stat(self.resolve(path)).st_size
        except FileNotFoundError:
            return False
        return self.sizes.setdefault(path, size) == size

    def _seen(self, path: str) -> str:
        self.sizes[path] = os.stat(self.resolve(path)).st_size
        return self.resolve(path)

    def entries(self, manifest: Mapping[str, Any]) -> list[File]:
        """The live files of a manifest."""
        key = self.resolve(manifest["manifest_path"]), manifest.get("first_row_id")
        if key not in self._manifests:
            with open(self._seen(manifest["manifest_path"]), "rb") as source:
                records: list[Any] = list(fastavro.reader(source))
            self._manifests[key] = list(_inherited(manifest, records))
        return self._manifests[key]

    def rows(self, manifest_list: str, defaults: Mapping[int, Any], *, as_duckdb: bool = False) -> Iterator[Row]:
        """Every row without an applicable delete.

        ``defaults``: the initial defaults of columns, by field id.  ``as_duckdb``: equality deletes apply to every
        partition, and a null equals every key, as in DuckDB 1.5.
        """
        files = self.files(manifest_list)
        vectors = {file.referenced: file for file in files if file.format == "PUFFIN"}
        positions = [file for file in files if file.content == POSITIONS and file.format != "PUFFIN"]
        equality = [file for file in files if file.content == EQUALITY]
        for file in files:
            if file.content != DATA:
                continue
            if file.path in vectors:
                gone = self.vector(vectors[file.path])
            else:
                gone = BitMap64(self.positions(file, positions))
            keys = [self._keys(delete) for delete in equality if _reaches(delete, file, as_duckdb)]
            equals = _may_equal if as_duckdb else _equals
            for position, values in enumerate(self.columns(file.path)):
                if position in gone or any(equals(values, ids, found, defaults) for ids, found in keys):
                    continue
                yield _with_lineage(file, position, values)

    def vector(self, file: File) -> BitMap64:
        """The deleted positions of a deletion vector: length, magic number, bitmap, checksum."""
        assert file.offset is not None
        assert file.length is not None
        with open(self._seen(file.path), "rb") as source:
            source.seek(file.offset)
            blob = source.read(file.length)
        found = BitMap64.deserialize(blob[8:-4])
        assert len(found) == file.records, f"{file.path} counts {file.records} deleted rows and has {len(found)}"
        return found

    def positions(self, file: File, deletes: Sequence[File]) -> Iterator[int]:
        """The deleted positions of a data file by position delete files."""
        for delete in deletes:
            in_reach = (delete.spec_id, delete.partition) == (file.spec_id, file.partition)
            if in_reach and delete.sequence_number >= file.sequence_number:
                yield from (row[POSITION] for row in self.columns(delete.path) if row[PATH] == file.path)

    def _keys(self, delete: File) -> tuple[tuple[int, ...], set[tuple[Any, ...]]]:
        ids = delete.equality_ids
        return ids, {tuple(row.get(i) for i in ids) for row in self.columns(delete.path)}

    def columns(self, path: str) -> list[dict[int, Any]]:
        """The rows of a Parquet file by field id."""
        key = self.resolve(path)
        if key not in self._columns:
            table = pq.read_table(self._seen(path), partitioning=None)
            ids = [int((part.metadata or {})[b"PARQUET:field_id"]) for part in table.schema]
            values = [column.to_pylist() for column in table.columns]
            self._columns[key] = [dict(zip(ids, row, strict=True)) for row in zip(*values, strict=True)]
        return self._columns[key]


def _inherited(manifest: Mapping[str, Any], records: Sequence[Any]) -> Iterator[File]:
    next_row_id = manifest.get("first_row_id")
    for record in records:
        file = record["data_file"]
        if record["status"] == DELETED:
            continue
        number, first = record.get("sequence_number"), file.get("first_row_id")
        if number is None:
            is_inherited = record["status"] == 1 or "sequence_number" not in record  # as in every v1 manifest
            assert is_inherited, f"{file['file_path']} exists and has no sequence number"
            number = manifest.get("sequence_number") or 0
        content = file.get("content") or DATA
        if content == DATA and first is None and next_row_id is not None:
            first, next_row_id = next_row_id, next_row_id + file["record_count"]
        yield File(
            content=content,
            path=file["file_path"],
            format=file["file_format"].upper(),
            spec_id=manifest.get("partition_spec_id") or 0,
            partition=tuple(file["partition"].values()),
            sequence_number=number,
            size=file["file_size_in_bytes"],
            records=file["record_count"],
            first_row_id=first,
            equality_ids=tuple(file.get("equality_ids") or ()),
            referenced=file.get("referenced_data_file"),
            offset=file.get("content_offset"),
            length=file.get("content_size_in_bytes"),
        )


def _reaches(delete: File, file: File, all_partitions: bool) -> bool:
    """Whether the delete is newer, and global or in the same partition."""
    if delete.sequence_number <= file.sequence_number:
        return False
    return (
        all_partitions or not delete.partition or (delete.spec_id, delete.partition) == (file.spec_id, file.partition)
    )


def _equals(
    values: Mapping[int, Any], ids: Sequence[int], keys: set[tuple[Any, ...]], defaults: Mapping[int, Any]
) -> bool:
    return tuple(values.get(i, defaults.get(i)) for i in ids) in keys


def _may_equal(
    values: Mapping[int, Any], ids: Sequence[int], keys: set[tuple[Any, ...]], defaults: Mapping[int, Any]
) -> bool:
    row = [values.get(i, defaults.get(i)) for i in ids]
    return any(all(None in pair or pair[0] == pair[1] for pair in zip(row, key, strict=True)) for key in keys)


def _with_lineage(file: File, position: int, values: Mapping[int, Any]) -> Row:
    if file.first_row_id is None:
        return Row(file, position, values, None, None)
    row_id, changed = values.get(ROW_ID), values.get(CHANGED)
    return Row(
        file,
        position,
        values,
        file.first_row_id + position if row_id is None else row_id,
        file.sequence_number if changed is None else changed,
    )
