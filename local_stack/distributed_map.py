"""The children of a Distributed Map, each an execution of its own as on AWS.

moto runs them as frames of their parent and throws their events away, and lets them see the parent's name in ``$$``.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from typing import Any

from moto.stepfunctions.parser.asl.component.state.exec.state_map.iteration.itemprocessor import (
    distributed_item_processor_worker as worker_module,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_map.iteration.itemprocessor.inline_item_processor_worker import (  # noqa: E501
    InlineItemProcessorWorker,
)
from moto.stepfunctions.parser.asl.eval.event.event_manager import EventManager
from moto.stepfunctions.parser.asl.eval.program_state import ProgramError

from local_stack.rights.callers import caller_of
from local_stack.rights.evaluate import Need

_run_job = worker_module.DistributedItemProcessorWorker._eval_job
_lock = threading.Lock()
_children: dict[str, list[Child]] = {}


@dataclass(slots=True)
class Child:
    """One child execution; events are those of ``GetExecutionHistory``."""

    label: str
    """Of its map."""
    index: int
    input: Any
    events: EventManager
    status: str = "RUNNING"
    output: Any = None
    error: Any = None


def children_of(execution_arn: str) -> tuple[Child, ...]:
    """The children of an execution: map after map, each in the order of its items."""
    with _lock:
        found = list(_children.get(execution_arn, ()))
    labels = list(dict.fromkeys(child.label for child in found))
    return tuple(sorted(found, key=lambda child: (labels.index(child.label), child.index)))


def eval_input(self: Any, env_frame: Any) -> None:
    """Evaluate the item selector in the parent's context, then begin the child's own."""
    # moto takes ``$`` from a stack that all workers share, and finds another worker's item there.
    self._env.stack.append(self._env.states.get_input())
    try:
        InlineItemProcessorWorker._eval_input(self, env_frame)
    finally:
        self._env.stack.pop()
    context = env_frame.states.context_object.context_object_data
    parent = context["Execution"]
    _may_start(parent["RoleArn"], context["StateMachine"]["Id"])
    child = Child(_label(self), context["Map"]["Item"]["Index"], env_frame.states.get_input(), EventManager())
    env_frame.event_manager = child.events
    name = str(uuid.uuid4())
    context["Execution"] = {**parent, "Id": f"{parent['Id']}:{name}", "Name": name, "Input": child.input}
    with _lock:
        _children.setdefault(parent["Id"], []).append(child)


def _may_start(role: str, state_machine: str) -> None:
    """On AWS a Distributed Map starts each child with the role of its machine.

    Raises:
        PermissionError: the role may not.
    """
    caller, need = caller_of(role), Need("states:StartExecution", state_machine)
    if caller is not None and caller.refused([need]) is not None:
        raise PermissionError(f"{role} is not authorized to perform: {need}")


def _label(worker: Any) -> str:
    """The label of the map to which a worker belongs; a map without a label gets a generated name."""
    return str(worker._map_run_record.map_state_machine_arn).rpartition("/")[2]


def eval_job(self: Any, env: Any, job: Any) -> None:
    """Run a child and remember how it ended."""
    _run_job(self, env, job)
    item = env.states.context_object.context_object_data["Execution"]["Id"]
    with _lock:
        parent = item.rsplit(":", 1)[0]
        mine = (_label(self), job.job_index)
        child = next((child for child in _children.get(parent, ()) if (child.label, child.index) == mine), None)
    if child is None:  # its item selector failed
        return
    state = env.program_state()
    child.output = job.job_output
    child.status = "FAILED" if isinstance(state, ProgramError) else "SUCCEEDED"
    child.error = state.error if isinstance(state, ProgramError) else None
