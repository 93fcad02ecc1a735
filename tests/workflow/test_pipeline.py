"""The whole pipeline over real tables and with real Glue jobs."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from rich.console import Console

from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.pipeline.control_bucket import ControlBucket
from icekeeper.policy.request_may_set import REQUESTS_MAY
from icekeeper.state.leases import end_live_run, is_scheduled, note_live_run, slot_keys, take_slot
from icekeeper.state.requests import MaintenanceRequest
from local_stack.executions import Execution
from local_stack.functions import Killed
from local_stack.pipeline_run.expected import surprises
from local_stack.pipeline_run.run import run_pipeline
from local_stack.stack import LocalStack
from support.local_lake import POLICY_FILE, LocalLake

# The whole pipeline over real tables: the state machine of template.yaml, real functions and jobs, DynamoDB.

ALL = ("compact", "rewrite_position_deletes", "expire_snapshots", "remove_orphans", "rewrite_manifests")


@pytest.fixture
def lake(scripted_stack: LocalStack, local_catalog: SqlCatalog, tmp_path: Path) -> Iterator[LocalLake]:
    lake = LocalLake(scripted_stack, local_catalog, tmp_path)
    lake.table.fill(5)
    yield lake
    scripted_stack.stand_in({}, {})


def summaries(lake: LocalLake, execution: Any, *, of: str = "ns.t") -> dict[str, str]:
    """What each operation of a table's pass said of itself."""
    told = lake.stack.document_of_pass(execution, "pass.json", of=of)
    return {part["operation"]: part["summary"] for part in told["operations"]}


SWEPT = [
    "ExpireSnapshots",
    "WhatNext",
    "ListOrphans",
    "AnyOrphans",
    "RemoveOrphans",
    "AnyManifests",
    "RewriteManifests",
]


def result_of(lake: LocalLake, execution: Execution, name: str = "ns.t") -> dict[str, str]:
    """How a table of a run ended, by the run's report."""
    results = lake.stack.control(f"runs/{execution.name}/report.json")["results"]
    (found,) = [one for one in results if one["table"] == name]
    return dict(found)


def test_a_scheduled_run_finds_the_table_keeps_its_rows_and_tells_it(lake: LocalLake) -> None:
    orphan = lake.table.plant("data/orphan.parquet")
    rows = lake.table.readers_agree()
    execution = lake.stack.run({})
    assert execution.status == "SUCCEEDED"
    assert [child.names for child in execution.children] == [
        ["PlanTable"],
        ["AnyPartitions", "CompactSmall"],
        SWEPT,
    ]
    assert lake.table.readers_agree() == rows
    assert len(lake.table.data_files()) == 1
    assert not Path(orphan).exists()
    assert lake.table.verify().problems == ()
    (record,) = lake.journal()
    assert (record.run_id, record.status, record.engine) == (execution.name, "succeeded", "pipeline")
    assert record.metrics["compact.files_merged"] == 5
    assert record.metrics["remove_orphans.orphans_removed"] == 1
    (total,) = lake.metrics("compact.files_merged")  # those of tables are not asked for
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
    # Manifests come after expiry: only the snapshot that they replaced is left to do.
    assert lake.stack.run({}).children[0].input["item"]["reasons"] == [
        "2 snapshots exceed max_snapshots_to_keep 1",
        "2 snapshots are older than snapshot_retention_hours 0",
    ]
    (last, _) = lake.journal()
    assert last.metrics["expire_snapshots.snapshots_expired"] == 1
    assert len(lake.metrics("RunsSucceeded")) == 2
    assert lake.table.readers_agree() == rows


def test_a_function_killed_after_its_commit_acts_once_and_is_told_once(
    lake: LocalLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows that it was killed: until its deadline it bars the others."""
    rows = lake.table.readers_agree()
    write, kills = ControlBucket.write, iter([True])

    def killed(self: ControlBucket, key: str, document: Any) -> str:
        if key.endswith("/compact.json") and next(kills, False):
            raise Killed
        return write(self, key, document)

    attempts = iter(range(10))
    lake.before("compact_small", lambda event: lake.let_deadlines_pass() if next(attempts) == 2 else None)
    monkeypatch.setattr(ControlBucket, "write", killed)
    execution = lake.stack.run({"table": "ns.t", "operations": "compact"})
    assert [error for error, _ in execution.children[1].visit("CompactSmall").errors] == [
        *("Runtime.ExitError", "IdempotencyAlreadyInProgressError")
    ]
    assert result_of(lake, execution)["status"] == "succeeded"
    replaced = [s for s in lake.table.metadata.snapshots.values() if s.summary["operation"] == "replace"]
    assert len(replaced) == 1
    assert lake.table.readers_agree() == rows
    (record,) = lake.journal()
    assert record.metrics["compact.files_merged"] == 5
    assert "committed by an earlier attempt" in record.summary


def test_tables_that_are_dropped_meanwhile_harm_no_other_table(lake: LocalLake) -> None:
    """Before its plan a dropped table is skipped; after it, the table's pass fails by name."""
    for name in ("ns.early", "ns.late"):
        lake.table.create_beside(name, str(lake.table.folder.parent / name))
        for _ in range(3):
            lake.pyiceberg.load_table(name).append(lake.table.new_rows(1))

    def drop(name: str) -> Callable[[Any], None]:
        def before(event: Any) -> None:
            if event.get("item", {}).get("table") == name and lake.exists(name):
                lake.pyiceberg.drop_table(name)

        return before

    lake.before("plan", drop("ns.early"))
    lake.before("compact_small", drop("ns.late"))
    execution = lake.stack.run({})
    assert result_of(lake, execution)["status"] == "succeeded"
    assert result_of(lake, execution, "ns.early") == {
        "table": "ns.early",
        "status": "skipped",
        "summary": "ns.early was dropped or replaced since it was detected",
    }
    sentences = summaries(lake, execution, of="ns.late")
    assert set(sentences) == set(ALL)
    gone = {step: sentences[step] for step in ALL if step != "rewrite_position_deletes"}  # the plan found no deletes
    assert all("TableNotFound" in sentence and "ns.late" in sentence for sentence in gone.values()), gone
    assert result_of(lake, execution, "ns.late")["status"] == "failed"
    assert execution.output["report"]["summary"] == "1 failed, 1 skipped, 1 succeeded"


def test_a_policy_that_changes_after_the_plan_leaves_the_rest_to_the_next_run(lake: LocalLake) -> None:
    def change(event: Any) -> None:
        if lake.table.table.properties.get("icekeeper.target_file_size_mb") is None:
            with lake.table.table.transaction() as transaction:
                transaction.set_properties({"icekeeper.target_file_size_mb": "64"})

    lake.before("compact_small", change)
    execution = lake.stack.run({})
    assert result_of(lake, execution) == {
        "table": "ns.t",
        "status": "refused",
        "summary": "the policy of ns.t changed since it was planned",
    }
    assert len(lake.table.data_files()) == 5
    # All slots are taken when the next run begins; once a slot is free, the pass goes on.
    leases = lake.state.leases
    taken = [take_slot(leases, f"other {key}", 4, now_ms=system_clock(), ttl_ms=HOUR_MS) for key in slot_keys(4)]
    calls = iter(range(10))
    lake.before("compact_small", lambda event: leases.release(taken.pop()) if next(calls) == 1 else None)
    execution = lake.stack.run({})
    assert [error for error, _ in execution.children[1].visit("CompactSmall").errors] == ["FleetBusy"]
    assert result_of(lake, execution)["status"] == "succeeded"
    assert lake.journal()[0].metrics["compact.files_merged"] == 5


def test_a_run_whose_table_is_taken_commits_nothing(lake: LocalLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its plan, before its step, or while that works; then a forced pass does its operation and no other."""
    leases, key = lake.state.leases, lake.identity().lease_key

    def holder() -> str | None:
        held = leases.current(key, now_ms=system_clock())
        return held.holder if held is not None else None

    def release() -> None:
        held = leases.current(key, now_ms=system_clock())
        assert held is not None
        leases.release(held)

    def take_over(event: Any) -> None:
        if holder() not in (None, "another run"):
            release()
        leases.acquire(key, "another run", now_ms=system_clock(), ttl_ms=HOUR_MS)

    write = ControlBucket.write

    def write_and_lose(self: ControlBucket, name: str, document: Any) -> str:
        if name.endswith("/compact.begun.json"):
            take_over(None)
        return write(self, name, document)

    take_over(None)
    execution = lake.stack.run({"table": "ns.t"})
    assert (execution.status, execution.error) == ("FAILED", "LeaseHeld")
    assert [child.names for child in execution.children] == [["PlanTable", "TableNotPlanned"]]
    assert result_of(lake, execution)["status"] == "refused"
    assert lake.journal() == ()
    for reason in ("another run maintained the table", "is lost"):
        release()
        if reason == "is lost":
            lake.stack.stand_in({}, {})
            monkeypatch.setattr(ControlBucket, "write", write_and_lose)
        else:
            lake.before("compact_small", take_over)
        execution = lake.stack.run({"table": "ns.t", "operations": "compact"})
        assert reason in result_of(lake, execution)["summary"]
        assert len(lake.table.metadata.snapshots) == 5
        assert holder() == "another run"  # whose lease we do not release
    monkeypatch.undo()
    release()
    execution = lake.stack.run({"table": "ns.t", "operations": "compact"})
    assert list(summaries(lake, execution)) == ["compact"]
    assert execution.output["report"]["tables"] == [result_of(lake, execution)]
    assert (len(lake.table.data_files()), len(lake.table.metadata.snapshots)) == (1, 6)


def test_a_scheduled_run_leaves_out_what_another_one_has(lake: LocalLake) -> None:
    """The second is started between two stages of the first, when nobody holds a lease of ns.t; it takes ns.u."""
    others: list[Execution] = []

    def start_another(event: Any) -> None:
        if event["run_id"] == "the-first":
            lake.pyiceberg.create_table("ns.u", lake.table.table.schema())
            for _ in range(5):
                lake.pyiceberg.load_table("ns.u").append(lake.table.new_rows(1))
            others.append(lake.stack.run({}, name="the-second"))

    lake.before("expire_snapshots", start_another)
    execution = lake.stack.run({}, name="the-first")
    assert result_of(lake, execution)["status"] == "succeeded"
    (second,) = others
    assert {child.input["item"]["table"] for child in second.children} == {"ns.u"}
    assert result_of(lake, second, "ns.u")["status"] == "succeeded"
    assert [record.run_id for record in lake.journal()] == ["the-first"]
    leases = lake.state.leases
    assert [key for key in slot_keys(4) if leases.current(key, now_ms=system_clock()) is not None] == []


def test_a_detection_that_dies_each_time_bars_no_later_run(lake: LocalLake, monkeypatch: pytest.MonkeyPatch) -> None:
    write = ControlBucket.write

    def killed(self: ControlBucket, key: str, document: Any) -> str:
        if key.endswith("/proposals.json"):
            raise Killed
        return write(self, key, document)

    monkeypatch.setattr(ControlBucket, "write", killed)
    lake.before("detect", lambda event: lake.let_deadlines_pass())
    execution = lake.stack.run({})
    errors = [error for error, _ in execution.visits[0].errors]
    assert (execution.error, errors) == ("DetectionFailed", ["Runtime.ExitError", "Runtime.ExitError"])
    report = lake.stack.control(f"runs/{execution.name}/report.json")
    assert report["status"] == "failed"
    assert report["summary"].startswith("the run ended early: Runtime.ExitError")
    monkeypatch.undo()
    assert result_of(lake, lake.stack.run({}))["status"] == "succeeded"


# A rhythm: a second schedule of the platform, whose input names patterns of tables, operations and settings.

MERGES = {"tables": ["ns.t", "*.orders_?"], "operations": "compact", "settings": {"strategy": "binpack"}}


def three_tables(lake: LocalLake) -> None:
    """Beside ``ns.t`` one more table that the patterns match, and one that they do not; each has five files."""
    for name in ("ns.orders_1", "ns.events"):
        table = lake.pyiceberg.create_table(name, lake.table.table.schema())
        for number in range(5):
            table.append(lake.table.new_rows(number))


def untouched(lake: LocalLake, name: str) -> bool:
    """Whether a table has the five files and snapshots that it was made with, and no pass in the journal."""
    table = lake.pyiceberg.load_table(name)
    return (len(table.inspect.files()), len(table.snapshots()), lake.journal(name)) == (5, 5, ())


def test_a_run_over_a_part_of_the_fleet_does_to_it_what_it_says(lake: LocalLake) -> None:
    three_tables(lake)
    rows = lake.table.readers_agree()
    execution = lake.stack.run(MERGES, name="hourly-1")
    assert (execution.status, execution.output["report"]["status"]) == ("SUCCEEDED", "succeeded")
    assert execution.output["report"]["summary"] == "2 succeeded"
    assert execution.output["report"]["tables"] == []  # as a scan answers: one table of many says little
    planned = [child for child in execution.children if child.names == ["PlanTable"]]
    settings = {"operations": "compact", "strategy": "binpack"}
    assert {child.input["item"]["table"]: child.input["item"]["settings"] for child in planned} == {
        "ns.orders_1": settings,
        "ns.t": settings,
    }
    assert {child.input["item"]["forced"] for child in planned} == {False}
    for name in ("ns.orders_1", "ns.t"):
        assert summaries(lake, execution, of=name) == {"compact": "compacted 5 files into 1 (across 1 bins)"}
        (record,) = lake.journal(name)
        assert (record.run_id, record.status) == ("hourly-1", "succeeded")
        table = lake.pyiceberg.load_table(name)
        assert (len(table.inspect.files()), len(table.snapshots())) == (1, 6)
    assert untouched(lake, "ns.events")
    assert lake.table.readers_agree() == rows
    detection = lake.stack.control("runs/hourly-1/detection.json")
    assert (detection["scanned"], detection["listed"], detection["warnings"]) == (2, 2, [])
    # The whole fleet's run does all that the policy says, for all three.
    whole = lake.stack.run({}, name="nightly-1")
    assert whole.output["report"]["summary"] == "3 succeeded"
    assert set(summaries(lake, whole, of="ns.events")) == set(ALL)
    # Of each table the last rewrite, and that of its manifests behind the expiry.
    assert [len(lake.pyiceberg.load_table(name).snapshots()) for name in ("ns.t", "ns.orders_1", "ns.events")] == [
        2
    ] * 3


def test_two_runs_over_the_same_part_share_no_table(lake: LocalLake) -> None:
    """The second begins between two stages of the first, when nobody holds a lease."""
    three_tables(lake)
    others: list[Execution] = []

    def start_another(event: Any) -> None:
        if (event["run_id"], event["item"]["table"]) == ("first-of-a-part", "ns.t"):
            others.append(lake.stack.run({"tables": ["*"], "operations": "compact"}, name="second-of-a-part"))

    lake.before("compact_small", start_another)
    first = lake.stack.run(MERGES, name="first-of-a-part")
    assert first.output["report"]["summary"] == "2 succeeded"
    (second,) = others
    assert second.output["report"]["summary"] == "1 succeeded"
    assert {child.input["item"]["table"] for child in second.children} == {"ns.events"}
    assert [record.run_id for record in lake.journal("ns.events")] == ["second-of-a-part"]
    assert [record.run_id for record in lake.journal("ns.orders_1")] == ["first-of-a-part"]


def file_request(lake: LocalLake, name: str, **settings: str) -> None:
    request = MaintenanceRequest(identity=lake.identity(name), requested_ms=system_clock(), settings=settings)
    lake.state.requests.file(request)


def test_a_run_over_a_part_serves_the_requests_of_its_tables_only(lake: LocalLake) -> None:
    three_tables(lake)
    file_request(lake, "ns.orders_1", operations="expire_snapshots")
    file_request(lake, "ns.events", operations="compact")
    execution = lake.stack.run(MERGES)
    assert summaries(lake, execution, of="ns.orders_1") == {"expire_snapshots": "expired 4 snapshot(s), deleted 4 "
                                                            "unreferenced file(s)"}  # fmt: skip
    assert summaries(lake, execution) == {"compact": "compacted 5 files into 1 (across 1 bins)"}
    assert untouched(lake, "ns.events")
    assert [str(one.identity.table) for one in lake.state.requests.pending()] == ["ns.events"]
    # Only a run over the whole fleet says that requests are served.
    assert not is_scheduled(lake.state.leases, now_ms=system_clock())
    lake.stack.run({})
    assert lake.state.requests.pending() == ()
    assert is_scheduled(lake.state.leases, now_ms=system_clock())


REFUSED = [
    ({"tabel": "ns.t"}, "malformed event: input.tabel: Extra inputs are not permitted"),
    ({**MERGES, "operations": "compactt"}, "policy key operations cannot be 'compactt' (from --set): "),
    ({**MERGES, "settings": {"stratgy": "binpack"}}, "unknown policy key 'stratgy' (from --set)"),
    ({**MERGES, "settings": {"min_input_files": "1"}}, "policy key min_input_files cannot be '1' (from --set): "),
    ({**MERGES, "tables": ["orders"]}, "malformed event: input: 'orders' can match no table: "),
    ({**MERGES, "tabels": ["ns.*"]}, "malformed event: input.tabels: Extra inputs are not permitted"),
    (
        {"tables": ["ns.*"], "settings": {"max_snapshots_to_keep": "1", "snapshot_retention_hours": "1"}},
        "a request for ns.events cannot set snapshot_retention_hours to 1, where the policy has 48: it does no more "
        "than the table's policy; to admit that, the operator sets RequestsMay (ICEKEEPER_REQUESTS_MAY) to "
        "snapshot_retention_hours (as for 2 other tables)",
    ),
    (
        {"tables": ["ns.[t]", "ns.t"], "operations": "compact,expire_partitions"},
        "a request for ns.t cannot ask for expire_partitions, which the policy does not have: it does no more than the "
        "table's policy; to admit that, the operator sets RequestsMay (ICEKEEPER_REQUESTS_MAY) to expire_partitions",
    ),
]


def test_a_run_is_not_begun_by_a_wrong_input(lake: LocalLake) -> None:
    """A pattern without a table is a warning in the run."""
    three_tables(lake)
    lake.stack.put_control("config/policy.yaml", POLICY_FILE.replace("retention_hours: 0", "retention_hours: 48"))
    for number, (given, why) in enumerate(REFUSED, 1):
        execution = lake.stack.run(given)
        assert (execution.status, execution.error) == ("FAILED", "DetectionFailed")
        assert execution.names == ["Detect", "NotDetected", "Report", "HowItWent", "RunFailed"]
        ((error, cause),) = execution.visits[0].errors
        assert error in ("PolicyError", "UnknownSetting", "RequestRefused")
        assert json.loads(cause)["errorMessage"].startswith(why)
        assert len(lake.metrics("RunsFailed")) == number  # a schedule whose input is wrong rings
        assert lake.metrics("RunsFailed")[-1].value == 1
    execution = lake.stack.run({"tables": ["shop.*", "ns.none"], "operations": "compact"}, name="hourly-2")
    assert (execution.status, execution.names) == ("SUCCEEDED", ["Detect", "AnyTables", "NothingToDo"])
    detection = lake.stack.control("runs/hourly-2/detection.json")
    assert detection["warnings"] == ["no table matches 'shop.*'", "no table matches 'ns.none'"]
    assert all(untouched(lake, name) for name in ("ns.t", "ns.orders_1", "ns.events"))


def test_requests_may_admits_and_bounds_hold_for_a_part_of_the_fleet(lake: LocalLake) -> None:
    """The retention of the policy file is 48 hours, that of the input 0, the deployment's bound 24."""
    three_tables(lake)
    lake.stack.put_control("config/policy.yaml", POLICY_FILE.replace("retention_hours: 0", "retention_hours: 48"))
    given = {
        "tables": ["ns.t", "*.orders_?"],
        "operations": "expire_snapshots",
        "settings": {"snapshot_retention_hours": "0"},
    }
    bound = {REQUESTS_MAY: "snapshot_retention_hours", "ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS": "24"}
    try:
        lake.stack.start_cold(bound)
        assert lake.stack.run(given).names == ["Detect", "AnyTables", "NothingToDo"]
        assert untouched(lake, "ns.t")
        lake.stack.start_cold({**bound, "ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS": ""})
        assert lake.stack.run(given).output["report"]["summary"] == "2 succeeded"
    finally:
        lake.stack.start_cold(dict.fromkeys(bound, ""))
    assert len(lake.pyiceberg.load_table("ns.t").snapshots()) == 1
    assert len(lake.pyiceberg.load_table("ns.orders_1").snapshots()) == 1
    assert untouched(lake, "ns.events")


# ``make pipeline``, the one test with real Glue jobs: each is a process with what it needs of Spark.


@pytest.mark.slow
@pytest.mark.seaweedfs
def test_one_compaction_fails_and_all_else_is_done(tmp_path: Path) -> None:
    text = io.StringIO()
    run = run_pipeline(tmp_path, Console(file=text, width=120, highlight=False))
    logs = [job.log for jobs in run.jobs.values() for job in jobs if job.state != "SUCCEEDED"]
    assert (list(surprises(run)), logs) == ([], [])
    told = text.getvalue()
    for expected in (
        r"\n +\d+\.\d s +shop\.orders +CompactSmall +failed 1 file group\(s\) failed",
        r"\n  PlanTables +\d+\.\d s\n",
        r"\n  CompactDataFiles +\d+\.\d s *\n +shop\.clicks +compact +succeeded compacted 60 files into 1",
        r"\n +RewriteManifests +\d+\.\d s succeeded rewrote 2 manifests into 1 \(1 entries\)",
        r"journal, from DynamoDB\n(.*\n)*  shop\.orders: partial\n     compact: 1 file group\(s\) failed",
        r"PassesPartial 1, PassesSucceeded 3",
        r"\n  files merged +60 +8 +40 +0 *\n",
        r"\nshop\.clicks +60 → 1 ",
        r"\nshop\.events @ quarter-close +10000 +\w+ +same *\n",
    ):
        assert re.search(expected, told), f"{expected} is not in\n{told}"
    assert max(map(len, told.splitlines())) <= 120 + len("refused on purpose: ") + 60  # an address is never cut
    assert "\x1b" not in told  # colours are for terminals
    # What judges it sees every part of it.
    for other in (
        replace(run, report={**run.report, "status": "succeeded"}),
        replace(run, journal={}),
        replace(run, passes={}),
        replace(run, metrics=tuple(metric for metric in run.metrics if metric.name != "PassesPartial")),
        replace(run, jobs={}),
        replace(run, leases=("fleet",)),
        replace(run, asked_lake=frozenset()),
        replace(run, denied=()),
        replace(run, figures={name: (before, before) for name, (before, _) in run.figures.items()}),
        replace(run, rows={**run.rows, "shop.events": (run.rows["shop.events"][0], run.rows["shop.clicks"][0])}),
    ):
        assert list(surprises(other)) != []
