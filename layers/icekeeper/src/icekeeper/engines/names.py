"""The names of engines on the command line."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["EngineName"]


class EngineName(StrEnum):
    """Where work units run."""

    AUTO = "auto"
    """Spark where a cluster or a running session is at hand, else this machine's processes."""
    SPARK = "spark"
    LOCAL = "local"
