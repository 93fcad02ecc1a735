"""Schedules' last turns in the state table: in a table's own partition, which detection reads with one query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

from icekeeper.state.dynamodb.batches import put_all
from icekeeper.state.dynamodb.items import Item, sort_key, table_key
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import ScheduleRun

__all__ = ["DynamoSchedules", "schedules_of"]


class DynamoSchedules:
    """A :class:`icekeeper.state.store.ScheduleStore`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def record(self, identity: TableIdentity, run: ScheduleRun) -> None:
        self._table.put(_item(identity, run))

    def record_all(self, runs: Iterable[tuple[TableIdentity, ScheduleRun]]) -> None:
        items = {(item["pk"], item["sk"]): item for item in (_item(*one) for one in runs)}
        put_all(self._table, items.values())  # which bear no key twice

    def of_table(self, identity: TableIdentity) -> Mapping[str, ScheduleRun]:
        return schedules_of(identity, self._table.query(table_key(identity), _prefix(identity)))


def _item(identity: TableIdentity, run: ScheduleRun) -> Item:
    return {
        "pk": table_key(identity),
        "sk": sort_key(_prefix(identity), run.schedule),
        "schedule": run.schedule,
        "counted_ms": run.counted_ms,
        "ended_ms": run.finished_ms,  # not "finished_ms", which would put it into the index of passes
        "snapshot_id": run.snapshot_id,
        "fingerprint": run.fingerprint,
        "idle": run.idle,
    }


def schedules_of(identity: TableIdentity, items: Iterable[Item]) -> dict[str, ScheduleRun]:
    """The records of one copy of a table among the items of its partition, by schedule."""
    return {
        item["schedule"]: ScheduleRun(
            schedule=item["schedule"],
            counted_ms=item["counted_ms"],
            finished_ms=item["ended_ms"],
            snapshot_id=item.get("snapshot_id"),
            fingerprint=item["fingerprint"],
            idle=item["idle"],
        )
        for item in items
        if item["sk"].startswith(_prefix(identity))
    }


def _prefix(identity: TableIdentity) -> str:
    return f"now#schedule#{sha256(identity.place.encode()).hexdigest()}#"
