"""File groups become work units and go to the engine."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import MaintenanceError, TableUnsupported
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import FileContent, ManifestEntry
from icekeeper.operations.compaction.cluster_dispatch import cluster_groups, fits_one_worker
from icekeeper.operations.compaction.plan import CompactionPlan, FileGroup
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.operations.compaction.task import DeleteFile, InputFile, OutputNames, RewriteResult, RewriteTask
from icekeeper.operations.context import OperationContext
from icekeeper.storage_paths import is_under

__all__ = ["rewrite_groups"]

_NAME_MAPPING = "schema.name-mapping.default"
_WHAT = "compact: file groups"


def rewrite_groups(context: OperationContext, loaded: LoadedTable, plan: CompactionPlan) -> list[RewriteResult]:
    """Run the work unit over every group of the plan.

    Raises:
        TableUnsupported: an equality delete cannot be applied by this version; nothing was written.
        StorageError: the engine broke.
    """
    tasks = [_task(loaded, plan, group) for group in plan.groups]
    if not tasks:
        return []
    # A group that has to be sorted and is too large for one worker is sorted by all of them together.
    is_small = {task.group_id: task.recipe is None or fits_one_worker(task) for task in tasks}
    small = [task for task in tasks if is_small[task.group_id]]
    large = [task for task in tasks if not is_small[task.group_id]]
    context.progress(_WHAT, 0, len(tasks))
    try:
        results = context.engine.map(rewrite_group, small, lambda done: context.progress(_WHAT, done, len(tasks)))
        return results + cluster_groups(
            context.engine,
            large,
            lambda paths: context.discard(loaded, paths),
            lambda done: context.progress(_WHAT, len(small) + done, len(tasks)),
        )
    except MaintenanceError:
        context.discard(loaded, [task.outputs.path() for task in tasks])  # those of the groups that were finished
        raise


def _task(loaded: LoadedTable, plan: CompactionPlan, group: FileGroup) -> RewriteTask:
    metadata = loaded.metadata
    deletes = {entry.file.key: entry for candidate in group.files for entry in candidate.deletes}
    numbers = {key: number for number, key in enumerate(deletes)}
    first = group.files[0].file.file_path
    folder = first.rpartition("/")[0] if is_under(first, metadata.data_location) else metadata.data_location
    return RewriteTask(
        group_id=group.group_id,
        inputs=tuple(
            InputFile(
                path=c.file.file_path,
                record_count=c.file.record_count,
                file_size_in_bytes=c.file.file_size_in_bytes,
                file_format=c.file.file_format,
                sequence_number=c.sequence_number,
                deletes=tuple(numbers[entry.file.key] for entry in c.deletes),
            )
            for c in group.files
        ),
        schema_json=json.dumps(metadata.current_schema),
        name_mapping_json=metadata.properties.get(_NAME_MAPPING),
        identity_values={
            int(field["source-id"]): value
            for field, value in zip(metadata.specs[group.spec_id]["fields"], group.partition, strict=True)
            if field["transform"] == "identity"
        },
        partition=group.partition,
        deletes=tuple(_delete_file(entry) for entry in deletes.values()),
        key_fields_json=json.dumps(_dropped_key_fields(metadata, deletes)),
        outputs=OutputNames(folder, f"compact-{plan.snapshot_id}-{group.group_id:05d}-{uuid.uuid4()}"),
        table_properties={k: v for k, v in metadata.properties.items() if k.startswith("write.")},
        io_properties=dict(loaded.io_properties),
        recipe=plan.recipe,
    )


def _delete_file(entry: ManifestEntry) -> DeleteFile:
    file = entry.file
    return DeleteFile(
        path=file.file_path,
        file_format=file.file_format,
        content=file.content,
        sequence_number=entry.sequence_number or 0,
        record_count=file.record_count,
        equality_ids=file.equality_ids or (),
    )


def _dropped_key_fields(metadata: TableMetadata, deletes: Mapping[Any, ManifestEntry]) -> list[dict[str, Any]]:
    """Columns of equality deletes that only older schemas have (ICEBERG-RULES 5); nullable, as old files may lack them.

    Raises:
        TableUnsupported: a column is in no schema, or inside a struct.
    """
    keys = {
        field_id
        for entry in deletes.values()
        if entry.file.content is FileContent.EQUALITY_DELETES
        for field_id in entry.file.equality_ids or ()
    }
    dropped = keys - {int(field["id"]) for field in metadata.current_schema["fields"]}
    fields = []
    for field_id in sorted(dropped):
        known = (f for schema in metadata.schemas_current_first for f in schema["fields"] if int(f["id"]) == field_id)
        field = next(known, None)
        if field is None:
            raise TableUnsupported(
                f"equality deletes use column {field_id}, which is no top-level column of any schema; the table was "
                "left alone"
            )
        fields.append({**field, "required": False})
    return fields
