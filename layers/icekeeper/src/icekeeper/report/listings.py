"""Writes the lists of files that are too long for a document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from icekeeper.errors import StorageError
from icekeeper.report.outcome import ListingWriter

__all__ = ["listing_in"]


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
