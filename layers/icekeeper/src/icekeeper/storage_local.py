"""Files on this machine: walk a folder, remove a file."""

from __future__ import annotations

import os
from collections.abc import Iterator

from icekeeper.errors import StorageError

__all__ = ["unlink", "walk"]


def walk(root: str) -> Iterator[tuple[str, int, int]]:
    """Every regular file below a folder: name relative to it, size in bytes, modification as epoch milliseconds.

    Symbolic links are neither listed nor followed; a missing folder, or a file deleted meanwhile, is passed over.

    Raises:
        StorageError: a folder cannot be read.
    """
    pending = [("", os.path.abspath(root))]
    while pending:
        prefix, directory = pending.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((f"{prefix}{entry.name}/", entry.path))
                    elif entry.is_file(follow_symlinks=False):
                        try:
                            status = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue
                        yield f"{prefix}{entry.name}", status.st_size, status.st_mtime_ns // 1_000_000
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"{directory} cannot be listed: {error.strerror or error}") from error


def unlink(path: str) -> str | None:
    """Remove a file; the reason when it is still there, ``None`` when it is gone."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)
    return None
