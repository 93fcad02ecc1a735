"""A set of millions of referenced paths in eight bytes each.

Only hashes of normalised paths are kept.  Two paths with one hash can only make an orphan look referenced, so that it
stays; a referenced path is always found.  1 M paths are 8 MB here, some 200 MB as a set of text.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.deletion.prefix_mismatch import without_authority
from icekeeper.storage.paths import authority, normalise

__all__ = ["ReferencedPaths", "path_hash"]

# Sorted and freed of repetitions each time so many came in: a path that many manifests hold counts once.
_UNSORTED = 1_000_000


def path_hash(key: str) -> int:
    """64 bits, the same in every process and on every machine."""
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class _Hashes:
    """Sorted 64-bit numbers; what was added last waits unsorted."""

    def __init__(self) -> None:
        self._sorted, self._new = array("Q"), array("Q")

    def add(self, value: int) -> None:
        self._new.append(value)
        if len(self._new) >= max(_UNSORTED, len(self._sorted)):
            self._sort()

    def __contains__(self, value: int) -> bool:
        if self._new:
            self._sort()
        place = bisect_left(self._sorted, value)
        return place < len(self._sorted) and self._sorted[place] == value

    def __len__(self) -> int:
        if self._new:
            self._sort()
        return len(self._sorted)

    def _sort(self) -> None:
        self._sorted.extend(self._new)
        self._new = array("Q")
        values = pa.Array.from_buffers(pa.uint64(), len(self._sorted), [None, pa.py_buffer(self._sorted)]).unique()
        ordered = values.take(pc.array_sort_indices(values))
        self._sorted = array("Q")
        self._sorted.frombytes(ordered.buffers()[1].slice(0, 8 * len(ordered)))


class ReferencedPaths:
    """The paths that a table references; ``home`` is the location whose files are asked about."""

    def __init__(self, home: str, paths: Iterable[str] = ()) -> None:
        own = authority(home)
        self._own = "/" if own == "file://" else f"{own}/"
        self._here, self._elsewhere = _Hashes(), _Hashes()
        self.update(paths)

    def update(self, paths: Iterable[str]) -> None:
        """Add paths as the metadata spells them."""
        for path in paths:
            self.add_hashes(*self.hashes(path))

    def hashes(self, path: str) -> tuple[int, int | None]:
        """The hash of the normalised path, and that of its part behind scheme and bucket.

        The second is ``None`` for a path in home's own bucket, which cannot be a prefix mismatch.
        """
        normal = normalise(path)
        return path_hash(normal), None if normal.startswith(self._own) else path_hash(without_authority(normal))

    def add_hashes(self, here: int, elsewhere: int | None) -> None:
        """Add a path by its :meth:`hashes`, which may have been made on another machine."""
        self._here.add(here)
        if elsewhere is not None:
            self._elsewhere.add(elsewhere)

    def __contains__(self, path: str) -> bool:
        return len(self._here) > 0 and path_hash(normalise(path)) in self._here

    def __len__(self) -> int:
        return len(self._here)

    def has_prefix_mismatch(self, path: str) -> bool:
        """Whether, most probably, the same path is referenced under another scheme, bucket or host."""
        return len(self._elsewhere) > 0 and path_hash(without_authority(path)) in self._elsewhere
