"""Work for engines that only counts, or dies.  Workers import this module alone, which takes them no time."""

from __future__ import annotations

import os
from collections.abc import Iterator


def double(number: int) -> int:
    return number * 2


def end_process(number: int) -> int:
    """As if the system had killed the worker."""
    os._exit(number)


def digits(number: int) -> Iterator[tuple[int, tuple[int, bytes]]]:
    """To the part of each decimal digit."""
    for digit in str(number):
        yield int(digit), (number, b"x" * 1000)


def numbers(part: str, items: Iterator[tuple[int, bytes]]) -> tuple[str, list[int]]:
    return part, sorted(number for number, data in items if len(data) == 1000)


def end_process_in_split(number: int) -> Iterator[tuple[int, tuple[int, bytes]]]:
    yield 0, (end_process(number), b"")
