"""The report of a run: how each of its tables ended, in the journal, and a document about all tables."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from icekeeper.errors import StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.maintenance.pass_steps import PassStart, record_outcome, with_warnings
from icekeeper.operation_facts import CLEAN_STAGED, FACTS
from icekeeper.pipeline.control_bucket import (
    PLAN,
    PassDocuments,
    PlanDocument,
    note_outgrown,
    proposals_key,
    report_key,
)
from icekeeper.pipeline.deployment import LEAST_CALL_S, Deployment, pending_request
from icekeeper.pipeline.events import MAX_SENTENCE, Item, ReportEvent, RunState, TableResult
from icekeeper.pipeline.gather import JOB_STAGES, stages_of
from icekeeper.policy import Operation
from icekeeper.report.outcome import (
    OperationOutcome,
    PassOutcome,
    PassStatus,
    StagedOutcome,
    failed,
    operation_outcome,
    refused,
    skipped,
    staged_outcome,
)
from icekeeper.state.claims import CutWork, cut_again, forget_cut
from icekeeper.state.leases import end_live_run
from icekeeper.text import masked

# The report of a table's pass: gather the outcomes of its steps and write them into the journal.

log = logging.getLogger(__name__)

# Errors raised by a guard are refusals.
_LEASES = frozenset({"LeaseLost", "LeaseHeld", "TableBusy", "FleetBusy"})
_REFUSALS = frozenset({"OperationRefused", "DeletionsWait", *_LEASES})
_MISTAKES = frozenset(
    {"PolicyError", "TableNotFound", "CatalogNotFound", "UnknownSetting", "RequestRefused", "TableUnsupported"}
)
"""Errors that answer a request: a retry would fail the same way."""
ENGINE = "pipeline"


@dataclass(frozen=True, slots=True)
class TableReport:
    """How a table's pass ended; ``outcome`` is ``None`` if no operation was planned or done."""

    item: Item
    status: str
    summary: str
    outcome: PassOutcome | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed operation → the number of consecutive passes in which it failed."""

    @property
    def result(self) -> TableResult:
        return TableResult.model_validate(
            {"table": self.item.table, "status": self.status, "summary": self.summary[:MAX_SENTENCE]}
        )


@dataclass(slots=True)
class _Found:
    """The outcomes of a pass's steps, as they are gathered."""

    documents: PassDocuments
    plan: PlanDocument
    state: RunState
    killed: set[str]
    """Steps that began and left neither outcome nor failure: their process ran out of time or memory."""
    is_due_again: bool = False
    """Whether a step was left to a later run, so that the table stays due."""
    tried: int = 0
    """How many steps were not left to a later run."""
    left: list[str] = field(default_factory=list)
    """Why steps were left."""

    def outcome(self, step: str) -> OperationOutcome | None:
        operation = Operation(step)
        known, is_routed = self.plan.outcomes.get(step), self.plan.routes.get(step, "none") != "none"
        document = known or (self.documents.outcome(step) if is_routed else None)
        if document is not None:
            self.tried += known is None
            found = operation_outcome(document)
            self.is_due_again |= found.lost_lease
            return found
        if not is_routed:
            return None
        if (why := self.documents.left(step)) is not None:
            self.is_due_again = True
            self.left.append(why)
            return skipped(operation, why)
        self.tried += 1
        if (failure := self.documents.failure(step)) is not None:
            self.is_due_again |= failure.error in _LEASES
            sentence = f"{failure.error}: {failure.message}"
            if failure.error in _REFUSALS:
                return refused(operation, sentence, waits=failure.error == "DeletionsWait")
            return failed(operation, sentence)
        if self.documents.begun(step) is not None:
            self.killed.add(step)
            return failed(operation, "it was interrupted; uncommitted work is lost")
        self.is_due_again = True
        stage = stages_of(self.plan.routes).get(step)
        job = None if stage is None else self.state.jobs.get(stage)
        why = "its function or job did not reach it" if job is None else f"its job failed: {job.sentence}"
        return failed(operation, f"it did not begin: {why}"[:MAX_SENTENCE])

    def staged(self) -> StagedOutcome | None:
        if CLEAN_STAGED not in self.plan.routes:
            return None
        document = self.documents.outcome(CLEAN_STAGED)
        if document is not None:
            return None if document["staged"] is None else staged_outcome(document["staged"])
        if self.documents.left(CLEAN_STAGED) is not None:
            return None
        failure = self.documents.failure(CLEAN_STAGED)
        why = "the step did not run" if failure is None else f"{failure.error}: {failure.message}"
        sentence = f"staged files of failed loads were not cleaned: {why}"
        return StagedOutcome(summary=sentence, problem=sentence, metrics={})


def report_table(deployment: Deployment, run_id: str, item: Item, state: RunState) -> TableReport:
    """Gather the outcomes of a table's steps, record the pass, and return how it ended; a repetition records the same.

    Raises:
        StorageError: an outcome cannot be read, or the journal cannot be written.
    """
    documents = PassDocuments(deployment.control, run_id, item)
    plan = documents.plan()
    if plan is None:
        report = _unplanned(deployment, documents, item)
    elif plan.needless:
        report = TableReport(item, "skipped", plan.needless)
    else:
        report = _planned(deployment, documents, plan, run_id, item, state)
    if plan is not None and (plan.needless or report.outcome is not None):
        _claim(deployment, item, plan.requested_ms)
    # Write this last: a repetition concludes from it that the pass is recorded and its request claimed.
    outcome = report.outcome
    ended = {"status": report.status, "summary": report.summary}
    documents.write_ended(ended if outcome is None else outcome.to_json(documents.listings()))
    return report


def _unplanned(deployment: Deployment, documents: PassDocuments, item: Item) -> TableReport:
    failure = documents.failure(PLAN)
    if failure is None:
        return TableReport(item, "failed", "it was not planned: its execution ended without a result")
    if failure.error in _MISTAKES:
        _claim(deployment, item, failure.requested_ms)
    if failure.error in _LEASES:
        return TableReport(item, "refused", f"another run maintains the table now: {failure.message}")
    return TableReport(item, "failed", f"{PLAN}: {failure.error}: {failure.message}")


def _planned(
    deployment: Deployment, documents: PassDocuments, plan: PlanDocument, run_id: str, item: Item, state: RunState
) -> TableReport:
    found = _Found(documents, plan, state, set())
    outcomes = [found.outcome(step.value) for step in Operation]
    gathered = PassOutcome(
        table=item.table,
        catalog=item.catalog,
        run_id=run_id,
        dry_run=False,
        operations=tuple(outcome for outcome in outcomes if outcome is not None),
        staged=found.staged(),
    )
    outcome = with_warnings(gathered)
    if found.left and not found.tried and outcome.staged is None:
        # The pass did nothing, so it is not recorded; the table's request waits for the next pass.
        return TableReport(item, "refused", found.left[0])
    has_job = {step for step in found.killed if FACTS[Operation(step)].job is not None}
    note_outgrown(deployment.control, item, {step for step in has_job if plan.routes[step] == "function"})
    # A refusal counts as "nothing to do", because its cause is in the table. A lease that was lost or held by another
    # run, or a job without time for the table, says nothing about the table: then the next pass looks at its files.
    started = PassStart(item.identity, plan.head_id, plan.started_ms, plan.digest, plan.looked_ms)
    is_whole = not found.is_due_again
    failures = record_outcome(deployment.state, started, outcome, ENGINE, deployment.clock(), is_whole=is_whole)
    _note_cut(deployment, item, plan, found.killed, outcome)
    return TableReport(item, outcome.status.value, outcome.summary, outcome, failures)


def _note_cut(deployment: Deployment, item: Item, plan: PlanDocument, killed: set[str], outcome: PassOutcome) -> None:
    """Record that a step ran out of time or memory although it had the largest limit that exists, or delete that record
    after a successful pass.

    A step that exceeds a function and has a job is first tried in the job.
    """
    store, entry = deployment.state.cut_offs, item.identity.entry
    most = {step for step in killed if plan.routes[step] == "glue" or FACTS[Operation(step)].job is None}
    try:
        if most:
            why = f"{', '.join(sorted(most))} did not end within the time of its function or job (JobTimeoutMinutes)"
            # A repetition of this report records the same pass.
            cut_again(store, entry, CutWork.PASS, why, now_ms=deployment.clock(), begun_ms=plan.started_ms)
        elif outcome.status is PassStatus.SUCCEEDED:
            forget_cut(store, entry, CutWork.PASS)
    except StorageError as error:
        log.warning("%s: cannot record whether it was cut off: %s", item.table, error)


def _claim(deployment: Deployment, item: Item, requested_ms: int | None) -> None:
    """Remove the request that the pass has served; a request filed since then stays."""
    if requested_ms is None:
        return
    request = pending_request(deployment, item)
    if request is not None and request.requested_ms == requested_ms:
        deployment.state.requests.claim(request)


# The end of a run: a document with the results of all tables.

_WELL = frozenset({"succeeded", "skipped"})
_AT_ONCE = 16
"""How many tables are reported at once: each takes a few requests that mostly wait."""
_PAUSES_S = (2.0, 10.0)
"""The pause before each further attempt at tables whose report failed because of the store."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """The answer of this call and the tables that it reported."""

    answer: Mapping[str, Any]
    tables: Sequence[TableReport]
    """The tables that this call reported, without those of earlier calls."""
    is_scan: bool
    """Whether detection proposed the tables; otherwise a person requested a single table."""
    failed_jobs: int = 0
    """How many Glue runs failed; reported once, at the end of the run."""

    @property
    def has_ended(self) -> bool:
        """Whether every table is reported."""
        return not self.answer["left"]


def report_run(deployment: Deployment, event: ReportEvent, time_left_s: Callable[[], float] | None = None) -> RunReport:
    """Report the tables of a run and then the run itself, in ``runs/RUN/report.json``.

    In the answer ``left`` is the number of tables for which there was no time; they need another call.  ``status`` is
    ``failed`` if no table ended well and ``partial`` if some did.  ``error`` and ``cause`` are those with which the
    execution must fail, else empty; ``tables`` holds the result of a run over one requested table.

    A table that cannot be reported does not stop the others and is tried again after them.  If it still cannot be
    reported, it counts as failed; its request stays pending, and the next run looks at the table again.

    Raises:
        StorageError: the proposals cannot be read, the report cannot be written, or this call ran out of time without
            reporting any table.
    """
    items = deployment.control.find_objects(proposals_key(event.run_id), Item)
    is_scan = any(item.is_scheduled for item in items) if items else _is_of_fleet(event.state.input)
    ends = _reported(deployment, event, items, time_left_s)
    left = sum(end is None for end in ends)
    if left:
        reports = tuple(end for end in ends if isinstance(end, TableReport))
        errors = [end for end in ends if isinstance(end, StorageError)]
        if errors and not reports:
            raise errors[0]  # no progress: the state machine retries a few times and then gives up
        running = {"status": "running", "summary": f"{left} table(s) are left to report", "left": left}
        return RunReport({"run_id": event.run_id, **running, **_NOTHING}, reports, is_scan)
    all_ends = [
        _unreported(item, end) if isinstance(end, Exception) else end for item, end in zip(items, ends, strict=True)
    ]
    reports = tuple(end for end in all_ends if isinstance(end, TableReport))
    results = [end.result if isinstance(end, TableReport) else end for end in all_ends if end is not None]
    answer = _end(deployment, event, results, is_scan=is_scan)
    if time_left_s is None or time_left_s() >= LEAST_CALL_S:
        write_page(deployment)
    return RunReport(answer, reports, is_scan, failed_jobs=len(event.state.jobs.keys() & {*JOB_STAGES}))


def _is_of_fleet(given: object) -> bool:
    """Whether a run whose detection failed was a scan: its input names no single table."""
    return given is None or (isinstance(given, dict) and given.get("table") is None)


def write_page(deployment: Deployment) -> None:
    """Write the report page of all catalogs into the control bucket; a failure is only logged."""
    from icekeeper.report.page import recorded_page  # imports a template engine that only the end of a run needs

    try:
        deployment.control.write_page(recorded_page(deployment.state, deployment.clock()))
    except Exception as error:
        log.warning("cannot write the report page: %s: %s", type(error).__name__, error)


_Reported: TypeAlias = TableReport | TableResult | Exception | None
"""A table's report, or the result from an earlier call, or the error that prevented a report, or ``None``: no time
left."""


def _reported(
    deployment: Deployment, event: ReportEvent, items: Sequence[Item], time_left_s: Callable[[], float] | None
) -> list[_Reported]:
    """Report each table, in threads; retry tables whose report failed because of the store."""

    def is_time() -> bool:
        return time_left_s is None or time_left_s() >= LEAST_CALL_S

    def report(item: Item) -> _Reported:
        try:
            ended = PassDocuments(deployment.control, event.run_id, item).ended()
            if ended is not None:
                return TableResult(table=item.table, status=ended.status, summary=ended.summary[:MAX_SENTENCE])
            return report_table(deployment, event.run_id, item, event.state) if is_time() else None
        except StorageError as error:
            log.warning("cannot report %s: %s", item.table, error)
            return error
        except Exception as error:  # a bug: report the other tables
            log.exception("cannot report %s", item.table)
            return error

    def all_of(some: Sequence[Item]) -> list[_Reported]:
        with WorkThreads(_AT_ONCE, thread_name_prefix="icekeeper-report") as threads:
            return [future.result() for future in [threads.submit(report, item) for item in some]]

    ends = all_of(items)
    for pause_s in _PAUSES_S:
        again = [at for at, end in enumerate(ends) if isinstance(end, StorageError)]
        if not (again and is_time()):
            break
        time.sleep(pause_s)
        for at, end in zip(again, all_of([items[at] for at in again]), strict=True):
            ends[at] = ends[at] if end is None else end
    return ends


def _unreported(item: Item, error: Exception) -> TableReport:
    sentence = masked(" ".join(f"cannot report the pass: {type(error).__name__}: {error}".split()))
    return TableReport(item, "failed", sentence)


_NOTHING: Mapping[str, Any] = {"tables": [], "error": "", "cause": ""}


def _end(
    deployment: Deployment, event: ReportEvent, results: Sequence[TableResult], *, is_scan: bool
) -> Mapping[str, Any]:
    counts: Counter[str] = Counter(result.status for result in results)
    failure = event.state.failure
    status = _status(counts, len(results), is_failed=failure is not None)
    summary = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "no table"
    if failure is not None:
        summary = f"the run ended early: {failure.sentence[:MAX_SENTENCE]}"
    report: dict[str, Any] = {"run_id": event.run_id, "status": status, "summary": summary}
    document = {
        **report,
        "tables": dict(sorted(counts.items())),
        "results": [result.model_dump(mode="json") for result in results],
        **({} if failure is None else {"failure": failure.model_dump(mode="json")}),
        "jobs": {stage.value: job.sentence for stage, job in event.state.jobs.items()},
    }
    deployment.control.write(report_key(event.run_id), document)
    end_live_run(deployment.state.leases, event.run_id, now_ms=deployment.clock())
    error, cause = _fails(status, results, event.state, is_scan=is_scan)
    tables = [] if is_scan else [result.model_dump(mode="json") for result in results]
    return {**report, "left": 0, "tables": tables, "error": error, "cause": cause}


def _status(counts: Mapping[str, int], number: int, *, is_failed: bool) -> str:
    well = sum(counts.get(status, 0) for status in _WELL)
    if not is_failed and well == number:
        return "succeeded"
    if not is_failed and (well or counts.get("partial")):
        return "partial"
    return "refused" if not is_failed and counts.get("refused") == number else "failed"


def _fails(status: str, results: Sequence[TableResult], state: RunState, *, is_scan: bool) -> tuple[str, str]:
    """The error and cause with which the execution must fail; empty if it succeeds.

    A run over one requested table fails if another run maintains the table; a scheduled run does not, because the next
    run takes the table.
    """
    if state.failure is not None:
        if not results:
            return "DetectionFailed", f"detection failed before any table was changed: {state.failure.sentence}"
        return "TablesNotRead", f"the run ended after planning its tables: {state.failure.sentence}"
    if status == "failed":
        first = next(result for result in results if result.status == "failed")
        return "PassesFailed", f"every attempted table failed: {first.table}: {first.summary}"
    if status == "refused" and not is_scan:
        return "LeaseHeld", f'{results[0].summary}; start again later, or with "wait" true'
    return "", ""
