"""The files that an expiry may free: added by what expires, taken out by what stays and references them (pure).

A million of them must fit beside everything else: a path is held once, its normalised form only as a hash.  Two paths
with one hash are told apart by their text, so a chance collision costs nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence

from icekeeper.deletion.neighbours import behind_authority, prefix_mismatch_error
from icekeeper.pass_context.footprint import spelled_root
from icekeeper.storage.merged_spellings import merged_spelling
from icekeeper.storage.paths import ComparedPath, compared, is_under, normalise

__all__ = ["Candidates"]

_MOST_FOLDERS = 10_000


class Candidates:
    """Paths with sizes in bytes.  What lies outside the locations that a table owns, or is held by a pin or a staged
    load, is never taken in."""

    def __init__(self, owned: Sequence[str], is_held: Callable[[str], bool] = lambda path: False) -> None:
        self._owned, self._is_held = tuple(map(compared, owned)), is_held
        # Hash of the path behind scheme and bucket, in whatever spelling → where it stands in the lists below.
        self._places: dict[int, tuple[int, ...] | int] = {}
        self._paths: list[str | None] = []
        self._sizes = array("q")
        self._holds_rows = bytearray()
        self._is_plain = bytearray()
        self.files_left = 0
        """How many of them are data and delete files; only manifest entries can still take these out."""
        self.size = 0
        """Bytes of all candidates that are left."""

    def add(self, path: str, size: int, *, holds_rows: bool = False) -> None:
        """Add a path, once however it is spelled; ``holds_rows``: a data or delete file, not metadata."""
        now = compared(path)
        if not any(is_under(now, location) for location in self._owned) or self._is_held(now):
            return
        key = hash(behind_authority(merged_spelling(now.normal)))
        found = self._at(key)
        if found and any(normalise(self._paths[place] or "") == now.normal for place in found):
            return
        place = len(self._paths)
        self._places[key] = (*found, place) if found else place
        self._paths.append(path)
        self._sizes.append(size)
        self._holds_rows.append(holds_rows)
        self._is_plain.append(now.is_plain)
        self.files_left += holds_rows
        self.size += size

    def spare(self, path: str) -> None:
        """Take a path out, because something that stays references it.

        Raises:
            OperationRefused: a candidate is the same path under another scheme, bucket or host.
        """
        now = compared(path)
        merged = merged_spelling(now.normal)
        bare = behind_authority(merged)
        for place in self._at(hash(bare)):
            candidate = self._compared(place)
            if candidate is None:
                continue
            other = merged_spelling(candidate.normal)
            if behind_authority(other) != bare:
                continue
            if other != merged:
                raise prefix_mismatch_error(candidate, path)
            self._take_out(place)

    def leave_out(self, is_needed: Callable[[str], bool]) -> None:
        """Take out every path for which ``is_needed`` answers yes."""
        for place in range(len(self._paths)):
            path = self._compared(place)
            if path is not None and is_needed(path):
                self._take_out(place)

    def paths(self) -> tuple[str, ...]:
        """The paths that are left, sorted."""
        return tuple(sorted(self))

    def __iter__(self) -> Iterator[str]:
        return (path for path in self._paths if path is not None)

    def of_each_folder(self) -> Iterator[str]:
        """At least one of the paths that are left in each folder, for questions about where they lie; what a link leads
        elsewhere is always among them."""
        seen = set[tuple[str, str]]()
        for path, is_plain in zip(self._paths, self._is_plain, strict=True):
            if path is None:
                continue
            folder, _, name = path.rpartition("/")
            place = (folder, spelled_root(path))
            if place in seen and is_plain and name:
                continue
            if len(seen) >= _MOST_FOLDERS:  # a folder for each file, as with a hash in its path
                seen.clear()
            seen.add(place)
            yield path

    def _compared(self, place: int) -> ComparedPath | None:
        path = self._paths[place]
        return None if path is None else compared(path, is_plain=bool(self._is_plain[place]))

    def _take_out(self, place: int) -> None:
        self._paths[place] = None
        self.files_left -= self._holds_rows[place]
        self.size -= self._sizes[place]

    def _at(self, key: int) -> tuple[int, ...]:
        found = self._places.get(key, ())
        return (found,) if isinstance(found, int) else found
