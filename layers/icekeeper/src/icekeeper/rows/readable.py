"""Tells by its manifest entry alone whether this version can read a data file (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from icekeeper.metadata.single_value import decode
from icekeeper.model import DataFile, ManifestEntry
from icekeeper.rows.file_rows import READABLE_FORMATS

__all__ = ["why_unreadable"]

# Arrow reads every timestamp of an ORC file as nanoseconds in 64 bits (platform 40): some moments from 1677 to 2262.
_MICROS = range(-(2**63) // 1000 + 1, 2**63 // 1000)
_MICRO_TIMES = ("timestamp", "timestamptz")


def why_unreadable(file: DataFile, deletes: Iterable[ManifestEntry], types: Mapping[int, str]) -> str | None:
    """Why a data file must be left alone, as the end of a sentence; ``None`` where it can be read.

    ``deletes`` are the delete files that apply to it, ``types`` those of the columns that are wanted, by field id.
    """
    if file.key_metadata is not None:
        return "is encrypted"
    for delete in deletes:
        if delete.file.key_metadata is not None:
            return f"needs delete file {delete.file.file_path}, which is encrypted"
    kind = file.file_format.upper()
    if kind not in READABLE_FORMATS:
        return f"is {kind}, which is not read"
    if kind == "ORC" and _has_far_times(file, types):
        return "is ORC with timestamps before 1678 or after 2261, which are not read"
    return None


def _has_far_times(file: DataFile, types: Mapping[int, str]) -> bool:
    """Whether a bound lies outside of what Arrow can read; where a file has no bounds, only reading it will tell."""
    for bounds in (file.lower_bounds or {}, file.upper_bounds or {}):
        for field_id, value in bounds.items():
            # A bound of four bytes is a day: the column was a date when the file was written.
            if types.get(field_id) in _MICRO_TIMES and len(value) == 8 and decode("timestamp", value) not in _MICROS:
                return True
    return False
