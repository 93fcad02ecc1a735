"""Which engine ``--engine auto`` takes, and what Spark's settings say of its master."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icekeeper.engines.choose import Surroundings, choose, choose_for_sort, is_elsewhere, local_cores, named_master
from icekeeper.engines.engine import EngineName

GB = 1024**3
LAPTOP = Surroundings(
    spark_is_installed=True, has_java=True, under_submit=False, has_session=False, master=None, memory_bytes=12 * GB
)


@pytest.mark.parametrize(
    ("found", "engine", "reason"),
    [
        (LAPTOP, EngineName.LOCAL, "no Spark session or cluster is at hand"),
        (replace(LAPTOP, master="local[8]"), EngineName.LOCAL, "no Spark session or cluster is at hand"),
        (replace(LAPTOP, under_submit=True), EngineName.SPARK, "started by spark-submit"),
        (replace(LAPTOP, has_session=True), EngineName.SPARK, "a Spark session runs in this process"),
        (replace(LAPTOP, master="yarn"), EngineName.SPARK, "Spark's settings name the master yarn"),
        (
            replace(LAPTOP, spark_is_installed=False, master="yarn", under_submit=True),
            EngineName.LOCAL,
            "PySpark is not installed",
        ),
    ],
)
def test_spark_is_taken_where_it_is_at_hand(found: Surroundings, engine: EngineName, reason: str) -> None:
    assert (choose(found).engine, choose(found).reason) == (engine, reason)
    assert choose_for_sort(found, 1) == choose(found)


def test_a_sort_beyond_the_memory_is_sparks() -> None:
    """It keeps three bytes for each that it reads (platform 51)."""
    assert choose_for_sort(LAPTOP, 4 * GB) == choose(LAPTOP)
    taken = choose_for_sort(LAPTOP, 5 * GB)
    assert taken.engine is EngineName.SPARK
    assert taken.reason == "a sort keeps about 15 GB meanwhile, this machine's memory is 12 GB"
    assert choose_for_sort(LAPTOP, None) == choose(LAPTOP)


@pytest.mark.parametrize("lacking", [replace(LAPTOP, has_java=False), replace(LAPTOP, spark_is_installed=False)])
def test_a_sort_that_spark_cannot_do_here_stays_local(lacking: Surroundings) -> None:
    assert choose_for_sort(lacking, 500 * GB).engine is EngineName.LOCAL


@pytest.mark.parametrize(
    ("environment", "defaults", "master"),
    [
        ({}, "", None),
        ({"MASTER": "spark://a:7077"}, "", "spark://a:7077"),
        ({"MASTER": "spark://a:7077"}, "spark.master yarn\n", "yarn"),
        ({}, "# spark.master local\n  spark.master = k8s://b\nspark.masterful x\n", "k8s://b"),
        ({}, "spark.master:yarn", "yarn"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.master=spark://c pyspark-shell"}, "spark.master yarn", "spark://c"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf=spark.master=spark://c pyspark-shell"}, "", "spark://c"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.master=spark://c --master 'local[2]' pyspark-shell"}, "", "local[2]"),
        ({"PYSPARK_SUBMIT_ARGS": "--master=yarn --name x pyspark-shell"}, "", "yarn"),
        ({"PYSPARK_SUBMIT_ARGS": "--name 'x pyspark-shell"}, "", None),
    ],
)
def test_the_master_is_the_one_that_spark_would_take(
    environment: dict[str, str], defaults: str, master: str | None
) -> None:
    assert named_master(environment, defaults) == master


def test_a_master_elsewhere_is_one_that_only_spark_means() -> None:
    """``MASTER`` is a variable of other programs, too."""
    assert all(map(is_elsewhere, ("spark://a:7077,b:7077", "yarn", "yarn-client", "k8s://https://a:1", "mesos://a")))
    assert not any(map(is_elsewhere, (None, "", "local", "local[*]", "local-cluster[2,1,1024]", "node-1", "10.0.0.1")))


def test_cores_of_a_local_master() -> None:
    masters = ("local", "local[4]", "local[*]", "local[*,3]", "local[2, 4]", "local-cluster[2,1,1024]", "yarn", "")
    assert [local_cores(master, 16) for master in masters] == [1, 4, 16, 16, 2, 0, 0, 0]
