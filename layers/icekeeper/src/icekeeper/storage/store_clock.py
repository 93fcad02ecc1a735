"""The time by a store's own clock, which also dates its files (rule 94).

S3 tells its time with every answer.  A file system tells it by the time of a new file, which on a network file system
is the server's; where possible that file has no name and leaves no trace.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from icekeeper.errors import StorageError
from icekeeper.storage.paths import S3_SCHEMES, is_local, split_path
from icekeeper.storage.storage import Storage

__all__ = ["StoreClock", "store_now_ms"]

StoreClock: TypeAlias = Callable[[Storage, str, bool], int | None]
"""As :func:`store_now_ms`."""


def store_now_ms(storage: Storage, location: str, may_write: bool) -> int | None:
    """Epoch milliseconds by the clock of the store that a table's location is in; ``None`` where it is not known.

    S3 gets a request only if it has answered none yet; that request asks whether files can be listed, which code that
    deletes needs to know anyway.  ``may_write``: whether a named file may be created for a moment, where a nameless one
    is impossible.
    """
    parts = split_path(location)
    if not storage.allows(location):
        return None
    if is_local(location):
        return _by_nameless_file(parts.key) or (_by_probe(os.path.join(parts.key, "metadata")) if may_write else None)
    if parts.scheme not in S3_SCHEMES:
        return None
    if storage.s3_clock.now_ms() is None:
        with suppress(StorageError):
            storage.can_list(location)  # an answer that refuses has a date too
    return storage.s3_clock.now_ms()


def _by_nameless_file(folder: str) -> int | None:
    """Linux, open(2), O_TMPFILE: gone as soon as it is closed, and its folder does not change."""
    if not hasattr(os, "O_TMPFILE"):
        return None
    return _creation_ms(folder, os.O_TMPFILE | os.O_WRONLY)


def _by_probe(folder: str) -> int | None:
    path = os.path.join(folder, f".clock-{uuid.uuid4()}")
    found = _creation_ms(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    if found is not None:
        with suppress(OSError):
            os.unlink(path)
    return found


def _creation_ms(path: str, flags: int) -> int | None:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        return os.fstat(descriptor).st_mtime_ns // 1_000_000
    except OSError:
        return None
    finally:
        os.close(descriptor)
