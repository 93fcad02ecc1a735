"""The names of engines on the command line."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["EngineName"]


class EngineName(StrEnum):
    """Where work units run."""

    SPARK = "spark"
    LOCAL = "local"
