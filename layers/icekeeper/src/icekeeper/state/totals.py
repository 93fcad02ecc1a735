"""The sums of what all passes over the tables of a catalog have done: the source of counters for monitoring."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from icekeeper.model import CatalogId
from icekeeper.state.item_layout import KEPT_MS, sort_key
from icekeeper.state.items import Records

_PARTITION = "totals"
_AMOUNT = "sum_"


class TotalsStore(Records):
    """One item for each catalog, to which all processes add; a repeated request may count twice."""

    def add(self, catalog: CatalogId, amounts: Mapping[str, int]) -> None:
        """Add to the totals of a catalog; several processes may do so at once."""
        more = {f"{_AMOUNT}{name}": amount for name, amount in amounts.items() if amount}
        if more:
            key = sort_key("", json.dumps(catalog, ensure_ascii=False))
            self.table.add(_PARTITION, key, more, keep_ms=KEPT_MS)

    def all(self) -> Iterator[tuple[CatalogId, Counter[str]]]:
        """The totals of every catalog that was scanned or maintained with this state."""
        for item in self.table.query(_PARTITION):
            try:
                name, warehouse = json.loads(item["sk"])
            except ValueError:  # a name of a thousand bytes was cut
                continue
            amounts = {name.removeprefix(_AMOUNT): int(item[name]) for name in item if name.startswith(_AMOUNT)}
            yield CatalogId(name, warehouse), Counter(amounts)
