"""The ``expire_snapshots`` operation: remove snapshots by one commit, then delete the files that only they referenced
(rule: delete-only-after-commit).

The files to delete are computed before the commit, from the state that the commit replaces.  If a needed manifest or
manifest list cannot be read, nothing is committed and nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from icekeeper.commit.attempt import PreparedCommit
from icekeeper.deletion.file_needs import GC_DISABLED
from icekeeper.machine.clock import stopwatch
from icekeeper.metadata.document import require_writable
from icekeeper.model import Nothing
from icekeeper.operations.expiry.commit_expiry import Expiry, ExpiryAttempts
from icekeeper.operations.expiry.leftovers import Leftovers, Resumed, lost_refs_sentence, resume, unfinished
from icekeeper.operations.expiry.retention import NOTHING_TO_EXPIRE, oldest_readable_ms
from icekeeper.operations.expiry.unreferenced import UnusedMetadata
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation, gc_enabled
from icekeeper.report.outcome import OperationOutcome, refused_besides, skipped, succeeded
from icekeeper.text import counted

_OPERATION = Operation.EXPIRE_SNAPSHOTS


def expire_snapshots(context: OperationContext) -> OperationOutcome:
    """Finish what an interrupted run left, then expire old snapshots.

    Summary and metric keys are those of SeaweedFS's worker.

    Raises:
        MetadataUnreadable: a needed manifest list or manifest cannot be read; nothing was changed.
        OperationRefused: the table is protected, or its state is suspicious; the remaining files are kept.
        MaintenanceError: nothing was committed, or nothing was deleted after the commit.
    """
    with stopwatch() as elapsed_ms:
        loaded = context.load()
        require_writable(loaded.metadata)
        if not gc_enabled(loaded.metadata):
            return skipped(_OPERATION, GC_DISABLED)
        left = unfinished(context, loaded)
        attempts = ExpiryAttempts(context)
        if context.dry_run:
            prepared = attempts.prepare(loaded)
            if not isinstance(prepared, Nothing):
                context.would_commit(_OPERATION, lambda: context.commit(loaded, lambda head: prepared))
            preview = _preview(
                prepared if attempts.expiry is None else attempts.expiry, left, attempts.kept_for_writers
            )
            if attempts.expiry is None:
                return preview
            plan, floor = attempts.expiry.plan, _floor(context, attempts.expiry)
            metrics: Mapping[str, int | float] = {**preview.metrics, **floor}
            return replace(preview, metrics=metrics, expiring=plan.snapshot_ids, expiring_refs=plan.refs)
        context.require_reviewed(loaded, left.files)
        resumed = resume(context, loaded, left)
        expiry = attempts.land(loaded)
        if isinstance(expiry, Nothing):
            outcome = _nothing_expired(expiry, resumed, attempts)
        else:
            outcome = _expired(context, expiry, resumed, attempts)
        lost = (*resumed.lost, *attempts.lost_refs)
        metrics = {
            **outcome.metrics,
            "expire_snapshots.snapshots_kept_for_writers": attempts.kept_for_writers,
            **({"expire_snapshots.files_resumed": len(resumed.deleted.deleted)} if left.files else {}),
            **({"expire_snapshots.snapshots_resumed": resumed.expired} if resumed.expired else {}),
            **({"expire_snapshots.refs_lost": len(lost)} if lost else {}),
            "expire_snapshots.duration_ms": elapsed_ms(),
        }
        outcome = replace(outcome, metrics=metrics)
        # A person must decide about a lost ref, whatever else was done.
        return refused_besides(outcome, lost_refs_sentence(lost)) if lost else outcome


def _nothing_expired(nothing: Nothing, resumed: Resumed, attempts: ExpiryAttempts) -> OperationOutcome:
    """The outcome if no snapshot or ref expired: skipped, unless an interrupted run left files."""
    sentences = [*resumed.sentences, *_of_writers(attempts.kept_for_writers), *_of_plan(attempts.due_since_plan)]
    if not resumed.files:
        return skipped(_OPERATION, "; ".join([nothing.reason, *sentences]))
    metrics = {"expire_snapshots.files_failed": len(resumed.deleted.failed)}
    if (in_vain := resumed.deleted.in_vain(_OPERATION, metrics)) is not None:
        return in_vain
    return succeeded(
        _OPERATION,
        "; ".join(sentences),
        metrics=metrics,
        files_planned=resumed.files,
        files_deleted=resumed.deleted.deleted,
    )


def _expired(context: OperationContext, expiry: Expiry, resumed: Resumed, attempts: ExpiryAttempts) -> OperationOutcome:
    """Delete the files that the commit freed, and report the result."""
    if attempts.unchecked is None:
        context.memory.forget_freed(expiry.files)
    deleted = attempts.delete(expiry)
    count = len(expiry.plan.snapshot_ids)
    unused = expiry.unused if attempts.cleans_metadata else UnusedMetadata()
    sentences = [
        f"expired {count} snapshot(s), deleted {len(deleted.deleted)} unreferenced file(s)",
        *deleted.failures,
        *resumed.sentences,
        *_of_writers(attempts.kept_for_writers),
        *_of_plan(attempts.due_since_plan),
    ]
    if attempts.unchecked is not None:
        sentences.append(f"its files stay until it is known which refs the commit dropped: {attempts.unchecked}")
    sentences += _of_unread(expiry)
    if unused:
        sentences.append(_of_metadata("removed", unused))
    elif context.policy.clean_expired_metadata and not attempts.cleans_metadata:
        sentences.append("the catalog refused to remove unused partition specs and schemas")
    return succeeded(
        _OPERATION,
        "; ".join(sentences),
        metrics={
            "expire_snapshots.snapshots_expired": count,
            "expire_snapshots.refs_expired": len(expiry.plan.refs),
            "expire_snapshots.files_deleted": len(deleted.deleted),
            "expire_snapshots.files_failed": len(deleted.failed) + len(resumed.deleted.failed),
            "expire_snapshots.files_left_to_bucket": 0 if attempts.can_delete else len(expiry.files),
            "expire_snapshots.bytes_reclaimable": expiry.size,
            "expire_snapshots.bytes_freed": expiry.unreferenced.candidates.size_of(deleted.deleted),
            **_floor(context, expiry),
            "expire_snapshots.specs_removed": len(unused.spec_ids),
            "expire_snapshots.schemas_removed": len(unused.schema_ids),
        },
        files_planned=(*resumed.files, *expiry.files),
        files_deleted=(*resumed.deleted.deleted, *deleted.deleted),
    )


def _preview(expiry: Expiry | PreparedCommit | Nothing, left: Leftovers, kept_for_writers: int) -> OperationOutcome:
    """The outcome of a dry run."""
    leftovers = [f"would delete {len(left.files)} file(s) that an interrupted run left behind"] if left.files else []
    also = [*leftovers, *_of_writers(kept_for_writers)]
    if not isinstance(expiry, Expiry):
        if left.files:
            return succeeded(_OPERATION, "; ".join(also), files_planned=left.files)
        reason = expiry.reason if isinstance(expiry, Nothing) else NOTHING_TO_EXPIRE
        return skipped(_OPERATION, "; ".join([reason, *also]))
    sentences = [
        f"would expire {len(expiry.plan.snapshot_ids)} snapshot(s) and delete {len(expiry.files)} unreferenced file(s)",
        *also,
    ]
    sentences += _of_unread(expiry)
    if expiry.unused:
        sentences.append(_of_metadata("would remove", expiry.unused))
    return succeeded(
        _OPERATION,
        "; ".join(sentences),
        metrics={"expire_snapshots.bytes_reclaimable": expiry.size},
        files_planned=(*left.files, *expiry.files),
    )


def _floor(context: OperationContext, expiry: Expiry) -> dict[str, int]:
    """The metric for the oldest time as of which the branch can be read."""
    oldest_ms = oldest_readable_ms(expiry.base.metadata, context.policy.branch, expiry.plan)
    return {} if oldest_ms is None else {"expire_snapshots.oldest_readable_ms": oldest_ms}


def _of_unread(expiry: Expiry) -> list[str]:
    unread = expiry.unreferenced.unread
    if not unread:
        return []
    return [f"files that only {', '.join(unread)} named are unknown and stay until remove_orphans finds them"]


def _of_writers(kept: int) -> list[str]:
    return (
        [f"kept {kept} snapshot(s) only because streaming writers need them to find their last commit"] if kept else []
    )


def _of_plan(due: int) -> list[str]:
    verb = "has" if due == 1 else "have"
    return [f"{counted(due, 'more snapshot')} {verb} become due since the plan; save a new plan"] if due else []


def _of_metadata(verb: str, unused: UnusedMetadata) -> str:
    return f"{verb} {len(unused.spec_ids)} partition spec(s) and {len(unused.schema_ids)} schema(s) that nothing uses"
