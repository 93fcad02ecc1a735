"""What the steps of one pass share when they run in one process: manifests that were read, and clients of stores.

The operations of ``icekeeper maintain`` have one context, and share by it.  The steps of the pipeline have each their
own; a block says that they belong together.  Which snapshots and manifests a table has, is still asked by each
(rule 156).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

from icekeeper.catalogs.kept_documents import keeping_documents
from icekeeper.pass_context.metadata_cache import MetadataCache
from icekeeper.storage.storage import Storage

__all__ = ["SharedReads", "shared_reads", "sharing_reads"]


class SharedReads:
    """Safe to share between threads; its memory is bounded as its cache is."""

    def __init__(self) -> None:
        self.manifests = MetadataCache()
        """Manifests and manifest lists."""
        self._lock = Lock()
        self._clients: dict[tuple[int, tuple[tuple[str, str], ...]], Storage] = {}

    def storage(self, properties: Mapping[str, str], listing_threads: int) -> Storage:
        """One client per set of credentials."""
        key = listing_threads, tuple(sorted(properties.items()))
        with self._lock:
            if key not in self._clients:
                self._clients[key] = Storage(properties, listing_threads)
            return self._clients[key]


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
