"""A folder for rows that wait on this machine's disk, for as long as work takes."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from icekeeper.errors import StorageError

__all__ = ["scratch_folder"]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A new folder where temporary files are kept, whose name begins with ``prefix``; it is gone afterwards (rule 187).

    Raises:
        StorageError: there was no room for what the caller wrote into it.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            yield Path(folder)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StorageError(
            f"the temporary folder {tempfile.gettempdir()} is full: free space there, or name a folder on another disk "
            "with TMPDIR"
        ) from error
