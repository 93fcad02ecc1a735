"""Steps of tables that were too much for a function; plans send them to a job from then on.

What decides where a step runs is what can be known beforehand: bytes, files and manifests that the table refers to.
How many files there are to list, or how dear rows are to sort, is found out by trying, and must not fail every hour
anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from icekeeper.errors import StorageError
from icekeeper.pipeline.control_bucket import ControlBucket, table_folder
from icekeeper.pipeline.events import Failure, Item, Route

__all__ = ["outgrown_steps", "remember_outgrown"]

log = logging.getLogger(__name__)

# Out of time, as Lambda and as Step Functions call it; out of memory.
_TOO_MUCH = frozenset({"Sandbox.Timedout", "States.Timeout", "Runtime.ExitError", "Runtime.OutOfMemory"})


def outgrown_steps(control: ControlBucket, item: Item) -> frozenset[str]:
    """The steps that a function did not come to an end of; forgotten with the runs' documents, after 90 days.

    Raises:
        StorageError: the control bucket does not answer.
    """
    found = control.find_hint(_key(item))
    return frozenset(map(str, found)) if isinstance(found, list) else frozenset()


def remember_outgrown(
    control: ControlBucket, item: Item, routes: Mapping[str, Route], failures: Mapping[str, Failure]
) -> None:
    """Note which steps of a pass a function could not do; what cannot be noted is found out again."""
    steps = {step for step, failure in failures.items() if failure.Error in _TOO_MUCH}
    steps = {step for step in steps if routes.get(step) == "function"}
    if not steps:
        return
    try:
        control.write(_key(item), sorted(steps | outgrown_steps(control, item)))
    except StorageError as error:
        log.warning("%s: that %s is too much for a function was not noted: %s", item.table, ", ".join(steps), error)


def _key(item: Item) -> str:
    return f"{table_folder('outgrown', item.identity.spelling)}.json"
