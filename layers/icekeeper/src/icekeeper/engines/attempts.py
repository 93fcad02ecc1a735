"""Tells a task which attempt at it this is (pure)."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar, runtime_checkable

from icekeeper.storage.attempt_names import ATTEMPTS_PER_RUN, MAX_ATTEMPTS

__all__ = ["WritesFiles", "in_attempt"]

Task = TypeVar("Task")


@runtime_checkable
class WritesFiles(Protocol):
    """A task whose files are named by the attempt that writes them."""

    def in_attempt(self, attempt: int) -> Self: ...


def in_attempt(task: Task, run: int, number: int) -> Task:
    """The task for attempt ``number`` of run ``run``, both counted from 0; a task that writes no file is unchanged.

    An attempt beyond the limit gets the number ``MAX_ATTEMPTS``, with which no task writes, and not that of another.
    """
    if not isinstance(task, WritesFiles):
        return task
    return task.in_attempt(run * ATTEMPTS_PER_RUN + number if number < ATTEMPTS_PER_RUN else MAX_ATTEMPTS)
