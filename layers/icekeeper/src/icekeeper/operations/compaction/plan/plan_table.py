"""Plan the compaction of a table: read its manifests at the head of a branch, and the state's records about its files.

A table with very many files is planned on workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TypeAlias

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.snapshot import RECIPE_KEY
from icekeeper.errors import PolicyError, TableUnsupported
from icekeeper.metadata.document import TableMetadata, branch_head
from icekeeper.metadata.table_reader import delete_index
from icekeeper.model import LiveEntry, ManifestContent, Nothing
from icekeeper.operations.compaction.plan.candidates import FileScope, TableState
from icekeeper.operations.compaction.plan.lacking_settings import FileSample, lacking_by_footer
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan, plan_compaction
from icekeeper.operations.compaction.plan.plan_on_workers import may_be_planned_on_workers, plan_on_workers
from icekeeper.operations.compaction.plan.shredding import variants_by_footer
from icekeeper.operations.compaction.plan.where import file_scope
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, choose_recipe, table_recipe
from icekeeper.pass_context.context import OperationContext

Watch: TypeAlias = Callable[[Iterable[LiveEntry]], Iterable[LiveEntry]]


def plan_table(
    context: OperationContext, loaded: LoadedTable, watch: Watch, unreadable: Mapping[str, str]
) -> tuple[TableState, CompactionPlan | Nothing]:
    """The plan, and the state of the table on which it is based.

    ``watch`` returns all live entries of data files unchanged; it is not called if workers plan.  ``unreadable``: as in
    :class:`.TableState`.

    Raises:
        PolicyError: a setting or a property does not fit the table.
        MetadataUnreadable: a manifest is missing or damaged.
    """
    metadata, policy = loaded.metadata, context.policy
    snapshot = branch_head(metadata, policy.branch)
    reader = context.reader(loaded)
    manifests = [] if snapshot is None else reader.manifests(snapshot)
    recipe = choose_recipe(metadata, policy)
    in_scope = _scope(context, metadata)
    variants_of = variants_by_footer(context, loaded)
    # If footers are read, the manifests are read twice.
    lacking = lacking_by_footer(context, loaded, manifests, in_scope)
    state = TableState(
        metadata,
        snapshot,
        manifests,
        watch(reader.live_entries(manifests, ManifestContent.DATA)),
        # Without apply_deletes the plan stops at the first delete manifest, so none is read.
        delete_index(reader, manifests if policy.apply_deletes else ()),
        {} if policy.rewrite_all else unreadable,
        _ordered_by_table(context, metadata),
    )
    now_ms, cuts = context.started_ms, context.resolved.is_set("target_file_size_mb")
    # A dry run, a saved plan and variants need every entry here.
    needs_entries = context.dry_run or context.reviewed is not None or variants_of is not None
    if recipe is None and not needs_entries and may_be_planned_on_workers(manifests, policy):
        loaded.allowed.require(manifest.manifest_path for manifest in manifests)
        io_properties = loaded.io_properties
        return state, plan_on_workers(
            context.engine, state, policy, now_ms=now_ms, cuts=cuts, io_properties=io_properties
        )
    return state, plan_compaction(
        state,
        policy,
        now_ms=now_ms,
        in_scope=in_scope,
        recipe=recipe,
        clustered_by=frozenset() if recipe is None else _clustered_by(context, metadata, recipe),
        lacking=lacking,
        cuts=cuts,
        variants_of=variants_of,
    )


def sample_of(context: OperationContext, loaded: LoadedTable) -> FileSample:
    """A sample of the table's files, for a dry run."""
    own = table_recipe(loaded.metadata, context.policy)
    return FileSample(context, loaded, frozenset() if own is None else _clustered_by(context, loaded.metadata, own))


def _scope(context: OperationContext, metadata: TableMetadata) -> FileScope:
    """Which files to consider: those that the policy selects; if a saved plan is applied, only those that it names as
    well."""
    by_policy, reviewed = file_scope(context.policy, metadata, context.started_ms), context.reviewed
    if reviewed is None:
        return by_policy
    return lambda file, spec_id: file.file_path in reviewed.files and by_policy(file, spec_id)


def _clustered_by(context: OperationContext, metadata: TableMetadata, recipe: ClusterRecipe) -> frozenset[int]:
    """Ids of the snapshots that added files clustered by a recipe, from the state and from snapshot summaries."""
    by_summary = {i for i, snapshot in metadata.snapshots.items() if snapshot.summary.get(RECIPE_KEY) == recipe.text}
    return context.memory.clustered_by(recipe.text) | by_summary


def _ordered_by_table(context: OperationContext, metadata: TableMetadata) -> frozenset[int]:
    """Ids of the snapshots whose files have the table's own order, if the settings of the call only merge."""
    orders = context.resolved.orders
    if orders is None or context.policy.rewrite_all:
        return frozenset()
    with suppress(PolicyError, TableUnsupported):  # passes that order the table report the error
        recipe = choose_recipe(metadata, orders)
        return frozenset() if recipe is None else _clustered_by(context, metadata, recipe)
    return frozenset()
