"""What every Glue job does: arguments → one step of a planned pass, or a wave of many, on Spark → exit code."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType

from icekeeper.aws.worker_keys import WORKER_CREDENTIALS
from icekeeper.engines.engine import EngineName
from icekeeper.errors import MaintenanceError, OperationRefused, PolicyError, StorageError
from icekeeper.operation_facts import operations_of_waves
from icekeeper.pipeline.control_bucket import ControlBucket, require_of_run
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import OperationEvent, PlanReference, parse_event
from icekeeper.pipeline.job_failure import write_job_failure
from icekeeper.pipeline.job_log import JsonLines
from icekeeper.pipeline.plan_document import read_plan
from icekeeper.pipeline.run_step import run_step
from icekeeper.pipeline.run_wave import End, run_wave
from icekeeper.pipeline.settings import CONTROL_BUCKET, PipelineSettings
from icekeeper.pipeline.usage import note_job, record_use
from icekeeper.pipeline.wave_document import read_wave, wave_key
from icekeeper.policy import Operation
from icekeeper.runtime import open_engine
from icekeeper.state.address import STATE_VARIABLE, parse_address
from icekeeper.text import escaped_lines, masked

__all__ = ["run_job", "start_logging"]

log = logging.getLogger(__name__)
_lines = JsonLines()


def run_job(arguments: Sequence[str], operations: frozenset[Operation]) -> int:
    """Run the step that the arguments name, or the wave.

    Returns the exit code: 0 when the step ended (also when it was refused or skipped), 1 when it failed; of a wave 0
    when every table's end is written down.  Why a step failed is written to the control bucket.  Arguments that Glue
    adds itself are ignored.

    Raises:
        Exception: a bug, written there too.
    """
    is_wave = "--wave-key" in arguments
    names = ("--wave-key", "--wave-digest") if is_wave else ("--plan-key", "--plan-digest", "--operation")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in (*names, "--run-id", "--control-bucket", "--state"):
        parser.add_argument(name, required=True)
    parser.add_argument("--JOB_RUN_ID")
    # What the run costs; definitions of earlier versions do not say it.
    parser.add_argument("--workers", type=int)
    parser.add_argument("--worker-type", default="G.1X")
    parser.add_argument("--execution-class", default="STANDARD")
    given, _ = parser.parse_known_args(list(arguments))
    _lines.about(run_id=given.run_id)
    _use_region_of(given.state)
    try:
        return _carry_out_wave(given, operations) if is_wave else _carry_out_step(given, operations)
    except Exception as error:
        if not is_wave:
            _leave_behind(given, error)
        if not isinstance(error, MaintenanceError):
            raise
        return _failed(error)


def _carry_out_step(given: argparse.Namespace, operations: frozenset[Operation]) -> int:
    _lines.about(operation=given.operation)
    event, deployment = _open(given)
    _lines.about(catalog=event.item.catalog, table=event.item.table)
    if event.operation not in operations:
        raise ValueError(f"this job does not do {event.step}")
    begun_s = time.monotonic()
    try:
        with open_engine(EngineName.SPARK) as engine:
            answer = run_step(deployment, event, engine)
    finally:
        _record_use(given, deployment, time.monotonic() - begun_s, is_wave=False)
    log.info("%s: %s", answer["status"], answer["summary"])
    return 0


def _carry_out_wave(given: argparse.Namespace, operations: frozenset[Operation]) -> int:
    here = _settings(given)
    if given.wave_key != wave_key(given.run_id):
        raise OperationRefused(f"{given.wave_key!r} is not the wave of run {given.run_id}")
    wave = read_wave(_control(given).read(given.wave_key, given.wave_digest))
    # The job that compacts also does what follows in a wave (rule 163); no other job carries out waves.
    allowed = operations | operations_of_waves() if Operation.COMPACT in operations else frozenset[Operation]()
    strange = {step for table in wave.tables for step in table.steps} - {one.value for one in allowed}
    if strange:
        raise ValueError(f"this job does not do {', '.join(sorted(strange))}")
    _hand_on_keys(wave.environment)
    deployment = Deployment.open({**here, **wave.environment, STATE_VARIABLE: given.state})
    begun_s = time.monotonic()
    with open_engine(EngineName.SPARK) as engine:
        engine.map(str, (), lambda done: None)  # starts it: should that fail, it is no table's failure
        ends = run_wave(deployment, wave, engine)
    _record_use(given, deployment, time.monotonic() - begun_s, is_wave=True)
    told = Counter(ends.values())
    log.info("wave of %d table(s): %s", len(wave.tables), ", ".join(f"{n} {end.value}" for end, n in told.items()))
    if told[End.UNTOLD]:
        return _failed(StorageError(f"what became of {told[End.UNTOLD]} table(s) could not be written down"))
    if told[End.CUT_OFF]:
        _end_now()  # its thread would keep the process from ending
    return 0


def _end_now() -> None:
    """End the process with success, without waiting for threads that hang."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _failed(error: MaintenanceError) -> int:
    log.error("%s: %s", type(error).__name__, error)
    return 1


def start_logging() -> None:
    """Send all log lines and uncaught errors of this process to standard error, which Glue 5 keeps in PREFIX/output."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_lines)
    logging.basicConfig(level=(os.environ.get("ICEKEEPER_LOG") or "INFO").upper(), handlers=[handler])
    logging.captureWarnings(capture=True)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    sys.excepthook = _tell_bug


def _tell_bug(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Print an uncaught exception with its traceback, as Python does, but without secrets, and escaped."""
    sys.stderr.write(escaped_lines(masked("".join(traceback.format_exception(kind, error, where)))) + "\n")


def _control(given: argparse.Namespace) -> ControlBucket:
    here = {**os.environ, CONTROL_BUCKET: given.control_bucket}
    return ControlBucket(PipelineSettings.read(here).control_address)


def _record_use(given: argparse.Namespace, deployment: Deployment, seconds: float, *, is_wave: bool) -> None:
    """Record what the run costs, for ``icekeeper cost``; what fails here must not fail the job."""
    if given.workers is None:
        return
    is_flex = given.execution_class == "FLEX"
    try:
        note_job(given.worker_type, given.workers, seconds, is_flex=is_flex, is_wave=is_wave)
        record_use(deployment)
    except (MaintenanceError, KeyError) as error:
        log.info("what this job used cannot be recorded: %s: %s", type(error).__name__, error)


def _leave_behind(given: argparse.Namespace, error: Exception) -> None:
    """Write why the run failed beside its plan; what fails here must not hide the error itself."""
    try:
        folder = require_of_run(given.plan_key, given.run_id).rpartition("/")[0]
        write_job_failure(_control(given), folder, _operation(given).value, error, job_run=given.JOB_RUN_ID)
    except MaintenanceError as failure:
        log.warning("why the job failed cannot be written: %s", failure)


def _open(given: argparse.Namespace) -> tuple[OperationEvent, Deployment]:
    """The step's event and its deployment: the arguments say where the plan is, the plan has the settings."""
    operation, here = _operation(given), _settings(given)
    plan = read_plan(_control(given).read(require_of_run(given.plan_key, given.run_id), given.plan_digest))
    _hand_on_keys(plan.environment)
    reference = PlanReference(bucket=given.control_bucket, key=given.plan_key, digest=given.plan_digest)
    named = {"run_id": given.run_id, "item": plan.item, "plan": reference, "operation": operation}
    event = parse_event(OperationEvent, named)
    return event, Deployment.open({**here, **plan.environment, STATE_VARIABLE: given.state})


def _operation(given: argparse.Namespace) -> Operation:
    try:
        return Operation(given.operation)
    except ValueError as error:
        raise PolicyError(f"--operation cannot be {given.operation!r}: {error}") from None


def _settings(given: argparse.Namespace) -> dict[str, str]:
    return {**os.environ, CONTROL_BUCKET: given.control_bucket, STATE_VARIABLE: given.state}


def _hand_on_keys(environment: Mapping[str, str]) -> None:
    """Have workers get the driver's keys where the deployment says so."""
    if handed := environment.get(WORKER_CREDENTIALS):
        os.environ.setdefault(WORKER_CREDENTIALS, handed)


def _use_region_of(state: str) -> None:
    """Take the region of the state's address for all clients of this process: no document says that Glue sets one."""
    address = parse_address({STATE_VARIABLE: state})
    if address is not None and address.region is not None:
        os.environ.setdefault("AWS_REGION", address.region)
