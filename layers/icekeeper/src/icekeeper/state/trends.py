"""How the health of a table changed: rows of its lake stats, thinned to days and weeks.

A row's key is its place in one of two rings: the day modulo 60, the week modulo 104.  A later row replaces the earlier
row at its place, so no row must be removed, and a table has at most 164 rows.  A day and a week keep their first row.
A scan that sees nothing new writes no row: a row applies until the next row.

Keys are digests, so that the size of a row does not depend on the names of catalog and table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.identity import TableIdentity
from icekeeper.state.item_layout import catalog_key, digest
from icekeeper.state.items import Item, Records, understood

_DAY_MS = 24 * HOUR_MS
_RINGS: Mapping[str, tuple[int, int]] = {"d": (_DAY_MS, 60), "w": (7 * _DAY_MS, 104)}
"""By the first letter of the key: the length of a bucket in milliseconds, and how many the ring has."""
_KEPT_MS = 2 * 366 * _DAY_MS
# 96 bits: among a million tables, two have the same digest with a probability below 10^-16.
_DIGEST = 24
# A value of up to 16 hexadecimal digits; a larger value shows that the table's summary is damaged.
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendRow:
    """What a scan saw of a table; ``None``: the metadata does not say."""

    observed_ms: int
    data_files: int | None = None
    bytes: int | None = None
    """Of the head's data and delete files."""
    delete_files: int | None = None
    records: int | None = None
    snapshots: int | None = None
    manifests: int | None = None
    history_bytes: int | None = None
    """Of the data and delete files that are referenced, but not by the head."""
    average_file_bytes: int | None = None
    warnings: int | None = None
    """How many warnings the table has."""


_VALUES = tuple(field.name for field in fields(TrendRow) if field.name != "observed_ms")


def trend_row(observed_ms: int, counters: Mapping[str, int | float], warnings: int) -> TrendRow:
    """The row of a table's lake stats."""
    found = {name: counters.get(f"lake_{name}") for name in _VALUES} | {"warnings": warnings}
    whole = {name: None if value is None else max(0, min(round(value), _LARGEST)) for name, value in found.items()}
    return TrendRow(observed_ms=observed_ms, **whole)


class TrendStore(Records):
    """The rows of all tables, in one partition per catalog."""

    def record(self, news: Iterable[tuple[TableIdentity, TrendRow, int | None]]) -> None:
        """Write rows of tables, each with the time of the table's row before it (``None``: there is none).

        That is one item for the first row of a day, and one for the first of a week; other rows are not written.  On an
        error, some may be written.
        """
        items = [item for identity, row, before_ms in news for item in self._items(identity, row, before_ms)]
        by_key = {(item["pk"], item["sk"]): item for item in items}
        self.table.put_all(by_key.values())  # has no key twice

    def _items(self, identity: TableIdentity, row: TrendRow, before_ms: int | None) -> Iterator[Item]:
        for ring, (length_ms, count) in _RINGS.items():
            bucket = row.observed_ms // length_ms
            if before_ms is None or bucket > before_ms // length_ms:
                yield {
                    "pk": _partition(identity),
                    "sk": _place(ring, bucket % count, identity),
                    "observed_ms": row.observed_ms,
                    "values": ",".join(
                        "" if (value := getattr(row, name)) is None else f"{value:x}" for name in _VALUES
                    ),
                    "expires_s": self.table.expires_s(_KEPT_MS, at_least_ms=row.observed_ms),
                }

    def of_catalog(
        self, tables: Iterable[TableIdentity], since_ms: int, *, now_ms: int
    ) -> Mapping[TableIdentity, Sequence[TrendRow]]:
        """The first row of each day, or of each week if ``since_ms`` is over 60 days before ``now_ms``, oldest first.

        A query per ten days or weeks, whatever the number of tables.  Tables without such a row are left out; their
        newest state is in the lake stats.
        """
        ring = "d" if now_ms - since_ms < _RINGS["d"][0] * _RINGS["d"][1] else "w"
        length_ms, count = _RINGS[ring]
        last = now_ms // length_ms
        slots = {bucket % count for bucket in range(max(since_ms // length_ms, last - count + 1), last + 1)}
        known: dict[str, dict[str, TableIdentity]] = defaultdict(dict)
        for identity in tables:
            known[_partition(identity)][_name(identity)] = identity
        found: dict[TableIdentity, list[Item]] = defaultdict(list)
        for partition, names in known.items():
            for ten in sorted({slot // 10 for slot in slots}):  # rows of other slots are older than since_ms
                for item in self.table.query(partition, f"{ring}{ten:02d}"):
                    if (owner := names.get(item["sk"].partition("#")[2])) is not None:
                        found[owner].append(item)
        rows = {identity: _ordered(items, since_ms) for identity, items in found.items()}
        return {identity: some for identity, some in rows.items() if some}

    def forget(self, identity: TableIdentity) -> None:
        """Remove the rows of a table."""
        self.table.delete_all(_partition(identity), _places(identity))


def _partition(identity: TableIdentity) -> str:
    return f"trend#{digest(catalog_key('trend', identity.catalog))[:_DIGEST]}"


def _name(identity: TableIdentity) -> str:
    return digest(f"{identity.table.key}\x1f{identity.uuid}")[:_DIGEST]


def _place(ring: str, slot: int, identity: TableIdentity) -> str:
    return f"{ring}{slot:03d}#{_name(identity)}"


def _places(identity: TableIdentity) -> Iterator[str]:
    return (_place(ring, slot, identity) for ring, (_, count) in _RINGS.items() for slot in range(count))


def _ordered(items: Iterable[Item], since_ms: int) -> Sequence[TrendRow]:
    rows = {item["observed_ms"]: _row(item) for item in items if item["observed_ms"] >= since_ms}
    return tuple(row for _, row in sorted(rows.items()))


def _row(item: Item) -> TrendRow:
    with understood(item):
        texts = item["values"].split(",")
        values = {name: int(text, 16) if text else None for name, text in zip(_VALUES, texts, strict=True)}
        return TrendRow(observed_ms=item["observed_ms"], **values)
