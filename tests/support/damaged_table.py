"""A healthy table of three appends, with tools to break it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
from pyiceberg.manifest import clear_manifest_cache
from pyiceberg.table import Table

from support.command import Command, local_path

Record = dict[str, Any]


class Damaged:
    """A healthy table of three appends, with tools to break it."""

    def __init__(self, command: Command, properties: dict[str, str] | None = None) -> None:
        self.table: Table = command.table(appends=3, properties=properties or {})
        self.location = str(self.table.metadata_location)
        self.metadata_path = local_path(self.location)
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        self.snapshot_id = snapshot.snapshot_id
        self.manifest_list = str(snapshot.manifest_list)
        self.manifests = [str(manifest.manifest_path) for manifest in snapshot.manifests(self.table.io)]
        self.data_files = sorted(str(file["file_path"]) for file in self.table.inspect.files().to_pylist())

    def edit_document(self, change: Callable[[Record], object]) -> None:
        document = json.loads(self.metadata_path.read_text())
        change(document)
        self.metadata_path.write_text(json.dumps(document))

    def edit_list(self, change: Callable[[list[Record]], object]) -> None:
        edit_avro(local_path(self.manifest_list), change)

    def edit_manifest(self, change: Callable[[list[Record]], object]) -> None:
        """Change the newest manifest, and update its length in the manifest list."""
        path = local_path(self.manifests[0])
        edit_avro(path, change)

        self.edit_list(lambda listed: state_length(listed, self.manifests[0]))


def edit_avro(path: Path, change: Callable[[list[Record]], object]) -> None:
    with path.open("rb") as source:
        reader = fastavro.reader(source)
        records: list[Any] = list(reader)
        schema, header = reader.writer_schema, reader.metadata
    change(records)
    sink = io.BytesIO()
    kept = {key: value for key, value in header.items() if not key.startswith("avro.")}
    assert schema is not None
    fastavro.writer(sink, schema, records, metadata=kept)
    path.write_bytes(sink.getvalue())
    clear_manifest_cache()  # PyIceberg would write what it has read before into the next list


def entry(listed: list[Record], path: str) -> Record:
    return next(record for record in listed if record["manifest_path"] == path)


def read_avro(path: Path) -> list[Any]:
    with path.open("rb") as source:
        return list(fastavro.reader(source))


def state_length(listed: list[Record], manifest: str) -> None:
    """Set the length of a manifest in its manifest list to the file's length."""
    for record in listed:
        if record["manifest_path"] == manifest:
            record["manifest_length"] = local_path(manifest).stat().st_size
