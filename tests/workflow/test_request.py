"""Requests against a whole stack (the state machine of template.yaml, real functions, DynamoDB): ``icekeeper request``,
and limits of requests (rule: requests-never-exceed-policy)."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.cli import main
from icekeeper.machine.clock import system_clock
from icekeeper.pipeline import request_pass
from icekeeper.pipeline.control_bucket import table_folder
from icekeeper.pipeline.events import Item, parse_event
from icekeeper.policy.request_may_set import REQUESTS_MAY
from icekeeper.state.requests import MaintenanceRequest
from local_stack.executions import Execution
from local_stack.stack import LocalStack
from support.command import Answer
from support.local_lake import LocalLake
from support.scripted_pipeline import ScriptedPipeline


@dataclass(frozen=True, slots=True)
class Laptop:
    """Calls the command as a person does who has the stack's outputs."""

    lake: LocalLake
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Answer:
        self.capsys.readouterr()
        code = main(["request", "add", "ns.t", "--catalog", "local", *arguments])
        captured = self.capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    @property
    def pending(self) -> tuple[MaintenanceRequest, ...]:
        return self.lake.state.requests.pending()


@pytest.fixture
def laptop(
    scripted_stack: LocalStack,
    local_catalog: SqlCatalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Laptop]:
    lake = LocalLake(scripted_stack, local_catalog, tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ICEKEEPER_STATE", f"dynamodb://{scripted_stack.template.name('StateTable')}")
    monkeypatch.setenv("ICEKEEPER_STATE_MACHINE", scripted_stack.state_machine)
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__URI", f"sqlite:///{tmp_path / 'catalog.db'}")
    monkeypatch.setenv("PYICEBERG_CATALOG__LOCAL__WAREHOUSE", (tmp_path / "warehouse").as_uri())
    monkeypatch.setattr(request_pass, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(request_pass, "LONGEST_PAUSE_S", 0.05)
    yield Laptop(lake, capsys)
    scripted_stack.stand_in({}, {})


def test_a_request_starts_a_run_and_prints_its_result(laptop: Laptop) -> None:
    laptop.lake.table.fill(5)
    rows = laptop.lake.table.readers_agree()
    answer = laptop("--operations", "compact", "--set", "target_file_size_mb=64", "--json")
    assert answer.code == 0, answer.err
    (record,) = laptop.lake.journal()
    document = answer.json
    assert document["status"] == "succeeded"
    assert document["summary"] == record.summary == "compact: compacted 5 files into 1 (across 1 bins)"
    assert document["settings"] == {"operations": "compact", "target_file_size_mb": "64"}
    assert document["pass"]["run_id"] == record.run_id == document["execution"].rpartition(":")[2]
    assert [line for line in answer.err.splitlines() if line.startswith("ns.t: ")] == [
        f"ns.t: running: started as {document['execution']}",
        f"ns.t: succeeded: {record.summary}",
    ]
    assert len(laptop.lake.table.data_files()) == 1
    assert laptop.lake.table.readers_agree() == rows
    assert laptop.pending == ()  # the report has claimed it, so that no scheduled run serves it again


def test_the_command_or_the_run_alone_waits_for_a_table_under_maintenance(
    laptop: Laptop, script: ScriptedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run continues if the command does not wait or is interrupted."""
    laptop.lake.stack.stand_in(script.functions, script.jobs)
    script.held["ns.t"] = "another run"
    well = {"table": "ns.t", "status": "succeeded", "summary": "all well"}
    script.report = {"tables": [well]}
    at_once = laptop("--operations", "compact", "--no-wait", "--json")
    assert (at_once.code, at_once.json["status"], at_once.json["pass"]) == (0, "running", None)
    script.happening["plan"] = lambda event: script.held.pop("ns.t", None)
    last = laptop("--operations", "compact", "--json")
    assert (last.code, last.json["status"], last.json["summary"]) == (0, "succeeded", "all well")
    assert laptop.lake.stack.wait(at_once.json["execution"]).status == "SUCCEEDED"
    wanted = {"table": "ns.t", "catalog": "local", "operations": "compact", "settings": {}, "wait": True}
    assert [call.event["input"] for call in script.calls if call.step == "detect"] == [wanted] * 2

    def interrupt(_: object, execution: str, *__: object, **___: object) -> None:
        laptop.lake.stack.wait(execution)  # both print here, so run them one after the other
        raise KeyboardInterrupt

    monkeypatch.setattr("icekeeper.pipeline.request_pass.follow_pass", interrupt)
    answer = laptop("--operations", "compact", "--json")
    assert (answer.code, answer.json["error"]["type"]) == (130, "Interrupted")
    execution = answer.json["error"]["message"].split()[-1]
    assert answer.json["error"]["message"] == f"interrupted; the run goes on: {execution}"
    assert laptop.lake.stack.wait(execution).status == "SUCCEEDED"


def test_a_request_beyond_the_policy_is_answered_at_once_and_dropped(laptop: Laptop) -> None:
    """The command does not know the deployment's policy file; the run refuses (rule: requests-never-exceed-policy)."""
    laptop.lake.table.fill(2)
    answer = laptop("--operations", "expire_partitions", "--json")
    assert (answer.code, answer.json["status"], answer.json["pass"]) == (1, "failed", None)
    assert answer.json["summary"] == (
        "DetectionFailed: detection failed before any table was changed: RequestRefused: a request for ns.t cannot ask "
        "for expire_partitions, which the policy does not have: it does no more than the table's policy; to admit "
        "that, the operator sets RequestsMay (ICEKEEPER_REQUESTS_MAY) to expire_partitions"
    )
    assert laptop.pending == ()


# A requested pass deletes no more than the table's policy does (rule: requests-never-exceed-policy).

POLICY = """\
rules:
- settings:
    min_input_files: 2
    partition_time: "part=%Y-%m-%d"
"""
GREED = {"partition_retention_hours": "36", "snapshot_retention_hours": "0", "max_snapshots_to_keep": "1"}
"""Settings that left one row of three and no history."""
ATTACK = {"table": "ns.t", "operations": "expire_partitions,expire_snapshots", "settings": GREED}
REFUSAL = (
    "a request for ns.t cannot ask for expire_partitions, which the policy does not have, and cannot set "
    "partition_retention_hours to 36, where the policy has none, and cannot set snapshot_retention_hours to 0, where "
    "the policy has 168, and cannot set max_snapshots_to_keep to 1, where the policy has 5: it does no more than the "
    "table's policy; to admit that, the operator sets RequestsMay (ICEKEEPER_REQUESTS_MAY) to "
    "expire_partitions,partition_retention_hours,snapshot_retention_hours,max_snapshots_to_keep"
)


def day(age: int) -> str:
    return (datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=age)).isoformat()


@pytest.fixture
def lake(scripted_stack: LocalStack, local_catalog: SqlCatalog, tmp_path: Path) -> Iterator[LocalLake]:
    lake = LocalLake(scripted_stack, local_catalog, tmp_path)
    scripted_stack.put_control("config/policy.yaml", POLICY)
    with lake.table.table.update_spec() as update:
        update.add_identity("part")
    for number, age in ((1, 30), (2, 20), (3, 0)):
        lake.table.append(number, part=day(age))
    yield lake
    scripted_stack.start_cold({REQUESTS_MAY: ""})


def is_untouched(lake: LocalLake, files: set[str]) -> bool:
    leased = lake.state.leases.current(lake.identity().lease_key, now_ms=system_clock())
    return (lake.table.ids(), len(lake.table.metadata.snapshots), leased) == ([1, 2, 3], 3, None) and (
        lake.table.files() == files
    )


def why_not_detected(execution: Execution) -> str:
    ((error, cause),) = execution.visits[0].errors
    assert error in ("PolicyError", "RequestRefused")
    return str(json.loads(cause)["errorMessage"])


def file_for_the_schedule(lake: LocalLake, settings: dict[str, str]) -> None:
    lake.state.requests.file(
        MaintenanceRequest(identity=lake.identity(), requested_ms=system_clock(), settings=settings)
    )


def test_the_scan_refuses_a_request_beyond_the_policy_once(lake: LocalLake) -> None:
    files = lake.table.files()
    lake.stack.put_control("config/policy.yaml", POLICY.replace("min_input_files: 2", "min_input_files: 9"))
    file_for_the_schedule(lake, {"operations": str(ATTACK["operations"]), **GREED})
    assert lake.stack.run({}).names == ["Detect", "AnyTables", "NothingToDo"]
    (record,) = lake.journal()
    assert (record.status, record.summary) == ("refused", REFUSAL)
    assert lake.state.requests.pending() == ()
    assert is_untouched(lake, files)


def test_a_run_beyond_the_policy_is_refused_before_it_begins(lake: LocalLake) -> None:
    """Over the fleet, forced for a table, or with inputs of steps, unless the deployment permits it."""
    files = lake.table.files()
    over_the_fleet = {"operations": ATTACK["operations"], "settings": GREED}
    forged = {"item": {"table": "ns.t", "settings": GREED}}  # that only a step may set
    for given, why in ((over_the_fleet, REFUSAL), (ATTACK, REFUSAL), (forged, "malformed event: input.")):
        execution = lake.stack.run(given)
        assert (execution.status, execution.error) == ("FAILED", "DetectionFailed")
        assert execution.names == ["Detect", "NotDetected", "Report", "HowItWent", "RunFailed"]  # no plan, no job
        assert why_not_detected(execution).startswith(why)
        assert list(lake.state.lake_stats.of_catalog(lake.identity().catalog)) == []  # and no scan of it
        assert is_untouched(lake, files)
    lake.stack.start_cold({REQUESTS_MAY: ",".join(["expire_partitions", *GREED])})
    execution = lake.stack.run(ATTACK)
    assert (execution.status, execution.output["report"]["status"]) == ("SUCCEEDED", "succeeded")
    assert (lake.table.ids(), len(lake.table.metadata.snapshots)) == ([3], 1)


def test_direct_calls_of_functions_cannot_exceed_the_policy(lake: LocalLake) -> None:
    files, started = lake.table.files(), datetime.datetime.now(datetime.UTC).isoformat()
    wanted = {"run_id": "forged", "started": started, "input": {"table": "ns.t"}}
    found = lake.stack.invoke("read", {"step": "detect", **wanted})
    (proposed,) = lake.stack.control(found["tables"]["key"])
    honest = {"run_id": "forged", "started_ms": found["started_ms"], "item": proposed}
    greedy = {**honest, "item": {**proposed, "settings": {"operations": ATTACK["operations"], **GREED}}}
    with pytest.raises(Exception, match=r"a request for ns\.t cannot ask for expire_partitions"):
        lake.stack.invoke("read", {"step": "plan", **greedy})
    lake.stack.invoke("read", {"step": "plan", **honest})
    # The honest plan has these steps; each step reads the policy again, with the settings of its item.
    key = f"{table_folder('forged', parse_event(Item, proposed).identity.spelling)}/plan.json"
    plan = lake.stack.control(key)
    lake.stack.put_control(key, json.dumps({**plan, "routes": {"expire_partitions": "function", **plan["routes"]}}))
    for function, step in (("commit", "expire_partitions"), ("expire", "expire_snapshots")):
        shown = lake.stack.invoke(function, {"step": step, **greedy})
        assert "a request for ns.t cannot ask for expire_partitions" in shown[step]
    assert is_untouched(lake, files)
