"""What AWS bills of a run of the local stack: requests, states, and the seconds and calls of functions.

As on Lambda, a call has a process to itself, which waits for the next call of its function when it is done.  Each
request of a function or job is delayed.  A call is billed for the CPU time of its process, and for the time in which at
least one of its requests is delayed; neither grows with the load of this machine.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from threading import Lock
from typing import Any, TypeAlias
from unittest.mock import patch

from moto.moto_server.werkzeug_app import DomainDispatcherApplication

from local_stack import functions
from local_stack.functions import DeployedFunction, LambdaContext
from local_stack.rights.callers import caller_of
from local_stack.stack import LocalStack
from local_stack.wire import signer

GB_SECONDS, CALLS = "functions, GB-seconds", "functions, calls"
READS, WRITES = "state table, read units", "state table, write units"
GETS, PUTS, GB_LOGGED = "GET and HEAD", "PUT, POST and LIST", "GB logged"
_OF_READS = frozenset({"GetItem", "Query"})
# What a call logs beside its own lines: START, END and REPORT (Lambda developer guide, "Log format").
_PLATFORM_LOG_BYTES = 400
_SPAWNING = get_context("forkserver")

Answer: TypeAlias = tuple[Any, Mapping[str, Any] | None, str]
"""The result of a call, or Lambda's error document; and what it printed."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function."""

    step: str
    memory_mb: int
    cpu_s: float
    waited_s: float
    """In which at least one of its requests was delayed."""
    requests: int
    wall_s: float
    """On this machine, under its load."""

    @property
    def billed_s(self) -> float:
        return self.cpu_s + self.waited_s


def calls_of_steps(calls: Iterable[Call]) -> Mapping[str, Sequence[Call]]:
    """The calls by their step."""
    found = defaultdict[str, list[Call]](list)
    for call in calls:
        found[call.step].append(call)
    return found


@dataclass(slots=True)
class Used:
    """Amounts that AWS bills, by the names of their prices; threads may share it."""

    latency_s: float
    amounts: Counter[str] = field(default_factory=Counter)
    calls: list[Call] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    _sent: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When requests of each process came that no call has been billed for."""
    _lock: Lock = field(default_factory=Lock)

    def add(self, name: str, amount: float) -> None:
        with self._lock:
            self.amounts[name] += amount  # type: ignore[assignment]  # also fractions

    def forget(self) -> None:
        """Begin anew."""
        self.amounts.clear()
        self.calls.clear()
        self.printed.clear()

    def delay(self, process: str) -> None:
        """Delay a request of a process."""
        self._sent[process].append(time.monotonic())
        time.sleep(self.latency_s)

    def note(self, environ: Mapping[str, Any], answered: int) -> None:
        """Count a request of a function or job, and what its answer of so many bytes is billed as."""
        service = signer(environ["HTTP_AUTHORIZATION"])[1]
        if service == "s3" and environ["REQUEST_METHOD"] != "DELETE":
            is_listing = "list-type=" in environ.get("QUERY_STRING", "")
            is_get = environ["REQUEST_METHOD"] in ("GET", "HEAD") and not is_listing
            is_deletion = "delete" in environ.get("QUERY_STRING", "").split("&")
            if not is_deletion:
                self.add(GETS if is_get else PUTS, 1)
        elif service == "dynamodb":
            operation = environ["HTTP_X_AMZ_TARGET"].rpartition(".")[2]
            sent = int(environ.get("CONTENT_LENGTH") or 0)
            if operation in _OF_READS:
                self.add(READS, math.ceil(answered / 4096))
            else:
                self.add(WRITES, math.ceil(sent / 1024) * (2 if operation.startswith("Transact") else 1))

    def bill(self, process: str, event: Any, context: LambdaContext, printed: str, cpu_s: float, wall_s: float) -> None:
        """Bill a call for the requests that its process has sent."""
        sent = self._sent.pop(process, [])
        waited_s = _covered(sent, self.latency_s)
        call = Call(event["step"], context.memory_limit_in_mb, cpu_s, waited_s, len(sent), wall_s)
        self.calls.append(call)
        self.printed.append(printed)
        self.add(GB_SECONDS, call.memory_mb / 1024 * call.billed_s)
        self.add(CALLS, 1)
        self.add(GB_LOGGED, (_PLATFORM_LOG_BYTES + len(printed.encode())) / 2**30)


def _covered(begins: Sequence[float], length: float) -> float:
    """How much time intervals of this length cover together."""
    covered, end = 0.0, -math.inf
    for begin in sorted(begins):
        covered += min(length, begin + length - end)
        end = begin + length
    return covered


@dataclass(slots=True)
class _Process:
    name: str
    pipe: Connection
    process: ForkServerProcess


@contextmanager
def _in_processes(stack: LocalStack, used: Used) -> Iterator[None]:
    """Run each call in a process that runs no other call; it is started if all processes of the function are busy."""
    roles = dict[str, str]()
    for _, properties in stack.template.resources("AWS::Serverless::Function"):
        roles[properties["Handler"].partition(".")[0]] = str(properties["Role"])
    idle: defaultdict[str, list[_Process]] = defaultdict(list)
    started: list[_Process] = []
    lock = Lock()

    def start(function: DeployedFunction) -> _Process:
        name = f"{function.role}-{len(started)}"
        own = {**function.environment, **stack.rights.credentials_of(roles[function.role], name)}
        ours, theirs = _SPAWNING.Pipe()
        process = _SPAWNING.Process(target=_serve, args=(function.role, function.handler, own, function.folder, theirs))
        process.start()
        theirs.close()
        started.append(_Process(name, ours, process))
        return started[-1]

    def call(function: DeployedFunction, event: Any, context: LambdaContext) -> Answer:
        with lock:
            free = idle[function.role].pop() if idle[function.role] else start(function)
        begun_s = time.monotonic()
        free.pipe.send((event, context))
        answer, cpu_s = free.pipe.recv()
        used.bill(free.name, event, context, answer[2], cpu_s, time.monotonic() - begun_s)
        idle[function.role].append(free)
        return answer  # type: ignore[no-any-return]  # as the process sent it

    try:
        with patch.object(functions, "_call", call):
            yield
    finally:
        for one in started:
            one.pipe.close()
            one.process.join()


def _serve(role: str, handler: str, environment: dict[str, str], folder: Any, pipe: Connection) -> None:
    """Answer calls of a function until the pipe is closed."""
    os.nice(4)  # the server, which all processes wait for, comes first
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # SAM would pack it
    function = DeployedFunction(role, handler, environment, folder=folder)
    while True:
        try:
            event, context = pipe.recv()
        except EOFError:
            return
        begun_s = time.process_time()
        answer = functions._call(function, event, context)
        pipe.send((answer, time.process_time() - begun_s))


@contextmanager
def billing(stack: LocalStack, latency_s: float) -> Iterator[Used]:
    """Count what AWS would bill; each request of a function or job takes ``latency_s`` more."""
    used, answer = Used(latency_s), DomainDispatcherApplication.__call__

    def counting(self: Any, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        key = signer(environ.get("HTTP_AUTHORIZATION", ""))[0]
        if caller_of(key) is None:  # the operator, and who fills the tables
            untouched: Iterable[bytes] = answer(self, environ, start_response)
            return untouched
        used.delay(stack.keys.roles.get(key, ""))
        body = [b"".join(answer(self, environ, start_response))]
        used.note(environ, len(body[0]))
        return body

    with patch.object(DomainDispatcherApplication, "__call__", counting), _in_processes(stack, used):
        yield used
