"""Metadata files that a pass has read: one that its catalog's pointer still names is not read again.

The pointer itself is asked with every load.  A metadata file never changes (specification, "File System Operations"),
so the one that it names is as it was.  A file that this process wrote is read from the store like everything else
(rule 133).  Stores of several catalogs may have files of one path (rule 292).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TypeAlias

__all__ = ["keep_document", "keeping_documents", "kept_document", "reading_anew"]

Place: TypeAlias = tuple[str, str]
"""Of a store, as :attr:`.Storage.place`."""

_MOST_FILES = 16
_MOST_BYTES = 16 * 1024 * 1024


class _Documents:
    """The latest few, as bytes by place and location; safe to share between threads."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.files: OrderedDict[tuple[Place, str], bytes] = OrderedDict()
        self.size = 0


_current: ContextVar[_Documents | None] = ContextVar("icekeeper_kept_documents", default=None)


@contextmanager
def keeping_documents() -> Iterator[None]:
    """Read no metadata file twice inside of the block, or of one around it; outside of all, each load reads it."""
    before = _current.set(_current.get() or _Documents())
    try:
        yield
    finally:
        _current.reset(before)


@contextmanager
def reading_anew() -> Iterator[None]:
    """Read every metadata file from its store inside of the block, for who must know that it can still be read."""
    before = _current.set(None)
    try:
        yield
    finally:
        _current.reset(before)


def kept_document(place: Place, location: str) -> bytes | None:
    """The bytes of a metadata file that was read before; ``None``: it is to be read."""
    kept = _current.get()
    if kept is None:
        return None
    with kept.lock:
        data = kept.files.get((place, location))
        if data is not None:
            kept.files.move_to_end((place, location))
        return data


def keep_document(place: Place, location: str, data: bytes) -> None:
    """Remember a metadata file that was read from its store and understood."""
    kept = _current.get()
    if kept is None or len(data) > _MOST_BYTES:
        return
    with kept.lock:
        if (place, location) in kept.files:
            return
        kept.files[place, location] = data
        kept.size += len(data)
        while len(kept.files) > _MOST_FILES or kept.size > _MOST_BYTES:
            kept.size -= len(kept.files.popitem(last=False)[1])
