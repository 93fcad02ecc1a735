"""Lists of files in JSON documents; those too long for one are written to a file of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from icekeeper.errors import StorageError

__all__ = ["MAX_INLINE_PATHS", "ListingWriter", "files_json", "listing_in"]

MAX_INLINE_PATHS = 10_000
"""Lists with more distinct paths than this are written to a file of their own."""

ListingWriter: TypeAlias = Callable[[str, Mapping[str, Sequence[str]]], str]
"""``(name without suffix, {"planned": paths, "deleted": paths})`` → where the listing was written."""


def files_json(planned: Sequence[str], deleted: Sequence[str], name: str, listing: ListingWriter) -> dict[str, Any]:
    """``files`` of an operation in ``maintain --json``: the paths, or how many they are and where they were written."""
    files = {"planned": list(planned), "deleted": list(deleted)}
    if len({*planned, *deleted}) <= MAX_INLINE_PATHS:
        return files
    # No lists at all rather than shortened ones, which would read as "these and no others".
    return {"listing": listing(name, files), "planned_count": len(planned), "deleted_count": len(deleted)}


def listing_in(directory: Path) -> ListingWriter:
    """A writer of ``NAME.files.json`` in a folder, which it creates when first needed; for the owner only (rule 286).

    Raises (when called):
        StorageError: the folder cannot be written.
    """

    def write(name: str, files: Mapping[str, Sequence[str]]) -> str:
        # A table's name is part of it, and may hold slashes.
        path = directory / f"{quote(name, safe='')}.files.json"
        try:
            for folder in (directory.parent, directory):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(path, "w", encoding="utf-8", opener=_for_the_owner) as file:
                json.dump(files, file, indent=1)
        except OSError as error:
            raise StorageError(f"the list of files cannot be written to {path}: {error.strerror}") from error
        return str(path)

    return write


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
