"""What was cut off, in the state table: the records of a catalog lie in one partition."""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.claims import CutOff, CutWork, Entry
from icekeeper.state.dynamodb.items import Item, catalog_key, sort_key, understood
from icekeeper.state.dynamodb.table import DynamoTable

__all__ = ["DynamoCutOffs"]

# Of tables that are gone.
_KEPT_MS = 400 * 24 * HOUR_MS


class DynamoCutOffs:
    """A :class:`icekeeper.state.claims.CutOffStore`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def record(self, cut: CutOff) -> None:
        pk, sk = _key(cut.entry, cut.work)
        self._table.put(
            {
                "pk": pk,
                "sk": sk,
                "table_name": cut.entry[2],
                "work": cut.work.value,
                "times": cut.times,
                "cut_ms": cut.cut_ms,
                "why": cut.why,
                "expires_s": self._table.expires_s(_KEPT_MS, at_least_ms=cut.cut_ms),
            }
        )

    def of_catalog(self, catalog: str, warehouse: str) -> Sequence[CutOff]:
        found = [_cut(catalog, warehouse, item) for item in self._table.query(catalog_key("cut", catalog, warehouse))]
        return sorted(found, key=lambda cut: (cut.entry[2].encode(), cut.work.value))

    def forget(self, entry: Entry, work: CutWork) -> None:
        self._table.delete(*_key(entry, work))


def _key(entry: Entry, work: CutWork) -> tuple[str, str]:
    catalog, warehouse, table = entry
    return catalog_key("cut", catalog, warehouse), sort_key(f"{work.value}#", table)


def _cut(catalog: str, warehouse: str, item: Item) -> CutOff:
    with understood(item):
        entry, work = (catalog, warehouse, str(item["table_name"])), CutWork(item["work"])
    return CutOff(entry=entry, work=work, times=item["times"], cut_ms=item["cut_ms"], why=item["why"])
