"""The tasks of planned file groups for workers, including which row groups they may copy."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import DataFile
from icekeeper.operations.compaction.plan.bins import FileGroup, Reason
from icekeeper.operations.compaction.plan.large_files import LARGEST_OUTPUT
from icekeeper.operations.compaction.plan.output_sizes import output_bytes
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan
from icekeeper.operations.compaction.terms.output_names import output_names
from icekeeper.operations.compaction.terms.rewrite_task import FULL_ROW_GROUP_BYTES, Copying, RewriteTask, Routing
from icekeeper.operations.compaction.terms.write_properties import misread_columns, output_properties
from icekeeper.policy import Policy
from icekeeper.rows.arrow_schema import leaf_columns, with_variants
from icekeeper.rows.read_task import make_read_task, with_lineage


def needs_entries(plan: CompactionPlan, group: FileGroup, *, has_floats: bool) -> bool:
    """Whether the task needs the column metrics of the group's files: to copy row groups, or for float columns."""
    return _may_copy(plan, group) or (has_floats and not _is_checked(group))


def group_task(
    loaded: LoadedTable,
    plan: CompactionPlan,
    group: FileGroup,
    entries: Mapping[str, DataFile],
    stored: Mapping[str, Any],
    policy: Policy,
) -> RewriteTask:
    """The group's task; ``entries`` has its files by path if column metrics matter, ``stored`` is the schema of output
    files."""
    metadata, to = loaded.metadata, group.route_to
    stored = with_variants(stored, group.variants)
    schema = with_lineage(stored) if group.has_lineage else stored
    rows = make_read_task(metadata, group.files, schema, loaded.io_properties)
    leaving = [candidate.destination[0] != candidate.spec_id for candidate in group.files]
    if any(leaving):
        asked = zip(rows.inputs, leaving, strict=True)
        checked = (replace(file, must_agree=file.must_agree or leaves) for file, leaves in asked)
        rows = replace(rows, inputs=tuple(checked))
    keeps_row_maps = (plan.recipe is not None or to is not None) and _expects_row_deletes(metadata, plan)
    if keeps_row_maps:
        firsts = accumulate((source.record_count for source in rows.inputs), initial=0)
        numbered = (replace(file, number_from=first) for file, first in zip(rows.inputs, firsts, strict=False))
        rows = replace(rows, inputs=tuple(numbered))
    most_files = None
    if plan.recipe is not None and all(candidate.is_clustered for candidate in group.files):
        # Without a limit, clustered files could be rewritten into as many files as before, and every pass would select
        # them again.
        most_files = plan.recipe.output_count(group.total_bytes)
    stem = f"compact-{plan.snapshot_id}-{group.group_id:05d}-{uuid.uuid4()}"
    return RewriteTask(
        **{each.name: getattr(rows, each.name) for each in fields(rows)},
        group_id=group.group_id,
        partition=group.partition,
        outputs=output_names(metadata, group.spec_id, group.partition, stem),
        table_properties=output_properties(metadata),
        proof=policy.proof.value,
        recipe=plan.recipe,
        output_count=group.output_count,
        copying=_copying(plan, group, entries, policy),
        routing=None if to is None else Routing(to, metadata.specs[to], metadata.schemas_current_first),
        most_files=most_files,
        keeps_row_maps=keeps_row_maps,
        misread_columns=frozenset[int]().union(*(c.condition.misread_columns or () for c in group.files))
        | misread_columns((entries[c.file_path] for c in group.files if c.file_path in entries), leaf_columns(stored)),
    )


def _expects_row_deletes(metadata: TableMetadata, plan: CompactionPlan) -> bool:
    """Whether writers delete single rows of the table, judged by its properties, snapshots and delete files (pure).

    Row maps cost a few bytes per row, so they are not written for append-only tables.
    """
    properties = metadata.properties
    merges_on_read = any(
        properties.get(f"write.{verb}.mode") == "merge-on-read" for verb in ("delete", "update", "merge")
    )
    has_deletes = plan.delete_needs or any(
        "added-delete-files" in known.summary for known in metadata.snapshots.values()
    )
    return metadata.format_version >= 2 and bool(merges_on_read or has_deletes)


def _is_checked(group: FileGroup) -> bool:
    """Whether the plan found out which float columns of the files would be misread."""
    return all(c.condition.misread_columns is not None for c in group.files)


def _may_copy(plan: CompactionPlan, group: FileGroup) -> bool:
    """Whether row groups may be copied; false if rows change their order or partition, for example."""
    if plan.recipe is not None or group.route_to is not None:
        return False
    return group.reason is Reason.LARGE or any(c.condition.may_be_copied for c in group.files)


def _copying(plan: CompactionPlan, group: FileGroup, entries: Mapping[str, DataFile], policy: Policy) -> Copying | None:
    """The row groups that may be copied; ``None`` if none may be."""
    if not _may_copy(plan, group):
        return None
    cut = group.files[0].condition.pieces if group.reason is Reason.LARGE else ()
    return Copying(
        entries={
            number: entries[candidate.file_path]
            for number, candidate in enumerate(group.files)
            if cut or candidate.condition.may_be_copied
        },
        sizes=tuple(output_bytes(candidate, plan.sizes) for candidate in group.files),
        # A file that is cut keeps its row groups, even small row groups.
        min_row_group_bytes=1 if cut else policy.min_row_group_copy_bytes or 1,
        full_row_group_memory=FULL_ROW_GROUP_BYTES,
        smallest_output_bytes=policy.min_file_size_bytes,
        largest_output_bytes=int(LARGEST_OUTPUT * policy.target_file_size_bytes),
        pieces=cut,
    )
