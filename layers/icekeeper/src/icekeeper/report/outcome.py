"""What a pass did, in one vocabulary for the command line, the journal, functions and jobs."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from icekeeper import errors
from icekeeper.errors import StorageError
from icekeeper.machine.metering import RequestKind
from icekeeper.operation_facts import FACTS, STEPS, Operation
from icekeeper.state.store import IdleSince, idle_since_text, read_idle_since
from icekeeper.text import masked_sentence

# How a wrong clock is reported to people and in metrics.

CLOCK_SKEW = "clock.skew_s"
"""Metric: how many seconds this machine's clock is ahead of the store's (negative: behind); left out below a minute."""


def skew_sentence(ahead_s: int) -> str:
    """The sentence for people: what is wrong with the clock, and what to do."""
    direction = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead_s)} s {direction} the clock of the table's store, by which ages are "
        "judged; set it right"
    )


def clock_warning(metrics: Iterable[Mapping[str, int | float]]) -> tuple[str, ...]:
    """The sentence about the largest skew in the metrics of a pass's parts; empty where no part met one."""
    met = [int(found[CLOCK_SKEW]) for found in metrics if CLOCK_SKEW in found]
    return (skew_sentence(max(met, key=abs)),) if met else ()


# Lists of files in JSON documents; those too long for one are written to a file of their own.

MAX_INLINE_PATHS = 10_000
"""Lists with more distinct paths than this are written to a file of their own."""

ListingWriter: TypeAlias = Callable[[str, Mapping[str, Sequence[str]]], str]
"""``(name without suffix, {"planned": paths, "deleted": paths})`` → where the listing was written."""


def files_json(planned: Sequence[str], deleted: Sequence[str], name: str, listing: ListingWriter) -> dict[str, Any]:
    """``files`` of an operation in ``maintain --json``: the paths, or how many they are and where they were written."""
    files = {"planned": list(planned), "deleted": list(deleted)}
    if len({*planned, *deleted}) <= MAX_INLINE_PATHS:
        return files
    # No lists at all rather than shortened ones, which would read as "these and no others".
    return {"listing": listing(name, files), "planned_count": len(planned), "deleted_count": len(deleted)}


def listing_in(directory: Path) -> ListingWriter:
    """A writer of ``NAME.files.json`` in a folder, which it creates when first needed; for the owner only
    (rule: state-is-private).

    Raises (when called):
        StorageError: the folder cannot be written.
    """

    def write(name: str, files: Mapping[str, Sequence[str]]) -> str:
        # A table's name is part of it, and may hold slashes.
        path = directory / f"{quote(name, safe='')}.files.json"
        try:
            for folder in (directory.parent, directory):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(path, "w", encoding="utf-8", opener=_for_the_owner) as file:
                json.dump(files, file, indent=1)
        except OSError as error:
            raise StorageError(f"the list of files cannot be written to {path}: {error.strerror}") from error
        return str(path)

    return write


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# What a pass did, in one vocabulary for the command line, the journal, functions and jobs.
#
# Sentences and metric keys are those of the SeaweedFS worker's documentation; a metric key starts with its operation.

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
    idle_since: IdleSince | None = None
    """Where it had nothing more to do; ``None``: there may be more."""

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
    """The outcome with what was left out because it cannot be read: path → a sentence with it
    (rule: leave-out-unreadable-files)."""
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


# What a pass over the orphans of a whole bucket did: per table, outside of all tables, and of foreign tables.


@dataclass(frozen=True, slots=True)
class Outside:
    """Files under no table's location, which are reported and never deleted; ``size`` in bytes."""

    files: int = 0
    size: int = 0
    first: tuple[str, ...] = ()
    """Some of the paths."""


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A table that the catalog does not know, found by one of its metadata files."""

    uuid: str | None
    location: str
    metadata_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketOutcome:
    """How one pass over a bucket ended; outcomes by the names of tables."""

    catalog: str
    bucket: str
    run_id: str
    dry_run: bool
    tables: Mapping[str, OperationOutcome]
    outside: Outside
    foreign: tuple[ForeignTable, ...]
    warnings: tuple[str, ...] = ()
    """What went wrong beside the tables; it does not change how the pass ended."""

    @property
    def status(self) -> PassStatus:
        """As the status of a pass over one table, with tables in place of operations."""
        return overall_status(self.tables.values())

    @property
    def metrics(self) -> dict[str, int | float]:
        """The sums of all tables' metrics, and the counts of files outside all tables."""
        total: Counter[str] = Counter()
        for outcome in self.tables.values():
            total.update({key: int(value) for key, value in outcome.metrics.items() if key != CLOCK_SKEW})
        total["remove_orphans.files_outside"] = self.outside.files
        total["remove_orphans.bytes_outside"] = self.outside.size
        skews = [outcome.metrics[CLOCK_SKEW] for outcome in self.tables.values() if CLOCK_SKEW in outcome.metrics]
        return {**total, **({CLOCK_SKEW: max(skews, key=abs)} if skews else {})}

    def to_json(self, listing: ListingWriter) -> dict[str, Any]:
        """The document of ``orphans --json``; ``listing`` stores path lists too long for it."""
        return {
            "catalog": self.catalog,
            "bucket": self.bucket,
            "run_id": self.run_id,
            "dry_run": self.dry_run,
            "status": self.status.value,
            "tables": [self._table(name, outcome, listing) for name, outcome in self.tables.items()],
            "outside": {
                "files": self.outside.files,
                "bytes": self.outside.size,
                "first": list(self.outside.first),
            },
            "foreign": [
                {"uuid": found.uuid, "location": found.location, "metadata_file": found.metadata_file}
                for found in self.foreign
            ],
            "metrics": self.metrics,
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }

    def _table(self, name: str, outcome: OperationOutcome, listing: ListingWriter) -> dict[str, Any]:
        document = outcome.to_json(f"{self.run_id}-{name}", listing)
        return {
            "table": name,
            **{key: document[key] for key in ("status", "reason", "summary")},
            "orphans_removed": len(outcome.files_deleted),
            "bytes": outcome.metrics.get("remove_orphans.orphan_bytes", 0),
            "files": document["files"],
        }


# Outcomes as the JSON documents that functions and jobs write for the report, and back.


def operation_document(outcome: OperationOutcome, run_id: str, listing: ListingWriter) -> dict[str, Any]:
    """What :func:`operation_outcome` reads: as ``maintain --json`` has it, and what the pass is to remember."""
    name = outcome.operation.value
    remembered = {} if outcome.idle_since is None else {"idle_since": idle_since_text({name: outcome.idle_since})}
    return {**outcome.to_json(run_id, listing), **remembered}


def operation_outcome(document: Mapping[str, Any]) -> OperationOutcome:
    """The outcome that :func:`operation_document` wrote, without lists of files that have a file of their own.

    Raises:
        StorageError: it is no such document.
    """
    try:
        files = document["files"]
        return OperationOutcome(
            operation=Operation(document["operation"]),
            status=Status(document["status"]),
            reason=document["reason"],
            summary=document["summary"],
            snapshot_ids=tuple(document["snapshot_ids"]),
            metrics=dict(document["metrics"]),
            files_planned=tuple(files.get("planned", ())),
            files_deleted=tuple(files.get("deleted", ())),
            schedule=document.get("schedule"),
            lost_lease=document.get("lost_lease", False),
            idle_since=read_idle_since(document.get("idle_since")).get(document["operation"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"the document of an outcome is damaged: {error!r}") from error


def staged_outcome(document: Mapping[str, Any]) -> StagedOutcome:
    """The outcome that :meth:`StagedOutcome.to_json` wrote.

    Raises:
        StorageError: it is no such document.
    """
    try:
        files = document["files"]
        return StagedOutcome(
            summary=document["summary"],
            problem=document["problem"],
            metrics=dict(document["metrics"]),
            files_planned=tuple(files.get("planned", ())),
            files_deleted=tuple(files.get("deleted", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"the document of an outcome is damaged: {error!r}") from error


# Sentences as people read them, without our names of exceptions and bins; JSON and logs keep them (pure).

# Where the sentence of one operation ends and that of the next begins.
_NEXT = re.compile(rf"; (?=(?:{'|'.join(STEPS)}): )")
_BINS = re.compile(r" \(across (\d+) bins\)")
_CLASS_NAMES = re.compile(rf"\b(?:{'|'.join(sorted(errors.ERROR_NAMES, key=len, reverse=True))}): ")


def in_plain_words(sentence: str) -> str:
    """``StorageError: the disk is full`` is told as ``the disk is full``.

    ``into 4 (across 3 bins)`` becomes ``into 4 in 3 file groups``; that there is one is not worth telling.
    """
    plain = _BINS.sub(_groups, _CLASS_NAMES.sub("", sentence))
    return plain.replace("bin(s) failed", "file group(s) failed").replace("every bin was", "every file group was")


def told_once(names: Sequence[str], sentences: Sequence[str]) -> list[str]:
    """Each sentence in plain words where it comes first; then ``as above``, or ``as NAME`` of one further up."""
    first: dict[str, str] = {}
    told = []
    plain = [in_plain_words(sentence) for sentence in sentences]
    for number, (name, sentence) in enumerate(zip(names, plain, strict=True)):
        if sentence not in first:
            told.append(sentence)
        else:
            told.append("as above" if sentence == plain[number - 1] else f"as {first[sentence]}")
        first.setdefault(sentence, name)
    return told


def lines_of(summary: str) -> list[str]:
    """The summary of a pass as a line for each operation; what several say is told once."""
    parts = [part.partition(": ") for part in _NEXT.split(summary)]
    said = told_once([name for name, _, _ in parts], [sentence for _, _, sentence in parts])
    return [f"{name}: {sentence}".removesuffix(": ") for (name, _, _), sentence in zip(parts, said, strict=True)]


def _groups(found: re.Match[str]) -> str:
    return "" if found[1] == "1" else f" in {found[1]} file groups"


# On which state of the table the operations of a dry run are planned (pure).
#
# Each is planned on the table as those before it would leave it, as the pass runs them.  Where that cannot be told, it
# is planned on the table as it is, and the pass plans it anew.

# What lies in the store no plan changes: orphans are what nothing references, before and after.
_LOOKS_AT_THE_STORE = frozenset({Operation.REMOVE_ORPHANS})


def looks_at_the_table(operation: Operation) -> bool:
    """Whether an operation is planned on the table's head or snapshots, which those before it may change."""
    return operation not in _LOOKS_AT_THE_STORE


def in_turn(outcome: PassOutcome) -> PassOutcome:
    """What a dry run says of every operation on what those before it would leave."""
    answers = (replace(one.in_turn or one, schedule=one.schedule) for one in outcome.operations)
    return replace(outcome, operations=tuple(answers))


def planned_anew(outcomes: Sequence[OperationOutcome]) -> Mapping[Operation, tuple[Operation, ...]]:
    """By operation, those before it that would commit first and that its plan does not reckon with."""
    found: dict[Operation, tuple[Operation, ...]] = {}
    before: tuple[Operation, ...] = ()
    for outcome in outcomes:
        operation = outcome.operation
        unknown = tuple(one for one in before if one not in outcome.planned_after)
        if unknown and looks_at_the_table(operation) and outcome.status in (Status.SUCCEEDED, Status.SKIPPED):
            found[operation] = unknown
        if outcome.status is Status.SUCCEEDED and FACTS[operation].commits:
            before = (*before, operation)
    return found


def told_order(outcomes: Sequence[OperationOutcome]) -> str | None:
    """The sentence for people about plans that reckon with earlier ones; ``None`` where none does."""
    later = [outcome.operation.value for outcome in outcomes if outcome.planned_after]
    if not later:
        return None
    return f"planned on the table as the operations before would leave it: {', '.join(dict.fromkeys(later))}"


def told_anew(outcomes: Sequence[OperationOutcome]) -> str | None:
    """The sentence about it for people; ``None`` where every operation finds what it was planned on."""
    anew = planned_anew(outcomes)
    if not anew:
        return None
    first = next(iter(anew.values()))[0].value
    named = ", ".join(operation.value for operation in anew)
    return f"planned here on the table as it is; the pass plans anew after {first}: {named}"


def order_json(outcomes: Sequence[OperationOutcome]) -> dict[str, list[str]]:
    """``planned_anew`` in the document of a dry run: operation → those that change the table before it."""
    return {operation.value: [one.value for one in before] for operation, before in planned_anew(outcomes).items()}


# Requests as metrics: ``PREFIX.get_requests`` and so on, without zeros.

REQUESTS = "_requests"
"""How the keys of these metrics end."""


def request_key(kind: RequestKind) -> str:
    """How the key of one kind's metric ends: ``.get_requests``."""
    return f".{kind.value}{REQUESTS}"


def request_metrics(prefix: str, counts: Mapping[RequestKind, int]) -> dict[str, int]:
    """The metrics of an operation, or of what a pass does around its operations (``pass``)."""
    return {f"{prefix}{request_key(kind)}": number for kind, number in counts.items() if number}
