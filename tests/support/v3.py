"""A table of format v3 without Java, and passes over it."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icekeeper.commit.snapshot import FileReplacement, SnapshotWriter
from icekeeper.metadata.puffin import decode_deletion_vector, encode_puffin
from icekeeper.model import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.storage.storage import Storage
from support.deletes import create_by_region, rows_of
from support.maintained_table import MaintainedTable, local_path, maintained_table
from support.plans import data_file
from support.readers import duckdb_rows

# A table of format v3 without Java: upgraded by hand, changed by another writer, with a naive reader of row lineage.

Lineage = Counter[tuple[int, int | None, int | None]]


def upgrade(table: MaintainedTable) -> None:
    """Upgrade to v3, as the specification says: change only the version and ``next-row-id``."""
    path = local_path(table.loaded.metadata_location)
    path.write_text(json.dumps({**json.loads(path.read_text()), "format-version": 3, "next-row-id": 0}))


def live(table: MaintainedTable) -> list[tuple[str, ManifestEntry]]:
    """The live entries of the head, each with its manifest's path."""
    reader = table.reader
    head = reader.metadata.current_snapshot
    assert head is not None
    return [(m.manifest_path, e) for m, found in reader.entries(reader.manifests(head)) for e in found if e.is_live]


def data_files(table: MaintainedTable) -> list[DataFile]:
    return [file for file in table.data_files() if file.content is FileContent.DATA]


def vectors(table: MaintainedTable) -> dict[str, ManifestEntry]:
    """Deletion vectors by data file."""
    return {e.file.referenced_data_file: e for _, e in live(table) if e.file.referenced_data_file is not None}


def append(table: MaintainedTable, first: int, count: int, region: str) -> str:
    """Append a data file as another v3 writer does, and return its path."""
    content = rows_of(first, count, region)
    loaded = table.loaded
    path = f"{loaded.metadata.data_location}/appended-{uuid.uuid4()}.parquet"
    fields = [
        field.with_metadata({b"PARQUET:field_id": str(number).encode()})
        for number, field in enumerate(content.schema, start=1)
    ]
    with Storage(loaded.io_properties).open_output(path) as sink:
        pq.write_table(content.cast(pa.schema(fields)), sink)
    commit_files(table, [data_file(path, table.storage.size(path) or 0, (region,), records=count)], {})
    return path


def delete_positions(
    table: MaintainedTable, positions: Mapping[str, Collection[int]], *, under: tuple[str, ...] | None = None
) -> str:
    """Commit a Puffin file with a vector for each data file, merged with its old vector; return the path.

    The entries have the data file's partition, or, as by faulty writers, the partition ``under``.
    """
    loaded = table.loaded
    storage = Storage(loaded.io_properties)
    before = vectors(table)
    partitions = {file.file_path: file.partition for file in data_files(table)}
    merged = []
    for data_path, new in positions.items():
        bitmap = BitMap64(new)
        if data_path in before:
            bitmap |= _positions(storage, before[data_path].file)
        merged.append((data_path, bitmap))
    data, blobs = encode_puffin(merged, {})
    path = f"{loaded.metadata.data_location}/{uuid.uuid4()}-deletes.puffin"
    storage.write(path, data)
    added = [
        DataFile(
            content=FileContent.POSITION_DELETES,
            file_path=path,
            file_format="PUFFIN",
            partition=partitions[data_path] if under is None else under,
            record_count=len(bitmap),
            file_size_in_bytes=len(data),
            referenced_data_file=data_path,
            content_offset=blob.offset,
            content_size_in_bytes=blob.length,
        )
        for (data_path, bitmap), blob in zip(merged, blobs, strict=True)
    ]
    replaced = {entry.file.key: data_path for data_path, entry in before.items() if data_path in positions}
    commit_files(table, added, replaced)
    return path


def commit_keys(table: MaintainedTable, deletes: Iterable[tuple[pa.Table, dict[str, Any]]]) -> None:
    """Commit equality deletes as another writer does, each given as a table of keys and the rest of its entry."""
    loaded, added = table.loaded, []
    for content, more in deletes:
        path = f"{loaded.metadata.data_location}/keys-{uuid.uuid4()}.parquet"
        with Storage(loaded.io_properties).open_output(path) as sink:
            pq.write_table(content, sink)
        size = table.storage.size(path) or 0
        added.append(
            DataFile(file_path=path, file_format="PARQUET", record_count=len(content), file_size_in_bytes=size, **more)
        )
    commit_files(table, added, {})


def commit_files(table: MaintainedTable, added: list[DataFile], replaced: Mapping[tuple[str, int | None], str]) -> None:
    """Commit these files as another writer does, and remove ``replaced``."""
    loaded = table.loaded
    storage, reader = Storage(loaded.io_properties), table.reader
    head = loaded.metadata.current_snapshot
    assert head is not None
    writer = SnapshotWriter(loaded.metadata, reader, storage.write, lambda paths: None, "main", "another writer", 0)
    prepared = writer.replace_files(
        FileReplacement(frozenset(replaced), tuple((0, file) for file in added), None),
        reader.manifests(head),
        {manifest for manifest, entry in live(table) if entry.file.key in replaced},
    )
    table.catalog.inner.commit(loaded, prepared.requirements, prepared.updates)


def _positions(storage: Storage, file: DataFile) -> BitMap64:
    assert file.content_offset is not None
    assert file.content_size_in_bytes is not None
    blob = storage.read(file.file_path)[file.content_offset : file.content_offset + file.content_size_in_bytes]
    return decode_deletion_vector(blob, file.file_path, file.record_count)


def lineage(table: MaintainedTable) -> Lineage:
    """``id``, ``_row_id`` and ``_last_updated_sequence_number`` of every live row, inherited by the rules of v3."""
    return Counter(row for _, e in live(table) if e.file.content is FileContent.DATA for row in _rows(table, e))


def _rows(table: MaintainedTable, entry: ManifestEntry) -> Iterator[tuple[int, int | None, int | None]]:
    vector = vectors(table).get(entry.file.file_path)
    deleted = BitMap64() if vector is None else _positions(Storage(table.loaded.io_properties), vector.file)
    first = entry.file.first_row_id
    with pq.ParquetFile(local_path(entry.file.file_path)) as file:
        rows = file.read().to_pylist()
    for position, row in enumerate(rows):
        if position in deleted:
            continue
        if first is None:
            yield row["id"], None, None
            continue
        row_id, changed = row.get("_row_id"), row.get("_last_updated_sequence_number")
        yield (
            row["id"],
            first + position if row_id is None else row_id,
            entry.sequence_number if changed is None else changed,
        )


# Passes over a table of format v3, and checks of its rows.


@contextmanager
def upgraded_table(folder: Path) -> Iterator[MaintainedTable]:
    """A table upgraded to v3, with three files of ten rows in us (ids 0.., 100.., …) and in eu (50.., 150.., …)."""
    with maintained_table(folder) as made:
        create_by_region(made, 3)
        upgrade(made)
        yield made


def with_row_ids(table: MaintainedTable) -> MaintainedTable:
    """Append a file in each region (ids 300.., 350..); the first v3 commit gives every row its id."""
    append(table, 300, 10, "us")
    append(table, 350, 10, "eu")
    return table


@contextmanager
def table_of_version(folder: Path, version: int) -> Iterator[MaintainedTable]:
    """A table with four files of ten rows in us (ids 0.., 100.., …) and in eu (50.., …); in v3 every row has an id."""
    with maintained_table(folder) as made:
        create_by_region(made, 4 if version == 2 else 3)
        if version == 3:
            upgrade(made)
            with_row_ids(made)
        yield made


def rows(table: MaintainedTable) -> Counter[int]:
    """The ids as DuckDB reads them; it is independent and applies deletion vectors."""
    return Counter(row["id"] for row in duckdb_rows(table.loaded.metadata_location))


def file_of(table: MaintainedTable, row_id: int) -> str:
    """The data file whose first row has this id."""
    for file in data_files(table):
        with pq.ParquetFile(local_path(file.file_path)) as opened:
            if opened.read(["id"]).column("id")[0].as_py() == row_id:
                return file.file_path
    raise AssertionError(row_id)


def manifests(table: MaintainedTable) -> list[ManifestFile]:
    reader = table.reader
    head = reader.metadata.current_snapshot
    assert head is not None
    return reader.manifests(head)


def assert_row_ids_hold(table: MaintainedTable) -> None:
    """Check that every row has a unique id below ``next-row-id``, and that the head's row ids add up."""
    metadata = table.loaded.metadata
    ids = [row_id for _, row_id, _ in lineage(table).elements()]
    assert len(set(ids)) == len(ids)
    assert all(row_id is not None and row_id < metadata.next_row_id for row_id in ids)
    for manifest in manifests(table):
        assert (manifest.first_row_id is None) == (manifest.content is ManifestContent.DELETES)
    head = metadata.current_snapshot
    assert head is not None
    assert head.raw["first-row-id"] + head.raw["added-rows"] == metadata.next_row_id
