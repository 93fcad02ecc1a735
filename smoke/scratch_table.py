"""A table of a few small files, in a namespace of its own, whose rows are all known."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

FILES = 6
"""More files than a partition needs before compaction merges them (``min_input_files``)."""
_ROWS = 100
_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


@dataclass(slots=True)
class ScratchTable:
    """The table, and how many rows it must have."""

    catalog: Catalog
    table: Table
    written: int = 0

    @property
    def name(self) -> str:
        """Namespace and name."""
        return ".".join(self.table.name())

    @property
    def table_bucket(self) -> str | None:
        """The ARN of the AWS table bucket that holds the table; ``None``: the table is elsewhere."""
        warehouse = str(self.catalog.properties.get("warehouse", ""))
        return warehouse if ":s3tables:" in warehouse else None

    def append(self) -> None:
        """Add some small files, each by a commit of its own, with consecutive ids."""
        for _ in range(FILES):
            ids = range(self.written, self.written + _ROWS)
            self.table.append(pa.table([list(ids), [f"row {number}" for number in ids]], schema=_SCHEMA))
            self.written += _ROWS

    def file_count(self) -> int:
        """The current number of data files."""
        self.table.refresh()
        return len(list(self.table.scan().plan_files()))

    def wrong_rows(self) -> str | None:
        """A sentence about wrong rows; ``None`` if each row is there once, as it was written."""
        self.table.refresh()
        found = self.table.scan().to_arrow()
        rows = sorted(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))
        if rows == [(number, f"row {number}") for number in range(self.written)]:
            return None
        return f"{len(rows)} rows were read where {self.written} were written, or they differ"


def catalog_of_table_bucket(arn: str) -> Mapping[str, str]:
    """PyIceberg's configuration for a table bucket: Amazon S3 Tables' Iceberg REST endpoint.

    Source: Amazon S3 user guide, "Accessing tables using the Amazon S3 Tables Iceberg REST endpoint".
    """
    region = arn.split(":")[3]
    return {
        "type": "rest",
        "uri": f"https://s3tables.{region}.amazonaws.com/iceberg",
        "warehouse": arn,
        "rest.sigv4-enabled": "true",
        "rest.signing-name": "s3tables",
        "rest.signing-region": region,
    }


@contextmanager
def scratch_table(name: str, properties: Mapping[str, str]) -> Iterator[ScratchTable]:
    """Create the table; at the end of the block, always remove it and its namespace.

    ``name`` is a catalog of PyIceberg's configuration, unless ``properties`` describe it.
    """
    # PyArrow writes the rows; S3 Tables does not list the checksum that PyArrow sends by default
    # (platform: table-buckets-refuse-headers).
    os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    catalog = load_catalog(name, **properties)
    namespace = f"icekeeper_smoke_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    try:
        table = catalog.create_table(f"{namespace}.scratch", _SCHEMA)
        try:
            yield ScratchTable(catalog, table)
        finally:
            # Table buckets have no other way to remove a table; elsewhere it removes the files, too.
            catalog.purge_table(f"{namespace}.scratch")
    finally:
        catalog.drop_namespace(namespace)
