"""The report of a run: how each of its tables ended, written into the journal, and one document about all."""

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
from icekeeper.pipeline.gather import JOB_STAGES, stage_of
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

# The report of one table's pass: the outcomes of its steps are gathered, and written into the journal.

log = logging.getLogger(__name__)

# What a guard raises is a refusal.
_LEASES = frozenset({"LeaseLost", "LeaseHeld", "TableBusy", "FleetBusy"})
_REFUSALS = frozenset({"OperationRefused", *_LEASES})
_MISTAKES = frozenset(
    {"PolicyError", "TableNotFound", "CatalogNotFound", "UnknownSetting", "RequestRefused", "TableUnsupported"}
)
"""Errors that are the answer to a request: asking again would not change them."""
ENGINE = "pipeline"


@dataclass(frozen=True, slots=True)
class TableReport:
    """How a table's pass ended; ``outcome`` is ``None`` when nothing was done or even planned."""

    item: Item
    status: str
    summary: str
    outcome: PassOutcome | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    """By operation that failed: in how many passes in a row."""

    @property
    def result(self) -> TableResult:
        return TableResult.model_validate(
            {"table": self.item.table, "status": self.status, "summary": self.summary[:MAX_SENTENCE]}
        )


@dataclass(slots=True)
class _Found:
    """What became of the steps of a pass."""

    documents: PassDocuments
    plan: PlanDocument
    state: RunState
    killed: set[str]
    """Steps that began and ended without a word: their process ran out of time or memory."""
    is_due_again: bool = False
    """Whether a step was left to a later run, so that the table is not done."""
    tried: int = 0
    """Steps that were not left."""
    left: list[str] = field(default_factory=list)
    """Why steps were left."""

    def outcome(self, step: str) -> OperationOutcome | None:
        operation = Operation(step)
        known = self.plan.outcomes.get(step)
        told = known or self.documents.outcome(step)
        if told is not None:
            self.tried += known is None
            found = operation_outcome(told)
            self.is_due_again |= found.lost_lease
            return found
        route = self.plan.routes.get(step, "none")
        if route == "none":
            return None
        if (why := self.documents.left(step)) is not None:
            self.is_due_again = True
            self.left.append(why)
            return skipped(operation, why)
        self.tried += 1
        if (failure := self.documents.failure(step)) is not None:
            self.is_due_again |= failure.error in _LEASES
            sentence = f"{failure.error}: {failure.message}"
            return (refused if failure.error in _REFUSALS else failed)(operation, sentence)
        if self.documents.begun(step) is not None:
            self.killed.add(step)
            return failed(operation, "it was broken off; what it had not committed is not done")
        self.is_due_again = True
        job = self.state.jobs.get(stage) if (stage := stage_of(FACTS[operation], route)) is not None else None
        why = "its function or job did not get to it" if job is None else f"its job failed: {job.sentence}"
        return failed(operation, f"it was not begun: {why}"[:MAX_SENTENCE])

    def staged(self) -> StagedOutcome | None:
        if CLEAN_STAGED not in self.plan.routes:
            return None
        told = self.documents.outcome(CLEAN_STAGED)
        if told is not None:
            return None if told["staged"] is None else staged_outcome(told["staged"])
        if self.documents.left(CLEAN_STAGED) is not None:
            return None
        failure = self.documents.failure(CLEAN_STAGED)
        why = "nobody got to it" if failure is None else f"{failure.error}: {failure.message}"
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
    # Last: a repetition takes this for the sign that the pass is recorded, and its request claimed.
    outcome = report.outcome
    told = {"status": report.status, "summary": report.summary}
    documents.write_ended(told if outcome is None else outcome.to_json(documents.listings()))
    return report


def _unplanned(deployment: Deployment, documents: PassDocuments, item: Item) -> TableReport:
    failure = documents.failure(PLAN)
    if failure is None:
        return TableReport(item, "failed", "it was not planned: its execution ended without a word")
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
        operations=tuple(one for one in outcomes if one is not None),
        staged=found.staged(),
    )
    outcome = with_warnings(gathered)
    if found.left and not found.tried and outcome.staged is None:
        # The pass did nothing and says nothing of the table, whose request waits for the next one.
        return TableReport(item, "refused", found.left[0])
    has_job = {step for step in found.killed if FACTS[Operation(step)].job is not None}
    note_outgrown(deployment.control, item, {step for step in has_job if plan.routes[step] == "function"})
    # A refusal counts as "nothing to do", because its cause is in the table.  A lease that was lost or held by another
    # run says nothing of the table, nor does a job that had no time for it: after such a pass the next one looks.
    started = PassStart(item.identity, plan.head_id, plan.started_ms, plan.digest, plan.looked_ms)
    is_whole = not found.is_due_again
    failures = record_outcome(deployment.state, started, outcome, ENGINE, deployment.clock(), is_whole=is_whole)
    _note_cut(deployment, item, plan, found.killed, outcome)
    return TableReport(item, outcome.status.value, outcome.summary, outcome, failures)


def _note_cut(deployment: Deployment, item: Item, plan: PlanDocument, killed: set[str], outcome: PassOutcome) -> None:
    """Remember that a step ran out of time or memory where it has the most that there is, or forget it once a whole
    pass has ended (rule: cut-off-endless-tables).

    What is too much for a function and has a job is tried there first.
    """
    store, entry = deployment.state.cut_offs, item.identity.entry
    most = {step for step in killed if plan.routes[step] == "glue" or FACTS[Operation(step)].job is None}
    try:
        if most:
            why = f"{', '.join(sorted(most))} did not end within the time of its function or job (JobTimeoutMinutes)"
            # A repetition of this report tells of the same pass.
            cut_again(store, entry, CutWork.PASS, why, now_ms=deployment.clock(), begun_ms=plan.started_ms)
        elif outcome.status is PassStatus.SUCCEEDED:
            forget_cut(store, entry, CutWork.PASS)
    except StorageError as error:
        log.warning("%s: whether it was cut off could not be recorded: %s", item.table, error)


def _claim(deployment: Deployment, item: Item, requested_ms: int | None) -> None:
    """Remove the request that the pass has served; one that was filed since stays."""
    if requested_ms is None:
        return
    request = pending_request(deployment, item)
    if request is not None and request.requested_ms == requested_ms:
        deployment.state.requests.claim(request)


# The end of a run: every table's result in one document.

_WELL = frozenset({"succeeded", "skipped"})
_AT_ONCE = 16
"""Tables that are reported at once: each is a few requests that mostly wait."""
_PAUSES_S = (2.0, 10.0)
"""Before each further attempt at the tables that the store kept from being reported."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What this call has reported."""

    answer: Mapping[str, Any]
    tables: Sequence[TableReport]
    """The tables that this call has reported; those that an earlier one has are not among them."""
    is_scan: bool
    """Whether detection proposed the tables, rather than a person one of them."""
    failed_jobs: int = 0
    """Glue runs that failed; told once, with the end of the run."""

    @property
    def has_ended(self) -> bool:
        """Whether every table is reported."""
        return not self.answer["left"]


def report_run(deployment: Deployment, event: ReportEvent, time_left_s: Callable[[], float] | None = None) -> RunReport:
    """Report the tables of a run, and then the run: ``runs/RUN/report.json``.

    In the answer ``left`` is the number of tables for which there was no time: report again.  ``status`` is ``failed``
    when no table ended well and ``partial`` when some did.  ``error`` and ``cause`` are those with which the execution
    is to fail, else empty; ``tables`` has the result of a run that was asked for one table.

    A table that cannot be reported stops no other, and is tried again behind them.  In the end it counts as failed; its
    request stays pending, and the next run looks at it again.

    Raises:
        StorageError: the proposals cannot be read, the report cannot be written, or no table could be reported of more
            than this call had time for.
    """
    items = deployment.control.find_objects(proposals_key(event.run_id), Item)
    is_scan = any(item.is_scheduled for item in items) if items else _is_of_fleet(event.state.input)
    ends = _reported(deployment, event, items, time_left_s)
    left = sum(end is None for end in ends)
    if left:
        reports = tuple(end for end in ends if isinstance(end, TableReport))
        errors = [end for end in ends if isinstance(end, StorageError)]
        if errors and not reports:
            raise errors[0]  # nothing moves: the state machine tries again, and gives up
        told = {"status": "running", "summary": f"{left} table(s) are left to report", "left": left}
        return RunReport({"run_id": event.run_id, **told, **_NOTHING}, reports, is_scan)
    told_ends = [
        _unreported(item, end) if isinstance(end, Exception) else end for item, end in zip(items, ends, strict=True)
    ]
    reports = tuple(end for end in told_ends if isinstance(end, TableReport))
    results = [end.result if isinstance(end, TableReport) else end for end in told_ends if end is not None]
    answer = _end(deployment, event, results, is_scan=is_scan)
    if time_left_s is None or time_left_s() >= LEAST_CALL_S:
        write_page(deployment)
    return RunReport(answer, reports, is_scan, failed_jobs=len(event.state.jobs.keys() & {*JOB_STAGES}))


def _is_of_fleet(given: object) -> bool:
    """Whether the input of a run whose detection failed is that of a schedule: it names no single table."""
    return given is None or (isinstance(given, dict) and given.get("table") is None)


def write_page(deployment: Deployment) -> None:
    """Write the report page of all catalogs into the control bucket; a failure is logged and fails nothing."""
    from icekeeper.report.page import recorded_page  # imports a template engine, which only the end of a run needs

    try:
        deployment.control.write_page(recorded_page(deployment.state, deployment.clock()))
    except Exception as error:
        log.warning("the report page could not be written: %s: %s", type(error).__name__, error)


_Reported: TypeAlias = TableReport | TableResult | Exception | None
"""What became of a table: its report, the result that an earlier call left, why there is none, or that time was up."""


def _reported(
    deployment: Deployment, event: ReportEvent, items: Sequence[Item], time_left_s: Callable[[], float] | None
) -> list[_Reported]:
    """Report each table, in threads; one that the store kept from it several times."""

    def is_time() -> bool:
        return time_left_s is None or time_left_s() >= LEAST_CALL_S

    def one(item: Item) -> _Reported:
        try:
            ended = PassDocuments(deployment.control, event.run_id, item).ended()
            if ended is not None:
                return TableResult(table=item.table, status=ended.status, summary=ended.summary[:MAX_SENTENCE])
            return report_table(deployment, event.run_id, item, event.state) if is_time() else None
        except StorageError as error:
            log.warning("%s could not be reported: %s", item.table, error)
            return error
        except Exception as error:  # a bug, or a document that nobody thought of: the other tables are reported
            log.exception("the report of %s broke", item.table)
            return error

    def all_of(some: Sequence[Item]) -> list[_Reported]:
        with WorkThreads(_AT_ONCE, thread_name_prefix="icekeeper-report") as threads:
            return [future.result() for future in [threads.submit(one, item) for item in some]]

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
    sentence = masked(" ".join(f"the pass could not be reported: {type(error).__name__}: {error}".split()))
    return TableReport(item, "failed", sentence)


_NOTHING: Mapping[str, Any] = {"tables": [], "error": "", "cause": ""}


def _end(
    deployment: Deployment, event: ReportEvent, results: Sequence[TableResult], *, is_scan: bool
) -> Mapping[str, Any]:
    counts: Counter[str] = Counter(result.status for result in results)
    failure = event.state.failure
    status = _status(counts, len(results), is_failed=failure is not None)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "no table"
    if failure is not None:
        told = f"the run got no further than this: {failure.sentence[:MAX_SENTENCE]}"
    report: dict[str, Any] = {"run_id": event.run_id, "status": status, "summary": told}
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
    """Error and cause with which the execution is to fail; empty where it ends well.

    To whoever asked for a very table that another run maintains that is a failure; a scheduled run comes again.
    """
    if state.failure is not None:
        if not results:
            return "DetectionFailed", f"no table was looked at or changed: {state.failure.sentence}"
        return "TablesNotRead", f"the run got no further than its tables' plans: {state.failure.sentence}"
    if status == "failed":
        first = next(result for result in results if result.status == "failed")
        return "PassesFailed", f"every table that was attempted failed: {first.table}: {first.summary}"
    if status == "refused" and not is_scan:
        return "LeaseHeld", f'{results[0].summary}; start again later, or with "wait" true'
    return "", ""
