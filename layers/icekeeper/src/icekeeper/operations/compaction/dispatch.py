"""Makes a task of each file group and has the engine run them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import MaintenanceError
from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.compaction.bins import Reason
from icekeeper.operations.compaction.clustering.exchange import cluster_groups, fits_one_worker
from icekeeper.operations.compaction.group_batches import in_batches, rewrite_batch
from icekeeper.operations.compaction.large_files import LARGEST_OUTPUT, pieces
from icekeeper.operations.compaction.likely_copied import may_be_copied, output_bytes
from icekeeper.operations.compaction.plan import CompactionPlan, FileGroup
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.operations.compaction.task import Copying, RewriteResult, RewriteTask, Routing
from icekeeper.operations.compaction.writing.float_statistics import misread_columns
from icekeeper.operations.compaction.writing.metrics_modes import output_properties
from icekeeper.operations.compaction.writing.output_names import output_names
from icekeeper.operations.compaction.writing.planned_names import planned_files
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Policy
from icekeeper.rows.arrow_schema import LeafColumn, leaf_columns, stored_schema
from icekeeper.rows.lineage import with_lineage
from icekeeper.rows.make_read_task import make_read_task

__all__ = ["rewrite_groups"]

_PROGRESS = "compact: file groups"


def rewrite_groups(
    context: OperationContext, loaded: LoadedTable, plan: CompactionPlan, groups: Sequence[FileGroup]
) -> list[RewriteResult]:
    """Rewrite some groups of the plan, and return a result for each, in any order.

    Raises:
        TableUnsupported: an equality delete cannot be applied by this version, or a column has a reserved name;
            nothing was written.
        StorageError: the engine broke.
    """
    if not groups:
        return []
    proof, stored = context.policy.proof.value, stored_schema(loaded.metadata.current_schema)
    leaves = leaf_columns(stored)
    tasks = [
        replace(
            _task(loaded, plan, group, stored, leaves, proof, context.policy.verify_page_checksums),
            row_group_memory_bytes=context.policy.row_group_memory_bytes,
            copying=_copying(plan, group, context.policy),
        )
        for group in groups
    ]
    # A group that has to be sorted and is too large for one worker is sorted by all of them together.
    is_small = {task.group_id: task.recipe is None or fits_one_worker(task) for task in tasks}
    small = [task for task in tasks if is_small[task.group_id]]
    large = [task for task in tasks if not is_small[task.group_id]]
    context.will_write(file.record for task in small for file in planned_files(task))
    context.progress(_PROGRESS, 0, len(tasks))
    try:
        results = _mapped(context, small, len(tasks))
        large += [_under_new_names(task) for task, result in zip(small, results, strict=True) if result.too_large]
        results = [result for result in results if not result.too_large]
        return results + cluster_groups(
            context.engine,
            large,
            will_write=context.will_write,
            discard=lambda paths: context.discard(loaded, paths),
            on_done=lambda done: context.progress(_PROGRESS, len(results) + done, len(tasks)),
        )
    except MaintenanceError:
        # Removes what finished groups wrote.  What attempts write that still run is removed later, by the job's record.
        context.discard(loaded, (path for task in small for file in planned_files(task) for path in file.paths))
        raise


def _mapped(context: OperationContext, tasks: Sequence[RewriteTask], of: int) -> list[RewriteResult]:
    """The result of each task, in their order; ``of`` is the number of groups of which progress is told."""
    batches = in_batches(tasks)
    if len(batches) == len(tasks):
        return context.engine.map(rewrite_group, tasks, lambda done: context.progress(_PROGRESS, done, of))
    done_tasks = [0, *accumulate(len(batch.tasks) for batch in batches)]  # about: batches end in any order
    results = context.engine.map(
        rewrite_batch, batches, lambda done: context.progress(_PROGRESS, done_tasks[min(done, len(batches))], of)
    )
    return [result for batch in results for result in batch]


def _under_new_names(task: RewriteTask) -> RewriteTask:
    """The task under other file names, because an attempt of the first try may still run and write."""
    return replace(task, outputs=replace(task.outputs, stem=f"{task.outputs.stem}-sorted"))


def _task(
    loaded: LoadedTable,
    plan: CompactionPlan,
    group: FileGroup,
    stored: Mapping[str, Any],
    leaves: Sequence[LeafColumn],
    proof: str,
    verify_checksums: bool,
) -> RewriteTask:
    """The group's task; ``stored`` is the table's schema as outputs hold it, ``leaves`` are its columns."""
    metadata = loaded.metadata
    schema = with_lineage(stored) if group.has_lineage else stored
    rows = make_read_task(metadata, group.files, schema, loaded.io_properties, verify_checksums=verify_checksums)
    stem = f"compact-{plan.snapshot_id}-{group.group_id:05d}-{uuid.uuid4()}"
    return RewriteTask(
        group_id=group.group_id,
        inputs=rows.inputs,
        schema=rows.schema,
        name_mapping=rows.name_mapping,
        by_position=rows.by_position,
        deletes=rows.deletes,
        key_fields=rows.key_fields,
        io_properties=rows.io_properties,
        verify_checksums=rows.verify_checksums,
        partition=group.partition,
        outputs=output_names(metadata, group.spec_id, group.partition, stem),
        table_properties=output_properties(metadata),
        proof=proof,
        recipe=plan.recipe,
        output_count=group.output_count,
        routing=_routing(metadata, group.route_to),
        most_files=_most_files(plan.recipe, group),
        misread_columns=misread_columns((candidate.file for candidate in group.files), leaves),
    )


def _copying(plan: CompactionPlan, group: FileGroup, policy: Policy) -> Copying | None:
    """What of a group may be copied; ``None``: nothing, or its rows change their order or their partition."""
    if plan.recipe is not None or group.route_to is not None:
        return None
    files = [candidate.file for candidate in group.files]
    cut = pieces(files[0], policy) if group.reason is Reason.LARGE else ()
    likely = {i: files[i] for i, candidate in enumerate(group.files) if cut or may_be_copied(candidate, policy)}
    if not likely:
        return None
    return Copying(
        entries=likely,
        sizes=tuple(output_bytes(candidate, policy, plan.sizes) for candidate in group.files),
        # What is cut has no other row groups than before, however small they are.
        min_row_group_bytes=1 if cut else policy.min_row_group_copy_bytes or 1,
        full_row_group_memory=policy.full_row_group_memory_bytes,
        smallest_output_bytes=policy.min_file_size_bytes,
        largest_output_bytes=int(LARGEST_OUTPUT * policy.target_file_size_bytes),
        pieces=cut,
    )


def _most_files(recipe: ClusterRecipe | None, group: FileGroup) -> int | None:
    """How many outputs sorted files may become at most; ``None``: any number, as some input is not clustered yet.

    Otherwise a group of clustered files could come out as many as before, and be chosen again by every pass.
    """
    if recipe is None or not all(candidate.is_clustered for candidate in group.files):
        return None
    return recipe.output_count(group.total_bytes)


def _routing(metadata: TableMetadata, spec_id: int | None) -> Routing | None:
    if spec_id is None:
        return None
    return Routing(spec_id, metadata.specs[spec_id], metadata.schemas_current_first)
