"""Lists of files in JSON documents; those too long for one are written to a file of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

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
    """A writer of ``NAME.files.json`` in a folder, which it creates when first needed.

    Raises (when called):
        StorageError: the folder cannot be written.
    """

    def write(name: str, files: Mapping[str, Sequence[str]]) -> str:
        path = directory / f"{name}.files.json"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(files, indent=1), encoding="utf-8")
        except OSError as error:
            raise StorageError(f"the list of files cannot be written to {path}: {error.strerror}") from error
        return str(path)

    return write
