"""Reads from manifests the data files whose rows are counted, with the deletes that reach them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.document import Snapshot
from icekeeper.metadata.table_reader import TableReader, delete_index
from icekeeper.model import DataFile, EntryStatus, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.operations.statistics.plan import RowFile
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.readable import why_unreadable

__all__ = ["appended_files", "live_files"]


def live_files(reader: TableReader, manifests: Sequence[ManifestFile]) -> list[RowFile]:
    """Every live data file of a snapshot.

    Raises:
        MetadataUnreadable: a manifest is missing or damaged.
        TableUnsupported: a file cannot be read by this version, so its rows would be missing.
    """
    index = delete_index(reader, manifests)
    types = _column_types(reader)
    return [
        _row_file(manifest, entry, tuple(index.needed_by(entry, manifest.partition_spec_id, types)), types)
        for manifest, entry in reader.live_entries(manifests, ManifestContent.DATA)
    ]


def appended_files(reader: TableReader, snapshots: Sequence[Snapshot]) -> list[RowFile] | None:
    """The data files that append snapshots added; ``None`` when one of them removed files or added deletes.

    Raises:
        MetadataUnreadable: a manifest list or manifest is missing or damaged.
        TableUnsupported: a file cannot be read by this version.
    """
    files: list[RowFile] = []
    types = _column_types(reader)
    for snapshot in snapshots:
        for manifest, entry in _changes(reader, snapshot):
            if entry.status is not EntryStatus.ADDED or manifest.content is not ManifestContent.DATA:
                return None
            files.append(_row_file(manifest, entry, (), types))
    return files


def _changes(reader: TableReader, snapshot: Snapshot) -> Iterator[tuple[ManifestFile, ManifestEntry]]:
    """The entries that a snapshot added or removed; they are in the manifests that it wrote."""
    written = [m for m in reader.manifests(snapshot) if m.added_snapshot_id == snapshot.snapshot_id]
    for manifest, entries in reader.entries(written):
        for entry in entries:
            if entry.status is not EntryStatus.EXISTING and entry.snapshot_id == snapshot.snapshot_id:
                yield manifest, entry


def _column_types(reader: TableReader) -> dict[int, str]:
    """The types of the current schema's columns, by field id."""
    return {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(reader.metadata.current_schema)}


def _row_file(
    manifest: ManifestFile, entry: ManifestEntry, deletes: tuple[ManifestEntry, ...], types: Mapping[int, str]
) -> RowFile:
    if why := why_unreadable(entry.file, deletes, types):
        raise TableUnsupported(
            f"file {entry.file.file_path} {why}; statistics without its rows would be wrong, so none were computed"
        )
    return RowFile(_bare(entry.file), manifest.partition_spec_id, entry.sequence_number or 0, deletes)


def _bare(file: DataFile) -> DataFile:
    """The file without its column metrics, which are most of an entry."""
    return replace(
        file,
        column_sizes=None,
        value_counts=None,
        null_value_counts=None,
        nan_value_counts=None,
        lower_bounds=None,
        upper_bounds=None,
    )
