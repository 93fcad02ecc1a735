"""The ``compact`` operation: plan, rewrite through an engine, commit the groups that are still valid, report.

A dry run reports the plan, and which settings of the table its files do not meet, from a sample of their footers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.snapshot import RECIPE_KEY
from icekeeper.errors import LocationRefused, MaintenanceError, PolicyError, TableUnsupported
from icekeeper.health.layout import LayoutTally
from icekeeper.machine.clock import stopwatch
from icekeeper.metadata.document import Snapshot, TableMetadata, branch_head, require_writable, schema_digest
from icekeeper.metadata.table_reader import TableReader, delete_index
from icekeeper.model import LiveEntry, ManifestContent, ManifestFile, Nothing
from icekeeper.operations.compaction.land.commit_groups import GroupOutcomes, commit_results
from icekeeper.operations.compaction.land.group_entries import OVERTAKEN, GroupEntries
from icekeeper.operations.compaction.land.rounds import in_commits
from icekeeper.operations.compaction.plan.candidates import FileScope, TableState, Tally
from icekeeper.operations.compaction.plan.payback import rewrite_price
from icekeeper.operations.compaction.plan.plan_groups import (
    CompactionPlan,
    NothingToCompact,
    done_depth,
    plan_compaction,
    planned_depth,
)
from icekeeper.operations.compaction.plan.plan_on_workers import may_be_planned_on_workers, plan_on_workers
from icekeeper.operations.compaction.plan.preview import (
    assumptions,
    cut_row_groups,
    cut_sentence,
    expected_outputs,
    expected_result,
    left_document,
    plan_document,
)
from icekeeper.operations.compaction.plan.where import file_scope, why_not_rewritten
from icekeeper.operations.compaction.run_groups import rewrite_and_commit
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe, choose_recipe, has_order, table_recipe
from icekeeper.operations.compaction.terms.rewrite_task import RewriteResult
from icekeeper.operations.compaction.terms.write_properties import (
    BY_FOOTER,
    files_lacking,
    partition_path,
    wanted_settings,
)
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation, Policy, Strategy
from icekeeper.policy.values import RewriteReason
from icekeeper.report.outcome import OperationOutcome, Status, skipped, succeeded, with_left_out
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.state.store import IdleSince
from icekeeper.state.table_memory import TableMemory
from icekeeper.text import counted, size_text

log = logging.getLogger(__name__)

_OPERATION = Operation.COMPACT
_MOST_TALLIED = 20_000
"""Of tables with at most so many data files, sizes and partitions are recorded: that takes 20 ms of a plan's second."""
_SAMPLE = 16
"""The number of footers that a dry run reads, at most."""


def compact(context: OperationContext) -> OperationOutcome:
    """Rewrite data files that are small, have many deletes or are not clustered, and commit the result.

    Summary and metric keys are those of SeaweedFS's worker (rule: seaweedfs-wording).

    Raises:
        MaintenanceError: nothing was committed.
    """
    with stopwatch() as elapsed_ms:
        loaded = context.load()
        metadata = loaded.metadata
        require_writable(metadata)
        if (why := why_not_rewritten(metadata)) is not None:
            return skipped(_OPERATION, why, metrics={"compact.duration_ms": elapsed_ms()})
        snapshot = branch_head(metadata, context.policy.branch)
        reader = context.reader(loaded)
        manifests = [] if snapshot is None else reader.manifests(snapshot)
        recipe = choose_recipe(metadata, context.policy)
        sample = FileSample(context.is_written, _lacks_order(context, metadata))
        in_scope = _file_scope(context, metadata)
        unreadable = UnreadableFiles(context.memory, metadata)
        entries, lacking = _entries(context, loaded, manifests, in_scope)
        tally = LayoutTally()
        state = TableState(
            metadata,
            snapshot,
            manifests,
            unreadable.watch(sample.watch(entries) if context.dry_run else tally.watch(entries, _MOST_TALLIED)),
            # Without apply_deletes the plan stops at the first delete manifest, so none is read.
            delete_index(reader, manifests if context.policy.apply_deletes else ()),
            {} if context.policy.rewrite_all else unreadable.waiting(),
            _ordered_elsewhere(context, metadata, recipe),
        )
        plan = _plan(context, loaded, state, recipe, in_scope, lacking)
        if not context.dry_run:
            unreadable.forget_gone(entry.file.file_path for entry in state.deletes.entries)
        if isinstance(plan, Nothing):
            _remember_files(context, metadata, tally)
            nothing = skipped(_OPERATION, plan.reason, metrics={"compact.duration_ms": elapsed_ms()})
            nothing = replace(nothing, idle_since=context.idle_since(metadata))
            document = _dry_run_document(context, loaded, plan, sample) if context.dry_run else None
            return replace(nothing, plan=document)
        loaded.allowed.require(chain((metadata.data_location,), plan.paths))
        if context.dry_run:
            return _planned(context, loaded, plan, sample)
        context.require_reviewed(loaded, plan.input_files)
        late = _late_deletes(reader, snapshot, state, plan)
        with context.job(_OPERATION, loaded, plan.snapshot_id) as rewriting:
            plan, outcomes = rewrite_and_commit(rewriting, loaded, plan)
            if outcomes.errors or outcomes.unreadable:
                rewriting.leaves_files()
        unreadable.note(plan, outcomes)
        _count_replaced(tally, plan, outcomes)
        _remember_files(context, metadata, tally)
        outcome = _outcome(plan, outcomes, loaded.metadata.properties, context.policy)
        metrics = {**outcome.metrics, "compact.deletes_late": len(late), "compact.duration_ms": elapsed_ms()}
        outcome = _with_late(outcome, late)
        return replace(outcome, metrics=metrics, idle_since=_idle_since(context, metadata, plan, outcomes))


def _late_deletes(
    reader: TableReader, snapshot: Snapshot | None, state: TableState, plan: CompactionPlan
) -> Mapping[str, str]:
    """As :func:`.late_deletes`; none if the history cannot be read, because this is only told."""
    if snapshot is None or 0 not in plan.delete_needs.values():
        return {}
    # Imported here, because few tables have such deletes.
    from icekeeper.operations.compaction.land.forward_deletes import late_deletes

    try:
        return late_deletes(reader, snapshot, state.deletes, plan.delete_needs)
    except MaintenanceError as error:
        log.warning("whether deletes came too late is not known: %s", error)
        return {}


def _with_late(outcome: OperationOutcome, late: Mapping[str, str]) -> OperationOutcome:
    """Name the deletes that came after their data files had been rewritten; they are dropped like all dangling ones."""
    if not late:
        return outcome
    path, delete = min(late.items())
    note = (
        f"{counted(len(late), 'delete file')} came after the data files that they name had been rewritten, and deleted "
        f"nothing, because their writer does not check that; repeat the deletes, such as {delete}, which names {path}"
    )
    log.warning("%s", note)
    return replace(outcome, summary=f"{outcome.summary}; {note}")


def _file_scope(context: OperationContext, metadata: TableMetadata) -> FileScope:
    """Which files to consider: those that the policy names, and of them only those of a saved plan, if there is one."""
    by_policy, reviewed = file_scope(context.policy, metadata, context.started_ms), context.reviewed
    if reviewed is None:
        return by_policy
    return lambda file, spec_id: file.file_path in reviewed.files and by_policy(file, spec_id)


def _count_replaced(tally: LayoutTally, plan: CompactionPlan, outcomes: GroupOutcomes) -> None:
    """Count the files that the committed groups wrote instead of their inputs."""
    for group in plan.groups if tally.is_whole else ():
        result = outcomes.committed.get(group.group_id)
        if result is not None:
            for one in group.files:
                tally.remove(one.spec_id, one.partition, one.file_size_in_bytes)
            for file in result.written:
                tally.add(group.spec_id if result.spec_id is None else result.spec_id, file)


def _remember_files(context: OperationContext, metadata: TableMetadata, tally: LayoutTally) -> None:
    """Record sizes and partitions for the report page; not of large tables, and without delete files, which the plan
    holds without their specs."""
    specs, schemas = metadata.specs, metadata.schemas_current_first
    if tally.is_whole and not context.dry_run:
        with suppress(TableUnsupported):  # a partition transform without a text
            context.memory.remember_files(
                tally.facts(lambda spec, values: partition_path(specs[spec], values, schemas))
            )


def _plan(
    context: OperationContext,
    loaded: LoadedTable,
    state: TableState,
    recipe: ClusterRecipe | None,
    in_scope: FileScope,
    lacking: Mapping[str, frozenset[RewriteReason]],
) -> CompactionPlan | Nothing:
    """The plan, made by workers if the table is large; a dry run and a saved plan need every entry here."""
    policy, now_ms, cuts = context.policy, context.started_ms, _may_cut(context)
    needs_entries = context.dry_run or context.reviewed is not None
    if recipe is None and not needs_entries and may_be_planned_on_workers(state.manifests, policy):
        loaded.allowed.require(manifest.manifest_path for manifest in state.manifests)
        io_properties = loaded.io_properties
        return plan_on_workers(context.engine, state, policy, now_ms=now_ms, cuts=cuts, io_properties=io_properties)
    return plan_compaction(
        state,
        policy,
        now_ms=now_ms,
        in_scope=in_scope,
        recipe=recipe,
        clustered_by=frozenset() if recipe is None else _clustered_by(context, state.metadata, recipe),
        lacking=lacking,
        cuts=cuts,
    )


def _planned(
    context: OperationContext, loaded: LoadedTable, plan: CompactionPlan, sample: FileSample
) -> OperationOutcome:
    if plan.groups:
        outputs = sum(map(expected_outputs, plan.groups))
        summary = f"would compact {len(plan.input_files)} files into {outputs} (across {len(plan.groups)} bins)"
    else:
        summary = f"would drop {sum(count == 0 for count in plan.delete_needs.values())} delete file(s)"
    summary += _kept_sentence(plan)
    planned = {"compact.bytes_planned": sum(group.total_bytes for group in plan.groups)}
    metrics = {**_counters(plan), **planned, **planned_depth(plan)}
    would = succeeded(_OPERATION, summary, metrics=metrics, files_planned=plan.input_files)
    context.would_commit(_OPERATION, partial(_commit_expected, context, loaded, plan))
    return replace(would, plan=_dry_run_document(context, loaded, plan, sample))


def _clustered_by(context: OperationContext, metadata: TableMetadata, recipe: ClusterRecipe) -> frozenset[int]:
    """Ids of the snapshots that added files clustered by a recipe, from the state and from snapshot summaries."""
    by_summary = {i for i, snapshot in metadata.snapshots.items() if snapshot.summary.get(RECIPE_KEY) == recipe.text}
    return context.memory.clustered_by(recipe.text) | by_summary


def _ordered_elsewhere(context: OperationContext, metadata: TableMetadata, own: ClusterRecipe | None) -> frozenset[int]:
    """Ids of the snapshots whose files another schedule has sorted, if this schedule only merges
    (rule: keep-order-of-other-schedules)."""
    found: frozenset[int] = frozenset()
    if context.policy.names_an_order or context.policy.rewrite_all:
        return found
    for other in context.resolved.beside:
        with suppress(PolicyError, TableUnsupported):  # the other schedule reports it
            recipe = choose_recipe(metadata, other) if other.names_an_order else None
            if recipe is not None and (own is None or recipe.text != own.text):
                found |= _clustered_by(context, metadata, recipe)
    return found


def _may_cut(context: OperationContext) -> bool:
    """Whether the target size is set explicitly and no other schedule merges files to a larger one
    (rule: cut-only-with-explicit-target)."""
    policy, beside = context.policy, context.resolved.beside
    is_largest = all(other.target_file_size_bytes <= policy.target_file_size_bytes for other in beside)
    return context.resolved.is_set("target_file_size_mb") and is_largest


def _entries(
    context: OperationContext, loaded: LoadedTable, manifests: Sequence[ManifestFile], in_scope: FileScope
) -> tuple[Iterable[LiveEntry], Mapping[str, frozenset[RewriteReason]]]:
    """The live data files, and path → reasons of ``rewrite_reason`` that apply to files in scope, by their footers.

    Files in other formats than Parquet have no footer; all reasons apply to them.  If footers are read, the manifests
    are read twice.
    """
    reader = context.reader(loaded)
    asked = BY_FOOTER.intersection(context.policy.rewrite_reason)
    if not asked:
        return reader.live_entries(manifests, ManifestContent.DATA), {}
    lacking, paths = {}, []
    for manifest, entry in reader.live_entries(manifests, ManifestContent.DATA):
        if in_scope(entry.file, manifest.partition_spec_id):
            if entry.file.file_format.upper() != "PARQUET":
                lacking[entry.file.file_path] = asked
            elif context.is_written(entry.file.file_path):
                paths.append(entry.file.file_path)
    loaded.allowed.require(paths)
    found = files_lacking(
        paths,
        wanted_settings(loaded.metadata.current_schema, loaded.metadata.properties),
        context.storage(loaded),
        lambda done: context.progress("compact: footers", done, len(paths)),
    )
    lacking |= {path: lacks & asked for path, lacks in found.items() if lacks & asked}
    return reader.live_entries(manifests, ManifestContent.DATA), lacking


def _dry_run_document(
    context: OperationContext, loaded: LoadedTable, plan: CompactionPlan | Nothing, sample: FileSample
) -> dict[str, Any] | None:
    """The ``plan`` document of a dry run; ``None``: it has nothing to report."""
    document: dict[str, Any] = {}
    if isinstance(plan, CompactionPlan):
        document = plan_document(plan, loaded.metadata) | assumptions(context.resolved)
    if isinstance(plan, NothingToCompact) and plan.left:
        document |= left_document(plan.left)
    lacking = _lacking_settings(context, loaded, sample)
    if not (isinstance(plan, CompactionPlan) and plan.groups and plan.recipe):
        lacking = [*lacking, *_lacking_order(sample, context.policy)]
    return (document | ({"settings": lacking} if lacking else {})) or None


def _lacking_settings(context: OperationContext, loaded: LoadedTable, sample: FileSample) -> list[dict[str, Any]]:
    """``settings`` in ``plan --json``: one entry per setting that sampled files do not meet; sums are estimates."""
    with suppress(PolicyError, LocationRefused):  # of a property or a folder: the rewrite itself reports it
        chosen = sample.paths()
        loaded.allowed.require(chosen)
        wanted = wanted_settings(loaded.metadata.current_schema, loaded.metadata.properties)
        found = files_lacking(chosen, wanted, context.storage(loaded))
        return [
            _setting(
                reason.value,
                len(chosen),
                count,
                round(sample.count * count / len(chosen)),
                round(sample.bytes * count / len(chosen)),
                f"rewrite_reason={reason.value}",
                context.policy,
            )
            for reason, count in sorted(Counter(reason for lacks in found.values() for reason in lacks).items())
        ]
    return []


def _lacking_order(sample: FileSample, policy: Policy) -> list[dict[str, Any]]:
    """``settings`` for a sort order that no file of the table has yet; passes sort new files, not existing ones."""
    if not sample.unsorted or sample.unsorted < sample.all.files:
        return []
    how = "strategy=sort, rewrite_all=true" if policy.strategy is Strategy.BINPACK else "rewrite_all=true"
    files = sample.all.files
    return [_setting("sort_order", files, sample.unsorted, files, sample.all.bytes, how, policy)]


def _setting(
    reason: str, sampled: int, lacking: int, files: int, size_bytes: int, how: str, policy: Policy
) -> dict[str, Any]:
    return {
        "reason": reason,
        "sampled": sampled,
        "lacking": lacking,
        "files": files,
        "bytes": size_bytes,
        "cost_usd": round(rewrite_price(size_bytes, policy), 9),
        "how": how,
    }


def _commit_expected(context: OperationContext, loaded: LoadedTable, plan: CompactionPlan) -> None:
    """Commit the expected output files to the planned table of a dry run."""
    outcomes = GroupOutcomes(dict(plan.delete_needs))
    stem = f"{loaded.metadata.data_location}/expected-{plan.snapshot_id}"
    types = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(loaded.metadata.current_schema)}
    entries = GroupEntries(context.reader(loaded), plan)
    # The first commit after an upgrade to v3 gives ids to all rows.  A pass goes on with them; here there is none.
    lacks_ids = loaded.metadata.format_version >= 3 and not all(group.has_lineage for group in plan.groups)
    for groups in in_commits(plan.groups, 0 if lacks_ids else context.policy.partial_progress):
        results = []
        for group in groups:
            found = entries.of([group])
            inputs = [found[c.file_path] for c in group.files if c.file_path in found]
            if len(inputs) < len(group.files):
                results.append(RewriteResult(group_id=group.group_id, overtaken=OVERTAKEN))
            else:
                results.append(expected_result(group, inputs, stem, types))
        commit_results(context, loaded, plan, results, outcomes)


def _lacks_order(context: OperationContext, metadata: TableMetadata) -> Callable[[LiveEntry], bool]:
    """Return a predicate: are the rows of a file not in the table's own sort order?  Only for a dry run."""
    recipe = table_recipe(metadata, context.policy) if context.dry_run else None
    if recipe is None:
        return lambda live: False
    clustered_by, order_id = _clustered_by(context, metadata, recipe), recipe.order_id
    return lambda live: not has_order(live, metadata, clustered_by, order_id)


def _outcome(
    plan: CompactionPlan, outcomes: GroupOutcomes, properties: Mapping[str, str], policy: Policy
) -> OperationOutcome:
    groups = [group for group in plan.groups if group.group_id in outcomes.committed]
    results = [outcomes.committed[group.group_id] for group in groups]
    written = [file for result in results for file in result.written]
    merged = sum(len(group.files) for group in groups)
    bytes_dropped = sum(group.total_bytes for group in plan.groups if group.group_id in outcomes.dropped)
    # Copied row groups have the size that writers gave them.
    cut = cut_row_groups((file for result in results if not result.bytes_copied for file in result.written), properties)
    metrics = {
        **_counters(plan),
        "compact.files_merged": merged,
        "compact.files_written": len(written),
        "compact.bins": len(groups),
        "compact.bytes_read": sum(group.total_bytes for group in groups),
        "compact.bytes_written": sum(file.file_size_in_bytes for file in written),
        "compact.bytes_copied": sum(result.bytes_copied for result in results),
        "compact.bytes_unread": sum(result.bytes_unread for result in results),
        "compact.rows_rewritten": sum(group.record_count for group in groups),
        "compact.rows_deleted": sum(result.rows_deleted for result in results),
        "compact.delete_files_removed": outcomes.deletes_removed,
        "compact.bins_dropped": len(outcomes.dropped),
        "compact.bytes_dropped": bytes_dropped,
        "compact.rows_forwarded": outcomes.rows_forwarded,
        "compact.bins_failed": outcomes.failed_groups,
        "compact.bins_waiting": plan.groups_waiting + outcomes.groups_left,
        "compact.commits": len(outcomes.snapshot_ids),
        "compact.row_groups_cut": len(cut),
        **done_depth(plan, outcomes.depth),
    }
    overtaken = _overtaken(outcomes, bytes_dropped)
    summary = _summary(plan, outcomes, merged, len(written), cut_sentence(cut, properties, policy) + overtaken)
    problems = [f"{outcomes.failed_groups} bin(s) failed: {outcomes.errors[0]}"] if outcomes.errors else []
    if not outcomes.snapshot_ids and outcomes.dropped and not outcomes.errors:
        problems.append(f"every bin was overtaken by other commits: {outcomes.nothing}")
    elif len(outcomes.dropped) > len(groups):
        problems.append(f"most bins were overtaken by other commits{overtaken}")
    if not outcomes.snapshot_ids and not problems and not outcomes.groups_left:
        return with_left_out(skipped(_OPERATION, outcomes.nothing, metrics=metrics), outcomes.unreadable)
    ended = OperationOutcome(
        operation=_OPERATION,
        status=Status.FAILED if problems else Status.SUCCEEDED,
        reason="; ".join(problems) or None,
        summary="; ".join(problems) if problems and not outcomes.snapshot_ids else summary,
        snapshot_ids=tuple(outcomes.snapshot_ids),
        metrics=metrics,
        files_planned=() if plan.is_packed else plan.input_files,
    )
    return with_left_out(ended, outcomes.unreadable)


def _summary(plan: CompactionPlan, outcomes: GroupOutcomes, merged: int, written: int, notes: str) -> str:
    if not plan.groups:
        summary = f"dropped {outcomes.deletes_removed} delete file(s) that no data file needs"
    else:
        summary = f"compacted {merged} files into {written} (across {len(outcomes.committed)} bins)" + notes
        if outcomes.rows_forwarded:
            summary += f"; forwarded the deletes of {counted(outcomes.rows_forwarded, 'row')} that came meanwhile"
        if outcomes.groups_left:
            summary += f"; {outcomes.groups_left} bin(s) wait for the next run, {outcomes.why_left}"
    if plan.files_unsupported:
        summary += f"; left {plan.files_unsupported} file(s) alone: {plan.first_unsupported}"
    return summary + _kept_sentence(plan)


def _kept_sentence(plan: CompactionPlan) -> str:
    return f"; {counted(plan.files_kept, 'file')} stay in an old spec: {plan.first_kept}" if plan.files_kept else ""


def _overtaken(outcomes: GroupOutcomes, bytes_dropped: int) -> str:
    if not outcomes.dropped:
        return ""
    why = next(iter(outcomes.dropped.values()))
    return f"; {counted(len(outcomes.dropped), 'bin')} of {size_text(bytes_dropped)} rewritten in vain: {why}"


def _idle_since(
    context: OperationContext, metadata: TableMetadata, plan: CompactionPlan, outcomes: GroupOutcomes
) -> IdleSince | None:
    """The record that the table needs nothing more; ``None`` unless every group was committed and none waits."""
    # Unreadable files wait, as unsupported ones do.  A group that was given up may have left readable files.
    troubles = outcomes.errors or outcomes.groups_given_up or outcomes.dropped or outcomes.groups_left
    idle = context.idle_since(metadata)
    if plan.groups_waiting or troubles or not outcomes.snapshot_ids or idle is None:
        return None
    return replace(idle, run_id=context.run_id)  # the plan did not include commits of others since


def _counters(plan: CompactionPlan) -> dict[str, int]:
    return {
        "compact.files_considered": plan.files_considered,
        "compact.files_unsupported": plan.files_unsupported,
        "compact.bins_waiting": plan.groups_waiting,
    }


class UnreadableFiles:
    """The files of one table that earlier passes could not read (rule: retry-unreadable-files-weekly)."""

    def __init__(self, memory: TableMemory, metadata: TableMetadata) -> None:
        """Raises StorageError: the state cannot be read."""
        self._memory = memory
        self._schema_digest = schema_digest(metadata)
        self._known = memory.unreadable_files()
        # The known files that the table still has; complete once all entries were watched.
        self._live: set[str] = set()
        self._saw_all = False

    def waiting(self) -> dict[str, str]:
        """The files that this pass does not try again: path → a sentence that names it."""
        return self._memory.waiting_of(self._known, self._schema_digest)

    def watch(self, entries: Iterable[LiveEntry]) -> Iterator[LiveEntry]:
        """Return all ``entries`` of live data files unchanged, and note those of known files."""
        for live in entries:
            if live.entry.file.file_path in self._known:
                self._live.add(live.entry.file.file_path)
            yield live
        self._saw_all = True

    def forget_gone(self, delete_files: Iterable[str]) -> None:
        """Forget files that the table no longer has; ``delete_files`` are the paths of all its live delete files."""
        if self._saw_all:
            self._forget(self._known.keys() - self._live - set(delete_files))

    def note(self, plan: CompactionPlan, outcomes: GroupOutcomes) -> None:
        """Remember files that could not be read, and forget known files that could."""
        if outcomes.unreadable:
            self._memory.remember_unreadable(outcomes.unreadable, self._schema_digest)
        if self._known:
            merged = [c for group in plan.groups if group.group_id in outcomes.committed for c in group.files]
            read = {c.file_path for c in merged} | {e.file.file_path for c in merged for e in c.deletes}
            self._forget(self._known.keys() & read)

    def _forget(self, paths: Collection[str]) -> None:
        if paths:
            self._memory.forget_unreadable(sorted(paths))


class FileSample:
    """A few Parquet files, taken evenly from all entries; at most twice as many paths are held in memory."""

    def __init__(self, is_written: Callable[[str], bool], lacks_order: Callable[[LiveEntry], bool]) -> None:
        """``is_written``: whether a file exists; expected outputs of a dry run have no footer.

        ``lacks_order``: whether the rows of a file are not in the table's sort order.
        """
        self._is_written, self._lacks_order = is_written, lacks_order
        self.all = Tally()
        """All live data files."""
        self.unsorted = 0
        """The number of files that are not in the table's sort order."""
        self.count = 0
        self.bytes = 0
        self._kept: list[str] = []
        self._step = 1

    def watch(self, entries: Iterable[LiveEntry]) -> Iterator[LiveEntry]:
        """Sample ``entries`` and return them unchanged."""
        for live in entries:
            self.all.add(live.entry.file)
            self.unsorted += self._lacks_order(live)
            file = live.entry.file
            if file.file_format.upper() == "PARQUET" and self._is_written(file.file_path):
                if self.count % self._step == 0:
                    self._kept.append(file.file_path)
                self.count += 1
                self.bytes += file.file_size_in_bytes
                if len(self._kept) > 2 * _SAMPLE:
                    self._kept, self._step = self._kept[::2], 2 * self._step
            yield live

    def paths(self) -> list[str]:
        return self._kept[:: max(1, -(-len(self._kept) // _SAMPLE))]
