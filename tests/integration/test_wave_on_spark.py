"""The Glue script carries a wave out in one Spark session, with jobs kept apart by table (rule 144, platform 60)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

from icekeeper.engines.engine import in_pool
from icekeeper.engines.spark import SparkEngine
from icekeeper.errors import StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.operation_facts import operations_of_job
from icekeeper.pipeline.glue_job import run_job
from support.pipeline_deployment import RUN, Pipeline, Wave, files_of, ids_of
from support.pool_work import pool_of

ALL = ("ns.t", "ns.u", "ns.v")


def test_works_that_share_a_session_have_pools_and_errors_of_their_own(spark_session: SparkSession) -> None:
    engine, together = SparkEngine(spark_session.sparkContext), threading.Barrier(3)

    def work(name: str) -> Sequence[tuple[str, str | None]] | str:
        together.wait(20)
        with in_pool(f"pool of {name}"):
            try:
                return engine.map(pool_of, [name, name], lambda done: None)
            except StorageError:
                return "failed"

    with WorkThreads(3) as threads:
        told = dict(zip("ab", threads.map(work, ["a", "b", "broken"]), strict=False))
    assert told == {name: [(name, f"pool of {name}")] * 2 for name in "ab"}
    assert engine.map(pool_of, ["alone"], lambda done: None) == [("alone", None)]


@pytest.mark.slow
@pytest.mark.usefixtures("spark_session")
def test_a_glue_job_carries_out_a_wave(pipeline: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    wave = Wave(pipeline, by_real_clock=True)
    rows = {name: ids_of(pipeline, name) for name in ALL}
    arguments = ["--wave-key", wave.answer["key"], "--wave-digest", wave.answer["digest"], "--run-id", RUN]
    arguments += ["--control-bucket", str(pipeline.control), "--state", pipeline.environment["ICEKEEPER_STATE"]]
    allowed = operations_of_job("compact_data_files")
    with caplog.at_level(logging.INFO, "icekeeper.pipeline.glue_job"):
        assert run_job([*arguments, "--JOB_NAME", "compact"], allowed) == 0
    assert "wave of 3 table(s): 3 done" in caplog.messages
    assert [(files_of(pipeline, name), wave.outcome(name)["status"]) for name in ALL] == [(1, "succeeded")] * 3
    assert {name: ids_of(pipeline, name) for name in ALL} == rows
    digest = arguments.index("--wave-digest") + 1
    assert run_job([*arguments[:digest], "0" * 64, *arguments[digest + 1 :]], allowed) == 1
    with pytest.raises(ValueError, match="this job does not do compact"):
        run_job(arguments, frozenset())
