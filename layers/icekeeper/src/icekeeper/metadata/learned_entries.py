"""Reads manifest entries by a regular expression that is learned from the entries before.

Nearly all entries of a manifest are laid out alike: the same columns have metrics, paths have a few lengths.  Where an
entry is laid out as ones that were seen, one match finds all its fields, several times faster than a walk from field
to field (platform 77); any other one is walked, as all are that are damaged, and may be learned (rule 173).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any

from icekeeper.metadata.avro_patterns import alternatives, value_pattern
from icekeeper.metadata.avro_types import AvroTypes

__all__ = ["EntryReader", "EntryStep"]

# Learning takes as long as walking some hundred entries; most tables have no more.
_WALKED_FIRST = 200
_NOTED_AT_ONCE = 50
_MOST_LESSONS = 8
# Of one field: texts have a layout for each length, arrays for each number of items, and theirs are long.
_MOST_LAYOUTS = 64
_MOST_BYTES = 8_000
# Of all fields: an expression takes a second to make for each MB, and of unknown fields there may be thousands.
_MOST_PATTERN_BYTES = 256 * 1024
# The entries of a block that are matched at once are copies of all of it; writers make blocks of 16 to 64 KB.
_MOST_BLOCK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class EntryStep:
    """A field of an entry or of its data file, or a place between two; steps follow the order of encoding."""

    slot: int
    """Where its value belongs; -1: nobody asked for it."""
    walk: Any
    """Reads the field where somebody asked for it, else passes over it."""
    kind: Any = None
    """The field's type; ``None``: a place, whose position somebody asked for."""
    decode: Callable[[bytes], Any] | None = None
    """Makes the value of its encoded bytes, where somebody asked for a field."""


class EntryReader:
    """Reads entries of one schema as lists of values; threads may share it: at worst they learn the same twice."""

    def __init__(self, steps: Sequence[EntryStep], empty: list[Any], types: AvroTypes) -> None:
        """``empty``: the values of an entry that has none of the fields; two or more are asked for."""
        self._steps, self._empty, self._types = tuple(steps), empty, types
        self._walks = [(step.slot, step.walk) for step in steps]
        wanted = [step for step in steps if step.slot >= 0]
        self._values = [(step.slot, step.decode) for step in wanted if step.decode is not None]
        # The first group is the whole entry.
        self._groups = [number for number, step in enumerate(wanted, start=2) if step.decode is not None]
        self._places = [(step.slot, number) for number, step in enumerate(wanted, start=2) if step.decode is None]
        ends = [step.slot if step.decode is None else -1 for step in (steps[0], steps[-1])]
        self._begin_slot, self._end_slot = ends
        self._has_inner_places = any(slot not in ends for slot, _ in self._places)
        self._layouts: list[dict[bytes, None]] = [{} for _ in steps]
        self._walked = self._noted = self._lessons = 0
        self._has_news = False
        self._pattern: re.Pattern[bytes] | None = None

    def read(self, data: bytes, at: int) -> tuple[list[Any], int]:
        """An entry, and where it ends."""
        found = None if self._pattern is None else self._pattern.match(data, at)
        if found is None or found[1] is None:
            return self._walk(data, at)
        values = self._empty.copy()
        for (slot, decode), encoded in zip(self._values, found.group(*self._groups), strict=True):
            values[slot] = decode(encoded)
        for slot, group in self._places:
            values[slot] = found.start(group)
        return values, found.end()

    def read_block(self, data: bytes, count: int) -> tuple[list[Sequence[Any]], int]:
        """So many entries that stand at the beginning of a block, and where the last one ends."""
        found = self._matches(data, count)
        if found:
            return self._rows(found), len(data)
        rows: list[Sequence[Any]] = []
        at = 0
        for _ in range(count):
            values, at = self.read(data, at)
            rows.append(values)
        return rows, at

    def _matches(self, data: bytes, count: int) -> list[tuple[bytes, ...]] | None:
        """So many entries, each before its fields, as bytes, if they fill the block and are laid out as ones before."""
        if self._pattern is None or self._has_inner_places or len(data) > _MOST_BLOCK_BYTES:
            return None
        found = self._pattern.findall(data)
        # The rest after an entry that is laid out in another way counts as one of no bytes.
        fill_it = len(found) == count and sum(len(entry[0]) for entry in found) == len(data)
        return found if fill_it else None

    def _rows(self, found: Sequence[tuple[bytes, ...]]) -> list[Sequence[Any]]:
        """The values of entries that fill a block, of each the whole before its fields."""
        whole, *fields = zip(*found, strict=True)
        columns: list[Iterable[Any]] = [repeat(value) for value in self._empty]
        for (slot, decode), group in zip(self._values, self._groups, strict=True):
            columns[slot] = map(decode, fields[group - 2])
        ends = [*accumulate(map(len, whole))]
        if self._begin_slot >= 0:
            columns[self._begin_slot] = [0, *ends[:-1]]
        if self._end_slot >= 0:
            columns[self._end_slot] = ends
        return [*zip(*columns, strict=False)]  # what is repeated has no end

    def _walk(self, data: bytes, at: int) -> tuple[list[Any], int]:
        values, begin = self._empty.copy(), at
        for slot, step in self._walks:
            if slot < 0:
                at = step(data, at)
            else:
                values[slot], at = step(data, at)
        self._walked += 1
        if self._walked > _WALKED_FIRST and self._lessons < _MOST_LESSONS:
            self._note(data, begin)
        return values, at

    def _note(self, data: bytes, at: int) -> None:
        """Take note of how an entry that was walked is laid out; every so often, an expression is made of the notes."""
        self._noted += 1
        # What cannot be described is walked.
        with suppress(Exception):
            for step, layouts in zip(self._steps, self._layouts, strict=True):
                if step.kind is not None:
                    layout, at = value_pattern(self._types, step.kind, data, at)
                    if layout not in layouts and _has_room(layouts):
                        layouts[layout] = None
                        self._has_news = True
            if self._has_news and self._noted >= _NOTED_AT_ONCE:
                self._learn()

    def _learn(self) -> None:
        """Make an expression of the layouts of every field, after an entry that could be described to its end."""
        self._noted, self._has_news = 0, False
        self._lessons += 1
        parts = []
        for step, layouts in zip(self._steps, self._layouts, strict=True):
            part = b"" if step.kind is None else alternatives(tuple(layouts))
            parts.append(part if step.slot < 0 else b"(%b)" % part)
        if sum(map(len, parts)) > _MOST_PATTERN_BYTES:
            self._lessons, self._pattern = _MOST_LESSONS, None
            return
        # An entry, or what begins in another way to its very end: nobody looks for entries within it.
        self._pattern = re.compile(b"(%b)|.+" % b"".join(parts), re.DOTALL)


def _has_room(layouts: Collection[bytes]) -> bool:
    return len(layouts) < _MOST_LAYOUTS and sum(map(len, layouts)) < _MOST_BYTES
