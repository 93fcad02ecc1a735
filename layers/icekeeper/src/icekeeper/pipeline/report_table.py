"""The report of one table's pass: the outcomes of its steps are gathered, written into the journal, and answered."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.maintenance.begin_and_end_pass import DonePart, PassStart, record_outcome, with_warnings
from icekeeper.operation_facts import CLEAN_STAGED
from icekeeper.pipeline.control_bucket import table_folder
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import MAX_SENTENCE, Failure, ReportTableEvent
from icekeeper.pipeline.job_failure import told_by_jobs
from icekeeper.pipeline.outgrown import is_cut_off, remember_outgrown
from icekeeper.pipeline.pass_documents import PassDocuments
from icekeeper.pipeline.plan_document import PlanDocument
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, PassOutcome, PassStatus, StagedOutcome, failed, refused
from icekeeper.report.outcome_document import operation_outcome, staged_outcome
from icekeeper.state.cut_offs import CutWork, cut_again, forget_cut

__all__ = ["TableReport", "report_table"]

log = logging.getLogger(__name__)

# What a guard raises is a refusal, also when it reaches us through the state machine.
_LEASES = frozenset({"LeaseLost", "LeaseHeld"})
_REFUSALS = frozenset({"OperationRefused", *_LEASES})
ENGINE = "pipeline"


@dataclass(frozen=True, slots=True)
class TableReport:
    """How a table's pass ended; ``outcome`` is ``None`` when it could not even be planned."""

    table: str
    status: str
    summary: str
    outcome: PassOutcome | None

    def to_json(self) -> dict[str, str]:
        """The part of the report that travels on in the state machine."""
        return {"table": self.table, "status": self.status, "summary": self.summary[:MAX_SENTENCE]}


def report_table(deployment: Deployment, event: ReportTableEvent) -> TableReport:
    """Gather the outcomes of a table's steps, record the pass, and return how it ended; a repetition records the same.

    Raises:
        OperationRefused: the document at the plan's key is not the one that was planned (its digest differs).
        PlanStale: another version of Icekeeper wrote the plan.
        StorageError: an outcome cannot be read, or the journal cannot be written.
    """
    item, table = event.item, event.item.table
    if event.plan is None:
        return TableReport(table, "failed", _first_failure(event.failures), None)
    documents = deployment.documents(event.run_id, item)
    plan = documents.plan(event.plan)
    if not plan.metadata_location:
        return TableReport(table, "skipped", plan.needless, None)
    remember_outgrown(deployment.control, item, plan.routes, event.failures)
    folder = table_folder(event.run_id, item.identity.spelling)
    told = told_by_jobs(deployment.control, folder, plan.routes, event.failures)
    event = event.model_copy(update={"failures": told})
    found = {operation: _outcome(documents, plan, event, operation) for operation in Operation}
    gathered = PassOutcome(
        table=table,
        catalog=item.catalog,
        run_id=event.run_id,
        dry_run=False,
        operations=tuple(
            replace(one, schedule=plan.schedule_of(step.value)) for step, one in found.items() if one is not None
        ),
        staged=_staged(documents, plan, event),
    )
    outcome = with_warnings(gathered)
    started = PassStart(item.identity, plan.head_id, plan.started_ms)
    listing = deployment.control.listings(folder)
    deployment.control.write(f"{folder}/pass.json", outcome.to_json(listing))
    # Last, because it may fail: the state machine tries again, and reports it when the journal cannot be written.
    # A refusal counts as "nothing to do", because its cause is in the table.  A lease that was lost or held by another
    # run says nothing of the table, nor does a wave that had no time for it: such a pass is recorded under no
    # fingerprint.
    is_lost = any(failure.Error in _LEASES for failure in event.failures.values()) or any(
        one.lost_lease for one in outcome.operations
    )
    is_due_again = is_lost or plan.left_out
    parts = [] if item.only_schedules else [DonePart(None, "" if is_due_again else plan.fingerprint)]
    if not is_due_again:
        schedules = plan.schedules.items()
        parts += [DonePart(name, planned.fingerprint, planned.interval_ms) for name, planned in schedules]
    record_outcome(deployment.state, started, outcome, parts, ENGINE, deployment.clock())
    _note_cut(deployment, event, plan, outcome)
    return TableReport(table, outcome.status.value, outcome.summary, outcome)


def _note_cut(deployment: Deployment, event: ReportTableEvent, plan: PlanDocument, outcome: PassOutcome) -> None:
    """Remember that a step ran out of time, or forget it once a whole pass has ended (rule 271)."""
    store, item = deployment.state.cut_offs, event.item
    entry = item.catalog, item.warehouse, item.name.key
    try:
        if is_cut_off(plan.routes, event.failures):
            why = "a step of its pass did not end within the time of its function or job (JobTimeoutMinutes)"
            # A repetition of this report tells of the same pass.
            cut_again(store, entry, CutWork.PASS, why, now_ms=deployment.clock(), begun_ms=plan.started_ms)
        elif outcome.status is PassStatus.SUCCEEDED:
            forget_cut(store, entry, CutWork.PASS)
    except StorageError as error:
        log.warning("%s: whether it was cut off could not be recorded: %s", item.table, error)


def _outcome(
    documents: PassDocuments, plan: PlanDocument, event: ReportTableEvent, operation: Operation
) -> OperationOutcome | None:
    step = operation.value
    left: Mapping[str, Any] | None = plan.outcomes.get(step) or plan.done.get(step) or documents.outcome(step)
    if left is not None:
        return operation_outcome(left)
    failure = event.failures.get(step)
    if failure is not None:
        sentence = failure.sentence[:MAX_SENTENCE]
        return (refused if failure.Error in _REFUSALS else failed)(operation, sentence)
    if plan.routes.get(step, "none") != "none":
        if "plan" in event.failures:
            sentence = event.failures["plan"].sentence[:MAX_SENTENCE]
            return failed(operation, f"it could not be planned again: {sentence}")
        return failed(operation, "it did not end: nothing is known of what became of it")
    return None


def _staged(documents: PassDocuments, plan: PlanDocument, event: ReportTableEvent) -> StagedOutcome | None:
    left = plan.done.get(CLEAN_STAGED) or documents.outcome(CLEAN_STAGED)
    if left is not None:
        return None if left["staged"] is None else staged_outcome(left["staged"])
    failure = event.failures.get(CLEAN_STAGED)
    if failure is None:
        return None
    sentence = f"staged files of failed loads were not cleaned: {failure.sentence[:MAX_SENTENCE]}"
    return StagedOutcome(summary=sentence, problem=sentence, metrics={})


def _first_failure(failures: Mapping[str, Failure]) -> str:
    for step, failure in failures.items():
        return f"{step}: {failure.sentence[:MAX_SENTENCE]}"
    return "it was not planned"
