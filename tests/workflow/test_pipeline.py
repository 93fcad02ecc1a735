"""The whole pipeline over real tables: the state machine of template.yaml, real functions and jobs, DynamoDB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.machine.clock import system_clock
from icekeeper.state.leases import end_live_run, is_scheduled, note_live_run
from icekeeper.state.requests import MaintenanceRequest
from local_stack.stack import LocalStack
from support.examples import in_nightly
from support.local_lake import POLICY_FILE, LocalLake

ALL = ("compact", "rewrite_position_deletes", "expire_snapshots", "remove_orphans", "rewrite_manifests")


@pytest.fixture
def lake(scripted_stack: LocalStack, local_catalog: SqlCatalog, tmp_path: Path) -> Iterator[LocalLake]:
    lake = LocalLake(scripted_stack, local_catalog, tmp_path)
    lake.table.fill(5)
    yield lake
    scripted_stack.stand_in({}, {})


def summaries(lake: LocalLake, execution: Any, *, of: str = "ns.t") -> dict[str, str]:
    """The summary of each operation of a table's pass."""
    shown = lake.stack.document_of_pass(execution, "pass.json", of=of)
    return {part["operation"]: part["summary"] for part in shown["operations"]}


SWEPT = [
    "ExpireSnapshots",
    "WhatNext",
    "ListOrphans",
    "AnyOrphans",
    "RemoveOrphans",
    "AnyManifests",
    "RewriteManifests",
]


def test_a_scheduled_run_maintains_the_table_keeps_its_rows_and_reports(lake: LocalLake) -> None:
    orphan = lake.table.plant("data/orphan.parquet")
    rows = lake.table.readers_agree()
    execution = lake.stack.run({})
    assert execution.status == "SUCCEEDED"
    assert [child.names for child in execution.children] == [["PlanTable"], ["AnyPartitions", "CompactSmall"], SWEPT]
    assert lake.table.readers_agree() == rows
    assert len(lake.table.data_files()) == 1
    assert not Path(orphan).exists()
    assert lake.table.verify().problems == ()
    (record,) = lake.journal()
    assert (record.run_id, record.status, record.engine) == (execution.name, "succeeded", "pipeline")
    assert record.metrics["compact.files_merged"] == 5
    assert record.metrics["remove_orphans.orphans_removed"] == 1
    (total,) = lake.metrics("compact.files_merged")  # metrics of single tables are off
    assert (total.value, total.dimensions) == (5, {"service": lake.stack.template.stack})
    report = lake.stack.control(f"runs/{execution.name}/report.json")
    assert (report["status"], report["results"]) == (
        "succeeded",
        [{"table": "ns.t", "status": "succeeded", "summary": record.summary}],
    )
    assert lake.stack.page().count('"name":"ns.t"') == 1
    assert lake.state.leases.current(lake.identity().lease_key, now_ms=system_clock()) is None
    assert note_live_run(lake.state.leases, "a later run", now_ms=system_clock()) == frozenset()
    end_live_run(lake.state.leases, "a later run", now_ms=system_clock())
    # Manifests are rewritten after expiry: the snapshot that this replaced is left to the next run.
    assert lake.stack.run({}).children[0].input["item"]["reasons"] == [
        "2 snapshots exceed max_snapshots_to_keep 1",
        "2 snapshots are older than snapshot_retention_hours 0",
    ]
    (last, _) = lake.journal()
    assert last.metrics["expire_snapshots.snapshots_expired"] == 1
    assert len(lake.metrics("RunsSucceeded")) == 2
    assert lake.table.readers_agree() == rows


# A second schedule whose input names patterns of tables, operations and settings.

MERGES = {"tables": ["ns.t", "*.orders_?"], "operations": "compact", "settings": {"strategy": "binpack"}}


def three_tables(lake: LocalLake) -> None:
    """Add to ``ns.t`` a table that the patterns match and a table that they do not; each has five files."""
    for name in ("ns.orders_1", "ns.events"):
        table = lake.pyiceberg.create_table(name, lake.table.table.schema())
        for number in range(5):
            table.append(lake.table.new_rows(number))


def untouched(lake: LocalLake, name: str) -> bool:
    """Whether a table has only its first five files and snapshots, and no pass in the journal."""
    table = lake.pyiceberg.load_table(name)
    return (len(table.inspect.files()), len(table.snapshots()), lake.journal(name)) == (5, 5, ())


@in_nightly
def test_a_run_over_a_part_of_the_fleet_follows_its_input_and_serves_no_other_request(lake: LocalLake) -> None:
    three_tables(lake)
    rows = lake.table.readers_agree()
    for name, operations in (("ns.orders_1", "expire_snapshots"), ("ns.events", "compact")):
        request = MaintenanceRequest(
            identity=lake.identity(name), requested_ms=system_clock(), settings={"operations": operations}
        )
        lake.state.requests.file(request)
    execution = lake.stack.run(MERGES, name="hourly-1")
    assert (execution.status, execution.output["report"]["status"]) == ("SUCCEEDED", "succeeded")
    assert execution.output["report"]["summary"] == "2 succeeded"
    assert execution.output["report"]["tables"] == []  # the answer of a scan lists no tables
    planned = [child.input["item"] for child in execution.children if child.names == ["PlanTable"]]
    assert {item["table"]: (item["settings"], item["forced"]) for item in planned} == {
        "ns.orders_1": ({"operations": "expire_snapshots"}, True),
        "ns.t": ({"operations": "compact", "strategy": "binpack"}, False),
    }
    assert summaries(lake, execution) == {"compact": "compacted 5 files into 1 (across 1 bins)"}
    expired = "expired 4 snapshot(s), deleted 4 unreferenced file(s)"
    assert summaries(lake, execution, of="ns.orders_1") == {"expire_snapshots": expired}
    (record,) = lake.journal()
    assert (record.run_id, record.status) == ("hourly-1", "succeeded")
    assert untouched(lake, "ns.events")
    assert lake.table.readers_agree() == rows
    detection = lake.stack.control("runs/hourly-1/detection.json")
    assert (detection["scanned"], detection["listed"], detection["warnings"]) == (2, 2, [])
    # Only a run over the whole fleet records that requests are served; it runs all operations of the policy.
    assert [str(entry.identity.table) for entry in lake.state.requests.pending()] == ["ns.events"]
    assert not is_scheduled(lake.state.leases, now_ms=system_clock())
    whole = lake.stack.run({}, name="nightly-1")
    assert whole.output["report"]["summary"] == "3 succeeded"
    assert (set(summaries(lake, whole)), list(summaries(lake, whole, of="ns.events"))) == (set(ALL), ["compact"])
    assert lake.state.requests.pending() == ()
    assert is_scheduled(lake.state.leases, now_ms=system_clock())


def test_a_run_does_not_begin_with_a_wrong_input_and_warns_of_a_pattern_without_a_table(lake: LocalLake) -> None:
    """``tests/integration/test_pipeline_reports.py`` lists wrong inputs."""
    three_tables(lake)
    lake.stack.put_control("config/policy.yaml", POLICY_FILE.replace("retention_hours: 0", "retention_hours: 48"))
    greedy = {"max_snapshots_to_keep": "1", "snapshot_retention_hours": "1"}
    execution = lake.stack.run({"tables": ["ns.*"], "settings": greedy})
    assert (execution.status, execution.error) == ("FAILED", "DetectionFailed")
    assert execution.names == ["Detect", "NotDetected", "Report", "HowItWent", "RunFailed"]
    ((error, cause),) = execution.visits[0].errors
    assert (error, json.loads(cause)["errorMessage"]) == (
        "RequestRefused",
        "a request for ns.events cannot set snapshot_retention_hours to 1, where the policy has 48: it does no more "
        "than the table's policy; to admit that, the operator sets RequestsMay (ICEKEEPER_REQUESTS_MAY) to "
        "snapshot_retention_hours (as for 2 other tables)",
    )
    (failed,) = lake.metrics("RunsFailed")  # an alarm on it reports a schedule whose input is wrong
    assert failed.value == 1
    execution = lake.stack.run({"tables": ["shop.*", "ns.none"], "operations": "compact"}, name="hourly-2")
    assert (execution.status, execution.names) == ("SUCCEEDED", ["Detect", "AnyTables", "NothingToDo"])
    detection = lake.stack.control("runs/hourly-2/detection.json")
    assert detection["warnings"] == ["no table matches 'shop.*'", "no table matches 'ns.none'"]
    assert all(untouched(lake, name) for name in ("ns.t", "ns.orders_1", "ns.events"))
