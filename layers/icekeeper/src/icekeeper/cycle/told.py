"""What became of one table, in one line for people."""

from __future__ import annotations

from dataclasses import dataclass

from icekeeper.machine.clock import iso_utc
from icekeeper.report.outcome import PassOutcome, Status
from icekeeper.report.plain_words import in_plain_words
from icekeeper.text import masked

__all__ = ["TableResult", "what_was_done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """How the pass over one table ended: a status of a pass, or ``skipped``."""

    catalog: str
    table: str
    status: str
    summary: str
    seconds: float = 0.0

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.status in ("succeeded", "skipped")

    def line(self, now_ms: int) -> str:
        """``2026-01-31T12:00:00Z lake ns.t succeeded in 3.2 s: compact: …``"""
        text = in_plain_words(masked(" ".join(self.summary.split())))
        taken = f" in {self.seconds:.1f} s" if self.seconds else ""
        return f"{iso_utc(now_ms)} {self.catalog} {self.table} {self.status}{taken}: {text}"


def what_was_done(outcome: PassOutcome) -> str:
    """The sentences of the operations that did something or failed; of a pass that had nothing to do, that."""
    told = [part for part in outcome.operations if part.status is not Status.SKIPPED]
    parts = [f"{part.operation.value}: {part.summary}" for part in told]
    if outcome.staged is not None:
        parts.append(outcome.staged.summary)
    return "; ".join(parts) or "nothing to do"
