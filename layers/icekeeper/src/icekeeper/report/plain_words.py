"""Sentences as people read them, without our names of exceptions and bins; JSON and logs keep them (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from icekeeper import errors

__all__ = ["in_plain_words", "told_once"]

_BINS = re.compile(r" \(across (\d+) bins\)")
_CLASS_NAMES = re.compile(rf"\b(?:{'|'.join(sorted(errors.__all__, key=len, reverse=True))}): ")


def in_plain_words(sentence: str) -> str:
    """``StorageError: the disk is full`` is told as ``the disk is full``.

    ``into 4 (across 3 bins)`` becomes ``into 4 in 3 file groups``; that there is one is not worth telling.
    """
    plain = _BINS.sub(_groups, _CLASS_NAMES.sub("", sentence))
    return plain.replace("bin(s) failed", "file group(s) failed").replace("every bin was", "every file group was")


def told_once(names: Sequence[str], sentences: Sequence[str]) -> list[str]:
    """Each sentence in plain words where it comes first; then ``as above``, or ``as NAME`` of one further up."""
    first: dict[str, str] = {}
    told = []
    for number, (name, sentence) in enumerate(zip(names, sentences, strict=True)):
        if sentence not in first:
            told.append(in_plain_words(sentence))
        else:
            told.append("as above" if sentence == sentences[number - 1] else f"as {first[sentence]}")
        first.setdefault(sentence, name)
    return told


def _groups(found: re.Match[str]) -> str:
    return "" if found[1] == "1" else f" in {found[1]} file groups"
