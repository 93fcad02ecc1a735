"""Manifests and manifest lists that a pass has read: each is asked of the store once, whatever operation needs it.

They never change (specification, "File System Operations"), so what was read stays right; which of them a table has,
each operation asks anew.  What the pass itself writes is read like everything else: a file that did not arrive whole in
the store must stop what deletes (rule 133).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from icekeeper.metadata.whole_avro import is_whole_avro

__all__ = ["MetadataCache"]

_MOST_BYTES = 32 * 1024 * 1024


class MetadataCache:
    """Remembers files by path until there is no room left; safe to share between threads.

    Nothing makes room for later files: operations read the same files in the same order, so that a cache which drops
    the oldest would drop each one just before it is wanted.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._lock = Lock()
        self._files: dict[str, bytes] = {}
        self._room = most_bytes

    def read(self, path: str, read: Callable[[str], bytes]) -> bytes:
        """The bytes of a file; ``read`` reads what is not known yet, and what it raises is raised.

        What does not look like a whole Avro file is read again the next time.
        """
        known = self._files.get(path)
        if known is not None:
            return known
        data = read(path)
        if is_whole_avro(data):
            with self._lock:
                if path not in self._files and len(data) <= self._room:
                    self._files[path] = data
                    self._room -= len(data)
        return data
