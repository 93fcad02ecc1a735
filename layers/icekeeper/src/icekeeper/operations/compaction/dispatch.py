"""File groups become work units and go to the engine."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import MaintenanceError, TableUnsupported
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import FileContent, ManifestEntry, PartitionValue
from icekeeper.operations.compaction.arrow_schema import column_path, stored_schema
from icekeeper.operations.compaction.candidates import Candidate
from icekeeper.operations.compaction.clustering.exchange import cluster_groups, fits_one_worker
from icekeeper.operations.compaction.clustering.recipe import ClusterRecipe
from icekeeper.operations.compaction.plan import CompactionPlan, FileGroup
from icekeeper.operations.compaction.reading.lineage import with_lineage
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.operations.compaction.task import DeleteFile, InputFile, RewriteResult, RewriteTask, Routing
from icekeeper.operations.compaction.writing.metrics_modes import output_properties
from icekeeper.operations.compaction.writing.output_names import output_names
from icekeeper.operations.compaction.writing.planned_names import planned_names
from icekeeper.operations.context import OperationContext

__all__ = ["rewrite_groups"]

_NAME_MAPPING = "schema.name-mapping.default"
_WHAT = "compact: file groups"


def rewrite_groups(
    context: OperationContext, loaded: LoadedTable, plan: CompactionPlan, groups: Sequence[FileGroup]
) -> list[RewriteResult]:
    """Run the work unit over some groups of the plan.

    Raises:
        TableUnsupported: an equality delete cannot be applied by this version, or a column has a reserved name;
            nothing was written.
        StorageError: the engine broke.
    """
    proof = context.policy.proof.value
    tasks = [_task(loaded, plan, group, proof) for group in groups]
    if not tasks:
        return []
    # A group that has to be sorted and is too large for one worker is sorted by all of them together.
    is_small = {task.group_id: task.recipe is None or fits_one_worker(task) for task in tasks}
    small = [task for task in tasks if is_small[task.group_id]]
    large = [task for task in tasks if not is_small[task.group_id]]
    context.will_write(path for task in small for path in planned_names(task))
    context.progress(_WHAT, 0, len(tasks))
    try:
        results = context.engine.map(rewrite_group, small, lambda done: context.progress(_WHAT, done, len(tasks)))
        large += [task for task, result in zip(small, results, strict=True) if result.too_large]
        results = [result for result in results if not result.too_large]
        return results + cluster_groups(
            context.engine,
            large,
            will_write=context.will_write,
            discard=lambda paths: context.discard(loaded, paths),
            on_done=lambda done: context.progress(_WHAT, len(results) + done, len(tasks)),
        )
    except MaintenanceError:
        context.discard(loaded, [task.outputs.path() for task in tasks])  # those of the groups that were finished
        raise


def _task(loaded: LoadedTable, plan: CompactionPlan, group: FileGroup, proof: str) -> RewriteTask:
    metadata = loaded.metadata
    deletes = {entry.file.key: entry for candidate in group.files for entry in candidate.deletes}
    numbers = {key: number for number, key in enumerate(deletes)}
    stem = f"compact-{plan.snapshot_id}-{group.group_id:05d}-{uuid.uuid4()}"
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
                identity_values=_identity_values(metadata, c),
                first_row_id=c.file.first_row_id,
            )
            for c in group.files
        ),
        schema_json=json.dumps(_output_schema(metadata, group)),
        name_mapping_json=metadata.properties.get(_NAME_MAPPING),
        partition=group.partition,
        deletes=tuple(_delete_file(entry) for entry in deletes.values()),
        key_fields_json=json.dumps(_dropped_key_fields(metadata, deletes)),
        outputs=output_names(metadata, group.spec_id, group.partition, stem),
        table_properties=output_properties(metadata),
        io_properties=dict(loaded.io_properties),
        proof=proof,
        recipe=plan.recipe,
        output_count=group.output_count,
        routing=_routing(metadata, group.route_to),
        most_files=_most_files(plan.recipe, group),
    )


def _most_files(recipe: ClusterRecipe | None, group: FileGroup) -> int | None:
    """Files that are sorted already become fewer or it was for nothing, and would be again the next time."""
    if recipe is None or not all(candidate.is_clustered for candidate in group.files):
        return None
    return recipe.output_count(group.total_bytes)


def _routing(metadata: TableMetadata, spec_id: int | None) -> Routing | None:
    if spec_id is None:
        return None
    return Routing(spec_id, json.dumps(metadata.specs[spec_id]), json.dumps(metadata.schemas_current_first))


def _output_schema(metadata: TableMetadata, group: FileGroup) -> dict[str, Any]:
    stored = stored_schema(metadata.current_schema)
    return with_lineage(stored) if group.has_lineage else stored


def _identity_values(metadata: TableMetadata, candidate: Candidate) -> dict[int, PartitionValue]:
    fields = metadata.specs[candidate.spec_id]["fields"]
    return {
        int(field["source-id"]): value
        for field, value in zip(fields, candidate.file.partition, strict=True)
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


def _dropped_key_fields(metadata: TableMetadata, deletes: Mapping[Any, ManifestEntry]) -> list[dict[str, Any]]:
    """Columns of equality deletes that only older schemas have (ICEBERG-RULES 5); nullable, as old files may lack them.

    One that is in a struct comes with the structs around it, and nothing else in them.

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
        if column_path(metadata.current_schema["fields"], field_id) is not None:
            continue
        known = (_alone(schema["fields"], field_id) for schema in metadata.schemas_current_first)
        field = next((found for found in known if found is not None), None)
        if field is None:
            raise TableUnsupported(
                f"equality deletes use column {field_id}, which is unknown, or inside a list or map; the table was "
                "left alone"
            )
        fields.append(field)
    return fields


def _alone(fields: Sequence[Mapping[str, Any]], field_id: int) -> dict[str, Any] | None:
    """The field of that id, in its structs, which hold nothing else; all nullable."""
    path = column_path(fields, field_id)
    if path is None:
        return None
    field = {**fields[path[0]], "required": False}
    if len(path) > 1:
        field["type"] = {**field["type"], "fields": [_alone(field["type"]["fields"], field_id)]}
    return field
