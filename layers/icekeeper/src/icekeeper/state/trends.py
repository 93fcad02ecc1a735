"""How the health of a table changed: the first row of its lake stats on each day.

A row's key is its day modulo 60.  A later row replaces the earlier row at its place, so no row must be removed, and a
table has at most 60 rows.  A scan that sees nothing new writes no row: a row applies until the next row.

Keys are digests, so that the size of a row does not depend on the names of catalog and table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.identity import TableIdentity
from icekeeper.state.item_layout import KEPT_MS, catalog_key, digest
from icekeeper.state.items import Item, Records, understood

_DAY_MS = 24 * HOUR_MS
_DAYS = 60
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


_VALUES = tuple(field.name for field in fields(TrendRow) if field.name != "observed_ms")


def trend_row(observed_ms: int, counters: Mapping[str, int | float]) -> TrendRow:
    """The row of a table's lake stats."""
    found = {name: counters.get(f"lake_{name}") for name in _VALUES}
    whole = {name: None if value is None else max(0, min(round(value), _LARGEST)) for name, value in found.items()}
    return TrendRow(observed_ms=observed_ms, **whole)


class TrendStore(Records):
    """The rows of all tables, in one partition per catalog."""

    def record(self, news: Iterable[tuple[TableIdentity, TrendRow, int | None]]) -> None:
        """Write rows of tables, each with the time of the table's row before it (``None``: there is none).

        Only the first row of a day is written.  On an error, some may be written.
        """
        items = [
            self._item(identity, row)
            for identity, row, before_ms in news
            if before_ms is None or row.observed_ms // _DAY_MS > before_ms // _DAY_MS
        ]
        by_key = {(item["pk"], item["sk"]): item for item in items}
        self.table.put_all(by_key.values())  # has no key twice

    def _item(self, identity: TableIdentity, row: TrendRow) -> Item:
        return {
            "pk": _partition(identity),
            "sk": _place(row.observed_ms // _DAY_MS % _DAYS, identity),
            "observed_ms": row.observed_ms,
            "values": ",".join("" if (value := getattr(row, name)) is None else f"{value:x}" for name in _VALUES),
            "expires_s": self.table.expires_s(KEPT_MS, at_least_ms=row.observed_ms),
        }

    def of_catalog(self, tables: Iterable[TableIdentity]) -> Mapping[TableIdentity, Sequence[TrendRow]]:
        """The rows of tables, oldest first: of the last 60 days, and older rows that no later row has replaced.

        Tables without a row are left out; their newest state is in the lake stats.
        """
        known: dict[str, dict[str, TableIdentity]] = defaultdict(dict)
        for identity in tables:
            known[_partition(identity)][_name(identity)] = identity
        found: dict[TableIdentity, list[TrendRow]] = defaultdict(list)
        for partition, names in known.items():
            for item in self.table.query(partition):
                if (owner := names.get(item["sk"].partition("#")[2])) is not None:
                    found[owner].append(_row(item))
        return {identity: sorted(rows, key=lambda row: row.observed_ms) for identity, rows in found.items()}

    def forget(self, identity: TableIdentity) -> None:
        """Remove the rows of a table."""
        self.table.delete_all(_partition(identity), (_place(slot, identity) for slot in range(_DAYS)))


def _partition(identity: TableIdentity) -> str:
    return f"trend#{digest(catalog_key('trend', identity.catalog))[:_DIGEST]}"


def _name(identity: TableIdentity) -> str:
    return digest(f"{identity.table.key}\x1f{identity.uuid}")[:_DIGEST]


def _place(slot: int, identity: TableIdentity) -> str:
    return f"{slot:02d}#{_name(identity)}"


def _row(item: Item) -> TrendRow:
    with understood(item):
        texts = item["values"].split(",")
        values = {name: int(text, 16) if text else None for name, text in zip(_VALUES, texts, strict=True)}
        return TrendRow(observed_ms=item["observed_ms"], **values)
