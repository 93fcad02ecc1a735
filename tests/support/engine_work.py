"""Work for engines that counts, kills its worker, or reports where it runs. Workers import only this module."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from icekeeper.engines.engine import Payload
from icekeeper.machine.metering import RequestKind, note_request
from icekeeper.machine.resources import task_cores


def double(number: int) -> int:
    return number * 2


def end_process(number: int) -> int:
    """End the worker as if the system had killed it."""
    os._exit(number)


def end_process_or_sleep(seconds: float) -> None:
    """Sleep; for 0 seconds, end the worker after a second."""
    time.sleep(seconds or 1)
    if not seconds:
        os._exit(1)


def digits(number: int) -> Iterator[tuple[int, tuple[int, Payload]]]:
    """Send a number to the part of each of its decimal digits."""
    for digit in str(number):
        yield int(digit), (number, Payload(b"%d" % number * 1000))


def numbers(part: str, items: Iterator[tuple[int, Payload]]) -> tuple[str, list[int]]:
    """Reads no payload before all items have arrived."""
    return part, sorted(number for number, data in list(items) if data.read() == b"%d" % number * 1000)


def end_process_in_split(number: int) -> Iterator[tuple[int, tuple[int, Payload]]]:
    yield 0, (end_process(number), Payload())


# Work that sends requests.


def sends(number: int) -> int:
    note_request(RequestKind.GET, number)
    return -number


def sends_each(task: int) -> Iterator[tuple[int, int]]:
    for item in range(task):
        note_request(RequestKind.GET)
        yield item % 2, item


def sends_one(part: int, items: Iterator[int]) -> list[int]:
    note_request(RequestKind.PUT)
    return sorted(items)


def reads_nothing(part: int, items: Iterator[int]) -> int:
    return part


# Work for engines that reports where and with what it runs.


@dataclass(frozen=True)
class Reads:
    """A task that states how many bytes it reads."""

    input_bytes: int


def process_of(task: object) -> int:
    return os.getpid()


def cores_of(task: object) -> int:
    return task_cores()


def cores_of_split(task: object) -> Iterator[tuple[int, int]]:
    yield 0, task_cores()


def cores_of_both(part: object, items: Iterator[int]) -> tuple[list[int], int]:
    return list(items), task_cores()


def variable(name: str) -> str | None:
    return os.environ.get(name)


def threads_of_server(task: object) -> int:
    """The number of threads of the process from which this worker was forked."""
    return len(list(Path(f"/proc/{os.getppid()}/task").iterdir()))


def burn(loops: int) -> int:
    return sum(number * number for number in range(loops))


def has_module(name: str) -> bool:
    """Whether this worker's process has imported a module."""
    return name in sys.modules
