"""Pins what branches and tags need that a catalog dropped together with the snapshots of an expiry.

A commit asserts every ref that is known.  It cannot assert one that was made between the last load of the table and the
commit, and REST catalogs drop such a ref with its snapshot without an error.  They do not accept the snapshot back
either, since its sequence number is overtaken.  So a pin holds what the ref needs until a person decides (platform 29).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from icekeeper.metadata.document import Ref
from icekeeper.operations.expiry.swapped_out import Swap
from icekeeper.state.store import UNTIL_REMOVED_MS, Pin, PinKind
from icekeeper.state.table_memory import TableMemory

__all__ = ["LostRef", "hold_lost_refs", "tell_lost_refs"]


@dataclass(frozen=True, slots=True)
class LostRef:
    """A ref that was dropped with its snapshot, and the pin that holds what it needs."""

    ref: Ref
    pin: Pin


def hold_lost_refs(memory: TableMemory, swap: Swap, dropped: Collection[str]) -> tuple[LostRef, ...]:
    """Pin what each ref needs that was dropped with its snapshot, except those that were meant to go (``dropped``).

    Raises:
        StorageError: a pin cannot be written; nothing must be deleted.
    """
    lost = tuple(
        LostRef(ref, _pin(memory, ref, swap.location))
        for name, ref in swap.before.refs.items()
        if name not in dropped and ref.snapshot_id in swap.before.snapshots.keys() - swap.after.snapshots.keys()
    )
    for one in lost:
        memory.store.add_pin(one.pin)
    return lost


def tell_lost_refs(lost: Sequence[LostRef]) -> str:
    """A sentence for people: what happened to each ref, and what to do about it."""
    return "; ".join(
        f"{one.ref.type} '{one.ref.name}' was made while the expiry was being committed, and the catalog dropped it "
        f"with its snapshot {one.ref.snapshot_id}: its files are kept by pin '{one.pin.name}'; register "
        f"{one.pin.metadata_location} as a table to read it, and remove the pin when it is not needed"
        for one in lost
    )


def _pin(memory: TableMemory, ref: Ref, location: str) -> Pin:
    return Pin(
        identity=memory.identity,
        # With a colon, so that no reader's pin can have this name.
        name=f"lost:{ref.name}@{ref.snapshot_id}",
        snapshot_id=ref.snapshot_id,
        metadata_location=location,
        expires_ms=UNTIL_REMOVED_MS,
        kind=PinKind.LOST_REF,
    )
