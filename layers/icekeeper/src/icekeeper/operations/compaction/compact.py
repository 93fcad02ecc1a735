"""The ``compact`` operation: plan, rewrite through an engine, commit the groups that are still valid, report.

A dry run reports the plan, and which settings of the table its files do not meet, from a sample of their footers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.machine.clock import stopwatch
from icekeeper.metadata.document import require_writable
from icekeeper.model import Nothing
from icekeeper.operations.compaction.land.expected_files import commit_expected
from icekeeper.operations.compaction.land.remembered_files import RememberedFiles
from icekeeper.operations.compaction.land.summary import leaves_work, outcome_of, too_late, with_late
from icekeeper.operations.compaction.plan.plan_table import plan_table, sample_of
from icekeeper.operations.compaction.plan.preview import previewed
from icekeeper.operations.compaction.plan.where import why_not_rewritten
from icekeeper.operations.compaction.run_groups import rewrite_and_commit
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, skipped

_OPERATION = Operation.COMPACT


def compact(context: OperationContext) -> OperationOutcome:
    """Rewrite data files that are small, have many deletes or are not clustered, and commit the result.

    Raises:
        MaintenanceError: nothing was committed.
    """
    with stopwatch() as elapsed_ms:
        loaded = context.load()
        require_writable(loaded.metadata)
        if (why := why_not_rewritten(loaded.metadata)) is not None:
            outcome = skipped(_OPERATION, why)
        elif context.dry_run:
            outcome = _preview(context, loaded)
        else:
            outcome = _run(context, loaded)
        return replace(outcome, metrics={**outcome.metrics, "compact.duration_ms": elapsed_ms()})


def _preview(context: OperationContext, loaded: LoadedTable) -> OperationOutcome:
    """Report what a pass would do, and let later operations of the dry run plan on it."""
    files, sample = RememberedFiles(context, loaded.metadata), sample_of(context, loaded)
    _, plan = plan_table(context, loaded, lambda entries: files.watch(sample.watch(entries)), files.waiting())
    if not isinstance(plan, Nothing):
        loaded.allowed.require(chain((loaded.metadata.data_location,), plan.paths))
        context.would_commit(_OPERATION, partial(commit_expected, context, loaded, plan))
    return previewed(plan, loaded.metadata, context.policy, sample)


def _run(context: OperationContext, loaded: LoadedTable) -> OperationOutcome:
    """Plan, rewrite and commit; then record what the pass learned about the table's files."""
    metadata, files = loaded.metadata, RememberedFiles(context, loaded.metadata)
    state, plan = plan_table(context, loaded, files.watch, files.waiting())
    files.forget_gone(entry.file.file_path for entry in state.deletes.entries)
    if isinstance(plan, Nothing):
        files.record_layout()
        return skipped(_OPERATION, plan.reason)
    loaded.allowed.require(chain((metadata.data_location,), plan.paths))
    context.require_reviewed(loaded, (c.file_path for group in plan.groups for c in group.files))
    late = too_late(context.reader(loaded), state, plan)
    with context.job(_OPERATION, loaded, plan.snapshot_id) as rewriting:
        plan, outcomes = rewrite_and_commit(rewriting, loaded, plan)
        if outcomes.errors or outcomes.unreadable:
            rewriting.leaves_files()
    files.note(plan, outcomes)
    files.record_layout()
    outcome = with_late(outcome_of(plan, outcomes, metadata.properties), late)
    return replace(outcome, leaves_work=leaves_work(plan, outcomes))
