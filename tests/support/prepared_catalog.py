"""A catalog of prepared answers, for scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName


class PreparedCatalog:
    """An exception in place of metadata is raised by ``load``; ``loads`` says what was asked for, in order."""

    def __init__(
        self,
        tables: Mapping[str, TableMetadata | Exception],
        *,
        name: str = "C",
        warehouse: str = "s3://prod-lake/",
        on_load: Callable[[], object] = lambda: None,
    ) -> None:
        self.tables = dict(tables)
        self.name = name
        self.warehouse = warehouse
        self.loads: list[str] = []
        self._on_load = on_load

    built_in_maintenance = None

    def list_tables(self) -> Iterator[TableName]:
        return iter([TableName.parse(name) for name in self.tables])

    def load(self, table: TableName) -> LoadedTable:
        self.loads.append(str(table))
        self._on_load()
        found = self.tables[str(table)]
        if isinstance(found, Exception):
            raise found
        return LoadedTable(table, found, "m", "m", {})

    def commit(self, base: LoadedTable, requirements: Sequence[Any], updates: Sequence[Any]) -> LoadedTable:
        raise AssertionError("detection never commits")
