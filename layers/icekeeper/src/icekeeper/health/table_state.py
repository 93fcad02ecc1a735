"""The state of a table, for lists, the page and metrics: one vocabulary, by what scans, passes and ``verify`` recorded
(pure).

The state is what is worst about a table itself.  A table whose deletions wait for another table keeps its own state:
:func:`blocker_sentence` says once for a fleet what they wait for.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum

from icekeeper.state.claims import CatalogLook
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.store import PassRecord
from icekeeper.text import age_text, counted


class WarningKind(StrEnum):
    """The kinds of warnings about a table's health, besides those of a table bucket's own maintenance
    (:mod:`icekeeper.policy.ownership`); docs/detection.md explains each."""

    DAMAGED = "damaged"
    UNREADABLE_FILES = "unreadable_files"
    EXPIRY_REFUSED = "expiry_refused"
    WRONG_SETTINGS = "wrong_settings"
    CUT_OFF = "cut_off"
    FAILING = "failing"
    DELETIONS_WAIT = "deletions_wait"
    DELETE_DEBT = "delete_debt"
    DELETE_SCOPE = "delete_scope"
    FORMER_TABLE = "former_table"
    IGNORED_SETTINGS = "ignored_settings"
    MANIFEST_SPRAWL = "manifest_sprawl"
    MANIFESTS_UNREAD = "manifests_unread"
    METADATA_SPRAWL = "metadata_sprawl"
    SMALL_FILES = "small_files"
    SNAPSHOT_SPRAWL = "snapshot_sprawl"
    UUID_TWICE = "uuid_twice"


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

    @property
    def heading(self) -> str:
        """The state in words: ``in trouble``, ``work due``."""
        return {TableState.TROUBLE: "in trouble", TableState.WORK: "work due"}.get(self, self.value)


TROUBLED = (TableState.UNREADABLE, TableState.DAMAGED, TableState.TROUBLE)
"""The states in which a person must act."""
DAMAGE = (WarningKind.DAMAGED, WarningKind.UNREADABLE_FILES, WarningKind.EXPIRY_REFUSED)
# Passes do not remove the causes of these warnings.
_TROUBLE = (WarningKind.WRONG_SETTINGS, WarningKind.CUT_OFF, WarningKind.FAILING)


def state_of(
    stats: LakeStats | None, unread: LakeStats | None = None, last: PassRecord | None = None
) -> tuple[TableState, WarningKind | None]:
    """The state of a table, and the warning that is its reason.

    ``None``: another reason, which is in the record of the failed scan, of the last pass, or in the verdict of the
    scan.  ``stats``: the table as a scan last read it; ``unread``: the record of a later scan that could not read it;
    ``last``: its newest pass.
    """
    if unread is not None or stats is None or stats.verdict.is_unread:
        return TableState.UNREADABLE, None
    damage, trouble = (next((kind for kind in kinds if kind in stats.warnings), None) for kinds in (DAMAGE, _TROUBLE))
    if damage is not None:
        return TableState.DAMAGED, damage
    if "paused_until" in stats.policy:  # scans leave out pauses that are over
        return TableState.PAUSED, None
    if trouble is not None:
        return TableState.TROUBLE, trouble
    if last is not None and last.status != "succeeded" and not last.only_waits:
        return TableState.TROUBLE, None
    return (TableState.WORK if stats.verdict.reasons else TableState.WELL), None


def verified_text(verified_ms: int, now_ms: int) -> str:
    """When ``verify`` last looked at a table: ``verified 3 days ago``; 0: never."""
    return f"verified {age_text(max(0, now_ms - verified_ms))} ago" if verified_ms else "never verified"


_MOST_NAMED = 3


def blocker_sentence(looks: Sequence[CatalogLook], waiting: int) -> str:
    """Which tables and catalogs make the deletions of ``waiting`` tables wait, and what ends that, once for a fleet.

    Empty: no deletion waits.  ``looks``: the last look at each catalog that shares the state.
    """
    blockers, commands = list[str](), list[str]()
    for look in looks:
        if look.failure:
            blockers.append(f"catalog {look.catalog.name}")
        for entry in look.unseen:
            if entry.reason and not entry.is_gone and not entry.is_known:
                blockers.append(str(entry.table))
                name = ("icekeeper", "claims", "exclude", entry.table.key, "--catalog", look.catalog.name)
                commands.append(shlex.join(name))
    if not waiting or not blockers:
        return ""
    more = len(blockers) - _MOST_NAMED
    named = ", ".join(blockers[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    it = "it" if len(blockers) == 1 else "each"
    exclude = f", or exclude {it} with {commands[0]}" if commands else ""
    return f"{named} cannot be read; deletions wait in {counted(waiting, 'table')}; repair {it}{exclude}"
