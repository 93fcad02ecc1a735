"""Settings that a long process reads anew again and again: where that fails, the last good ones still hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from icekeeper.errors import MaintenanceError

__all__ = ["LastGood"]

Value = TypeVar("Value")


class LastGood(Generic[Value]):
    """The value that was read last without an error; what goes wrong is told once, and again when it changes."""

    def __init__(
        self,
        read: Callable[[], Value],
        tell: Callable[[str], object],
        errors: tuple[type[MaintenanceError], ...] = (MaintenanceError,),
    ) -> None:
        """``errors`` are those of ``read`` for which the last good value holds on; others are raised."""
        self._read, self._tell, self._errors = read, tell, errors
        self._good: list[Value] = []
        self._told: str | None = None

    def current(self) -> Value:
        """Read anew; of a value that cannot be read, the last good one.

        Raises:
            MaintenanceError: it cannot be read, and never was.
        """
        try:
            value = self._read()
        except self._errors as error:
            if not self._good:
                raise
            self._say(str(error))
            return self._good[0]
        if self._told is not None:
            self._tell("settings are read again, and hold")
            self._told = None
        self._good = [value]
        return value

    def _say(self, problem: str) -> None:
        if problem != self._told:
            self._tell(f"{problem}; until that is mended, the last good settings hold")
            self._told = problem
