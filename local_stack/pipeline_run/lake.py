"""Four messy tables in a real table bucket, and the data file that is refused while they are maintained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.catalog import load_catalog

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.catalogs.load import open_catalog
from icekeeper.demo.measure import Contents, Figures, measure, read_contents
from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.demo.tables import NAMESPACE, MessyTable, create_messy_tables
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.storage.storage import Storage
from local_stack.judged_lake import JudgedLake

CATALOG = "lake"
BUCKET = "icekeeper-pipeline"
BROKEN = "orders"
"""The table whose compaction fails."""


@dataclass(frozen=True, slots=True)
class Lake:
    """The bucket's tables, as its catalog has them."""

    properties: Mapping[str, str]
    catalog: Catalog
    tables: tuple[MessyTable, ...]

    @classmethod
    def fill(cls, server: SeaweedFSServer) -> Lake:
        """Create the bucket and its tables."""
        server.create_table_bucket(BUCKET)
        properties = {"type": "rest", **server.catalog_properties(BUCKET)}
        writer = load_catalog(CATALOG, **properties)
        tables = tuple(create_messy_tables(writer, Storage(properties)))
        return cls(properties, open_catalog(CATALOG, properties), tables)

    def catalog_file(self, judged: JudgedLake) -> str:
        """In PyIceberg's own format, for the control bucket: without keys, because each role has its own."""
        asked = {key: value for key, value in self.properties.items() if "key" not in key}
        asked |= {"uri": judged.iceberg_uri, "s3.endpoint": judged.s3_endpoint}
        lines = (f"    {key}: '{value}'\n" for key, value in asked.items())
        return f"catalog:\n  {CATALOG}:\n{''.join(lines)}"

    def load(self, table: MessyTable) -> LoadedTable:
        return self.catalog.load(TableName((NAMESPACE,), table.name))

    def identity(self, table: MessyTable) -> TableIdentity:
        return identity_of(self.catalog, self.load(table))

    def figures(self, table: MessyTable) -> Figures:
        return measure(self.load(table), Storage(self.properties))

    def contents(self) -> list[Contents]:
        """Every row of each table, as DuckDB reads them."""
        return read_contents([(self.load(table), table.tag) for table in self.tables], self.properties)

    @property
    def broken_file(self) -> str:
        """A data file of :data:`BROKEN`, of the partition with enough files to be worth compacting."""
        table = next(table for table in self.tables if table.name == BROKEN)
        loaded = self.load(table)
        head = loaded.metadata.current_snapshot
        assert head is not None  # it was filled
        reader = TableReader(loaded.metadata, Storage(self.properties).read)
        files = (e.file for _, found in reader.entries(reader.manifests(head)) for e in found if e.is_live)
        return min(file.file_path for file in files if file.partition == ("us",))
