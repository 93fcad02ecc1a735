"""Prefix mismatch: a listed path and a referenced one that differ only in scheme, bucket or host.

The table may be a copy, or its bucket renamed.  Which of both is not guessed: what still differs after normalisation
is refused (rule 86), as by ``prefix_mismatch_mode=ERROR`` of Iceberg-Java's ``DeleteOrphanFiles``.
"""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.errors import OperationRefused
from icekeeper.storage.paths import authority, normalise

__all__ = ["behind_authority", "find_prefix_mismatch", "prefix_mismatch_error", "without_authority"]


def prefix_mismatch_error(path: str, referenced: str) -> OperationRefused:
    """The refusal to delete a file, because its path is referenced under another scheme, bucket or host."""
    return OperationRefused(
        f"{path} is referenced as {referenced}: the same path under {authority(referenced)} instead of "
        f"{authority(path)}; nothing was deleted"
    )


def without_authority(path: str) -> str:
    """The normalised path without its scheme and without its bucket or host."""
    return behind_authority(normalise(path))


def behind_authority(normal: str) -> str:
    """As :func:`without_authority`, of a path that is normalised already."""
    _, separator, rest = normal.partition("://")
    return f"/{rest.partition('/')[2]}" if separator else normal


def find_prefix_mismatch(paths: Iterable[str], references: Iterable[str]) -> tuple[str, str] | None:
    """The first pair of a path and a reference that differ only in scheme, bucket or host, if any."""
    keys = {without_authority(path): path for path in paths}
    for reference in references:
        path = keys.get(without_authority(reference))
        if path is not None and normalise(path) != normalise(reference):
            return path, reference
    return None
