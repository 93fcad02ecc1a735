"""Makes read tasks from manifest entries: data files, the delete files that apply to them, the columns to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from icekeeper.aws.worker_keys import properties_for_workers
from icekeeper.errors import StorageError, TableUnsupported
from icekeeper.metadata.delete_scope import PartitionKey, partition_key
from icekeeper.metadata.document import NAME_MAPPING, TableMetadata
from icekeeper.model import DataFile, FileContent, ManifestEntry, PartitionValue
from icekeeper.rows.arrow_schema import column_path
from icekeeper.rows.read_task import DeleteFile, InputFile, ReadTask

__all__ = ["PlannedInput", "make_read_task"]


class PlannedInput(Protocol):
    """A live data file and the manifest entries of the delete files that apply to it."""

    @property
    def file(self) -> DataFile: ...
    @property
    def spec_id(self) -> int: ...
    @property
    def sequence_number(self) -> int: ...
    @property
    def deletes(self) -> tuple[ManifestEntry, ...]: ...


def make_read_task(
    metadata: TableMetadata,
    files: Sequence[PlannedInput],
    schema: Mapping[str, Any],
    io_properties: Mapping[str, str],
    *,
    verify_checksums: bool = True,
) -> ReadTask:
    """What a worker needs to read the live rows of some files, at least one, as rows of ``schema``.

    ``verify_checksums``: as in :class:`.ReadableFile`.

    Raises:
        TableUnsupported: an equality delete cannot be applied by this version.
        StorageError: the table's name mapping is not JSON, so that none of the files can be read.
    """
    deletes = {entry.file.key: entry for planned in files for entry in planned.deletes}
    numbers = {key: number for number, key in enumerate(deletes)}
    partitions: dict[PartitionKey, int] = {}
    return ReadTask(
        inputs=tuple(
            InputFile(
                path=planned.file.file_path,
                record_count=planned.file.record_count,
                file_size_in_bytes=planned.file.file_size_in_bytes,
                file_format=planned.file.file_format,
                sequence_number=planned.sequence_number,
                deletes=tuple(numbers[entry.file.key] for entry in planned.deletes),
                identity_values=_identity_values(metadata, planned),
                first_row_id=planned.file.first_row_id,
                partition_number=partitions.setdefault(
                    partition_key(planned.spec_id, planned.file.partition), len(partitions)
                ),
            )
            for planned in files
        ),
        schema=schema,
        name_mapping=_name_mapping(metadata, files),
        by_position=metadata.current_schema["fields"],
        deletes=tuple(_delete_file(entry) for entry in deletes.values()),
        key_fields=_other_key_fields(metadata, schema, deletes),
        io_properties=properties_for_workers(io_properties),
        verify_checksums=verify_checksums,
    )


def _name_mapping(metadata: TableMetadata, files: Sequence[PlannedInput]) -> Sequence[Mapping[str, Any]] | None:
    text = metadata.properties.get(NAME_MAPPING)
    try:
        mapping: Sequence[Mapping[str, Any]] | None = None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"file {files[0].file.file_path} cannot be read: {error}") from error
    return mapping


def _identity_values(metadata: TableMetadata, planned: PlannedInput) -> dict[int, PartitionValue]:
    fields = metadata.specs[planned.spec_id]["fields"]
    return {
        int(field["source-id"]): value
        for field, value in zip(fields, planned.file.partition, strict=True)
        if field["transform"] == "identity"
    }


def _delete_file(entry: ManifestEntry) -> DeleteFile:
    file = entry.file
    return DeleteFile(
        path=file.file_path,
        file_format=file.file_format,
        content=file.content,
        sequence_number=entry.sequence_number or 0,
        record_count=file.record_count,
        equality_ids=file.equality_ids or (),
        referenced_data_file=file.referenced_data_file,
        content_offset=file.content_offset,
        content_size_in_bytes=file.content_size_in_bytes,
    )


def _other_key_fields(
    metadata: TableMetadata, schema: Mapping[str, Any], deletes: Mapping[Any, ManifestEntry]
) -> list[dict[str, Any]]:
    """The fields that equality deletes compare and ``schema`` lacks, found in any schema of the table (rule 10).

    They are optional, because old files may lack them.  A field in a struct comes with the structs around it, which
    then hold nothing else.

    Raises:
        TableUnsupported: a column is in no schema, or inside a list or map.
    """
    keys = {
        field_id
        for entry in deletes.values()
        if entry.file.content is FileContent.EQUALITY_DELETES
        for field_id in entry.file.equality_ids or ()
    }
    fields = []
    for field_id in sorted(keys):
        if column_path(schema["fields"], field_id) is not None:
            continue
        known = (_alone(other["fields"], field_id) for other in metadata.schemas_current_first)
        field = next((found for found in known if found is not None), None)
        if field is None:
            raise TableUnsupported(
                f"equality deletes use column {field_id}, which is unknown, or inside a list or map; the table was "
                "left alone"
            )
        fields.append(field)
    return fields


def _alone(fields: Sequence[Mapping[str, Any]], field_id: int) -> dict[str, Any] | None:
    """The field of that id within its structs, all optional, without their other fields; ``None``: it is not there."""
    path = column_path(fields, field_id)
    if path is None:
        return None
    field = {**fields[path[0]], "required": False}
    if len(path) > 1:
        field["type"] = {**field["type"], "fields": [_alone(field["type"]["fields"], field_id)]}
    return field
