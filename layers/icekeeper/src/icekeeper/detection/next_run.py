"""What a scheduled run would make of a scan now: with which tables it begins, under which limits and filters (pure).

The same settings decide in ``icekeeper run`` and in the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from icekeeper.policy import ResolvedPolicy

__all__ = ["NextRun"]

_FILTERS = ("bucket_filter", "namespace_filter", "table_filter")
_LIMITS = ("max_jobs_per_detection", "max_concurrent_jobs", "detection_timeout_s")


@dataclass(frozen=True, slots=True)
class NextRun:
    """The tables that were proposed, and how many are being maintained by scheduled runs already."""

    settings: ResolvedPolicy
    """The deployment's."""
    proposed: Sequence[str]
    at_work: int

    @property
    def begins(self) -> Sequence[str]:
        """The tables for which there is room now."""
        return self.proposed[: max(0, self.settings.policy.max_concurrent_jobs - self.at_work)]

    def to_json(self) -> dict[str, Any]:
        """``next_run`` in ``detect --json``; settings with their sources, as ``policy show`` gives them."""
        documents = self.settings.documents()
        return {
            "begins": list(self.begins),
            "waits": list(self.proposed[len(self.begins) :]),
            "at_work": self.at_work,
            "limits": {key: documents[key] for key in _LIMITS},
            "filters": {key: documents[key] for key in _FILTERS if getattr(self.settings.policy, key)},
        }
