"""Names of the files that a task writes: every attempt at the task has files of its own (rule 33) (pure).

An engine begins a task again when the worker that ran it seems dead.  That worker may only be slow: then two attempts
run at once, and the late one may fail after the other's files were committed.  So an attempt's number is part of the
name, ``STEM-a2.parquet``: no attempt overwrites or removes files of another one.

The number of attempts is bounded (``icekeeper.engines`` sees to it), and one record stands for the names of all of
them, ``STEM-a[0-3].parquet``.  So the files of a dead job can be deleted by name, without a listing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from icekeeper.errors import StorageError

__all__ = ["ATTEMPTS_PER_RUN", "MAX_ATTEMPTS", "RUNS", "PlannedFile", "is_repeated", "planned_file", "stem_of"]

# Spark's default of spark.task.maxFailures.
ATTEMPTS_PER_RUN = 4
RUNS = 2
"""How often an engine runs tasks that read other tasks' output; within each run, attempts count from 0."""
MAX_ATTEMPTS = RUNS * ATTEMPTS_PER_RUN
_ANYWHERE = "/**/"
# The stem is what precedes.  Because a number or a range follows it, no stem is the prefix of another stem's files.
_OF_ATTEMPT = re.compile(r"-a(\d+)\.[A-Za-z0-9]+\Z")
_OF_ALL = re.compile(r"-a\[0-(\d+)\]\.([A-Za-z0-9]+)\Z")


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that some attempt at a task is going to write."""

    stem: str
    """Its path without attempt and ending; ``FOLDER/**/NAME`` where only the task finds out the folder below FOLDER."""
    ending: str
    attempts: int = ATTEMPTS_PER_RUN

    @classmethod
    def anywhere_below(cls, folder: str, name: str, ending: str) -> PlannedFile:
        """A file with a unique name, in a folder below ``folder`` that is not known yet."""
        return cls(f"{folder}{_ANYWHERE}{name}", ending)

    @property
    def record(self) -> str:
        """The names of all attempts, as they are recorded before the work begins."""
        return f"{self.stem}-a[0-{self.attempts - 1}].{self.ending}"

    @property
    def paths(self) -> Sequence[str]:
        """The paths of all attempts; empty where the folder is not known."""
        return () if _ANYWHERE in self.stem else [self.path(attempt) for attempt in range(self.attempts)]

    def path(self, attempt: int) -> str:
        """The file of one attempt.

        Raises:
            StorageError: there were more attempts than are recorded; nothing must be written.
        """
        if attempt >= self.attempts:
            raise StorageError(
                f"the task that writes {self.stem} was begun more than {self.attempts} times, and nobody would find "
                "files of further attempts; see why workers die, then run the pass again"
            )
        return f"{self.stem}-a{attempt}.{self.ending}"


def planned_file(record: str) -> PlannedFile | None:
    """Parse a record; ``None`` when it is a plain path, as versions wrote it that did not number attempts."""
    found = _OF_ALL.search(record)
    return None if found is None else PlannedFile(record[: found.start()], found[2], int(found[1]) + 1)


def stem_of(path: str) -> str | None:
    """The stem of a file that an attempt wrote, whatever its number and ending; ``None`` for any other name."""
    found = _OF_ATTEMPT.search(path)
    return None if found is None else path[: found.start()]


def is_repeated(paths: Iterable[str]) -> bool:
    """Whether a later attempt than the first wrote one of these files, so that earlier ones may have left files."""
    return any(found is not None and int(found[1]) > 0 for found in map(_OF_ATTEMPT.search, paths))
