"""What detection says about tables: a proposal with its reasons, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["DetectionReport", "Proposal", "Skip"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A table that needs work; ``priority`` is between 0 and 1, higher for more need."""

    table: str
    reasons: tuple[str, ...]
    priority: float
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Skip:
    """A table that is not proposed; ``is_error`` when that is because it could not be assessed."""

    table: str
    reason: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class DetectionReport:
    """One scan: proposals most urgent first, the rest by name; ``scanned`` counts the tables that were assessed."""

    catalog: str
    scanned: int
    proposals: tuple[Proposal, ...]
    skipped: tuple[Skip, ...]

    @property
    def has_errors(self) -> bool:
        return any(skip.is_error for skip in self.skipped)

    def to_json(self) -> dict[str, Any]:
        """The document of ``detect --json``."""
        return {
            "catalog": self.catalog,
            "scanned": self.scanned,
            "proposals": [
                {"table": proposal.table, "reasons": list(proposal.reasons), "priority": proposal.priority}
                for proposal in self.proposals
            ],
            "skipped": [{"table": skip.table, "reason": skip.reason} for skip in self.skipped],
        }
