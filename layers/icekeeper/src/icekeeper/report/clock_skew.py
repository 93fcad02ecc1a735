"""How a wrong clock is reported to people and in metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["CLOCK_SKEW", "clock_warning", "skew_sentence"]

CLOCK_SKEW = "clock.skew_s"
"""Metric: how many seconds this machine's clock is ahead of the store's (negative: behind); left out below a minute."""


def skew_sentence(ahead_s: int) -> str:
    """The sentence for people: what is wrong with the clock, and what to do."""
    direction = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"this machine's clock is {abs(ahead_s)} s {direction} the clock of the table's store, by which ages are "
        "judged; set it right"
    )


def clock_warning(metrics: Iterable[Mapping[str, int | float]]) -> tuple[str, ...]:
    """The sentence about the largest skew in the metrics of a pass's parts; empty where no part met one."""
    met = [int(found[CLOCK_SKEW]) for found in metrics if CLOCK_SKEW in found]
    return (skew_sentence(max(met, key=abs)),) if met else ()
