"""Reports: the outcomes of one table's pass, and the results of a whole run in one document."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.maintenance.pass_steps import DonePart, PassStart, record_outcome, with_warnings
from icekeeper.operation_facts import CLEAN_STAGED
from icekeeper.pipeline.control_bucket import (
    EndedPass,
    PassDocuments,
    PlanDocument,
    proposals_key,
    report_key,
    table_folder,
    told_by_jobs,
)
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import (
    MAX_SENTENCE,
    Failure,
    Item,
    ReportRunEvent,
    ReportTableEvent,
    TableResult,
    parse_event,
)
from icekeeper.pipeline.one_call import is_cut_off, remember_outgrown
from icekeeper.policy import Operation
from icekeeper.report.outcome import (
    OperationOutcome,
    PassOutcome,
    PassStatus,
    StagedOutcome,
    failed,
    operation_outcome,
    refused,
    staged_outcome,
)
from icekeeper.state.claims import CutWork, cut_again, forget_cut

# The report of one table's pass: the outcomes of its steps are gathered, written into the journal, and answered.

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
    """Remember that a step ran out of time, or forget it once a whole pass has ended (rule: cut-off-endless-tables)."""
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


# The end of a run: every table's result in one document.

_WELL = frozenset({"succeeded", "skipped"})
_VANISHED = "its execution ended without a report; its lease runs out by itself"
# How the summaries of passes begin that have no report of their own: those made here, in events.py and in the state
# machine.
_UNTOLD = ("its execution ended ", "the pass could not be reported")


def report_run(deployment: Deployment, event: ReportRunEvent) -> Mapping[str, Any]:
    """Write ``runs/RUN/report.json`` and return its counts.

    ``status`` is ``failed`` when no table ended well and ``partial`` when some did.  A proposed table without a result
    gets the one that its pass wrote to the control bucket; without that it counts as failed.  ``untold`` is the number
    of failed passes that no report of a table has counted.

    Raises:
        StorageError: the report cannot be written, or the proposals cannot be read.
    """
    told_by_states = (*event.in_one_call, *event.earlier, *event.tables)
    missing = () if event.failure is not None else _missing(deployment, event)
    results = (*told_by_states, *missing)
    counts: Counter[str] = Counter(result.status for result in results)
    well = sum(counts[status] for status in _WELL)
    if event.failure is not None or (results and well == 0 and counts["partial"] == 0):
        only_refused = event.failure is None and counts["refused"] == len(results)
        status = "refused" if only_refused else "failed"
    else:
        status = "succeeded" if well == len(results) else "partial"
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "no table"
    if event.failure is not None:
        told = f"no table's pass is known: {event.failure.Error}"
    report: dict[str, Any] = {"run_id": event.run_id, "status": status, "summary": told}
    report["tables"] = dict(sorted(counts.items()))
    untold = sum(result.status == "failed" and result.summary.startswith(_UNTOLD) for result in results)
    if untold:
        report["untold"] = untold
    document = {**report, "results": [result.model_dump(mode="json") for result in results]}
    if event.failure is not None:
        document["failure"] = event.failure.model_dump(mode="json")
    deployment.control.write(report_key(event.run_id), document)
    return report


def was_scan(deployment: Deployment, run_id: str) -> bool:
    """Whether detection proposed the tables of a run, rather than a person one of them.

    Raises:
        StorageError: the proposals cannot be read.
    """
    proposed = deployment.control.find_objects(proposals_key(run_id), Item)
    return any(item.is_scheduled for item in proposed)


def _missing(deployment: Deployment, event: ReportRunEvent) -> Iterator[TableResult]:
    """Results for the proposed tables that have none, from what their passes wrote to the control bucket.

    Results name no catalog.  Where several tables share a name and only some are missing, those count as missing first
    whose pass wrote nothing.
    """
    told = Counter(result.table for result in (*event.in_one_call, *event.earlier, *event.tables))
    proposed = deployment.control.find_objects(proposals_key(event.run_id), Item)
    missing = Counter(item.table for item in proposed) - told
    left = [_left(deployment, event.run_id, item) for item in proposed if missing[item.table] > 0]
    for result in sorted(left, key=lambda result: result.summary != _VANISHED):
        missing[result.table] -= 1
        if missing[result.table] >= 0:
            yield result


def _left(deployment: Deployment, run_id: str, item: Item) -> TableResult:
    found = deployment.control.find_object(f"{table_folder(run_id, item.identity.spelling)}/pass.json", EndedPass)
    if found is None:
        return TableResult(table=item.table, status="failed", summary=_VANISHED)
    return parse_event(TableResult, {"table": item.table, "status": found["status"], "summary": found["summary"]})
