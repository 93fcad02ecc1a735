"""A pass that a person interrupts: what of it landed, and what is left for a later pass to clean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import snapshots_of_run
from icekeeper.errors import MaintenanceError, StorageError
from icekeeper.operation_facts import FACTS
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status, failed, skipped

__all__ = ["NOT_BEGUN", "PassInterrupted", "interrupted_outcome"]

NOT_BEGUN = "not begun: the pass was interrupted"


class PassInterrupted(KeyboardInterrupt):
    """A person interrupted a pass (Ctrl-C); the message is one sentence, ``outcome`` what the pass had done."""

    def __init__(self, told: str, outcome: PassOutcome) -> None:
        super().__init__(told)
        self.outcome = outcome


def interrupted_outcome(
    context: OperationContext,
    before: LoadedTable,
    operations: Sequence[Operation],
    done: Sequence[OperationOutcome],
) -> tuple[PassOutcome, str]:
    """The outcome of a pass over ``operations`` that was interrupted behind those ``done``, and a sentence about it.

    ``before`` is the table as the pass found it; it is read again, to see what landed.
    """
    running = operations[len(done)] if len(done) < len(operations) else None
    landed, what_landed = _landed(context, before, done, running)
    left = _left_to_clean(context)
    parts = [*done]
    if running is not None:
        stopped = failed(running, f"interrupted; {what_landed}; {left}")
        parts.append(replace(stopped, snapshot_ids=landed))
    parts += [skipped(operation, NOT_BEGUN) for operation in operations[len(parts) :]]
    where = "after the last operation" if running is None else f"during {running.value}"
    finished = [outcome.operation.value for outcome in done if outcome.status is Status.SUCCEEDED]
    told = f"interrupted {where}; {what_landed}; {left}"
    if finished and not context.dry_run:
        told += f"; finished before: {', '.join(finished)}"
    outcome = PassOutcome(
        table=str(context.table),
        catalog=context.catalog.name,
        run_id=context.run_id,
        dry_run=context.dry_run,
        operations=tuple(parts),
    )
    return outcome, told


def _landed(
    context: OperationContext, before: LoadedTable, done: Sequence[OperationOutcome], running: Operation | None
) -> tuple[tuple[int, ...], str]:
    """The snapshots that the interrupted operation committed, and what of the pass landed, in words."""
    if context.dry_run:
        return (), "the table is unchanged (dry run)"
    if running is not None and not FACTS[running].commits:
        return (), "it makes no commit, and deletes only what nothing needs"
    try:
        now = context.load()
    except MaintenanceError as error:
        return (), f"whether a commit landed is not known, because the table cannot be read ({error})"
    if now.metadata_location == before.metadata_location:
        return (), "nothing landed, the table is unchanged"
    known = {snapshot_id for outcome in done for snapshot_id in outcome.snapshot_ids}
    ours = tuple(i for i in snapshots_of_run(context.run_id, now.metadata) if i not in known)
    if ours:
        return ours, f"{len(ours)} commit(s) of it landed, every one of them whole"
    expired = before.metadata.snapshots.keys() - now.metadata.snapshots.keys()
    if running is Operation.EXPIRE_SNAPSHOTS and expired:
        return (), "the commit that expired snapshots landed"
    return (), "nothing of it landed"


def _left_to_clean(context: OperationContext) -> str:
    if context.dry_run:
        return "nothing is left to clean"
    try:
        loads = [load for load in context.memory.staged_loads() if load.name.startswith(f"{context.run_id}:")]
        lists = context.memory.unfinished_deletions()
    except StorageError as error:
        return f"what is left to clean cannot be read ({error})"
    left = []
    if loads:
        count = sum(load.file_count for load in loads)
        left.append(f"what was written of {count} output file(s) is on record, and a later pass deletes it")
    if lists:
        left.append("the next expire_snapshots deletes the files that are no longer referenced")
    return " and ".join(left) or "nothing is left to clean"
