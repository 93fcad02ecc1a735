"""The state of a table, for lists, the page and metrics: one vocabulary, by what scans, passes and ``verify`` recorded
(pure).
"""

from __future__ import annotations

from enum import StrEnum

from icekeeper.state.lake_stats import LakeStats


class TableState(StrEnum):
    """The states, the most urgent first."""

    UNREADABLE = "unreadable"
    """Its metadata cannot be read, so nothing is done."""
    DAMAGED = "damaged"
    """``verify`` or a pass found files that are missing or damaged."""
    TROUBLE = "trouble"
    """A person must act: settings are wrong, or passes fail, are refused or take too long."""
    WORK = "work"
    """A pass is due."""
    PAUSED = "paused"
    """A person stopped its passes until a time, whether they fail or not."""
    WELL = "well"


_DAMAGE = ("unreadable_files", "expiry_refused")
# Passes do not remove the causes of these warnings.
_TROUBLE = ("wrong_settings", "cut_off", "failing")


def state_of(stats: LakeStats | None, unread: LakeStats | None = None) -> tuple[TableState, str | None]:
    """The state of a table, and the warning that is its reason.

    ``None``: another reason, which is in the record of the failed scan or in the verdict of the scan.
    ``stats``: the table as a scan last read it; ``unread``: the record of a later scan that could not read it.
    """
    if unread is not None or stats is None or stats.verdict.is_unread:
        return TableState.UNREADABLE, None
    for kind in _DAMAGE:
        if kind in stats.warnings:
            return TableState.DAMAGED, kind
    if "paused_until" in stats.policy:  # scans leave out pauses that are over
        return TableState.PAUSED, None
    for kind in _TROUBLE:
        if kind in stats.warnings:
            return TableState.TROUBLE, kind
    return (TableState.WORK if stats.verdict.reasons else TableState.WELL), None
