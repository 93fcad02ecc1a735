"""A Glue job under ``spark-submit`` with an executor in a separate process: both fetch keys, and new keys later.

No process has keys in its environment.  Driver and executor fetch the keys of two roles, so that a proxy in front of
moto can tell them apart.  It rejects expired keys; the keys expire after the first data file was written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from icekeeper.engines.spark import LOCAL_SETTINGS, find_java_home
from local_stack.credential_server import KEY_VARIABLES
from local_stack.moto_server import MotoServer
from local_stack.stack import deployed
from support.guarded_aws import GuardedAws, LetIn, guarded
from support.rights_fleet import PARAMETERS, RightsFleet

# One executor with one core runs one task at a time; Spark's own tests take these numbers.
MASTER = "local-cluster[1,1,1024]"


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """PySpark's home, whose executors write below this folder and not into the package."""
    home = tmp_path / "spark"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


@pytest.fixture
def door(moto_server: MotoServer) -> Iterator[GuardedAws]:
    with guarded(moto_server) as aws:
        yield aws


def test_an_executor_fetches_its_own_keys_and_new_keys_when_they_expire(
    moto_server: MotoServer, door: GuardedAws, spark_home: Path, tmp_path: Path
) -> None:
    with deployed(moto_server, parameters=PARAMETERS) as stack:
        fleet = RightsFleet(stack, tmp_path)
        fleet.give_policy()
        table = fleet.glue_table("on_executors")
        table.append(table.scan().to_arrow())  # the old day has two files as well: two groups
        before = sorted_rows(table.scan().to_arrow().to_pylist())
        job = stack.jobs["compact_data_files"]
        executor = door.environment("executor")["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        settings = {**LOCAL_SETTINGS, "spark.executorEnv.AWS_CONTAINER_CREDENTIALS_FULL_URI": executor}
        options = [text for pair in settings.items() for text in ("--conf", "=".join(pair))]
        job.command = (str(spark_home / "bin" / "spark-submit"), "--master", MASTER, *options)
        job.environment.update(door.environment("driver"))
        job.environment.update(
            SPARK_HOME=str(spark_home),
            SPARK_LOCAL_DIRS=str(tmp_path),
            SPARK_LOCAL_IP="127.0.0.1",
            JAVA_HOME=find_java_home(),
            PYSPARK_PYTHON=sys.executable,
        )
        assert not set(KEY_VARIABLES) & {*os.environ, *job.environment}
        written: list[int] = []

        def expire_once(entry: LetIn, address: str) -> None:
            if entry.role == "executor" and address.startswith("PUT") and "/data/" in address and not written:
                written.append(len(door.let_in))
                door.keys.expire()

        door.on_entry = expire_once
        forced = {"table": "rights.on_executors", "catalog": "glue", "operations": "compact", "in_job": True}
        execution = fleet.run(forced)
        (run,) = job.runs
        assert run.state == "SUCCEEDED", run.log
        assert fleet.statuses(execution) == {"rights.on_executors": "succeeded"}
        table.refresh()
        assert len(list(table.scan().plan_files())) == 2
        assert sorted_rows(table.scan().to_arrow().to_pylist()) == before
    assert door.refused == []
    # An executor reads these small files, and writes, through boto3 only.
    assert {entry.by_arrow for entry in door.let_in if entry.role == "executor"} == {False}
    later = {entry.role for entry in door.let_in[written[0] :] if entry.service == "s3"}
    assert later == {"driver", "executor"}


def sorted_rows(rows: list[dict[str, object]]) -> list[tuple[str, ...]]:
    return sorted(tuple(str(value) for value in row.values()) for row in rows)
