"""Glue jobs: every run is a process of its own that runs our script, or a test's stand-in in a thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

StandInJob: TypeAlias = Callable[[Mapping[str, str]], None]
"""What a test puts in place of a job: its arguments in; an exception is a failed run."""


@dataclass(slots=True)
class JobRun:
    """One run; ``state`` is Glue's word for it."""

    run_id: str
    arguments: Mapping[str, str]
    state: str = "RUNNING"
    log: str = ""
    process: subprocess.Popen[str] | None = None

    @property
    def error(self) -> str | None:
        """As Glue gives it: how the script ended, never what it wrote; for a stand-in, its exception."""
        if self.state not in ("FAILED", "TIMEOUT"):
            return None
        if self.process is not None and self.state == "FAILED":
            return f"SystemExit: {self.process.returncode}"
        return self.log.strip() or self.state


@dataclass(slots=True)
class DeployedJob:
    """A job of a stack; ``role`` is the name of its script, ``environment`` what Glue's workers have."""

    role: str
    script: Path
    environment: dict[str, str]
    stand_in: StandInJob | None = None
    command: tuple[str, ...] = (sys.executable,)
    """What runs the script: this Python, unless another has been made ready."""
    runs: list[JobRun] = field(default_factory=list)
    is_stopped: bool = False

    def stop(self) -> None:
        """End what still runs; from now on nothing is started, whatever an execution that goes on asks for."""
        self.is_stopped = True
        for run in self.runs:
            if run.process is not None and run.process.poll() is None:
                os.killpg(run.process.pid, signal.SIGKILL)  # with its Java


DEPLOYED: dict[str, DeployedJob] = {}
"""By job name; names are unique per stack."""


def start(name: str, run_id: str, arguments: Mapping[str, str], *, timeout_min: int | None) -> JobRun:
    """Start a run; its state changes when it ends."""
    job = DEPLOYED[name]
    run = JobRun(run_id, dict(arguments))
    job.runs.append(run)
    work: Callable[..., None] = _stand_in if job.stand_in else _script
    threading.Thread(target=work, args=(job, name, run, timeout_min), daemon=True).start()
    return run


def _stand_in(job: DeployedJob, _name: str, run: JobRun, _timeout_min: int | None) -> None:
    assert job.stand_in is not None
    try:
        job.stand_in(run.arguments)
    except Exception as error:
        run.log = f"{type(error).__name__}: {error}"
        run.state = "FAILED"
    else:
        run.state = "SUCCEEDED"


def _script(job: DeployedJob, name: str, run: JobRun, timeout_min: int | None) -> None:
    command = [*job.command, str(job.script)]
    for key, value in {**run.arguments, "--JOB_NAME": name, "--JOB_RUN_ID": run.run_id}.items():
        command += [key, value]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    if job.is_stopped:
        run.state = "STOPPED"
        return
    # A session of its own: an interrupt of ours is not a failure of the job, and ends it through stop().
    options["start_new_session"] = True
    run.process = subprocess.Popen(command, env={**os.environ, **job.environment}, **options)
    try:
        run.log, _ = run.process.communicate(timeout=None if timeout_min is None else timeout_min * 60)
        run.state = "SUCCEEDED" if run.process.returncode == 0 else "FAILED"
    except subprocess.TimeoutExpired:
        os.killpg(run.process.pid, signal.SIGKILL)
        run.log, _ = run.process.communicate()
        run.state = "TIMEOUT"
