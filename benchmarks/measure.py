"""What work costs: wall seconds, CPU seconds and peak memory of a process with all its children, a JVM among them.

Read from ``/proc`` at the beginning and the end, so nothing is started or imported within what is measured.  CPU
seconds have a resolution of 10 ms.  Peak memory is the largest resident set of all processes together, sampled, or that
of the largest one alone as the kernel remembers it, whichever is more; shared pages count once for each process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_SAMPLE_S = 0.05
MB = 1024 * 1024


class ContestantFailed(Exception):
    """A contestant could not be started, failed, or did not answer in time; says why in one sentence."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run; memory in MB: of all processes, without those that are Java, and of the largest one that is not."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    peak_mb_beside_java: float
    peak_mb_of_worker: float


def medians(costs: Sequence[Cost]) -> Cost:
    """The median of every figure by itself."""
    return Cost(*(statistics.median(getattr(cost, field.name) for cost in costs) for field in fields(Cost)))


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    is_java: bool
    ticks: int
    """Of its own and of children that it has waited for."""


def _session(leader: int) -> list[_Process]:
    """The live processes of a session: a child stays in it unless it leaves on purpose."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            text = Path(f"/proc/{name}/stat").read_text()
            fields = text.rpartition(")")[2].split()
            if int(fields[3]) != leader:
                continue
            # Not by the command's name: a child that Java has just forked has that of a thread.
            is_java = os.readlink(f"/proc/{name}/exe").endswith("/java")
        except OSError:  # ended meanwhile
            continue
        found.append(_Process(int(name), is_java, sum(map(int, fields[11:15]))))
    return found


def _memory(process: _Process, field: str) -> float:
    """``VmRSS`` now or ``VmHWM`` at most since it was set back, in MB."""
    try:
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


class _Peak:
    """The largest memory seen so far."""

    def __init__(self) -> None:
        self.all = self.beside_java = self.worker = 0.0

    def look(self, processes: Sequence[_Process], field: str = "VmRSS") -> None:
        sizes = [(process.is_java, _memory(process, field)) for process in processes]
        self.worker = max([self.worker, *(size for is_java, size in sizes if not is_java)])
        if field == "VmHWM":  # peaks of single processes need not have been at one time
            self.all = max([self.all, *(size for _, size in sizes)])
            self.beside_java = max(self.beside_java, self.worker)
        else:
            self.all = max(self.all, sum(size for _, size in sizes))
            self.beside_java = max(self.beside_java, sum(size for is_java, size in sizes if not is_java))


class Contestant:
    """A contestant's process, started and warm; it serves one task after the other."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, timeout_s: float = 900.0
    ) -> None:
        """Starts it and waits until it is ready for tasks.

        Raises:
            ContestantFailed: it ended, or printed nothing for so long.
        """
        self._timeout_s = timeout_s
        self._log_path = log
        self._started_s = time.perf_counter()
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._answer(None)

    def run(self, task: Mapping[str, Any], *, whole: bool = False) -> tuple[Cost, dict[str, Any]]:
        """What the task cost from the word to the answer, and the answer; preparations are not in the cost.

        ``whole``: all since the process was started is in the cost.

        Raises:
            ContestantFailed: it could not do it.
        """
        self._say(json.dumps(task))
        self._answer(None)
        leader, peak = self._process.pid, _Peak()
        before = _session(leader)
        for process in before:
            # Sets back VmHWM (proc(5)); a process that ended or belongs to somebody else is left as it is.
            try:
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")
            except OSError:
                continue
        started = self._started_s if whole else time.perf_counter()
        self._say("go")
        answer = self._answer(peak)
        wall = time.perf_counter() - started
        after = _session(leader)
        peak.look(after, "VmHWM")
        ticks = sum(process.ticks for process in after)
        ticks -= 0 if whole else sum(process.ticks for process in before)
        return Cost(wall, ticks / _TICKS, peak.all, peak.beside_java, peak.worker), answer

    def close(self) -> None:
        """End it with all its children."""
        if self._process.stdin:
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for sent in (signal.SIGTERM, signal.SIGKILL):
            for process in _session(self._process.pid):
                try:
                    os.kill(process.pid, sent)
                except ProcessLookupError:
                    continue
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                continue
            if not _session(self._process.pid):
                break
        if self._process.stdout:
            self._process.stdout.close()
        self._log.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ContestantFailed(self._ended()) from error

    def _answer(self, peak: _Peak | None) -> dict[str, Any]:
        """The next line; memory is looked at meanwhile where a peak is wanted."""
        assert self._process.stdout is not None
        until = time.monotonic() + self._timeout_s
        while not select.select([self._process.stdout], [], [], _SAMPLE_S)[0]:
            if peak is not None:
                peak.look(_session(self._process.pid))
            if time.monotonic() > until:
                raise ContestantFailed(f"no answer within {self._timeout_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise ContestantFailed(self._ended())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContestantFailed(answer["error"])
        return answer

    def _ended(self) -> str:
        code = self._process.wait(10)
        lines = self._log_path.read_text(errors="replace").strip().splitlines()
        return f"its process ended with {code}: {lines[-1][:300] if lines else 'nothing was printed'}"


class WholeCommand(Contestant):
    """A contestant that is started anew for every task; its start is in the cost."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._new = partial(Contestant, command, environment, log)

    def run(self, task: Mapping[str, Any], *, whole: bool = True) -> tuple[Cost, dict[str, Any]]:
        """Start it, let it work, end it; see :meth:`Contestant.run`."""
        contestant = self._new()
        try:
            return contestant.run(task, whole=whole)
        finally:
            contestant.close()

    def close(self) -> None:
        """Do nothing: no process stays."""
