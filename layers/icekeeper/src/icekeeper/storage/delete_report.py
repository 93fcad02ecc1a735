"""What became of files that were to be deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DeleteReport"]


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """What became of every path given to :meth:`Storage.delete`, in the order given."""

    deleted: tuple[str, ...]
    """Paths that are gone, including those that were gone before."""
    failed: Mapping[str, str]
    """Path → reason."""
    transient: frozenset[str] = frozenset()
    """Paths of ``failed`` that may be deleted by a later attempt."""
