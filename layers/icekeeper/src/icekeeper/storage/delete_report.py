"""What became of files that were to be deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DeleteReport"]


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """What became of every path given to :meth:`Storage.delete`, in the order given."""

    deleted: tuple[str, ...]
    """Really gone, those that were gone before included."""
    failed: Mapping[str, str]
    """Path to reason."""
    transient: frozenset[str] = frozenset()
    """Those of ``failed`` that may go when tried again later."""
