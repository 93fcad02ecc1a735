"""Log lines about the activity of Icekeeper, and their format as JSON in Glue jobs.

Every line has the field ``event`` and its facts as further fields, for structured formatters (Powertools).  Times are
in seconds.  No field has the name of an attribute of a log record.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TypeAlias

from icekeeper.errors import PolicyError
from icekeeper.operation_facts import Operation
from icekeeper.text import escaped, escaped_document, escaped_lines, masked, masked_document, size_text

log = logging.getLogger("icekeeper.activity")

Progress: TypeAlias = Callable[[str, int, int], None]
"""``(what, done, total)``, called during the work."""

# Log each tenth of the work, and every 30 seconds if a tenth takes longer.
_STEPS = 10
_LONGEST_SILENCE_S = 30.0
_SHORTEST_SILENCE_S = 3.0


REWRITING = "compact: rewriting"
"""The phase in which compaction reads and writes data files; it counts bytes of inputs, all others count items."""
_SHARES = {Operation.COMPACT.value: 80, Operation.REMOVE_ORPHANS.value: 8}
_SHARE = 3
_PLANNING = ("planning", "footers")
"""Planning and reading footers come before the work."""


def amount_text(what: str, done: int, total: int) -> str:
    """``3 of 8``, or ``1.2 GB of 4.0 GB`` in a phase that counts bytes."""
    return f"{size_text(done)} of {size_text(total)}" if what == REWRITING else f"{done} of {total}"


def pace_text(what: str, per_second: float) -> str:
    """``1.5/s``, or ``85 MB/s`` in a phase that counts bytes."""
    return f"{size_text(per_second)}/s" if what == REWRITING else f"{per_second:.1f}/s"


PASS = "pass: "
"""The prefix of the list of operations of a starting pass; percentages refer to these operations."""


class PassShare:
    """An estimate of the percentage of a pass that is done; it never falls, and is 100 only when the pass has ended.

    Each operation has a fixed share of the pass: only compaction and sweeps touch every file.
    """

    def __init__(self) -> None:
        self._operations: list[str] = []
        self._place = self.percent = 0

    def note(self, what: str, done: int, total: int) -> None:
        """Take in a call of the progress callback."""
        if what.startswith(PASS):
            self._operations, self._place, self.percent = what.removeprefix(PASS).split(","), 0, 0
            return
        name = what.partition(":")[0]
        if name not in self._operations[self._place :]:
            return
        self._place = self._operations.index(name, self._place)
        shares = [_SHARES.get(operation, _SHARE) for operation in self._operations]
        is_work = total > 0 and not what.endswith(_PLANNING)  # committing has no total
        reached = sum(shares[: self._place]) + (shares[self._place] * min(done, total) / total if is_work else 0.0)
        self.percent = max(self.percent, min(99, int(100 * reached / sum(shares))))


class Spent:
    """The seconds that an operation spent on loading the table, on planning, and on commits.

    Planning ends with the first commit, or with the first progress of the work itself; loads do not count as planning.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = monotonic_s
        self._began_s = monotonic_s()
        self._load_s = self._commit_s = 0.0
        self._plan_s: float | None = None

    @contextmanager
    def loading(self) -> Iterator[None]:
        """The block loads the table."""
        since_s = self._now_s()
        try:
            yield
        finally:
            self._load_s += self._now_s() - since_s

    @contextmanager
    def committing(self) -> Iterator[None]:
        """The block commits, with all its attempts."""
        self._end_plan()
        since_s = self._now_s()
        try:
            yield
        finally:
            self._commit_s += self._now_s() - since_s

    def noting(self, and_then: Progress) -> Progress:
        """A progress callback that notes the end of planning, and passes each call on to ``and_then``."""

        def progress(what: str, done: int, total: int) -> None:
            if not what.endswith(_PLANNING):
                self._end_plan()
            and_then(what, done, total)

        return progress

    def fields(self) -> Mapping[str, float]:
        """``load_s``, ``plan_s`` and ``commit_s``; an operation that neither worked nor committed has only planned."""
        self._end_plan()
        seconds = {"load_s": self._load_s, "plan_s": self._plan_s or 0.0, "commit_s": self._commit_s}
        return {name: round(value, 3) for name, value in seconds.items()}

    def _end_plan(self) -> None:
        if self._plan_s is None:
            self._plan_s = self._now_s() - self._began_s - self._load_s


def silent(what: str, done: int, total: int) -> None:
    """Ignore progress."""


def _log(event: str, message: str, *shown: object, **fields: object) -> None:
    log.info(message, *shown, extra={"event": event, **fields}, stacklevel=2)


def scan_started(catalogs: int) -> None:
    """Log that a scan begins; ``catalogs`` is how many it will open."""
    _log("scan_started", "scan of %d catalog(s) started", catalogs, catalogs=catalogs)


def scan_finished(*, listed: int, scanned: int, proposals: int, skipped: int, errors: int, seconds: float) -> None:
    """Log that a scan ended; ``skipped`` includes ``errors``."""
    message = "scan finished: %d of %d table(s) in %.1f s, %d proposed, %d skipped, %d of them for errors"
    shown = (scanned, listed, seconds, proposals, skipped, errors)
    counts = {"listed": listed, "tables": scanned, "proposals": proposals, "skipped": skipped, "errors": errors}
    _log("scan_finished", message, *shown, **counts, seconds=round(seconds, 3))


def operation_started(table: str, operation: str, run_id: str) -> None:
    """Log that an operation of a pass begins."""
    fields = {"table": table, "operation": operation, "run_id": run_id}
    _log("operation_started", "%s: %s started", table, operation, **fields)


def operation_finished(
    table: str,
    operation: str,
    run_id: str,
    *,
    status: str,
    summary: str,
    seconds: float,
    spent: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Log that an operation of a pass ended; ``summary`` is the sentence of its outcome, ``spent`` parts of its
    seconds."""
    fields = {"table": table, "operation": operation, "run_id": run_id, "status": status, "summary": summary}
    shown = (table, operation, status, summary)
    _log("operation_finished", "%s: %s %s: %s", *shown, **fields, seconds=round(seconds, 3), **spent)


def swap_lost(table: str, attempt: int, why: str, wait_s: float) -> None:
    """Log that commit attempt ``attempt`` (from 1) lost, and that the next attempt follows in ``wait_s``."""
    message = "%s: swap %d lost, trying again in %.2f s: %s"
    fields = {"table": table, "attempt": attempt, "why": why, "seconds": round(wait_s, 3)}
    _log("swap_lost", message, table, attempt, wait_s, why, **fields)


def progress_of(
    table: str,
    operation: str,
    run_id: str,
    and_then: Progress,
    share: PassShare,
    *,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Progress:
    """A progress callback that logs every tenth of the work, and passes each call on to ``and_then``.

    Lines are at least three seconds apart, except the last line.  They say how much of the pass is done, by ``share``.
    """
    logged: dict[str, tuple[int, float]] = {}

    def progress(what: str, done: int, total: int) -> None:
        share.note(what, done, total)
        now_s = monotonic_s()
        step, at_s = logged.setdefault(what, (0, now_s))
        reached, silent_s = done * _STEPS // max(total, 1), now_s - at_s
        is_news = reached > step and (silent_s >= _SHORTEST_SILENCE_S or done >= total)
        if total and (is_news or silent_s >= _LONGEST_SILENCE_S):
            logged[what] = max(reached, step), now_s
            fields = {"table": table, "operation": operation, "run_id": run_id, "work": what}
            of_pass = f", {share.percent} % of the pass" if share.percent else ""
            shown = (table, what, amount_text(what, done, total), of_pass)
            _log("progress", "%s: %s %s%s", *shown, **fields, done=done, total=total, percent=share.percent)
        and_then(what, done, total)

    return progress


# Lines of Glue jobs, and of commands where the environment says so, are JSON with the field names that Powertools uses
# in functions, so that one query finds both.

_here: ContextVar[Mapping[str, str]] = ContextVar("icekeeper_line_fields", default={})  # noqa: B039  # never changed
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


LOG_FORMAT = "ICEKEEPER_LOG_FORMAT"
"""The environment variable for the format of log lines and of the lines of ``icekeeper run``."""


def is_json(environment: Mapping[str, str]) -> bool:
    """Whether lines are JSON by the environment.

    Raises:
        PolicyError: it asks for another format.
    """
    wanted = (environment.get(LOG_FORMAT) or "text").lower()
    if wanted not in ("text", "json"):
        raise PolicyError(f"environment variable {LOG_FORMAT} cannot be '{wanted}'; formats are text and json")
    return wanted == "json"


def json_line(fields: Mapping[str, object]) -> str:
    """One log line: secrets are masked, and every text is escaped (rule: escape-at-the-edge), a traceback line by
    line."""
    safe = {
        name: escaped_lines(value) if name == "exception" and isinstance(value, str) else escaped_document(value)
        for name, value in masked_document(fields).items()
    }
    return json.dumps(safe, ensure_ascii=False, default=lambda other: escaped(masked(str(other))))


@contextmanager
def lines_about(**fields: str) -> Iterator[None]:
    """Within the block, add fields to the lines of this thread and of threads that it starts work in."""
    before = _here.set({**_here.get(), **fields})
    try:
        yield
    finally:
        _here.reset(before)


class JsonLines(logging.Formatter):
    """Formats log records as JSON; the record's own fields (``extra``) win over those of :meth:`about`."""

    def __init__(self) -> None:
        super().__init__()
        self._fields: dict[str, str] = {}

    def about(self, **fields: str) -> None:
        """Add fields to every further line."""
        self._fields.update(fields)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "level": record.levelname,
            "message": record.getMessage(),
            "timestamp": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "name": record.name,
            **self._fields,
            **_here.get(),
            **{name: value for name, value in vars(record).items() if name not in _OWN},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_line(line)
