"""Tables too large for functions: waves, and payloads of 17,000 files."""

from __future__ import annotations

import json
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
from icekeeper.metadata.manifest_write import encode_manifest, encode_manifest_list
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile
from icekeeper.pipeline import glue_job as run_wave_module
from icekeeper.pipeline.control_bucket import ControlBucket, Work
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.glue_job import run_work
from local_stack.executions import Execution
from local_stack.stack import LocalStack
from support.examples import in_nightly
from support.local_lake import POLICY_FILE, LocalLake
from support.maintained_table import ID_AND_PART
from support.plans import data_file
from support.scripted_pipeline import ScriptedPipeline

# A table of 17,000 files: payloads of states stay far below the 256 KB of Step Functions.

FILES, PER_MANIFEST = 17_000, 4_250
# A payload with one byte for each file would exceed this.
MOST_BYTES = 16 * 1024
ORPHANS = 100
SNAPSHOT = 7_000_000_000_000_000_001


@pytest.mark.slow
def test_payloads_stay_small(scripted_stack: LocalStack, local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """Functions that would rewrite are stand-ins: the data files exist in the manifests only."""
    lake = LocalLake(scripted_stack, local_catalog, tmp_path)
    _grow(lake)
    # The test below covers orphans; a search among so many files would only take time here.
    lake.stack.put_control("config/policy.yaml", f"{POLICY_FILE}    orphan_sweep_enabled: false\n")
    script = ScriptedPipeline(lambda key, body: None, "")
    rewriting = {name: script.functions[name] for name in ("commit", "expire")}
    scripted_stack.stand_in(rewriting, script.jobs)
    execution = scripted_stack.run({}, timeout_s=300)
    scripted_stack.stand_in({}, {})
    plan = scripted_stack.document_of_pass(execution, "plan.json")
    assert plan["size_bytes"] == FILES * 1_000
    assert len(json.dumps(plan)) < 4 * 1024
    assert [task for child in execution.children for task in child.tasks] == [
        *("PlanTable", "CompactSmall", "ExpireSnapshots", "RewriteManifests")  # there are no deletes to merge
    ]
    assert execution.largest_payload < MOST_BYTES, execution.largest_payload


def test_many_orphans_are_passed_by_reference(
    scripted_stack: LocalStack, local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    lake = LocalLake(scripted_stack, local_catalog, tmp_path)
    lake.table.fill(2)
    orphans = [Path(lake.table.plant(f"data/{'orphan' * 40}-{number}.parquet")) for number in range(ORPHANS)]
    scripted_stack.put_control("config/policy.yaml", f"{POLICY_FILE}    orphan_max_delete_ratio: 1\n")
    execution = scripted_stack.run({"table": "ns.t", "operations": "remove_orphans"})
    found = scripted_stack.document_of_pass(execution, "remove_orphans.json")
    assert (found["status"], found["summary"]) == ("succeeded", f"removed {ORPHANS} orphan file(s)")
    assert not any(path.exists() for path in orphans)
    assert sum(len(str(path)) for path in orphans) > MOST_BYTES
    assert execution.largest_payload < MOST_BYTES, execution.largest_payload


def _grow(lake: LocalLake) -> None:
    """Give ``ns.t`` one snapshot with all the files."""
    metadata, folder = lake.table.metadata, lake.table.metadata.location
    manifests: list[ManifestFile] = []
    for start in range(0, FILES, PER_MANIFEST):
        encoded = encode_manifest(
            metadata,
            spec_id=0,
            content=ManifestContent.DATA,
            entries=[_entry(f"{folder}/data/{number:06}.parquet") for number in range(start, start + PER_MANIFEST)],
            path=f"{folder}/metadata/m{start}.avro",
            snapshot_id=SNAPSHOT,
            sequence_number=1,
        )
        lake.table.storage.write(encoded.manifest.manifest_path, encoded.data)
        manifests.append(encoded.manifest)
    path = f"{folder}/metadata/snap-{SNAPSHOT}.avro"
    listed = encode_manifest_list(2, manifests, snapshot_id=SNAPSHOT, parent_snapshot_id=None, sequence_number=1)
    lake.table.storage.write(path, listed)

    def add(document: dict[str, Any]) -> None:
        moment = document["last-updated-ms"]
        summary = {
            "operation": "append",
            "total-data-files": str(FILES),
            "total-delete-files": "0",
            "total-files-size": str(FILES * 1_000),
        }
        document["snapshots"] = [
            {
                "snapshot-id": SNAPSHOT,
                "sequence-number": 1,
                "timestamp-ms": moment,
                "manifest-list": path,
                "summary": summary,
                "schema-id": 0,
            }
        ]
        document |= {"current-snapshot-id": SNAPSHOT, "last-sequence-number": 1}
        document["refs"] = {"main": {"type": "branch", "snapshot-id": SNAPSHOT}}

    lake.table.rewrite_document(add)


def _entry(path: str) -> ManifestEntry:
    return ManifestEntry(EntryStatus.ADDED, SNAPSHOT, 1, 1, data_file(path, 1_000, records=1))


# A scheduled run over real tables that are too large for functions; its job is the real job without Spark.

TABLES = ("ns.t", "ns.u", "ns.v")


class Job:
    """Stands in for the Glue script: takes its arguments and runs the wave in this process."""

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
        work = Work.model_validate(control.read(arguments["--work-key"], arguments["--work-digest"]))
        run_work(Deployment.open({**here, **work.environment}), work, self.engine())

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
    """Three tables, which the job compacts."""
    lake = LocalLake(scripted_stack, local_catalog, tmp_path)
    lake.table.fill(3)
    for name in TABLES[1:]:
        other = lake.pyiceberg.create_table(name, schema=ID_AND_PART)
        for start in range(3):
            other.append(lake.table.new_rows(start * 10, start * 10 + 1))
    scripted_stack.start_cold({"ICEKEEPER_SMALL_COMPACTION_MB": "0"})
    scripted_stack.stand_in({}, {"compact_data_files": job})
    yield lake
    scripted_stack.start_cold({"ICEKEEPER_SMALL_COMPACTION_MB": "1280"})
    scripted_stack.stand_in({}, {})


def ids(lake: LocalLake, name: str) -> list[int]:
    return sorted(lake.pyiceberg.load_table(name).scan().to_arrow().column("id").to_pylist())


def files(lake: LocalLake, name: str) -> int:
    return len(lake.pyiceberg.load_table(name).inspect.files())


def statuses(lake: LocalLake, execution: Execution) -> dict[str, str]:
    report = lake.stack.control(f"runs/{execution.name}/report.json")
    return {entry["table"]: entry["status"] for entry in report["results"]}


@in_nightly
def test_one_job_compacts_all_tables_and_the_rest_of_each_pass_follows(
    lake: LocalLake, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that fails or never ends stops no other.  ``test_jobs_that_fail_are_retried_once_and_reported`` kills
    jobs."""
    rows = {name: ids(lake, name) for name in TABLES}

    monkeypatch.setattr(run_wave_module, "longest_s", lambda *_, **__: 5.0)
    job.broken, job.endless = "ns.u", "ns.v"
    try:
        execution = lake.stack.run({})
        assert (execution.status, len(job.runs)) == ("SUCCEEDED", 1)
        planned = {child.input["item"]["table"] for child in execution.children if child.names == ["PlanTable"]}
        assert planned == set(TABLES)
        assert [child.tasks for child in execution.children if child.input["item"]["table"] == "ns.t"] == [
            *(["PlanTable"], ["ExpireSnapshots", "ListOrphans", "RewriteManifests"])
        ]
        names = execution.names
        assert names.index("PlanTables") < names.index("CompactDataFiles") < names.index("ExpireAndSweep")
        assert {name: (files(lake, name), ids(lake, name)) for name in TABLES} == {
            "ns.t": (1, rows["ns.t"]),
            "ns.u": (3, rows["ns.u"]),
            "ns.v": (3, rows["ns.v"]),
        }
        assert statuses(lake, execution) == {"ns.t": "succeeded", "ns.u": "partial", "ns.v": "partial"}
        whole, failed, endless = (lake.journal(name)[0] for name in TABLES)
        assert (whole.run_id, whole.status) == (execution.name, "succeeded")
        assert whole.metrics["compact.files_merged"] == 3
        assert (failed.status, "it cannot be written" in failed.summary) == ("partial", True)
        assert "cut off: its part of the wave did not end within 5 s (job_timeout_s" in endless.summary
        for name in TABLES[:2]:
            assert lake.state.leases.current(lake.identity(name).lease_key, now_ms=system_clock()) is None
    finally:
        job.wakes.set()
