"""The process of ``icekeeper run`` that people start; it starts a worker process, and may kill it
(rule: cut-off-endless-tables).

Python cannot end a thread that hangs in C code.  So one long-lived worker process maintains tables, and shows on its
board (:class:`icekeeper.machine.clock.Board`) which tables it works on.  If a table exceeds its limit, the worker
starts no further table, finishes the others, and is killed and started again.  If nothing hangs, a run starts one
worker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from icekeeper.errors import MaintenanceError, PolicyError, StorageError
from icekeeper.machine.clock import AtWork, iso_utc, read_board, system_clock
from icekeeper.report.activity import is_json, json_line
from icekeeper.report.outcome import PassOutcome, Status, in_plain_words
from icekeeper.state.claims import CutWork, cut_again
from icekeeper.state.open import open_state
from icekeeper.storage.local_files import scratch_folder
from icekeeper.text import masked


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """How the pass over one table ended: a status of a pass, or ``skipped``."""

    catalog: str
    table: str
    status: str
    summary: str
    seconds: float = 0.0

    @property
    def is_well(self) -> bool:
        return self.status in ("succeeded", "skipped")

    def line(self, now_ms: int, *, as_json: bool = False) -> str:
        """``2026-01-31T12:00:00Z lake ns.t succeeded in 3.2 s: compact: …``"""
        text = in_plain_words(masked(" ".join(self.summary.split())))
        if as_json:
            fields: dict[str, object] = {"catalog": self.catalog, "table": self.table, "status": self.status}
            level = "INFO" if self.is_well else "ERROR"
            return run_json(now_ms, text, "table_result", level, {**fields, "seconds": round(self.seconds, 3)})
        taken = f" in {self.seconds:.1f} s" if self.seconds else ""
        return f"{iso_utc(now_ms)} {self.catalog} {self.table} {self.status}{taken}: {text}"


def run_json(now_ms: int, message: str, event: str, level: str, fields: Mapping[str, object]) -> str:
    """A line of ``icekeeper run`` as JSON, with the names that log lines use."""
    about = {"level": level, "message": message, "timestamp": iso_utc(now_ms), "name": "icekeeper.run"}
    return json_line({**about, "event": event, **fields})


def run_line(now_ms: int, sentence: str, environment: Mapping[str, str], **fields: object) -> str:
    """A sentence as a line of ``icekeeper run``, in the format of the environment."""
    if is_json(environment):
        return run_json(now_ms, sentence, "run", "INFO", fields)
    return f"{iso_utc(now_ms)} {sentence}"


def what_was_done(outcome: PassOutcome) -> str:
    """The summaries of the operations that did something or failed, or ``nothing to do``."""
    done = [part for part in outcome.operations if part.status is not Status.SKIPPED]
    parts = [f"{part.operation.value}: {part.summary}" for part in done]
    if outcome.staged is not None:
        parts.append(outcome.staged.summary)
    return "; ".join(parts) or "nothing to do"


WORKER = "run-worker"
"""The hidden command of the worker."""
STOP = "stop"
"""A line on the worker's standard input: start nothing more.  If that input is closed, the worker exits at once."""
_LOOK_S = 0.25
# A process that runs no Python code for this long hangs with all of its threads.
_SILENCE_S = 15.0
# Long enough to see processor ticks, which are hundredths of a second.
_SAMPLE_S = 0.5
# A worker that has reported its end and still runs after this time waits for a hanging thread.
_LAST_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCall:
    """The arguments of ``icekeeper run``."""

    catalogs: Sequence[str]
    overrides: Mapping[str, str]
    schedule: Mapping[str, str]
    engine: str
    once: bool

    def to_json(self, board: Path, messages: int) -> str:
        """One line for the worker, with the path of its board and the file descriptor for its messages."""
        fields = {"engine": self.engine, "once": self.once, "board": str(board), "messages": messages}
        given = {"catalogs": [*self.catalogs], "overrides": {**self.overrides}, "schedule": {**self.schedule}}
        return json.dumps({**fields, **given})


@dataclass(slots=True)
class _End:
    """How a worker ended."""

    is_well: bool | None = None
    """Whether nothing went wrong; ``None``: the worker did not report it."""
    error: MaintenanceError | None = None
    cut: list[AtWork] = field(default_factory=list)
    """The tables that took too long."""
    beside: tuple[AtWork, ...] = ()
    """The tables that the worker worked on when it died by itself."""
    unheard: Exception | None = None
    """Why lines for people cannot be written any more."""


class Supervisor:
    """One call of ``icekeeper run``; :meth:`stop` may be called by a signal handler or another thread."""

    def __init__(
        self,
        call: WorkerCall,
        environment: Mapping[str, str],
        tell: Callable[[str], object],
        on_cycle: Callable[[float, bool], object] = lambda interval_s, has_ended: None,
    ) -> None:
        """``tell`` writes a line; ``on_cycle`` is told at the begin and end of each cycle, with its interval.

        Raises:
            PolicyError: the environment asks for an unknown format of lines.
        """
        self._call, self._environment, self._tell, self._on_cycle = call, environment, tell, on_cycle
        self._as_json = is_json(environment)
        self._stop = Event()

    def stop(self) -> None:
        """Start nothing more; running passes end after their current operation."""
        self._stop.set()

    def run(self) -> bool:
        """Maintain tables until stopped, or once; with ``once``, return whether nothing went wrong, else true.

        Raises:
            PolicyError: the settings or the name of a catalog are wrong.
            StorageError: the worker cannot work, or the state cannot be used.
            Exception: ``tell`` raised it; running passes have ended after their current operation.
        """
        is_well = True
        with scratch_folder("icekeeper-run-") as folder:
            while True:
                board = Path(folder) / "board"
                board.write_bytes(b"")
                end = self._one_worker(board)
                if (error := end.unheard or end.error) is not None:
                    raise error
                self._note(end)
                is_well = is_well and bool(end.is_well) and not end.cut
                if self._stop.is_set() or (end.is_well is not None and not end.cut):
                    return is_well or not self._call.once
                if not end.cut and not end.beside:
                    raise StorageError("the process that maintains tables has died; the lines above may say why")

    def _one_worker(self, board: Path) -> _End:
        ours, theirs = os.pipe()
        # A session of its own: signals of a terminal or group reach only this process, which tells the worker to stop.
        process = subprocess.Popen(
            # -P: import nothing from the current folder (rule: no-imports-from-current-folder).
            [sys.executable, "-P", "-m", "icekeeper", WORKER],
            stdin=subprocess.PIPE,
            text=True,
            pass_fds=[theirs],
            start_new_session=True,
            env=dict(self._environment),
        )
        os.close(theirs)
        end = _End()
        listener = Thread(target=self._listen, args=(ours, end), daemon=True)
        listener.start()
        try:
            _say(process, self._call.to_json(board, theirs))
            self._watch(process, board, end)
        finally:
            _kill(process)
            listener.join()
        return end

    def _listen(self, messages: int, end: _End) -> None:
        """Read the worker's messages, which are lines of JSON, until it ends."""
        with os.fdopen(messages) as lines:
            for text in lines:
                try:
                    message: dict[str, Any] = json.loads(text)
                except ValueError:  # the worker was killed while it wrote
                    continue
                if "line" in message:
                    self._pass_on(message["line"], end)
                elif "interval_s" in message:
                    self._on_cycle(message["interval_s"], message["has_ended"])
                elif "error" in message:
                    kind = PolicyError if message["error"] == PolicyError.__name__ else StorageError
                    end.error = kind(message["message"])
                elif "end" in message:
                    end.is_well = bool(message["end"])

    def _pass_on(self, line: str, end: _End) -> None:
        """Write a line for people.  After an error the run stops, but messages are still read: else the worker would
        wait forever for a reader."""
        if end.unheard is None:
            try:
                self._tell(line)
            except Exception as error:  # anything that standard output may raise
                end.unheard = error
                self._stop.set()

    def _watch(self, process: subprocess.Popen[str], board: Path, end: _End) -> None:
        """Return when the worker has ended, or must be killed."""
        is_asked, ended_s = False, None
        while process.poll() is None:
            now_s = time.monotonic()
            beat, tables = read_board(board)
            late = [one for one in tables if one.is_late(now_s)]
            is_dumb = beat is not None and now_s - beat > _SILENCE_S
            if late and (is_dumb or len(late) == len(tables)):
                end.cut += (_culprits(tables, process.pid) or late) if is_dumb else late
                return
            if end.is_well is not None or end.error is not None:
                ended_s = ended_s or now_s
                if now_s > ended_s + _LAST_S:
                    return
            if not is_asked and (late or self._stop.is_set()):
                is_asked = True
                _say(process, STOP)
            self._stop.wait(_LOOK_S) if not self._stop.is_set() else time.sleep(_LOOK_S)
        tables = read_board(board)[1]
        end.cut += [one for one in tables if one.is_late(time.monotonic())]
        if process.returncode and not end.cut:
            end.beside = tables

    def _note(self, end: _End) -> None:
        """Report and record the tables that were cut off; after a crash all running tables: each may be the cause."""
        died = [replace(one, why="the process that was at it died") for one in end.beside]
        for one in (*end.cut, *died):
            now_ms, seconds = system_clock(), time.monotonic() - one.begun_s
            # A scan records the looks that it gives up itself, so a record since the look began is of the same cut.
            since_s = seconds + (one.limit_s if one.work == CutWork.LOOK else 0)
            begun_ms = now_ms - int(since_s * 1000)
            entry = one.catalog, one.warehouse, one.table
            try:
                cuts = open_state(self._environment).cut_offs
                why = cut_again(cuts, entry, CutWork(one.work), one.why, now_ms=now_ms, begun_ms=begun_ms).sentence
            except StorageError as error:
                why = f"{one.why}; that cannot be recorded: {error}"
            result = TableResult(
                catalog=one.catalog, table=one.table, status="failed", summary=f"cut off: {why}", seconds=seconds
            )
            self._tell(result.line(now_ms, as_json=self._as_json))


def _culprits(tables: Sequence[AtWork], process: int) -> Sequence[AtWork]:
    """The tables whose threads compute most, late or not, in a process that runs no Python code: all others wait.

    Empty if no thread computes, or the system does not show it.
    """

    def computed(one: AtWork) -> int:
        try:
            stat = Path(f"/proc/{process}/task/{one.thread}/stat").read_text()
        except OSError:
            return 0
        return sum(map(int, stat.rpartition(")")[2].split()[11:13]))  # proc(5): utime and stime, in clock ticks

    before = [computed(one) for one in tables]
    time.sleep(_SAMPLE_S)
    took = [computed(one) - ticks for one, ticks in zip(tables, before, strict=True)]
    most = max(took)
    return [one for one, ticks in zip(tables, took, strict=True) if most > 0 and ticks == most]


def _say(process: subprocess.Popen[str], line: str) -> None:
    """Write a line to the worker, unless it has just ended."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill the worker and all processes that it has started, if any still run."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with suppress(BrokenPipeError):
        if process.stdin is not None:
            process.stdin.close()
