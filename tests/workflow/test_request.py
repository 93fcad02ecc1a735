"""``icekeeper request`` against a whole stack: the state machine of template.yaml, real functions, DynamoDB."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.cli import main
from icekeeper.errors import PolicyError
from icekeeper.pipeline import request_pass
from icekeeper.state.store import MaintenanceRequest
from local_stack.stack import LocalStack
from support.command import Answer, one_sentence
from support.local_lake import LocalLake
from support.scripted_pipeline import ScriptedPipeline


@dataclass(frozen=True, slots=True)
class Laptop:
    """The command as a person calls it who knows the stack's outputs."""

    lake: LocalLake
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Answer:
        self.capsys.readouterr()
        code = main(["request", "ns.t", "--catalog", "local", *arguments])
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


def test_a_request_starts_a_run_and_tells_its_result(laptop: Laptop) -> None:
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
    assert laptop.pending == ()  # the pass has claimed it: no scheduled run serves it again


def test_without_a_state_machine_the_next_scheduled_run_takes_it_first(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ICEKEEPER_STATE_MACHINE")
    laptop.lake.table.create_beside("ns.a", str(laptop.lake.table.folder.parent / "a"))
    laptop.lake.table.fill(2)
    for _ in range(2):
        laptop.lake.pyiceberg.load_table("ns.a").append(laptop.lake.table.new_rows(1))
    answer = laptop("--operations", "compact")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("ns.t: requested: nothing is scheduled: ")
    execution = laptop.lake.stack.run({})
    proposals = laptop.lake.stack.control(f"runs/{execution.name}/proposals.json")
    assert [(item["table"], item["forced"]) for item in proposals] == [("ns.t", True), ("ns.a", False)]
    assert laptop.pending == ()
    assert laptop.lake.journal()[0].summary == "compact: compacted 2 files into 1 (across 1 bins)"


def test_a_table_under_maintenance_is_waited_for_here_or_by_the_run_alone(
    laptop: Laptop, script: ScriptedPipeline
) -> None:
    laptop.lake.stack.stand_in(script.functions, script.jobs)
    script.leases["ns.t"] = "another run"
    at_once = laptop("--operations", "compact", "--no-wait", "--json")
    assert (at_once.code, at_once.json["status"], at_once.json["pass"]) == (0, "running", None)
    script.happening["lease"] = lambda event: script.leases.pop("ns.t", None)
    last = laptop("--operations", "compact", "--json")
    assert (last.code, last.json["status"], last.json["summary"]) == (0, "succeeded", "all well")
    assert laptop.lake.stack.wait(at_once.json["execution"]).status == "SUCCEEDED"
    wanted = {"table": "ns.t", "catalog": "local", "operations": "compact", "settings": {}, "wait": True}
    assert [call.event["input"] for call in script.calls if call.step == "detect"] == [wanted] * 2


def test_a_run_that_never_came_to_the_pass_says_why_and_leaves_the_request(laptop: Laptop) -> None:
    def disagree(event: Any) -> None:
        raise PolicyError("this deployment has no catalog 'local'")

    laptop.lake.before("detect", disagree)
    answer = laptop("--operations", "compact", "--json")
    assert (answer.code, answer.json["status"], answer.json["pass"]) == (1, "failed", None)
    assert answer.json["summary"] == "PolicyError: this deployment has no catalog 'local'"
    assert answer.err.splitlines()[-1] == f"error: ns.t: failed: {answer.json['summary']}"
    laptop.lake.stack.stand_in({}, {})
    laptop.lake.stack.step_by_step()
    laptop.lake.before("plan", lambda event: 1 // 0)
    answer = laptop("--operations", "compact", "--json")
    assert (answer.code, answer.json["status"], answer.json["pass"]) == (1, "failed", None)
    assert answer.json["summary"] == "plan: ZeroDivisionError: integer division or modulo by zero"
    assert len(laptop.pending) == 1


def test_a_request_for_more_than_the_policy_is_answered_at_once_and_dropped(laptop: Laptop) -> None:
    """(rule 267): here nothing is known of the deployment's policy file and of what it admits."""
    laptop.lake.table.fill(2)
    answer = laptop("--operations", "expire_partitions", "--json")
    assert (answer.code, answer.json["status"], answer.json["pass"]) == (1, "failed", None)
    assert answer.json["summary"] == (
        "RequestRefused: a request for ns.t cannot ask for expire_partitions, which the policy does not have: it does "
        "no more than the table's policy; to admit that, the operator sets RequestsMay (ICEKEEPER_REQUESTS_MAY) to "
        "expire_partitions"
    )
    assert laptop.pending == ()


def test_an_interrupted_wait_leaves_the_run_alone(
    laptop: Laptop, script: ScriptedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    laptop.lake.stack.stand_in(script.functions, script.jobs)

    def interrupt(_: object, execution: str, *__: object, **___: object) -> None:
        laptop.lake.stack.wait(execution)  # both print here, so one after the other
        raise KeyboardInterrupt

    monkeypatch.setattr("icekeeper.pipeline.request_pass.follow_pass", interrupt)
    answer = laptop("--operations", "compact", "--json")
    assert answer.code == 130
    assert answer.json["error"]["type"] == "Interrupted"
    execution = answer.json["error"]["message"].split()[-1]
    assert answer.json["error"]["message"] == f"interrupted; the run goes on: {execution}"
    assert laptop.lake.stack.wait(execution).status == "SUCCEEDED"


def test_a_run_that_cannot_be_started_leaves_the_request(laptop: Laptop) -> None:
    gone = laptop.lake.stack.state_machine + "-gone"
    answer = laptop("--state-machine", gone)
    assert (answer.code, one_sentence(answer.err)) == (
        2,
        f"there is no state machine {gone}: take the stack's output StateMachineArn; "
        "the request stays filed, and the next scheduled run takes it first",
    )
    assert len(laptop.pending) == 1
