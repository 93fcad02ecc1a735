"""Iceberg-Java as an independent reader, and the Spark session of a test run.

The jar comes from the PyPI wheel ``snowpark-connect-deps-iceberg``.  It has no S3 support, so tables are local.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from icekeeper.engines.spark import LOCAL_SETTINGS, find_java_home

# Iceberg's variant readers need a method of a newer commons-lang3 than Spark 3.5 has.
_STREAMS = Path(__file__).parent / "java" / "Streams.java"
_JAR = "iceberg-spark-runtime-3.5_2.12-1.10.2.jar"
# A session runs for minutes and each query a few times: the second compiler costs more than its code saves.  With one
# compiler, the JVM reserves 48 MB for code, sweeps it repeatedly, and recompiles what it removed; so it gets more
# memory for code, and also for classes and for young objects.
_SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -XX:MetaspaceSize=256m -Xmn400m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


def iceberg_jar() -> Path:
    """Return the path of the Iceberg-Java 1.10.2 runtime for Spark 3.5."""
    spec = importlib.util.find_spec("snowpark_connect_deps_iceberg")
    assert spec is not None, "the wheel snowpark-connect-deps-iceberg is missing"
    assert spec.origin is not None
    return Path(spec.origin).parent / "jars" / _JAR


def start_other_jvms_sooner() -> None:
    """Let new processes that start Spark, such as a job, start it with half the CPU.

    Icekeeper reads neither variable (``spark-class`` and ``spark-submit`` add them for their JVMs).
    """
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    os.environ.setdefault("SPARK_SUBMIT_OPTS", _SHORT_LIVED)


def start_spark(scratch: Path) -> SparkSession:
    """Start a session for both Iceberg-Java and Icekeeper's engine; it writes only to ``scratch``.

    ``spark.sql.catalog.java`` is Iceberg-Java's Hadoop catalog, for its tables and procedures.
    """
    os.environ["JAVA_HOME"] = find_java_home()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    warehouse, classes = scratch / "warehouse", scratch / "classes"
    classes.mkdir()
    options = {
        **LOCAL_SETTINGS,
        "spark.driver.extraClassPath": f"{classes}:{iceberg_jar()}",
        "spark.driver.extraJavaOptions": f"{_SHORT_LIVED} -Duser.timezone=UTC -Dderby.system.home={scratch}",
        "spark.log.level": "ERROR",
        "spark.local.dir": str(scratch / "local"),
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1]),  # so that workers find this package
        "spark.default.parallelism": "2",
        "spark.sql.shuffle.partitions": "2",
        # Each query reads a few rows once: compiling code for it, or planning it again, costs more.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        # No test reads Spark's pages, which would keep each query and its plan in memory.
        "spark.sql.ui.retainedExecutions": "1",
        # The engine reads the state of a job's stages, so some are retained.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "10",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.java": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.java.type": "hadoop",
        "spark.sql.catalog.java.warehouse": str(warehouse),
    }
    builder = SparkSession.builder.master("local[2, 2]").appName("icekeeper-tests")
    for key, value in options.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    _compile(_STREAMS, session, classes)
    return session


def _compile(source: Path, session: SparkSession, folder: Path) -> None:
    """Compile a class into a folder of the class path, by Spark's compiler."""
    jvm: Any = session._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(source.read_text())
    for name, code in compiler.getBytecodes().items():
        path = folder / f"{name.replace('.', '/')}.class"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(code)


class IcebergJava:
    """Reads tables by their metadata file, without any catalog."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    def rows(self, metadata_location: str | Path, snapshot_id: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of a snapshot, by default the current snapshot; structs and maps as dictionaries."""
        reader = self.session.read.format("iceberg")
        if snapshot_id is not None:
            reader = reader.option("snapshot-id", str(snapshot_id))
        return [row.asDict(recursive=True) for row in reader.load(str(metadata_location)).collect()]

    def metadata_table(self, metadata_location: str | Path, name: str) -> list[dict[str, Any]]:
        """Return a metadata table: ``files``, ``manifests``, ``snapshots``, ``entries``, ``refs``, …"""
        frame = self.session.read.format("iceberg").load(f"{metadata_location}#{name}")
        return [row.asDict(recursive=True) for row in frame.collect()]
