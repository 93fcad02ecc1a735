"""What a pass did, in one vocabulary for the command line, the journal, functions and jobs.

Sentences and metric keys are those of the SeaweedFS worker's documentation; a metric key starts with its operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from icekeeper.policy import Operation
from icekeeper.report.listings import ListingWriter, files_json
from icekeeper.state.slack import Slack
from icekeeper.text import masked_sentence

__all__ = [
    "EngineTaken",
    "OperationOutcome",
    "PassOutcome",
    "PassStatus",
    "StagedOutcome",
    "Status",
    "failed",
    "overall_status",
    "refused",
    "refused_besides",
    "skipped",
    "succeeded",
    "with_left_out",
]

Metrics: TypeAlias = Mapping[str, int | float]


class Status(StrEnum):
    """How an operation ended.

    ``skipped`` is success: nothing to do, disabled, or not possible here.  ``refused``: a guard saw danger.
    """

    SUCCEEDED = "succeeded"
    SKIPPED = "skipped"
    REFUSED = "refused"
    FAILED = "failed"


class PassStatus(StrEnum):
    """How a pass ended."""

    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationOutcome:
    """How one operation ended.

    ``reason`` says why it was not carried out, ``None`` when it succeeded; ``summary`` is the sentence for people.
    ``snapshot_ids`` are the snapshots it committed.  ``files_planned`` are its inputs to rewrite or files to delete,
    ``files_deleted`` those really deleted.
    """

    operation: Operation
    status: Status
    reason: str | None = None
    summary: str
    snapshot_ids: tuple[int, ...] = ()
    metrics: Metrics = field(default_factory=dict)
    files_planned: tuple[str, ...] = ()
    files_deleted: tuple[str, ...] = ()
    plan: Mapping[str, Any] | None = None
    """What a dry run tells of its plan beyond the sentence, ready for JSON; ``None``: nothing."""
    schedule: str | None = None
    """The schedule of the policy in whose turn it ran; ``None``: in none."""
    lost_lease: bool = False
    """Another run took the table meanwhile: how the operation ended says nothing of the table."""
    planned_after: tuple[Operation, ...] = ()
    """In a dry run: the operations before it, whose changes its plan reckons with."""
    in_turn: OperationOutcome | None = None
    """In a dry run that answers on the table as it is: the answer on what the operations before would leave."""
    slack: Slack | None = None
    """What must come before there is anything more to do; ``None``: that is not known."""

    def __post_init__(self) -> None:
        # A summary may quote an error of a library, which may hold secrets.
        object.__setattr__(self, "summary", masked_sentence(self.summary))
        object.__setattr__(self, "reason", None if self.reason is None else masked_sentence(self.reason))

    @property
    def snapshot_id(self) -> int | None:
        """The last snapshot that the operation committed."""
        return self.snapshot_ids[-1] if self.snapshot_ids else None

    def to_json(self, run_id: str, listing: ListingWriter) -> dict[str, Any]:
        """One element of ``operations`` in ``maintain --json``."""
        name = self.operation.value if self.schedule is None else f"{self.operation.value}-{self.schedule}"
        return {
            "operation": self.operation.value,
            **({} if self.schedule is None else {"schedule": self.schedule}),
            "status": self.status.value,
            "reason": self.reason,
            "summary": self.summary,
            "snapshot_id": self.snapshot_id,
            "snapshot_ids": list(self.snapshot_ids),
            "metrics": dict(self.metrics),
            "files": files_json(self.files_planned, self.files_deleted, f"{run_id}-{name}", listing),
            **({} if self.plan is None else {"plan": dict(self.plan)}),
            **({"lost_lease": True} if self.lost_lease else {}),
            **({"planned_after": [one.value for one in self.planned_after]} if self.planned_after else {}),
            **({} if self.in_turn is None else {"in_turn": self.in_turn.to_json(f"{run_id}-in-turn", listing)}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOutcome:
    """What a pass did about files of failed loads.  This is no operation: it has no status and makes no pass fail."""

    summary: str
    problem: str | None = None
    """Why files could not be cleaned up; the next pass tries again."""
    metrics: Metrics
    files_planned: tuple[str, ...] = ()
    files_deleted: tuple[str, ...] = ()

    def to_json(self, run_id: str, listing: ListingWriter) -> dict[str, Any]:
        """``staged`` in ``maintain --json``."""
        return {
            "summary": self.summary,
            "problem": self.problem,
            "metrics": dict(self.metrics),
            "files": files_json(self.files_planned, self.files_deleted, f"{run_id}-staged", listing),
        }


def succeeded(
    operation: Operation,
    summary: str,
    *,
    snapshot_ids: Sequence[int] = (),
    metrics: Metrics | None = None,
    files_planned: Sequence[str] = (),
    files_deleted: Sequence[str] = (),
) -> OperationOutcome:
    """The outcome of an operation that did its work (in a dry run: would have done it)."""
    return OperationOutcome(
        operation=operation,
        status=Status.SUCCEEDED,
        summary=summary,
        snapshot_ids=tuple(snapshot_ids),
        metrics=dict(metrics or {}),
        files_planned=tuple(files_planned),
        files_deleted=tuple(files_deleted),
    )


def skipped(operation: Operation, reason: str, *, metrics: Metrics | None = None) -> OperationOutcome:
    """The outcome of an operation that had nothing to do, is switched off, or is not possible here."""
    return _not_carried_out(operation, Status.SKIPPED, reason, metrics)


def refused(operation: Operation, reason: str, *, metrics: Metrics | None = None) -> OperationOutcome:
    """The outcome of an operation that a guard stopped because it saw danger."""
    return _not_carried_out(operation, Status.REFUSED, reason, metrics)


def failed(operation: Operation, reason: str, *, metrics: Metrics | None = None) -> OperationOutcome:
    """The outcome of an operation that failed."""
    return _not_carried_out(operation, Status.FAILED, reason, metrics)


def refused_besides(outcome: OperationOutcome, reason: str) -> OperationOutcome:
    """The outcome as a refusal that a person must decide about, whatever else was done."""
    return replace(outcome, status=Status.REFUSED, reason=reason, summary=f"{reason}; {outcome.summary}")


def with_left_out(outcome: OperationOutcome, unreadable: Mapping[str, str]) -> OperationOutcome:
    """The outcome with what was left out because it cannot be read: path → a sentence with it (rule 186)."""
    if not unreadable:
        return outcome
    told = f"left {len(unreadable)} file(s) out: {next(iter(unreadable.values()))}"
    reason = told if outcome.status is Status.SKIPPED else outcome.reason
    return replace(outcome, reason=reason, summary="; ".join(filter(None, (outcome.summary, told))))


def _not_carried_out(operation: Operation, status: Status, reason: str, metrics: Metrics | None) -> OperationOutcome:
    return OperationOutcome(
        operation=operation, status=status, reason=reason, summary=reason, metrics=dict(metrics or {})
    )


@dataclass(frozen=True, slots=True)
class EngineTaken:
    """Which engine a pass took, and why it did; no reason where a person or a deployment has named it."""

    name: str
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """``engine`` in ``maintain --json``."""
        return {"name": self.name, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutcome:
    """How one pass over one table ended; ``table`` is ``namespace.table``."""

    table: str
    catalog: str
    run_id: str
    dry_run: bool
    operations: tuple[OperationOutcome, ...]
    staged: StagedOutcome | None = None
    """``None`` where there were no failed loads to clean up after."""
    around: Metrics = field(default_factory=dict)
    """Metrics of what the pass did around its operations; their keys start with ``pass``."""
    warnings: tuple[str, ...] = ()
    """What went wrong beside the operations; it does not change how the pass ended."""
    engine: EngineTaken | None = None
    """What rewrote files, or would have; ``None``: not told."""

    @property
    def status(self) -> PassStatus:
        """``failed`` when everything attempted failed, ``partial`` when anything failed or was refused."""
        return overall_status(self.operations)

    @property
    def summary(self) -> str:
        """Every operation's sentence behind its name, joined by semicolons."""
        return "; ".join(f"{_named(outcome)}: {outcome.summary}" for outcome in self.operations)

    @property
    def metrics(self) -> dict[str, int | float]:
        """All metrics in one flat mapping; their keys start with the operation's name, or with ``staged`` or ``pass``.

        Those of an operation that ran in several schedules are added up.
        """
        found: dict[str, int | float] = {}
        for outcome in self.operations:
            own = f"{outcome.operation.value}."
            for key, value in outcome.metrics.items():
                is_sum = outcome.schedule is not None and key.startswith(own)
                found[key] = value + found.get(key, 0) if is_sum else value
        return {**found, **({} if self.staged is None else self.staged.metrics), **self.around}

    @property
    def is_idle(self) -> bool:
        """Whether nothing was changed and nothing failed: another pass over the same snapshot would find the same.

        A refusal that changed nothing counts as idle: its cause is in the table, and stays until the table changes.
        """
        return all(_did_nothing(outcome) for outcome in self.operations)

    def of_schedule(self, schedule: str | None) -> PassOutcome:
        """What was done in the turn of one schedule; ``None``: outside of all."""
        return replace(self, operations=tuple(one for one in self.operations if one.schedule == schedule))

    @property
    def changed_nothing(self) -> bool:
        """Whether the pass is no news: nothing was changed, found or refused, and there was nothing to clean up."""
        troubled = any(outcome.status in (Status.REFUSED, Status.FAILED) for outcome in self.operations)
        return self.is_idle and not troubled and self.staged is None

    def to_json(self, listing: ListingWriter) -> dict[str, Any]:
        """The document of ``maintain --json``; ``listing`` stores path lists too long for it."""
        return {
            "table": self.table,
            "catalog": self.catalog,
            "run_id": self.run_id,
            "dry_run": self.dry_run,
            "status": self.status.value,
            "operations": [outcome.to_json(self.run_id, listing) for outcome in self.operations],
            "summary": self.summary,
            "metrics": self.metrics,
            **({} if self.staged is None else {"staged": self.staged.to_json(self.run_id, listing)}),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
            **({} if self.engine is None else {"engine": self.engine.to_json()}),
        }


def _named(outcome: OperationOutcome) -> str:
    return outcome.operation.value + ("" if outcome.schedule is None else f" ({outcome.schedule})")


def overall_status(outcomes: Iterable[OperationOutcome]) -> PassStatus:
    """``failed`` when everything attempted failed, ``partial`` when anything failed or was refused."""
    attempted = [outcome.status for outcome in outcomes if outcome.status is not Status.SKIPPED]
    if attempted and all(status is Status.FAILED for status in attempted):
        return PassStatus.FAILED
    if any(status is not Status.SUCCEEDED for status in attempted):
        return PassStatus.PARTIAL
    return PassStatus.SUCCEEDED


def _did_nothing(outcome: OperationOutcome) -> bool:
    if outcome.status in (Status.SKIPPED, Status.REFUSED):
        return not (outcome.snapshot_ids or outcome.files_deleted)
    # Only an orphan sweep succeeds without work: "removed 0 orphan file(s)".
    is_sweep = outcome.operation is Operation.REMOVE_ORPHANS and outcome.status is Status.SUCCEEDED
    # Orphans in quarantine are deleted by a later pass, so that pass is needed.
    waiting = outcome.metrics.get("remove_orphans.files_quarantined", 0)
    return is_sweep and not (outcome.files_planned or outcome.files_deleted or waiting)
