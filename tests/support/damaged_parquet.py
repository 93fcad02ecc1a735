"""Parquet files whose footers claim what is not so, or whose bytes are damaged, by chance."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeeper.row_group_copy.footer_structs import FileMetaData
from support.copied import with_metadata

_EDGES = (0, 1, -1, 4, 127, 2**15, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))


def _numbers_in(value: Any) -> Iterator[tuple[Any, str]]:
    """Every place in a footer that may hold a number, as an object and the name of its field."""
    if isinstance(value, list):
        for one in value:
            yield from _numbers_in(one)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            held = getattr(value, field.name)
            if "int" in str(field.type) and not isinstance(held, list):
                yield value, field.name
            else:
                yield from _numbers_in(held)


def lied(path: Path, chance: random.Random) -> None:
    """Change one or two numbers of the footer: to an edge, a neighbour, one from elsewhere, or none."""

    def change(metadata: FileMetaData) -> None:
        places = list(_numbers_in(metadata))
        for _ in range(chance.choice((1, 1, 2))):
            holder, name = chance.choice(places)
            other, other_name = chance.choice(places)
            old = getattr(holder, name)
            choices = [*_EDGES, getattr(other, other_name), None]
            near = [] if old is None else [old + step for step in (-1, 1, 8, -8)]
            setattr(holder, name, chance.choice([chance.choice(choices), chance.choice(near or choices)]))

    try:
        with_metadata(path, change)
    except Exception:  # a number that its field cannot hold: there is no such file
        lied(path, chance)


def scrambled(path: Path, chance: random.Random) -> None:
    """Change, repeat or leave out some bytes, anywhere or in the footer."""
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[-8:-4], "little")
    for _ in range(chance.choice((1, 1, 3))):
        at = chance.randrange(len(data)) if chance.random() < 0.4 else len(data) - 8 - chance.randrange(length)
        width = chance.choice((1, 1, 4))
        what = chance.random()
        if what < 0.6:
            data[at] = chance.randrange(256)
        elif what < 0.8:
            del data[at : at + width]
        else:
            data[at:at] = data[at : at + width]
    if chance.random() < 0.5:
        data[-8:-4] = (length + chance.choice((-1, 0, 1))).to_bytes(4, "little")
    path.write_bytes(data)


def cut(path: Path, chance: random.Random) -> None:
    """Leave the beginning, the end, or a piece in the middle out."""
    data = path.read_bytes()
    start = chance.randrange(len(data))
    end = chance.randrange(start, len(data))
    path.write_bytes(chance.choice((data[:start], data[start:], data[:start] + data[end:])))


CHANGES: tuple[Callable[[Path, random.Random], None], ...] = (lied, lied, scrambled, cut)


def rows_of(path: Path) -> pa.Table | None:
    """What Arrow reads, ``None`` where it fails."""
    try:
        table = pq.read_table(path)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError):
        return None
    return table
