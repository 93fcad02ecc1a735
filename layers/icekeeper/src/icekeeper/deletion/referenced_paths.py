"""A set of millions of referenced paths in eight bytes each.

Only hashes of normalised paths are kept.  Two paths with one hash can only make an orphan look referenced, so that it
stays; a referenced path is always found.  1 M paths are 8 MB here, some 200 MB as a set of text.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.deletion.prefix_mismatch import behind_authority
from icekeeper.storage.folder_names import FolderNames
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.merged_spellings import any_spelling, merged_spellings
from icekeeper.storage.paths import authority

__all__ = ["ReferencedPaths", "path_hash"]

# Sorted and freed of repetitions each time so many came in: a path that many manifests hold counts once.
_UNSORTED = 1_000_000
_AT_ONCE = 10_000


def path_hash(key: str) -> int:
    """64 bits, the same in every process and on every machine."""
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True)


class _Hashes:
    """Sorted 64-bit numbers; what was added last waits unsorted."""

    def __init__(self) -> None:
        self._sorted, self._new = array("q"), array("q")

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
        """Where in ``values`` the numbers stand that are not among these."""
        if self._new:
            self._sort()
        if not self._sorted:
            return list(range(len(values)))
        known, asked = _arrow(self._sorted), _arrow(values)
        places = pc.min_element_wise(pc.search_sorted(known, asked), pa.scalar(len(known) - 1, pa.uint64()))
        missing: list[int] = pc.indices_nonzero(pc.not_equal(known.take(places), asked)).to_pylist()
        return missing

    def __len__(self) -> int:
        if self._new:
            self._sort()
        return len(self._sorted)

    def _sort(self) -> None:
        self._sorted.extend(self._new)
        self._new = array("q")
        values = _arrow(self._sorted).unique()
        ordered = values.take(pc.array_sort_indices(values))
        self._sorted = array("q")
        self._sorted.frombytes(ordered.buffers()[1].slice(0, 8 * len(ordered)))


def _arrow(values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


class ReferencedPaths:
    """The paths that a table references; ``home`` is the location whose files are asked about."""

    def __init__(self, home: str, paths: Iterable[str] = (), hash_of: Callable[[str], int] = hash) -> None:
        """``hash_of``: 64 bits with a sign; :func:`path_hash` where hashes come from other processes."""
        own = authority(home)
        self._own = "/" if own == "file://" else f"{own}/"
        self._hash = hash_of
        self._here, self._elsewhere = _Hashes(), _Hashes()
        self.update(paths)

    def update(self, paths: Iterable[str]) -> None:
        """Add paths as the metadata spells them."""
        names, some = FolderNames(), list[str]()
        try:
            for path in paths:
                some.append(names.normal(path))
                if len(some) >= _AT_ONCE:
                    self._add(some)
                    some = []
        finally:  # what is known when reading fails
            self._add(some)

    def _add(self, normals: Sequence[str]) -> None:
        normals = merged_spellings(normals)
        self._here.add(map(self._hash, normals))
        elsewhere = [normal for normal in normals if not normal.startswith(self._own)]
        self._elsewhere.add(self._hash(behind_authority(normal)) for normal in elsewhere)

    def hashes(self, path: str) -> tuple[int, int | None]:
        """The hash of the normalised path, and that of its part behind scheme and bucket.

        The second is ``None`` for a path in home's own bucket, which cannot be a prefix mismatch.
        """
        normal = any_spelling(path)
        return self._hash(normal), None if normal.startswith(self._own) else self._hash(behind_authority(normal))

    def add_hashes(self, hashes: Iterable[tuple[int, int | None]]) -> None:
        """Add paths by their :meth:`hashes`, which may have been made on another machine."""
        pairs = list(hashes)
        self._here.add(here for here, _ in pairs)
        self._elsewhere.add(elsewhere for _, elsewhere in pairs if elsewhere is not None)

    def unreferenced(self, listed: Sequence[ListedObject], names: FolderNames) -> list[ListedObject]:
        """The listed objects that are not referenced; ``names``: of the whole listing."""
        normals = merged_spellings([names.normal(found.path) for found in listed])
        hashes = array("q", map(self._hash, normals))
        return [listed[place] for place in self._here.missing(hashes)]

    def __contains__(self, path: str) -> bool:
        return len(self._here) > 0 and self._hash(any_spelling(path)) in self._here

    def __len__(self) -> int:
        return len(self._here)

    def has_prefix_mismatch(self, path: str) -> bool:
        """Whether, most probably, the same path is referenced under another scheme, bucket or host."""
        return len(self._elsewhere) > 0 and self._hash(behind_authority(any_spelling(path))) in self._elsewhere
