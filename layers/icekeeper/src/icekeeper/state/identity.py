"""Which table something is remembered about."""

from __future__ import annotations

import json
from dataclasses import dataclass

from icekeeper.model import TableName

__all__ = ["TableIdentity"]


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """Which table, for good: a table dropped and created again under its name has another UUID."""

    catalog: str
    warehouse: str
    table: TableName
    uuid: str
    """Empty for the v1 tables whose writer gave none."""

    @property
    def key(self) -> str:
        """One text for all of it, different for every two tables."""
        return json.dumps([self.catalog, self.warehouse, str(self.table), self.uuid], ensure_ascii=False)
