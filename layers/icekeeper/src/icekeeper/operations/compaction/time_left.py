"""Whether another file group can be rewritten in the time that this process has left (rule 147)."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["TimeLeft"]

# For writing manifests and for the swap, repeated ones too.
_COMMIT_S = 60.0
# Groups of one table differ: in deletes, in columns that compress, in what can be copied.
_SAFETY = 2.0


class TimeLeft:
    """Measures how fast groups are rewritten, by the time that is left before and after each."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """``seconds`` says how many are left."""
        self._seconds = seconds
        self._before_s = seconds()
        self._done_bytes = 0

    def note(self, size_bytes: int) -> None:
        """A group of so many bytes was rewritten."""
        self._done_bytes += max(1, size_bytes)

    def is_enough_for(self, size_bytes: int) -> bool:
        """Whether a group surely ends, and what is rewritten by then can be committed; the first one always begins."""
        if not self._done_bytes:
            return True
        left_s = self._seconds()
        per_byte_s = max(0.0, self._before_s - left_s) / self._done_bytes
        return _COMMIT_S + _SAFETY * per_byte_s * size_bytes <= left_s
