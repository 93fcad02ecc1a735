"""A scheduled run over real tables too large for functions; its job is the real one without Spark (rule 144)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.engines.engine import current_pool
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.machine.clock import system_clock
from icekeeper.pipeline import glue_job as run_wave_module
from icekeeper.pipeline.control_bucket import ControlBucket, table_folder
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.glue_job import run_wave
from icekeeper.pipeline.wave import read_wave
from local_stack.stack import LocalStack
from support.local_lake import LocalLake
from support.maintained_table import ID_AND_PART

TABLES = ("ns.t", "ns.u")
BEFORE = ["MaintainSmall", "LeaveToWave"]
AFTER = ["ExpireSnapshots", "ListOrphans", "RewriteManifests", "ReportTable", "Release"]


class Job:
    """Stands in for the Glue script: its arguments in, the wave carried out in this process."""

    def __init__(self) -> None:
        self.runs: list[Mapping[str, str]] = []
        self.broken = ""
        self.endless = ""
        self.wakes = threading.Event()

    def __call__(self, arguments: Mapping[str, str]) -> None:
        self.runs.append(arguments)
        here = {
            **os.environ,
            "ICEKEEPER_CONTROL_BUCKET": arguments["--control-bucket"],
            "ICEKEEPER_STATE": arguments["--state"],
        }
        control = ControlBucket(f"s3://{arguments['--control-bucket']}")
        wave = read_wave(control.read(arguments["--wave-key"], arguments["--wave-digest"]))
        run_wave(Deployment.open({**here, **wave.environment}), wave, self.engine())

    def engine(self) -> LocalEngine:
        job = self

        class Engine(LocalEngine):
            def map(self, *args: Any) -> Any:
                if job.broken and f'"{job.broken}"' in (current_pool() or ""):
                    raise StorageError("it cannot be written")
                if job.endless and f'"{job.endless}"' in (current_pool() or ""):
                    job.wakes.wait(60)
                return super().map(*args)

        return Engine(1)


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def lake(scripted_stack: LocalStack, local_catalog: SqlCatalog, tmp_path: Path, job: Job) -> Iterator[LocalLake]:
    """Two tables whose compactions were too much for a function before."""
    lake = LocalLake(scripted_stack, local_catalog, tmp_path)
    lake.table.fill(3)
    other = lake.pyiceberg.create_table("ns.u", schema=ID_AND_PART)
    for start in range(3):
        other.append(lake.table.new_rows(start * 10, start * 10 + 1))
    for name in TABLES:
        lake.stack.put_control(f"{table_folder('outgrown', lake.identity(name).spelling)}.json", '["compact"]')
    scripted_stack.stand_in({}, {"compact_data_files": job})
    yield lake
    scripted_stack.stand_in({}, {})


def ids(lake: LocalLake, name: str) -> list[int]:
    return sorted(lake.pyiceberg.load_table(name).scan().to_arrow().column("id").to_pylist())


def files(lake: LocalLake, name: str) -> int:
    return len(lake.pyiceberg.load_table(name).inspect.files())


def test_one_job_compacts_all_and_the_rest_of_each_pass_follows(lake: LocalLake, job: Job) -> None:
    rows = {name: ids(lake, name) for name in TABLES}
    execution = lake.stack.run({})
    assert (execution.status, len(job.runs)) == ("SUCCEEDED", 1)
    before, after = execution.children[::2], execution.children[1::2]
    assert [child.tasks for child in before] == [BEFORE] * 2
    for child in after:
        assert child.tasks[0] == "MaintainSmall"
        assert [task for task in child.tasks if task in AFTER] == AFTER
        assert "Compact" not in child.tasks
    for name in TABLES:
        assert (files(lake, name), ids(lake, name)) == (1, rows[name])
        (record,) = lake.journal(name)
        assert (record.run_id, record.status) == (execution.name, "succeeded")
        assert record.metrics["compact.files_merged"] == 3
        assert record.metrics["expire_snapshots.snapshots_expired"] == 3
        assert lake.state.leases.current(lake.identity(name).lease_key, now_ms=system_clock()) is None
    report = lake.stack.control(f"runs/{execution.name}/report.json")
    assert {one["table"]: one["status"] for one in report["results"]} == dict.fromkeys(TABLES, "succeeded")


@pytest.mark.slow
def test_one_table_of_ten_that_never_ends_leaves_nine_maintained(
    lake: LocalLake, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 272: it waits, and the next run leaves it out."""
    names = [f"ns.t{number}" for number in range(8)]
    for name in names:
        made = lake.pyiceberg.create_table(name, schema=ID_AND_PART)
        for start in range(2):
            made.append(lake.table.new_rows(start * 10, start * 10 + 1))
        lake.stack.put_control(f"{table_folder('outgrown', lake.identity(name).spelling)}.json", '["compact"]')
    monkeypatch.setattr(run_wave_module, "longest_s", lambda *_, **__: 5.0)
    nine = ["ns.t", *names]
    job.endless = "ns.u"
    try:
        execution = lake.stack.run({})
        assert execution.status == "SUCCEEDED"
        assert [files(lake, name) for name in (*nine, "ns.u")] == [1] * 9 + [3]
        report = lake.stack.control(f"runs/{execution.name}/report.json")
        told = {one["table"]: one["status"] for one in report["results"]}
        assert told == {**dict.fromkeys(nine, "succeeded"), "ns.u": "partial"}
        (record,) = lake.journal("ns.u")
        assert "cut off: its part of a wave did not end within 5 s of job_timeout_s" in record.summary
        detection = lake.stack.control(f"runs/{lake.stack.run({}).name}/detection.json")
        (skip,) = [one for one in detection["skipped"] if one["table"] == "ns.u"]
        assert skip["reason"].startswith("not maintained: its part of a wave did not end within 5 s of job_timeout_s")
    finally:
        job.wakes.set()


def test_a_table_that_fails_in_the_wave_is_told_and_its_pass_goes_on(lake: LocalLake, job: Job) -> None:
    job.broken = "ns.u"
    rows = ids(lake, "ns.u")
    execution = lake.stack.run({})
    assert execution.status == "SUCCEEDED"
    assert [files(lake, name) for name in TABLES] == [1, 3]
    assert ids(lake, "ns.u") == rows
    (record,) = lake.journal("ns.u")
    assert record.status == "partial"
    assert "it cannot be written" in record.summary
    report = lake.stack.control(f"runs/{execution.name}/report.json")
    assert {one["table"]: one["status"] for one in report["results"]} == {"ns.t": "succeeded", "ns.u": "partial"}


def test_what_a_wave_did_not_reach_is_due_again(lake: LocalLake, scripted_stack: LocalStack, job: Job) -> None:
    def killed(arguments: Mapping[str, str]) -> None:
        raise RuntimeError("it was killed before it began")

    scripted_stack.stand_in({}, {"compact_data_files": killed})
    execution = lake.stack.run({})
    assert execution.status == "SUCCEEDED"
    report = lake.stack.control(f"runs/{execution.name}/report.json")
    assert {one["status"] for one in report["results"]} == {"succeeded"}  # of what followed
    assert [files(lake, name) for name in TABLES] == [3, 3]
    scripted_stack.stand_in({}, {"compact_data_files": job})
    again = lake.stack.run({})
    assert {child.input["item"]["table"] for child in again.children} == set(TABLES)
    assert [files(lake, name) for name in TABLES] == [1, 1]
