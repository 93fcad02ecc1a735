"""What every Glue job does: arguments → one step of a planned pass on Spark → exit code."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType

from icekeeper.engines.names import EngineName
from icekeeper.errors import MaintenanceError
from icekeeper.masking import masked
from icekeeper.pipeline.control_bucket import ControlBucket
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import OperationEvent, PlanReference
from icekeeper.pipeline.job_log import JsonLines
from icekeeper.pipeline.plan_document import PlanDocument
from icekeeper.pipeline.run_step import run_step
from icekeeper.pipeline.settings import CONTROL_BUCKET, PipelineSettings
from icekeeper.policy import Operation
from icekeeper.runtime import open_engine

__all__ = ["run_job", "start_logging"]

log = logging.getLogger(__name__)
_lines = JsonLines()


def run_job(arguments: Sequence[str], operations: frozenset[Operation]) -> int:
    """Run the step that the arguments name; 0 when it ended (refused and skipped ones too), 1 to be tried again.

    Glue adds arguments of its own, which are left alone.
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
    """For a script, whose process is its own: everything goes to the job's error log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_lines)
    logging.basicConfig(level=(os.environ.get("ICEKEEPER_LOG") or "INFO").upper(), handlers=[handler])
    logging.getLogger("py4j").setLevel(logging.WARNING)
    sys.excepthook = _tell_bug


def _tell_bug(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """As Python tells what nobody caught, without secrets."""
    sys.stderr.write(masked("".join(traceback.format_exception(kind, error, where))))


def _open(given: argparse.Namespace) -> tuple[OperationEvent, Deployment]:
    """The plan carries the deployment's settings; only where it is comes by arguments."""
    here = {**os.environ, CONTROL_BUCKET: given.control_bucket, "ICEKEEPER_STATE": given.state}
    control = ControlBucket(PipelineSettings.read(here).control_address)
    plan = PlanDocument.model_validate(control.read(given.plan_key, given.plan_digest))
    event = OperationEvent(
        run_id=given.run_id,
        item=plan.item,
        plan=PlanReference(bucket=given.control_bucket, key=given.plan_key, digest=given.plan_digest),
        operation=Operation(given.operation),
    )
    return event, Deployment.open({**here, **plan.environment, "ICEKEEPER_STATE": given.state})
