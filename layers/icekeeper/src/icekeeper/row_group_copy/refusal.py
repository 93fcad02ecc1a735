"""Why a file is not copied: an answer for callers, and how checks inside this room give it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CannotCopy", "DamagedPage", "NotCopyable"]


@dataclass(frozen=True, slots=True)
class NotCopyable:
    """A file whose rows must be decoded; ``reason`` ends the sentence that its path begins."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


class CannotCopy(Exception):
    """A check failed; the message is the reason of a :class:`NotCopyable`, which public functions return instead."""


class DamagedPage(CannotCopy):
    """The bytes of a page are not those that its writer took the checksum of: decoding it would be no better."""
