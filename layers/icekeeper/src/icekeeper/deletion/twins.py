"""The same path under another scheme, bucket or host: a sign of a copied table or a renamed bucket, never guessed at.

What still differs by authority after normalisation is refused (rule 86).
"""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.errors import OperationRefused
from icekeeper.storage.paths import authority, normalise

__all__ = ["find_twin", "same_path_elsewhere", "without_authority"]


def same_path_elsewhere(path: str, referenced: str) -> OperationRefused:
    """The refusal to delete a file whose twin under another scheme, bucket or host is referenced."""
    return OperationRefused(
        f"{path} is referenced as {referenced}: the same path under {authority(referenced)} instead of "
        f"{authority(path)}; nothing was deleted"
    )


def without_authority(path: str) -> str:
    """The normalised path behind scheme and bucket or host."""
    normal = normalise(path)
    _, separator, rest = normal.partition("://")
    return f"/{rest.partition('/')[2]}" if separator else normal


def find_twin(paths: Iterable[str], references: Iterable[str]) -> tuple[str, str] | None:
    """A path and the reference that spells it under another authority, if there is such a pair."""
    keys = {without_authority(path): path for path in paths}
    for reference in references:
        path = keys.get(without_authority(reference))
        if path is not None and normalise(path) != normalise(reference):
            return path, reference
    return None
