"""Refuses what lies outside the locations that the deployment allows a table (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.errors import OperationRefused
from icekeeper.policy.allowed_prefixes import ALLOWED_PREFIXES
from icekeeper.storage.path_set import may_be_under
from icekeeper.storage.paths import is_under

__all__ = ["are_disjoint", "is_allowed", "require_allowed"]


def are_disjoint(one: Iterable[str] | None, other: Iterable[str] | None) -> bool:
    """Whether no folder lies inside both rules of the operator; ``None``: there is none, so that every folder may."""
    if one is None or other is None:
        return False
    others = tuple(other)
    return not any(may_be_under(mine, theirs) or may_be_under(theirs, mine) for mine in one for theirs in others)


def is_allowed(path: str, prefixes: Iterable[str] | None) -> bool:
    """Whether a file or folder lies inside one of the allowed prefixes; ``None``: the deployment sets no bound."""
    return prefixes is None or any(is_under(f"{path.rstrip('/')}/x", prefix) for prefix in prefixes)


def require_allowed(paths: Iterable[str], prefixes: tuple[str, ...] | None) -> None:
    """Refuse work that would read, write or delete elsewhere.

    Raises:
        OperationRefused: names the first file outside.
    """
    if prefixes is None:
        return
    for path in paths:
        if not is_allowed(path, prefixes):
            raise OperationRefused(
                f"{path} lies outside {' and '.join(prefixes)}, where the deployment allows this table's files "
                f"({ALLOWED_PREFIXES}); nothing was touched"
            )
