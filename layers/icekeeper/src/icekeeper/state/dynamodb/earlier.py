"""Partitions of the state table that earlier versions of Icekeeper wrote, named by (catalog, warehouse, table, UUID).

Such a partition stays where it is while those versions may still run.  An index says which partitions belong to a UUID,
and every question about a table is asked of them too.  The first process that opens a state without an index makes it
by one scan; each store reads it once.  A week later the scan is repeated.  If it finds no sign that an earlier version
still runs, the next pass over a table moves its partitions into the table's own (``take_over``).

Requests are moved at once, so that runs of this version find them.  A lease that holds is copied, because its run goes
on under the new key.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import defaultdict
from dataclasses import dataclass, field

from icekeeper.clock import HOUR_MS
from icekeeper.errors import StorageError
from icekeeper.state.dynamodb.items import REQUESTS, Item, named_key, sort_key, table_key
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.identity import EarlierIdentity, TableIdentity

__all__ = ["EarlierPartitions", "earlier_partition"]

log = logging.getLogger(__name__)

_INDEX = "earlier"
_MARK = "#mark"
# Sorts after _MARK.
_ENTRY = "partition#"
# Jobs of an earlier version end within hours of an upgrade; laptops are upgraded within days.
_SETTLING_MS = 7 * 24 * HOUR_MS
_PAGES_PER_MARK = 50
_FILTER = (
    "(begins_with(pk, :table) AND NOT begins_with(sk, :pass)) OR begins_with(pk, :lease) OR begins_with(pk, :request)"
)
_VALUES = {":table": "table#[", ":pass": "pass#", ":lease": "lease#[", ":request": "requests#["}


def earlier_partition(identity: TableIdentity) -> str:
    """The partition in which earlier versions kept their records of a table, by its names."""
    return named_key("table", identity.spelling)


@dataclass(slots=True)
class _Known:
    """The index as it was read."""

    partitions: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Key of a table → the partitions of earlier versions for it."""
    is_settled: bool = False
    """Whether no earlier version writes any more, by the second scan."""
    had_any: bool = False
    """Whether an earlier version ever wrote here."""


class EarlierPartitions:
    """The index, which the first call reads; may be shared by threads.

    Every method raises StorageError when the table cannot be used: then pins and loads of earlier versions are unknown.
    """

    def __init__(self, table: DynamoTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._known: _Known | None = None

    def of(self, identity: TableIdentity) -> tuple[str, ...]:
        """The partitions of earlier versions for a table; none once :func:`take_over` has moved them."""
        known = self.opened()
        found = [partition for key in identity.keys for partition in known.partitions.get(key, ())]
        if not known.is_settled:
            found.append(earlier_partition(identity))  # an earlier version may have begun it since the scan
        return tuple(partition for partition in dict.fromkeys(found) if partition != table_key(identity))

    def of_namesake(self, identity: TableIdentity) -> tuple[str, ...]:
        """The partition of earlier versions for this copy of a table, which they told from others by its names."""
        named = earlier_partition(identity)
        return tuple(partition for partition in self.of(identity) if partition == named)

    def may_have_journal(self) -> bool:
        """Whether partitions of earlier versions may hold older passes, which stay there until they expire."""
        known = self.opened()
        return known.had_any or not known.is_settled

    def to_take_over(self, identity: TableIdentity) -> tuple[str, ...]:
        """The partitions of earlier versions for a table, once no earlier version writes them any more."""
        return self.of(identity) if self.opened().is_settled else ()

    def forget(self, identity: TableIdentity, partition: str) -> None:
        """Remove a partition from the index, because all of it was moved."""
        self._table.delete(_INDEX, _entry_key(partition))
        known = self.opened()
        with self._lock:
            for key in identity.keys:
                known.partitions[key] = [other for other in known.partitions[key] if other != partition]

    def opened(self) -> _Known:
        """The index, read once; the state table is scanned first where that is due."""
        with self._lock:
            if self._known is None:
                self._known = self._open()
            return self._known

    def _open(self) -> _Known:
        mark: Item = {}
        known = _Known()
        for item in self._table.query(_INDEX):
            if item["sk"] == _MARK:
                mark = item
            else:
                known.partitions[item["table_key"]].append(item["partition"])
        if "scanned_ms" not in mark:
            try:
                mark = self._scan(known, mark)
            except StorageError as error:
                raise StorageError(
                    "the state must be looked through once for what earlier versions left, by one who may read and "
                    f"write all of it (dynamodb:Scan), as the functions of the deployment may: {error}"
                ) from error
        elif not mark["settled"] and self._table.now_ms() - mark["scanned_ms"] >= _SETTLING_MS:
            try:
                mark = self._scan(known, mark)
            except StorageError as error:  # another one may be able to; until then it is asked everywhere
                log.warning("the state could not be looked through for what earlier versions left: %s", error)
        known.is_settled, known.had_any = bool(mark["settled"]), bool(mark["had_any"])
        return known

    def _scan(self, known: _Known, mark: Item) -> Item:
        """Scan the whole table, from where an interrupted scan had stopped, and return the mark that it writes.

        Two scans at the same time write the same.
        """
        begun_ms = mark.get("begun_ms", self._table.now_ms())
        alive, had_any = bool(mark.get("alive")), bool(mark.get("had_any"))
        indexed = {partition for partitions in known.partitions.values() for partition in partitions}
        after = json.loads(mark["after"]) if "after" in mark else None
        for number, (items, last) in enumerate(self._table.scan(_FILTER, _VALUES, after), start=1):
            for item in items:
                had_any = True
                alive |= self._file(item, known, indexed, since_ms=mark.get("scanned_ms"))
            if last is not None and number % _PAGES_PER_MARK == 0:
                # Until it is done a scan has no "scanned_ms" of its own.
                so_far = {"begun_ms": begun_ms, "alive": alive, "had_any": had_any, "after": json.dumps(last)}
                self._table.put({"settled": False, **mark, **so_far, "pk": _INDEX, "sk": _MARK})
        done = {"scanned_ms": begun_ms, "settled": not alive, "had_any": had_any}
        self._table.put({"pk": _INDEX, "sk": _MARK, **done})
        return done

    def _file(self, item: Item, known: _Known, indexed: set[str], *, since_ms: int | None) -> bool:
        """Add one item of an earlier version to the index; returns whether such a version may still run."""
        kind, _, spelling = item["pk"].partition("#")
        if kind == "requests":
            return self._move_request(item)
        earlier = EarlierIdentity.parse(spelling)
        if kind == "lease":
            return earlier is not None and self._copy_lease(item, earlier)
        if earlier is None:
            return True  # cut to the length of a key: it is found by the same names only, so those are asked for good
        is_alive = since_ms is None or item.get("seen_ms", 0) >= since_ms
        partition = item["pk"]
        if partition not in indexed:
            is_alive = True
            indexed.add(partition)
            known.partitions[earlier.key].append(partition)
            entry = {"table_key": earlier.key, "partition": partition}
            self._table.put({"pk": _INDEX, "sk": _entry_key(partition), **entry})
        return is_alive

    def _copy_lease(self, item: Item, earlier: EarlierIdentity) -> bool:
        now_ms = self._table.to_table_clock(self._table.now_ms())
        if item["until_ms"] <= now_ms:
            return False

        def decide(found: Item | None) -> Item | None:
            if found is not None and found["until_ms"] > now_ms:
                return None
            return {**{name: item[name] for name in ("holder", "until_ms", "expires_s")}, "name": earlier.table}

        self._table.change(named_key("lease", earlier.key), "lease", decide)
        return True

    def _move_request(self, item: Item) -> bool:
        """Move a request to the partition of all requests, unless a newer one is there; returns false."""
        told = EarlierIdentity.parse(item["sk"])
        if told is None:
            return False
        moved = {**item, "pk": REQUESTS, "sk": sort_key("", told.key), "uuid": told.uuid.strip().lower()}
        moved |= {"catalog": told.catalog, "warehouse": told.warehouse, "location": ""}
        if self._table.get(moved["pk"], moved["sk"]) is None:
            self._table.move(item, moved)
        else:
            self._table.delete(item["pk"], item["sk"])
        return True


def _entry_key(partition: str) -> str:
    return sort_key(_ENTRY, partition)
