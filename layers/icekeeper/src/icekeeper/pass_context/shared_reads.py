"""What the operations of a pass share: manifests and manifest lists that were read, and the clients of stores.

Manifests never change (specification, "File System Operations"), so what was read stays right; which of them a table
has, each operation asks anew.  What the pass itself writes is read like everything else: a file that did not arrive
whole in the store must stop what deletes (rule 133).

The operations of ``icekeeper maintain`` have one context, and share by it.  The steps of the pipeline have each their
own; a block says which belong together (rule 156).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

from icekeeper.catalogs.pointer import keeping_documents
from icekeeper.metadata.whole_avro import is_whole_avro
from icekeeper.storage.allowed_locations import ALLOWED_LOCATIONS, AllowedLocations
from icekeeper.storage.storage import Storage

__all__ = ["MetadataCache", "SharedReads", "shared_reads", "sharing_reads"]


_MOST_BYTES = 32 * 1024 * 1024


class MetadataCache:
    """Remembers files by place and path until there is no room left; safe to share between threads.

    A pass looks into tables of other catalogs, whose stores may hold another file of the same path (rule 292).

    Nothing makes room for later files: operations read the same files in the same order, so that a cache which drops
    the oldest would drop each one just before it is wanted.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._lock = Lock()
        self._files: dict[tuple[tuple[str, str], str], bytes] = {}
        self._room = most_bytes

    def read(self, place: tuple[str, str], path: str, read: Callable[[str], bytes]) -> bytes:
        """The bytes of a file in a place (:attr:`.Storage.place`); ``read`` reads what is not known yet, and may raise.

        What does not look like a whole Avro file is read again the next time.
        """
        known = self._files.get((place, path))
        if known is not None:
            return known
        data = read(path)
        if is_whole_avro(data):
            with self._lock:
                if (place, path) not in self._files and len(data) <= self._room:
                    self._files[place, path] = data
                    self._room -= len(data)
        return data


class SharedReads:
    """Safe to share between threads; its memory is bounded as its cache is."""

    def __init__(self) -> None:
        self.manifests = MetadataCache()
        """Manifests and manifest lists."""
        self._lock = Lock()
        self._clients: dict[tuple[int, tuple[tuple[str, str], ...]], Storage] = {}

    def storage(self, properties: Mapping[str, str], listing_threads: int) -> Storage:
        """One client per set of credentials, within the bound that the properties carry."""
        key = listing_threads, tuple(sorted((k, v) for k, v in properties.items() if k != ALLOWED_LOCATIONS))
        with self._lock:
            if key not in self._clients:
                self._clients[key] = Storage(properties, listing_threads)
            return self._clients[key].within(AllowedLocations.of(properties))


_current: ContextVar[SharedReads | None] = ContextVar("icekeeper_shared_reads", default=None)


@contextmanager
def sharing_reads() -> Iterator[None]:
    """Contexts that are made inside of the block, or of one around it, share what they read; metadata files as well."""
    before = _current.set(_current.get() or SharedReads())
    try:
        with keeping_documents():
            yield
    finally:
        _current.reset(before)


def shared_reads() -> SharedReads:
    """What is shared here; outside of all blocks something new, which the caller alone has."""
    return _current.get() or SharedReads()
