"""A table of a real table bucket under a local stack: what a run of the stack did to it, as DuckDB reads it."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from local_stack.stack import LocalStack
from support.readers import CanonicalRows, canonical, duckdb_rows

FILES = 5


class BucketLake:
    """The catalog ``lake`` of a stack, and its one table ``ns.t`` of small files."""

    def __init__(self, stack: LocalStack, properties: Mapping[str, str]) -> None:
        self._properties = properties
        catalog = load_catalog("lake", **properties)
        catalog.create_namespace("ns")
        self._table = catalog.create_table("ns.t", pa.schema([("id", pa.int64()), ("part", pa.string())]))
        for number in range(FILES):
            self._table.append(pa.table({"id": [number, -number], "part": ["p", str(number)]}))
        lines = "".join(f"    {key}: '{value}'\n" for key, value in properties.items())
        stack.put_control("config/pyiceberg.yaml", f"catalog:\n  lake:\n{lines}")
        stack.put_control("config/policy.yaml", "rules:\n- settings:\n    min_input_files: 2\n")

    def rows(self) -> CanonicalRows:
        """Its rows now."""
        return canonical(duckdb_rows(self._table.refresh().metadata_location, s3=self._properties))

    def data_files(self) -> int:
        """How many data files it has now."""
        return len(self._table.refresh().inspect.data_files())
