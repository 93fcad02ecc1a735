"""Work for engines that tells where and with what it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from icekeeper.machine.resources import task_cores


@dataclass(frozen=True)
class Reads:
    """A task that says how much it reads."""

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
    """How many threads the process has that this worker was forked from."""
    return len(list(Path(f"/proc/{os.getppid()}/task").iterdir()))


def burn(loops: int) -> int:
    return sum(number * number for number in range(loops))


def has_module(name: str) -> bool:
    """Whether the process of this worker has imported it."""
    return name in sys.modules
