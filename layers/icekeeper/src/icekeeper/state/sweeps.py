"""When a table was last swept for orphans, and when its first sweep is due."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from icekeeper.state.identity import TableIdentity
from icekeeper.state.item_layout import now_prefix, sort_key, table_key
from icekeeper.state.items import Item, Records, understood


class SweepKind(StrEnum):
    """The kinds of records about the orphan sweeps of a table."""

    SWEPT = "swept"
    """The last whole sweep; counted from the start of its pass."""
    TRIED = "tried"
    """The last sweep that failed, was refused, could not delete some files, or was not possible."""
    FIRST = "first"
    """Not a sweep, but the time from which the first sweep is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRecord:
    """A sweep of a table for orphans, or when the first sweep is due."""

    kind: SweepKind
    counted_ms: int
    """The next sweep is due one interval after this time."""
    finished_ms: int = 0
    is_impossible: bool = False
    """Whether the store does not permit listing or deleting, or a dropped table has files there."""
    has_former_table: bool = False
    """Whether a dropped table has left metadata at the same location."""


class SweepStore(Records):
    """The sweeps of each copy of a table (rule: table-identity-is-its-uuid)."""

    def record(self, identity: TableIdentity, sweep: SweepRecord) -> None:
        """Replace the record of this kind, even if its time is later: it was written with a clock that was ahead."""
        self.table.put(_sweep_item(identity, sweep))

    def record_all(self, sweeps: Iterable[tuple[TableIdentity, SweepRecord]]) -> None:
        """As :meth:`record`, for many tables; of several sweeps for the same table and kind, the last is kept.

        On an error, some may be recorded.
        """
        items = {(item["pk"], item["sk"]): item for item in (_sweep_item(*sweep) for sweep in sweeps)}
        self.table.put_all(items.values())  # has no key twice

    def of_table(self, identity: TableIdentity) -> Mapping[SweepKind, SweepRecord]:
        """The records of one copy of a table."""
        return sweeps_of(self.table.query(table_key(identity), sweep_prefix(identity)))


def sweep_prefix(identity: TableIdentity) -> str:
    """The prefix of the sort keys of these records, in the partition of the table."""
    return f"{now_prefix('sweep', identity)}#"


def _sweep_item(identity: TableIdentity, sweep: SweepRecord) -> Item:
    return {
        "pk": table_key(identity),
        "sk": sort_key(sweep_prefix(identity), sweep.kind.value),
        "kind": sweep.kind.value,
        "counted_ms": sweep.counted_ms,
        "ended_ms": sweep.finished_ms,  # not "finished_ms", which would put it into the index of passes
        "impossible": sweep.is_impossible,
        "former_table": sweep.has_former_table,
    }


def sweeps_of(items: Iterable[Item]) -> dict[SweepKind, SweepRecord]:
    """The records of these items."""
    return {sweep.kind: sweep for sweep in map(_sweep, items)}


def _sweep(item: Item) -> SweepRecord:
    with understood(item):
        return SweepRecord(
            kind=SweepKind(item["kind"]),
            counted_ms=item["counted_ms"],
            finished_ms=item["ended_ms"],
            is_impossible=item["impossible"],
            has_former_table=item["former_table"],
        )
