"""The files of a group as compressed columns, so that the driver of a large table keeps little memory per group and
unpacks only the groups in work."""

from __future__ import annotations

import pickle
import zlib
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from icekeeper.operations.compaction.plan.candidate import Candidate

Part = TypeVar("Part")

# Higher levels save a tenth of the bytes and take twice as long.
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class PackedFiles(Sequence[Candidate]):
    """Candidates without extents, in order.  Every iteration unpacks them all."""

    first: Candidate
    length: int
    total_bytes: int
    record_count: int
    data: bytes

    @classmethod
    def of(cls, files: Sequence[Candidate]) -> PackedFiles:
        """Pack at least one candidate."""
        columns = (
            [c.file_path for c in files],
            array("q", [c.file_size_in_bytes for c in files]),
            array("q", [c.record_count for c in files]),
            [c.first_row_id for c in files] if any(c.has_lineage for c in files) else None,
            _numbered([c.home for c in files], repr),  # partitions 0.0 and -0.0 differ
            _numbered([c.origin for c in files], lambda origin: origin),
            _numbered([c.condition for c in files], repr),
        )
        return cls(
            first=files[0],
            length=len(files),
            total_bytes=sum(c.file_size_in_bytes for c in files),
            record_count=sum(c.record_count for c in files),
            data=zlib.compress(pickle.dumps(columns, pickle.HIGHEST_PROTOCOL), _LEVEL),
        )

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Candidate]:
        # The data comes from our own worker, so unpickling it is safe.
        paths, sizes, rows, ids, homes, origins, conditions = pickle.loads(zlib.decompress(self.data))
        for number, path in enumerate(paths):
            yield Candidate(
                file_path=path,
                file_size_in_bytes=sizes[number],
                record_count=rows[number],
                first_row_id=None if ids is None else ids[number],
                home=_part(homes, number),
                origin=_part(origins, number),
                condition=_part(conditions, number),
            )

    @overload
    def __getitem__(self, index: int) -> Candidate: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Candidate]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.first if index == 0 else tuple(self)[index]


def _numbered(parts: Sequence[Part], key: Callable[[Part], Hashable]) -> tuple[list[Part], array[int]]:
    """The distinct parts, and for each given part its number among them."""
    known: dict[Hashable, int] = {}
    by_id: dict[int, int] = {}
    different: list[Part] = []
    numbers = array("I")
    for part in parts:
        number = by_id.get(id(part), -1)
        if number < 0:
            number = by_id[id(part)] = known.setdefault(key(part), len(different))
            if number == len(different):
                different.append(part)
        numbers.append(number)
    return different, numbers


def _part(column: tuple[list[Part], array[int]], number: int) -> Part:
    return column[0][column[1][number]]
