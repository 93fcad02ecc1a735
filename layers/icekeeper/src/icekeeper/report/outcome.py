"""The outcome of a pass, in one vocabulary for the command line, the journal, functions and jobs.

Sentences and metric keys are those of the SeaweedFS worker's documentation; a metric key starts with its operation.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from icekeeper import errors
from icekeeper.errors import StorageError
from icekeeper.machine.clock import iso_utc
from icekeeper.machine.metering import RequestKind
from icekeeper.operation_facts import FACTS, STEPS, Operation
from icekeeper.state.store import ONLY_WAITS
from icekeeper.text import escaped, masked_sentence, size_text

_WAITS = ".deletions_wait"
"""The end of the metric of :attr:`OperationOutcome.waits`."""
Metrics: TypeAlias = Mapping[str, int | float]


class Status(StrEnum):
    """How an operation ended.

    ``skipped`` is a success: nothing to do, disabled, or not possible here.  ``refused``: a guard detected danger.
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

    ``reason`` says why it did not run; ``None`` if it succeeded.  ``summary`` is the sentence for people.
    ``snapshot_ids`` are the snapshots that it committed.  ``files_planned`` are the files to rewrite or to delete,
    ``files_deleted`` those actually deleted.
    """

    operation: Operation
    status: Status
    reason: str | None = None
    summary: str
    snapshot_ids: tuple[int, ...] = ()
    metrics: Metrics = field(default_factory=dict)
    files_planned: tuple[str, ...] = ()
    files_deleted: tuple[str, ...] = ()
    expiring: tuple[int, ...] = ()
    """In a dry run: the snapshots that would expire."""
    expiring_refs: tuple[str, ...] = ()
    """In a dry run: the branches and tags that would expire."""
    plan: Mapping[str, Any] | None = None
    """Details of a dry run's plan, ready for JSON."""
    lost_lease: bool = False
    """Another run took the table's lease meanwhile, so the outcome says nothing about the table."""
    planned_after: tuple[Operation, ...] = ()
    """In a dry run: the earlier operations whose changes the plan takes into account."""
    in_turn: OperationOutcome | None = None
    """In a dry run, if this outcome is for the current table: the outcome after the earlier operations."""
    leaves_work: bool = False
    """Whether it left work to a later pass: because of a limit, or because others committed meanwhile."""

    def __post_init__(self) -> None:
        # A summary may quote an error of a library, which may contain secrets.
        object.__setattr__(self, "summary", masked_sentence(self.summary))
        object.__setattr__(self, "reason", None if self.reason is None else masked_sentence(self.reason))

    def __repr__(self) -> str:
        """One line, without the lists of files."""
        return escaped(f"{type(self).__name__}({self.operation.value} {self.status.value}: {self.summary})")

    @property
    def waits(self) -> bool:
        """Whether it was refused only because another table, which may need the files, cannot be read."""
        return f"{self.operation.value}{_WAITS}" in self.metrics

    @property
    def snapshot_id(self) -> int | None:
        """The last snapshot that the operation committed."""
        return self.snapshot_ids[-1] if self.snapshot_ids else None

    def to_json(self, run_id: str, listing: ListingWriter) -> dict[str, Any]:
        """One element of ``operations`` in ``maintain --json``."""
        return {
            "operation": self.operation.value,
            "status": self.status.value,
            "reason": self.reason,
            "summary": self.summary,
            "snapshot_id": self.snapshot_id,
            "snapshot_ids": list(self.snapshot_ids),
            "metrics": dict(self.metrics),
            "files": files_json(self.files_planned, self.files_deleted, f"{run_id}-{self.operation.value}", listing),
            **({} if self.plan is None else {"plan": dict(self.plan)}),
            **({"lost_lease": True} if self.lost_lease else {}),
            **({"planned_after": [operation.value for operation in self.planned_after]} if self.planned_after else {}),
            **({} if self.in_turn is None else {"in_turn": self.in_turn.to_json(f"{run_id}-in-turn", listing)}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedOutcome:
    """The cleanup of failed loads in a pass.  It is not an operation: it has no status and does not fail the pass."""

    summary: str
    problem: str | None = None
    """Why files could not be deleted; the next pass tries again."""
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
    """The outcome of an operation that did its work (in a dry run: would do it)."""
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


def refused(operation: Operation, reason: str, *, waits: bool = False) -> OperationOutcome:
    """The outcome of an operation that a guard stopped because it detected danger; ``waits``: the danger is that
    another table, which cannot be read, may need the files."""
    metrics = {f"{operation.value}{_WAITS}": 1} if waits else None
    return _not_carried_out(operation, Status.REFUSED, reason, metrics)


def failed(operation: Operation, reason: str, *, metrics: Metrics | None = None) -> OperationOutcome:
    """The outcome of an operation that failed."""
    return _not_carried_out(operation, Status.FAILED, reason, metrics)


def refused_besides(outcome: OperationOutcome, reason: str) -> OperationOutcome:
    """The outcome turned into a refusal, whatever else was done, because a person must decide."""
    return replace(outcome, status=Status.REFUSED, reason=reason, summary=f"{reason}; {outcome.summary}")


def with_left_out(outcome: OperationOutcome, unreadable: Mapping[str, str]) -> OperationOutcome:
    """Add the unreadable files that were skipped (path → sentence with the path) to the outcome
    (rule: leave-out-unreadable-files)."""
    if not unreadable:
        return outcome
    note = f"left {len(unreadable)} file(s) out: {next(iter(unreadable.values()))}"
    reason = note if outcome.status is Status.SKIPPED else outcome.reason
    return replace(outcome, reason=reason, summary="; ".join(filter(None, (outcome.summary, note))))


def _not_carried_out(operation: Operation, status: Status, reason: str, metrics: Metrics | None) -> OperationOutcome:
    return OperationOutcome(
        operation=operation, status=status, reason=reason, summary=reason, metrics=dict(metrics or {})
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutcome:
    """How one pass over one table ended; ``table`` is ``namespace.table``."""

    table: str
    catalog: str
    run_id: str
    dry_run: bool
    operations: tuple[OperationOutcome, ...]
    staged: StagedOutcome | None = None
    """``None``: there were no failed loads to clean up."""
    around: Metrics = field(default_factory=dict)
    """Metrics of the work outside the operations; their keys start with ``pass``."""
    warnings: tuple[str, ...] = ()
    """Problems outside the operations; they do not change the status."""
    engine: tuple[str, str | None] | None = None
    """The engine's name and why it was chosen; no reason if a person or the deployment named it."""

    def __repr__(self) -> str:
        """One line: how the pass ended, what was done, and how many operations were skipped."""
        parts = [f"{op.operation.value}: {op.summary}" for op in self.operations if op.status is not Status.SKIPPED]
        skips = len(self.operations) - len(parts)
        parts += [f"{skips} skipped"] if skips else []
        kind = "dry run " if self.dry_run else ""
        return escaped(f"{type(self).__name__}({self.table} {kind}{self.status.value}: {'; '.join(parts)})")

    @property
    def status(self) -> PassStatus:
        """As in :func:`overall_status`."""
        return overall_status(self.operations)

    @property
    def summary(self) -> str:
        """``NAME: SENTENCE`` of every operation, joined by semicolons."""
        return "; ".join(f"{outcome.operation.value}: {outcome.summary}" for outcome in self.operations)

    @property
    def metrics(self) -> dict[str, int | float]:
        """All metrics; keys start with the operation's name, or with ``staged`` or ``pass``."""
        found = {key: value for outcome in self.operations for key, value in outcome.metrics.items()}
        undone = [part for part in self.operations if part.status in (Status.REFUSED, Status.FAILED)]
        only_waits = undone and all(part.waits for part in undone)
        of_pass = {**self.around, **({ONLY_WAITS: len(undone)} if only_waits else {})}
        return {**found, **({} if self.staged is None else self.staged.metrics), **of_pass}

    @property
    def is_idle(self) -> bool:
        """Whether nothing was changed and nothing failed, so that a pass over the same snapshot would find the same.

        A refusal without a change counts as idle, because its cause remains until the table changes.
        """
        return all(_did_nothing(outcome) for outcome in self.operations)

    @property
    def is_done(self) -> bool:
        """Whether no operation failed or left work, so that another pass would find nothing until others commit.

        A refusal counts as done, because its cause remains until the table changes.
        """
        return not any(op.status is Status.FAILED or op.leaves_work or op.lost_lease for op in self.operations)

    @property
    def changed_nothing(self) -> bool:
        """Whether nothing was changed, refused or cleaned up, and nothing failed, so there is nothing to report."""
        troubled = any(outcome.status in (Status.REFUSED, Status.FAILED) for outcome in self.operations)
        return self.is_idle and not troubled and self.staged is None

    def to_json(self, listing: ListingWriter) -> dict[str, Any]:
        """The document of ``maintain --json``; ``listing`` writes lists of paths that are too long for it."""
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
            **({} if self.engine is None else {"engine": dict(zip(("name", "reason"), self.engine, strict=True))}),
        }


def overall_status(outcomes: Iterable[OperationOutcome]) -> PassStatus:
    """``failed`` if everything attempted failed, ``partial`` if anything failed or was refused."""
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
    return is_sweep and not (outcome.files_planned or outcome.files_deleted)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketOutcome:
    """How the orphan sweep of a whole bucket ended; outcomes by name of the table."""

    catalog: str
    bucket: str
    run_id: str
    dry_run: bool
    tables: Mapping[str, OperationOutcome]
    outside: Mapping[str, Any]
    """``files``, ``bytes`` and the ``first`` paths outside all tables' locations, which are never deleted."""
    foreign: tuple[Mapping[str, str | None], ...]
    """``uuid``, ``location`` and a ``metadata_file`` of each table that is not in the catalog."""
    warnings: tuple[str, ...] = ()
    """Problems outside the tables; they do not change the status."""

    @property
    def status(self) -> PassStatus:
        """As in :func:`overall_status`, of the tables."""
        return overall_status(self.tables.values())

    @property
    def metrics(self) -> dict[str, int | float]:
        """The sums of the tables' metrics, and the counts of files outside all tables."""
        total: Counter[str] = Counter()
        for outcome in self.tables.values():
            total.update({key: int(value) for key, value in outcome.metrics.items() if key != CLOCK_SKEW})
        total["remove_orphans.files_outside"] = self.outside["files"]
        total["remove_orphans.bytes_outside"] = self.outside["bytes"]
        skews = [outcome.metrics[CLOCK_SKEW] for outcome in self.tables.values() if CLOCK_SKEW in outcome.metrics]
        return {**total, **({CLOCK_SKEW: max(skews, key=abs)} if skews else {})}

    def to_json(self, listing: ListingWriter) -> dict[str, Any]:
        """The document of ``orphans --json``; ``listing`` writes lists of paths that are too long for it."""
        return {
            "catalog": self.catalog,
            "bucket": self.bucket,
            "run_id": self.run_id,
            "dry_run": self.dry_run,
            "status": self.status.value,
            "tables": [self._table(name, outcome, listing) for name, outcome in self.tables.items()],
            "outside": dict(self.outside),
            "foreign": [dict(found) for found in self.foreign],
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


# Functions and jobs write outcomes as JSON documents; the report reads them back.


def operation_document(outcome: OperationOutcome, run_id: str, listing: ListingWriter) -> dict[str, Any]:
    """The outcome as in ``maintain --json`` with ``leaves_work``, for :func:`operation_outcome`."""
    return {**outcome.to_json(run_id, listing), **({"leaves_work": True} if outcome.leaves_work else {})}


def operation_outcome(document: Mapping[str, Any]) -> OperationOutcome:
    """Read a document of :func:`operation_document`, without lists of files in separate listings.

    Raises:
        StorageError: the document is damaged.
    """
    with _damage_is_an_error():
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
            lost_lease=document.get("lost_lease", False),
            leaves_work=document.get("leaves_work", False),
        )


def staged_outcome(document: Mapping[str, Any]) -> StagedOutcome:
    """Read a document of :meth:`StagedOutcome.to_json`.

    Raises:
        StorageError: the document is damaged.
    """
    with _damage_is_an_error():
        files = document["files"]
        return StagedOutcome(
            summary=document["summary"],
            problem=document["problem"],
            metrics=dict(document["metrics"]),
            files_planned=tuple(files.get("planned", ())),
            files_deleted=tuple(files.get("deleted", ())),
        )


@contextmanager
def _damage_is_an_error() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"the document of an outcome is damaged: {error!r}") from error


CLOCK_SKEW = "clock.skew_s"
"""Metric: how many seconds this machine's clock is ahead of the store's (negative: behind); omitted below 60."""


def skew_sentence(ahead_s: int) -> str:
    """What is wrong with the clock, and what to do."""
    direction = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead_s)} s {direction} the clock of the table's store, which decides "
        "ages; correct this machine's clock"
    )


def clock_warning(metrics: Iterable[Mapping[str, int | float]]) -> tuple[str, ...]:
    """The sentence about the largest skew in the metrics of a pass's parts; empty if there is none."""
    met = [int(found[CLOCK_SKEW]) for found in metrics if CLOCK_SKEW in found]
    return (skew_sentence(max(met, key=abs)),) if met else ()


MAX_INLINE_PATHS = 10_000
"""Lists with more distinct paths are written to a separate file."""

ListingWriter: TypeAlias = Callable[[str, Mapping[str, Sequence[str]]], str]
"""``(name without suffix, {"planned": paths, "deleted": paths})`` → path of the written listing."""


def files_json(planned: Sequence[str], deleted: Sequence[str], name: str, listing: ListingWriter) -> dict[str, Any]:
    """``files`` of an operation in ``maintain --json``: the paths, or their number and the path of the listing."""
    files = {"planned": list(planned), "deleted": list(deleted)}
    if len({*planned, *deleted}) <= MAX_INLINE_PATHS:
        return files
    # No lists at all: shortened lists would seem to be complete.
    return {"listing": listing(name, files), "planned_count": len(planned), "deleted_count": len(deleted)}


def listing_in(directory: Path) -> ListingWriter:
    """A writer of ``NAME.files.json`` in a folder, which it creates if needed, readable only for the owner
    (rule: state-is-private).

    Raises (when called):
        StorageError: the folder cannot be written.
    """

    def write(name: str, files: Mapping[str, Sequence[str]]) -> str:
        # The name contains that of the table, which may have slashes.
        path = directory / f"{quote(name, safe='')}.files.json"
        try:
            for folder in (directory.parent, directory):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                json.dump(files, file, indent=1)
        except OSError as error:
            raise StorageError(f"the list of files cannot be written to {path}: {error.strerror}") from error
        return str(path)

    return write


# For people, sentences omit the names of exceptions and call bins file groups; JSON and logs keep both.

# The boundary between the sentences of two operations.
_NEXT = re.compile(rf"; (?=(?:{'|'.join(STEPS)}): )")
_BINS = re.compile(r" \(across (\d+) bins\)")
# A number and its noun; a single thing before a verb in the plural keeps both forms.
_COUNTED = re.compile(
    r"(\b(?!1 [a-z -]+\(s\) (?:are|do|have|lack|need|remain|stay|wait)\b)(\d[\d,]*)(?: [a-z-]+){1,4}?)\(s\)"
)
_CLASS_NAMES = re.compile(rf"\b(?:{'|'.join(sorted(errors.ERROR_NAMES, key=len, reverse=True))}): ")


def in_plain_words(sentence: str) -> str:
    """``StorageError: the disk is full`` becomes ``the disk is full``.

    ``into 4 (across 3 bins)`` becomes ``into 4 in 3 file groups``; a single group is not mentioned.  ``2 file(s)``
    becomes ``2 files``.
    """
    plain = _CLASS_NAMES.sub("", sentence)
    plain = _BINS.sub(lambda found: "" if found[1] == "1" else f" in {found[1]} file groups", plain)
    plain = plain.replace("bin(s) failed", "file group(s) failed").replace("every bin was", "every file group was")
    return _COUNTED.sub(lambda found: f"{found[1]}{'' if found[2] == '1' else 's'}", plain)


def without_repeats(names: Sequence[str], sentences: Sequence[str]) -> list[str]:
    """The sentences in plain words; a repeated sentence becomes ``as above`` or ``as NAME``, its first occurrence."""
    first: dict[str, str] = {}
    lines = []
    plain = [in_plain_words(sentence) for sentence in sentences]
    for number, (name, sentence) in enumerate(zip(names, plain, strict=True)):
        if sentence not in first:
            lines.append(sentence)
        else:
            lines.append("as above" if sentence == plain[number - 1] else f"as {first[sentence]}")
        first.setdefault(sentence, name)
    return lines


def lines_of(summary: str) -> list[str]:
    """The summary of a pass as one line per operation; see :func:`without_repeats`."""
    parts = [part.partition(": ") for part in _NEXT.split(summary)]
    names, sentences = [name for name, _, _ in parts], [sentence for _, _, sentence in parts]
    lines = zip(names, without_repeats(names, sentences), strict=True)
    return [f"{name}: {sentence}".removesuffix(": ") for name, sentence in lines]


_RECLAIMABLE = ("expire_snapshots.bytes_reclaimable", "remove_orphans.orphan_bytes")

# A dry run plans each operation on the table as the earlier operations would leave it.  If that is not known, it plans
# the operation on the current table, and the pass will plan it again.


def looks_at_the_table(operation: Operation) -> bool:
    """Whether earlier operations may change the plan.  They do not change orphans, which nothing references anyway."""
    return operation is not Operation.REMOVE_ORPHANS


def in_turn(outcome: PassOutcome) -> PassOutcome:
    """The outcome of a dry run with each operation planned after the earlier operations."""
    return replace(outcome, operations=tuple(operation.in_turn or operation for operation in outcome.operations))


def reclaimable_bytes(outcome: PassOutcome | BucketOutcome) -> int | float:
    """The bytes that expiry and the removal of orphans would free, of a dry run."""
    return sum(outcome.metrics.get(key, 0) for key in _RECLAIMABLE)


FREED = ("expire_snapshots.bytes_freed", "remove_orphans.bytes_freed")
"""The metrics with the bytes of the files that a pass deleted."""


def freed_sentence(outcome: PassOutcome | BucketOutcome) -> str | None:
    """The sentence about the bytes that expiry and the removal of orphans freed, and how far back the table can be
    read now; ``None``: neither did anything."""
    found = outcome.metrics
    freed = reclaimable_bytes(outcome) if outcome.dry_run else sum(found.get(key, 0) for key in FREED)
    oldest_ms = found.get("expire_snapshots.oldest_readable_ms")
    if not freed and oldest_ms is None:
        return None
    verb = "would free" if outcome.dry_run else "freed"
    then = " then" if outcome.dry_run else ""
    reach = "" if oldest_ms is None else f"; the oldest state that can be read{then} is of {iso_utc(int(oldest_ms))}"
    return f"{verb} {size_text(freed)}{reach}"


def is_due(outcome: PassOutcome) -> bool:
    """Whether a dry run found anything that a pass would do."""
    return outcome.staged is not None or not in_turn(outcome).is_idle


def order_json(outcomes: Sequence[OperationOutcome]) -> dict[str, list[str]]:
    """Operation → earlier operations that would commit before it, and that its plan does not take into account."""
    found: dict[str, list[str]] = {}
    before: list[Operation] = []
    for outcome in outcomes:
        operation = outcome.operation
        unknown = [operation.value for operation in before if operation not in outcome.planned_after]
        if unknown and looks_at_the_table(operation) and outcome.status in (Status.SUCCEEDED, Status.SKIPPED):
            found[operation.value] = unknown
        if outcome.status is Status.SUCCEEDED and FACTS[operation].commits:
            before.append(operation)
    return found


def order_sentence(outcomes: Sequence[OperationOutcome]) -> str | None:
    """The sentence about plans that take earlier operations into account; ``None``: there is none."""
    later = [outcome.operation.value for outcome in outcomes if outcome.planned_after]
    if not later:
        return None
    return f"planned on the table as the earlier operations would leave it: {', '.join(dict.fromkeys(later))}"


def replanned_sentence(outcomes: Sequence[OperationOutcome]) -> str | None:
    """The sentence about operations that the pass plans again; ``None``: there is none."""
    anew = order_json(outcomes)
    if not anew:
        return None
    first = next(iter(anew.values()))[0]
    return f"planned on the current table; the pass plans again after {first}: {', '.join(anew)}"


REQUESTS = "_requests"
"""The ending of metric keys for requests, like ``PREFIX.get_requests``."""


def request_key(kind: RequestKind) -> str:
    """The ending of the metric key for one kind of requests: ``.get_requests``."""
    return f".{kind.value}{REQUESTS}"


def request_metrics(prefix: str, counts: Mapping[RequestKind, int]) -> dict[str, int]:
    """The metrics of requests, without zeros; the prefix is an operation or ``pass``."""
    return {f"{prefix}{request_key(kind)}": number for kind, number in counts.items() if number}
