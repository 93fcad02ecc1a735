"""What all functions share: their steps, their deployment, and logs that name the run, step and table of each line."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError

# Imported while a function starts, when it has the most CPU (platform: function-import-time).
import icekeeper.storage.file_systems
import icekeeper.storage.s3  # noqa: F401
from icekeeper.errors import MaintenanceError
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.events import Item, split_event
from icekeeper.report.activity import json_line
from icekeeper.text import MaskingFormatter, escaped, masked

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

Step: TypeAlias = "Callable[[str, dict[str, Any], LambdaContext], dict[str, Any]]"
"""Does a step, given its name, the rest of the event, and Lambda's context; returns the answer."""
Handler: TypeAlias = "Callable[[Any, LambdaContext], dict[str, Any]]"

SERVICE = os.environ.get("POWERTOOLS_SERVICE_NAME") or "icekeeper"
"""The stack's name, on log lines and metrics."""

# Named like the package, whose loggers are then its children, so that their lines look the same.
logger = Logger(service=SERVICE, name="%(name)s", json_serializer=json_line)

# Lines and warnings of libraries go through the handler of Lambda's runtime.
logging.captureWarnings(capture=True)
for _handler in logging.getLogger().handlers:
    if type(_handler).__module__.partition(".")[0] == "awslambdaric":
        _handler.setFormatter(MaskingFormatter(_handler.formatter))


@cache
def deployment() -> Deployment:
    """This function's deployment, kept while its container is warm."""
    return Deployment.open(os.environ)


def function(own: Mapping[str, Step]) -> Handler:
    """The handler of a function that does these steps, by name, and refuses every other one before it reads anything.

    All log lines have the fields ``run_id`` and ``step``, and no field of the call before.
    """

    def handle(event: Any, context: LambdaContext) -> dict[str, Any]:
        if isinstance(event, Mapping):
            logger.append_keys(run_id=event.get("run_id"), step=event.get("step"))
        try:
            step, rest = split_event(event, own)
            return own[step](step, rest, context)
        except MaintenanceError as error:
            logger.error("%s: %s", type(error).__name__, error)
            # Lambda logs the message as it is.
            error.args = tuple(escaped(argument) if isinstance(argument, str) else argument for argument in error.args)
            raise
        except IdempotencyAlreadyInProgressError:
            logger.warning("another attempt may still be running; the state machine tries again")
            raise
        except Exception as error:  # a bug: Lambda's own report does not name the run
            logger.exception("%s broke", context.function_name)
            text = f"{type(error).__name__}: {error}"
            if (shown := escaped(masked(text))) != text:  # Lambda and Step Functions would show it as it is
                raise RuntimeError(shown) from None
            raise

    # A run's id is the name of its execution, which the log of Step Functions shows too.
    decorated: Handler = logger.inject_lambda_context(handle, correlation_id_path="run_id", clear_state=True)
    return decorated


def about(item: Item) -> None:
    """Add catalog and table as fields to every further line of this call."""
    logger.append_keys(catalog=item.catalog, table=item.table)
