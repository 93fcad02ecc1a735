"""Sentences as people read them, without our names of exceptions and bins; JSON and logs keep them (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from icekeeper import errors
from icekeeper.operation_facts import STEPS

__all__ = ["in_plain_words", "lines_of", "told_once"]

# Where the sentence of one operation ends and that of the next begins.
_NEXT = re.compile(rf"; (?=(?:{'|'.join(STEPS)}): )")
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
    plain = [in_plain_words(sentence) for sentence in sentences]
    for number, (name, sentence) in enumerate(zip(names, plain, strict=True)):
        if sentence not in first:
            told.append(sentence)
        else:
            told.append("as above" if sentence == plain[number - 1] else f"as {first[sentence]}")
        first.setdefault(sentence, name)
    return told


def lines_of(summary: str) -> list[str]:
    """The summary of a pass as a line for each operation; what several say is told once."""
    parts = [part.partition(": ") for part in _NEXT.split(summary)]
    said = told_once([name for name, _, _ in parts], [sentence for _, _, sentence in parts])
    return [f"{name}: {sentence}".removesuffix(": ") for (name, _, _), sentence in zip(parts, said, strict=True)]


def _groups(found: re.Match[str]) -> str:
    return "" if found[1] == "1" else f" in {found[1]} file groups"
