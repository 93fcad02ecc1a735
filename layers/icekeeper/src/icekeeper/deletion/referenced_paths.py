"""A set of millions of referenced paths in eight bytes each (1 M paths: 8 MB; as a set of text about 200 MB).

Only hashes of normalised paths are kept.  A collision can only make an orphan look referenced, so it is kept.

Paths in listed folders are *expected*: if no listed object matches, the file is missing
(rule: keep-possible-last-copies).  This takes another byte per path.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import islice, repeat
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.deletion.neighbours import behind_authority
from icekeeper.storage.listing import Listed
from icekeeper.storage.paths import FolderNames, any_spelling, authority

# After this many new hashes the set is sorted and deduplicated, because many manifests may name the same path.
_UNSORTED = 1_000_000
_AT_ONCE = 10_000
_File = TypeVar("_File", bound=Listed)


def path_hash(key: str) -> int:
    """A 64-bit hash that is the same in every process and on every machine."""
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True)


class Hashes:
    """A set of 64-bit numbers in a sorted array; the newest are still unsorted."""

    def __init__(self) -> None:
        self._sorted, self._new = array("q"), array("q")
        self._found: bytearray | None = None
        """One byte per sorted number: whether it was looked up.  The first :meth:`find` creates it."""

    def add(self, values: Iterable[int]) -> None:
        self._new.extend(values)
        if len(self._new) >= max(_UNSORTED, len(self._sorted)):
            self._sort()

    def __contains__(self, value: int) -> bool:
        if self._new:
            self._sort()
        place = bisect_left(self._sorted, value)
        return place < len(self._sorted) and self._sorted[place] == value

    def missing(self, values: array[int]) -> list[int]:
        """The positions in ``values`` of the numbers that are not in this set."""
        return self._search(values)[0]

    def find(self, values: array[int]) -> list[int]:
        """Like :meth:`missing`, but marks the numbers that were looked up.  Nothing may be added afterwards."""
        missing, places = self._search(values)
        if self._found is None:
            self._found = bytearray(len(self._sorted))
        deque(map(self._found.__setitem__, places.to_pylist(), repeat(1)), maxlen=0)
        return missing

    def never_found(self) -> Iterable[int]:
        """The numbers that :meth:`find` never looked up."""
        if self._new:
            self._sort()
        if self._found is None:
            return self._sorted
        return (value for value, is_found in zip(self._sorted, self._found, strict=True) if not is_found)

    def _search(self, values: array[int]) -> tuple[list[int], pa.Array]:
        """The positions in ``values`` of unknown numbers, and the positions in this set of known numbers."""
        if self._new:
            self._sort()
        if not self._sorted:
            return list(range(len(values))), pa.array([], pa.uint64())
        known, asked = _arrow(self._sorted), _arrow(values)
        places = pc.min_element_wise(pc.search_sorted(known, asked), pa.scalar(len(known) - 1, pa.uint64()))
        is_known = pc.equal(known.take(places), asked)
        return pc.indices_nonzero(pc.invert(is_known)).to_pylist(), places.filter(is_known)

    def __len__(self) -> int:
        if self._new:
            self._sort()
        return len(self._sorted)

    def _sort(self) -> None:
        assert self._found is None, "sorting would move the numbers away from their marks"
        self._sorted.extend(self._new)
        self._new = array("q")
        values = _arrow(self._sorted).unique()
        ordered = values.take(pc.array_sort_indices(values))
        self._sorted = array("q")
        self._sorted.frombytes(ordered.buffers()[1].slice(0, 8 * len(ordered)))


def _arrow(values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


class UnlistedPaths:
    """The expected paths that a listing lacks, as hashes."""

    def __init__(self, hashes: Iterable[int], hash_of: Callable[[str], int]) -> None:
        self._hashes, self._hash = array("q", sorted(hashes)), hash_of

    def __len__(self) -> int:
        return len(self._hashes)

    def place(self, path: str) -> int | None:
        """The index of the path in this set, from 0; ``None``: the set does not contain it."""
        value = self._hash(any_spelling(path))
        place = bisect_left(self._hashes, value)
        return place if place < len(self._hashes) and self._hashes[place] == value else None

    @classmethod
    def joined(cls, parts: Iterable[UnlistedPaths]) -> UnlistedPaths:
        """The union of several parts, whose hashes were made with :func:`path_hash`."""
        return cls((value for part in parts for value in part._hashes), path_hash)


class ReferencedPaths:
    """The paths that a table references; ``home``: the location whose files are looked up."""

    def __init__(
        self, home: str, paths: Iterable[str] = (), hash_of: Callable[[str], int] = hash, listed_too: Iterable[str] = ()
    ) -> None:
        """``hash_of``: a signed 64-bit hash; :func:`path_hash` if hashes come from other processes.

        ``listed_too``: further folders that the listing covers completely.
        """
        own = authority(home)
        self._own = "/" if own == "file://" else f"{own}/"
        self._listed = tuple(f"{any_spelling(root).rstrip('/')}/" for root in (home, *listed_too))
        self._hash = hash_of
        self._here, self._elsewhere, self._expected = Hashes(), Hashes(), Hashes()
        self.update(paths)

    def update(self, paths: Iterable[str]) -> None:
        """Add paths as the metadata spells them."""
        self._take(paths, self._add)

    def expect(self, paths: Iterable[str]) -> None:
        """Add paths; those in listed folders are expected in the listing."""
        self._take(paths, self._expect)

    def _take(self, paths: Iterable[str], add: Callable[[Sequence[str]], None]) -> None:
        names, rest, is_over = FolderNames(), iter(paths), False
        while not is_over:
            some: list[str] = []
            try:
                some.extend(islice(rest, _AT_ONCE))
            finally:  # keep the paths that were read before an error
                add(names.spellings(some))
            is_over = len(some) < _AT_ONCE

    def _expect(self, normals: Sequence[str]) -> None:
        expected = [normal for normal in normals if normal.startswith(self._listed)]
        self._expected.add(map(self._hash, expected))
        if len(expected) < len(normals):
            self._add([normal for normal in normals if not normal.startswith(self._listed)])

    def _add(self, normals: Sequence[str]) -> None:
        self._here.add(map(self._hash, normals))
        elsewhere = [normal for normal in normals if not normal.startswith(self._own)]
        self._elsewhere.add(self._hash(behind_authority(normal)) for normal in elsewhere)

    def hashes(self, normal: str) -> tuple[int, int | None]:
        """The hash of a path (as :func:`.any_spelling`), and its hash without scheme and bucket.

        The second hash is ``None`` in the bucket of ``home``, where a path cannot be a prefix mismatch.
        """
        return self._hash(normal), None if normal.startswith(self._own) else self._hash(behind_authority(normal))

    def add_hashes(self, hashes: Iterable[tuple[int, int | None]]) -> None:
        """Add paths by their :meth:`hashes`, which may have been made on another machine."""
        pairs = list(hashes)
        self._here.add(here for here, _ in pairs)
        self._elsewhere.add(elsewhere for _, elsewhere in pairs if elsewhere is not None)

    def expected_hash(self, normal: str) -> int | None:
        """The hash of a path (as :func:`.any_spelling`) that :meth:`expect` would expect; ``None``: it is outside the
        listed folders."""
        return self._hash(normal) if normal.startswith(self._listed) else None

    def add_expected(self, hashes: Iterable[int]) -> None:
        """Expect paths by their :meth:`expected_hash`, which may have been made on another machine."""
        self._expected.add(hashes)

    def unlisted(self) -> UnlistedPaths:
        """The expected paths that :meth:`unreferenced` did not see in the listing."""
        return UnlistedPaths(self._expected.never_found(), self._hash)

    def unreferenced(self, listed: Sequence[_File]) -> list[_File]:
        """The listed files that are not referenced."""
        names, found = FolderNames(of_listed=True), list[_File]()
        for start in range(0, len(listed), _AT_ONCE):
            some = listed[start : start + _AT_ONCE]
            hashes = array("q", map(self._hash, names.spellings([file.path for file in some])))
            left = self._expected.find(hashes)
            rest = array("q", (hashes[place] for place in left))
            found += [some[left[place]] for place in self._here.missing(rest)]
        return found

    def __contains__(self, path: str) -> bool:
        if not len(self):
            return False
        value = self._hash(any_spelling(path))
        return value in self._expected or value in self._here

    def __len__(self) -> int:
        return len(self._expected) + len(self._here)

    def has_prefix_mismatch(self, path: str) -> bool:
        """Whether (apart from hash collisions) the path is referenced under another scheme, bucket or host."""
        return len(self._elsewhere) > 0 and self._hash(behind_authority(any_spelling(path))) in self._elsewhere
