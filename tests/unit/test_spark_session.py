"""The settings that a local session of Spark is started with."""

from __future__ import annotations

import pytest
from pyspark import SparkConf
from pyspark.sql import SparkSession

from icekeeper.engines import spark

_FRUGAL = {"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}


class _Started(Exception):
    """Instead of a Java that starts."""


def test_java_leaves_the_cores_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second compiler and parallel collector took as much CPU again as all else that it does (platform 84)."""
    for variable in ("JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(variable, "")
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(spark, "find_java_home", lambda: "")
    confs = []

    def start(conf: SparkConf) -> None:
        confs.append(conf)
        raise _Started

    monkeypatch.setattr(spark, "_start", start)
    with pytest.raises(_Started), spark.local_session():
        pass
    (conf,) = confs
    assert set((conf.get("spark.driver.extraJavaOptions") or "").split()) > _FRUGAL
    assert set((conf.get("spark.executor.extraJavaOptions") or "").split()) == _FRUGAL
