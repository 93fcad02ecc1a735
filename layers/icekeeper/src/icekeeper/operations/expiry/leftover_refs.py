"""Finds the refs that were dropped with an interrupted run's commit, before its leftovers are deleted.

A run that died between its commit and its look at the refs leaves a list that is still marked as unchecked.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.expiry.leftovers import UNCHECKED, Leftovers
from icekeeper.operations.expiry.lost_refs import LostRef, hold_lost_refs
from icekeeper.operations.expiry.retention import aged_refs
from icekeeper.operations.expiry.swapped_out import find_swap
from icekeeper.pass_context.context import OperationContext
from icekeeper.storage.paths import normalise

__all__ = ["CheckedLeftovers", "check_leftovers"]


@dataclass(frozen=True, slots=True)
class CheckedLeftovers:
    """The leftovers that may be deleted now, and the refs that were dropped with the interrupted runs' commits."""

    may_go: Leftovers
    lost: tuple[LostRef, ...] = ()
    doubt: str | None = None
    """Why nothing may be deleted: which refs were lost is not known."""
    expired: int = 0
    """How many snapshots those commits expired, which nobody has told (rule 174)."""


def check_leftovers(context: OperationContext, loaded: LoadedTable, left: Leftovers) -> CheckedLeftovers:
    """Pin what lost refs need.

    While the metadata log cannot be read the lists stay; where it does not reach back far enough they are forgotten,
    and their files are left to orphan removal.

    Raises:
        StorageError: the state store fails; the lists stay.
    """
    unchecked = [name for name in left.lists if name.endswith(UNCHECKED)]
    if not unchecked or not left.files:
        return CheckedLeftovers(left)
    free, lost, expired = set(map(normalise, left.files)), list[LostRef](), set[int]()
    for name in unchecked:
        # A commit that never landed left nothing free.  A list of what one did free has its snapshots' manifest lists.
        files = free.intersection(map(normalise, context.memory.files_to_delete(name)))
        if not files:
            continue
        try:
            swap = find_swap(loaded, partial(_has_one_of, files), context.storage(loaded))
        except MetadataUnreadable as error:
            why = f"files of an interrupted run stay until it can be told which refs went with its commit: {error}"
            return CheckedLeftovers(Leftovers(), tuple(lost), why)
        if swap is None:
            for given_up in unchecked:
                context.memory.forget_deletions(given_up)
            why = (
                f"{len(free)} file(s) of an interrupted run are left to remove_orphans, because the metadata log does "
                "not tell any more which refs went with its commit"
            )
            return CheckedLeftovers(Leftovers(), tuple(lost), why)
        lost += hold_lost_refs(context.memory, swap, aged_refs(swap.before, context.now_ms(loaded)))
        expired |= swap.before.snapshots.keys() - swap.after.snapshots.keys()
    return CheckedLeftovers(left, tuple(lost), expired=len(expired))


def _has_one_of(files: Collection[str], then: TableMetadata) -> bool:
    lists = (snapshot.manifest_list for snapshot in then.snapshots.values())
    return any(path is not None and normalise(path) in files for path in lists)
