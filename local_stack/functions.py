"""Lambda in this process: the real event and answer as JSON, the real shape of errors, a time limit.

On AWS each function has a process of its own, so its code may use the environment and standard output as it likes.
Here real handlers take turns, each with its own environment; stand-ins of tests run side by side.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter

from artifacts.layer import remove_bytecode

StandIn: TypeAlias = Callable[[Any], Any]
"""What a test puts in place of a function: event in, result out."""

_turn = threading.RLock()


class Killed(BaseException):
    """Raised inside a handler by a test: its process ends here, and nothing that it would still have done is done."""


class Handler(Protocol):
    """A function's entry point."""

    def __call__(self, event: Any, context: LambdaContext, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class LambdaContext:
    """The context that Lambda passes to a handler (attribute names are Lambda's)."""

    function_name: str
    memory_limit_in_mb: int
    deadline_s: float
    """On the clock of :func:`time.monotonic`."""
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    function_version: str = "$LATEST"

    @property
    def invoked_function_arn(self) -> str:
        return f"arn:aws:lambda:us-east-1:123456789012:function:{self.function_name}"

    @property
    def log_group_name(self) -> str:
        return f"/aws/lambda/{self.function_name}"

    @property
    def log_stream_name(self) -> str:
        return "local"

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self.deadline_s - time.monotonic()) * 1000))


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a function: what came, what went; ``error`` is Lambda's error document."""

    role: str
    event: Any
    result: Any
    error: Mapping[str, Any] | None
    output: str
    """What it printed, which on AWS goes to CloudWatch: logs and metrics."""


@dataclass(slots=True)
class DeployedFunction:
    """A function of a stack; ``role`` is the module of its handler."""

    role: str
    handler: str
    environment: MutableMapping[str, str]
    stand_in: StandIn | None = None
    before: Callable[[Any], object] | None = None
    """What happens in the world just before each call; it is handed the event."""
    folder: Path | None = None
    """Where its modules lie, and those that it shares with others."""
    modules: dict[str, ModuleType] = field(default_factory=dict)
    """Its own copy of those, while it is warm: what they keep, such as clients, is signed with its own keys."""
    invocations: list[Invocation] = field(default_factory=list)

    def load(self) -> Handler:
        """The handler, from the modules as they are now."""
        module, name = self.handler.rsplit(".", 1)
        handler: Handler = getattr(importlib.import_module(module), name)
        return handler


DEPLOYED: dict[str, DeployedFunction] = {}
"""By function name; names are unique per stack."""

_calls: set[threading.Thread] = set()
"""Calls that run, also those that were answered for at their time limit, or whose execution was stopped."""


def invoke(name: str, event: Any, *, timeout_s: float, memory_mb: int) -> tuple[Any, Mapping[str, Any] | None]:
    """Call a function as Lambda does: ``(result, None)`` or ``(None, error document)``.

    A handler that overruns is answered for, as Lambda does it; unlike there it cannot be stopped, and runs on until
    :func:`wait_for_calls` has seen its end.
    """
    function = DEPLOYED[name]
    context = LambdaContext(name, memory_mb, time.monotonic() + timeout_s)
    answer: list[tuple[Any, Mapping[str, Any] | None, str]] = []
    worker = threading.Thread(target=lambda: answer.append(_call(function, event, context)), daemon=True)
    _calls.add(worker)
    worker.start()
    worker.join(timeout_s)
    if not worker.is_alive():
        _calls.discard(worker)
    result, error, output = answer[0] if answer else (None, _timed_out(context, timeout_s), "")
    function.invocations.append(Invocation(function.role, event, result, error, output))
    return result, error


def wait_for_calls(limit_s: float = 60.0) -> None:
    """Wait until no call runs any more.

    A call holds standard output and the environment of this process: when it ends, it puts back what it found.

    Raises:
        AssertionError: a function still runs after ``limit_s`` seconds.
    """
    deadline = time.monotonic() + limit_s
    while _calls:
        worker = next(iter(_calls))
        if worker.ident is not None:  # else it is just being started
            worker.join(max(0.0, deadline - time.monotonic()))
            assert not worker.is_alive(), f"a function still runs {limit_s:g} s after its stack was done with it"
            _calls.discard(worker)


def _call(function: DeployedFunction, event: Any, context: LambdaContext) -> tuple[Any, Mapping[str, Any] | None, str]:
    printed = io.StringIO()
    try:
        if function.before is not None:
            function.before(event)
        if function.stand_in is not None:
            result = function.stand_in(event)
        else:
            with _turn, _environment(function.environment), _own_modules(function), contextlib.redirect_stdout(printed):
                _log_into(printed)
                result = function.load()(event, context)
        # The runtime knows JSON only, so a result that is none fails here, too.
        return json.loads(json.dumps(result)), None, printed.getvalue()
    except Exception as error:
        return None, _document(error), printed.getvalue()
    except Killed:
        message = f"RequestId: {context.aws_request_id} Error: Runtime exited with error: signal: killed"
        return None, {"errorMessage": message, "errorType": "Runtime.ExitError"}, printed.getvalue()


def _log_into(stream: io.StringIO) -> None:
    """Make the functions' loggers write to this call's output: within a process, they would keep the first call's."""
    for logger in list(logging.Logger.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and isinstance(handler.formatter, LambdaPowertoolsFormatter):
                handler.stream = stream  # setStream would flush the previous stream, which may be closed


def _document(error: Exception) -> Mapping[str, Any]:
    """What Lambda answers for an unhandled exception (AWS Lambda, "Handling errors in Python")."""
    return {
        "errorMessage": str(error),
        "errorType": type(error).__name__,
        "stackTrace": traceback.format_exception(error),
    }


def _timed_out(context: LambdaContext, timeout_s: float) -> Mapping[str, Any]:
    message = f"RequestId: {context.aws_request_id} Error: Task timed out after {timeout_s:.2f} seconds"
    return {"errorMessage": message, "errorType": "Sandbox.Timedout"}


@contextlib.contextmanager
def as_own_process(variables: Mapping[str, str]) -> Iterator[None]:
    """While it lasts, this process has this environment, and no function runs."""
    with _turn, _environment(variables):
        yield


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _own_modules(function: DeployedFunction) -> Iterator[None]:
    """While it lasts, the modules of the folder are the function's, as in a process of its own."""
    if function.folder is None:
        yield
        return
    forgotten = _take_modules(function.folder)
    sys.modules.update(function.modules)
    try:
        yield
    finally:
        function.modules = _take_modules(function.folder)
        sys.modules.update(forgotten)


@contextlib.contextmanager
def loadable(folder: Path) -> Iterator[None]:
    """Let the modules below ``functions/`` be imported, as on Lambda's path; they are forgotten before and after, so
    that this stack and the next start cold, and leave nothing there for SAM to pack."""
    sys.path.insert(0, str(folder))
    forget_modules(folder)
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        forget_modules(folder)
        remove_bytecode(folder)


def forget_modules(folder: Path) -> None:
    """Every function below the folder starts cold with its next call."""
    _take_modules(folder)
    for function in DEPLOYED.values():
        if function.folder == folder:
            function.modules.clear()
    importlib.invalidate_caches()


def _take_modules(folder: Path) -> dict[str, ModuleType]:
    """Take the modules below the folder out of those that are loaded; of all others only the name is looked at."""
    below, roots = f"{folder}{os.sep}", {path.stem for path in folder.glob("*")}
    named = [(name, module) for name, module in list(sys.modules.items()) if name.partition(".")[0] in roots]
    found = {name: module for name, module in named if (getattr(module, "__file__", None) or "").startswith(below)}
    for name in found:
        del sys.modules[name]
    return found
