"""What every Glue job does: arguments → one step of a planned pass on Spark → exit code."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType

from icekeeper.aws.worker_keys import WORKER_CREDENTIALS
from icekeeper.engines.names import EngineName
from icekeeper.errors import MaintenanceError
from icekeeper.masking import masked
from icekeeper.pipeline.control_bucket import ControlBucket
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import OperationEvent, PlanReference
from icekeeper.pipeline.job_log import JsonLines
from icekeeper.pipeline.plan_document import read_plan
from icekeeper.pipeline.run_step import run_step
from icekeeper.pipeline.settings import CONTROL_BUCKET, PipelineSettings
from icekeeper.policy import Operation
from icekeeper.runtime import open_engine
from icekeeper.state.address import STATE_VARIABLE, parse_address

__all__ = ["run_job", "start_logging"]

log = logging.getLogger(__name__)
_lines = JsonLines()


def run_job(arguments: Sequence[str], operations: frozenset[Operation]) -> int:
    """Run the step that the arguments name.

    Returns the exit code: 0 when the step ended (also when it was refused or skipped), 1 when it failed, so that the
    state machine looks at the error.  Arguments that Glue adds itself are ignored.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--plan-key", "--plan-digest", "--operation", "--run-id", "--control-bucket", "--state"):
        parser.add_argument(name, required=True)
    given, _ = parser.parse_known_args(list(arguments))
    _lines.about(run_id=given.run_id, operation=given.operation)
    try:
        event, deployment = _open(given)
        _lines.about(catalog=event.item.catalog, table=event.item.table)
        if event.operation not in operations:
            raise ValueError(f"this job does not do {event.step}")
        with open_engine(EngineName.SPARK) as engine:
            answer = run_step(deployment, event, engine)
    except MaintenanceError as error:
        log.error("%s: %s", type(error).__name__, error)
        # The last line is what Glue tells the state machine.
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    log.info("%s: %s", answer["status"], answer["summary"])
    return 0


def start_logging() -> None:
    """Send all log lines and uncaught errors of this process to standard error, which Glue keeps as its error log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_lines)
    logging.basicConfig(level=(os.environ.get("ICEKEEPER_LOG") or "INFO").upper(), handlers=[handler])
    logging.getLogger("py4j").setLevel(logging.WARNING)
    sys.excepthook = _tell_bug


def _tell_bug(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Print an uncaught exception with its traceback, as Python does, but without secrets."""
    sys.stderr.write(masked("".join(traceback.format_exception(kind, error, where))))


def _open(given: argparse.Namespace) -> tuple[OperationEvent, Deployment]:
    """The step's event and its deployment: the arguments say where the plan is, the plan has the settings."""
    _use_region_of(given.state)
    here = {**os.environ, CONTROL_BUCKET: given.control_bucket, STATE_VARIABLE: given.state}
    control = ControlBucket(PipelineSettings.read(here).control_address)
    plan = read_plan(control.read(given.plan_key, given.plan_digest))
    if handed := plan.environment.get(WORKER_CREDENTIALS):
        os.environ.setdefault(WORKER_CREDENTIALS, handed)
    event = OperationEvent(
        run_id=given.run_id,
        item=plan.item,
        plan=PlanReference(bucket=given.control_bucket, key=given.plan_key, digest=given.plan_digest),
        operation=Operation(given.operation),
    )
    return event, Deployment.open({**here, **plan.environment, STATE_VARIABLE: given.state})


def _use_region_of(state: str) -> None:
    """Take the region of the state's address for all clients of this process: no document says that Glue sets one."""
    address = parse_address({STATE_VARIABLE: state})
    if address is not None and address.region is not None:
        os.environ.setdefault("AWS_REGION", address.region)
