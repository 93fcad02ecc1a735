"""Sentences as people read them: without the names of our exceptions, which programs find in JSON and logs (pure)."""

from __future__ import annotations

import re

from icekeeper import errors

__all__ = ["in_plain_words"]

_CLASS_NAMES = re.compile(rf"\b(?:{'|'.join(sorted(errors.__all__, key=len, reverse=True))}): ")


def in_plain_words(sentence: str) -> str:
    """``StorageError: the disk is full`` is told as ``the disk is full``."""
    return _CLASS_NAMES.sub("", sentence)
