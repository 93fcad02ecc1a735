"""Every function, called as Lambda calls it with its event of events/: a pass, its environment, and wrong events."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from icekeeper.errors import PolicyError
from local_stack.template import load_template
from support.lambda_functions import sample
from support.maintained_table import MaintainedTable
from support.stack_template import local_environment
from support.table_functions import EVENTS, ROLES, RUN, SECRETS, STEPS, Functions

EVENTS_FOLDER = Path(__file__).parents[2] / "events"


def test_a_pass_by_the_functions_alone(aws_functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRICS_PER_TABLE", "passes")
    monkeypatch.setenv("METRICS", "all")
    orphan = aws_functions.table.plant("data/orphan.parquet")
    rows = aws_functions.table.ids()
    aws_functions.begin()
    answers = {name: aws_functions.send(name) for name in ("compact_small", "expire_snapshots", "list_orphans")}
    answers |= {name: aws_functions.send(name) for name in ("remove_orphans", "rewrite_manifests", "clean_staged")}
    idle = aws_functions.send("compact_small", operation="rewrite_position_deletes")
    told = aws_functions.send("report_table", failures={})
    assert {name: answer.result for name, answer in answers.items()} == {
        "compact_small": {"status": "succeeded", "summary": "compacted 5 files into 1 (across 1 bins)"},
        "expire_snapshots": {
            "status": "succeeded",
            "summary": "expired 5 snapshot(s), deleted 15 unreferenced file(s)",
        },
        "list_orphans": {"status": "succeeded", "summary": "would remove 1 orphan file(s)", "count": 1},
        "remove_orphans": {"status": "succeeded", "summary": "removed 1 orphan file(s)"},
        "rewrite_manifests": {"status": "succeeded", "summary": "rewrote 2 manifests into 1 (1 entries)"},
        "clean_staged": {"status": "succeeded", "summary": "no files of failed loads to clean"},
    }
    assert idle.result == {"status": "skipped", "summary": "no position delete files eligible for merging"}
    assert (told.result["table"], told.result["status"]) == ("ns.t", "succeeded")
    assert aws_functions.send("report_run", tables=[told.result]).result == {
        "run_id": RUN,
        "status": "succeeded",
        "summary": "1 succeeded",
        "tables": {"succeeded": 1},
    }
    assert aws_functions.send("lease_release").result == {"released": True}
    assert aws_functions.table.ids() == rows
    assert not Path(orphan).exists()

    for name, answer in answers.items():
        operation = "remove_orphans" if name == "list_orphans" else sample(name)["operation"]
        started, finished = answer.lines_of("operation_started"), answer.lines_of("operation_finished")
        assert [line["operation"] for line in (*started, *finished)] == [operation] * 2, name
        assert finished[0]["status"] == "succeeded"
        for line in answer.lines:
            assert (line["run_id"], line["correlation_id"]) == (RUN, RUN)
            assert (line["catalog"], line["table"]) == ("local", "ns.t")
            assert (line["service"], line["function_name"]) == ("icekeeper", f"icekeeper-{EVENTS[name]}")
    (progress,) = answers["compact_small"].lines_of("progress")
    assert (progress["work"], progress["done"], progress["total"]) == ("compact: file groups", 1, 1)
    assert progress["name"] == "icekeeper.activity"

    (record,) = aws_functions.deployment.state.history(aws_functions.identity)
    assert record.status == "succeeded"
    done = {name: value for name, value in record.metrics.items() if value}
    assert done["compact.files_merged"] == 5
    assert told.values("service", "catalog", "table") == done
    assert {(m.dimensions["catalog"], m.dimensions["table"]) for m in told.metrics if "table" in m.dimensions} == {
        ("local", "ns.t")
    }
    assert told.values("service") == {**done, "PassesSucceeded": 1, "OrphanRemovalsRefused": 0}


def test_every_function_takes_the_environment_that_sam_local_makes_of_the_template(
    table_of_five: MaintainedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the template leaves out (``AWS::NoValue``) is there for ``sam local invoke``, but empty: not set."""
    given_by_hand = json.loads((EVENTS_FOLDER / "environment.json").read_text())["Parameters"]
    environment = {
        name: value for name, value in local_environment(load_template()).items() if name not in given_by_hand
    }
    assert {name for name, value in environment.items() if not value} >= {
        "ICEKEEPER_BOUND_MAX_SNAPSHOTS_TO_KEEP",
        "ICEKEEPER_BOUND_MAINTENANCE_ENABLED",
        "ICEKEEPER_TABLE_FILTER",
    }
    nothing_named = dict.fromkeys(("ICEKEEPER_CATALOGS", "ICEKEEPER_TABLE_BUCKETS", "ICEKEEPER_POLICY_FILE"), "")
    functions = Functions(
        table_of_five, tmp_path, str(tmp_path / "state.db"), monkeypatch, capsys, **environment, **nothing_named
    )
    functions.begin()
    samples = {path.stem for path in EVENTS_FOLDER.glob("*.json")}
    assert samples - EVENTS.keys() == {"environment", "machine_forced", "machine_forced_wait", "machine_schedule"}
    assert set(EVENTS.values()) == set(ROLES)
    begun = {"detect_forced", "lease_acquire", "plan"}
    # The last two plan anew: each is a pass of its own.
    last = ["report_table", "report_run", "lease_release", "maintain_small", "maintain_small_table"]
    for name in (*sorted(EVENTS.keys() - begun - {*last}), *last):
        assert functions.send(name).error is None, name
    functions.end()


@pytest.mark.parametrize("empty", ["", "  "])
def test_a_variable_that_is_empty_is_not_set(functions: Functions, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ("ICEKEEPER_STATE", "ICEKEEPER_CONTROL_BUCKET", "ICEKEEPER_CATALOG_FILE")
    for name in local_environment(load_template()):
        if name not in needed and not name.startswith("POWERTOOLS_"):
            monkeypatch.setenv(name, empty)
    assert functions.send("detect").error is None
    functions.begin()
    assert functions.send("compact_small").error is None


def test_partitions_expire_where_a_retention_says_so(functions: Functions) -> None:
    functions.begin()
    assert functions.send("expire_partitions").result == {
        "status": "skipped",
        "summary": "no partition_retention_hours is set",
    }


def test_a_malformed_event_is_one_sentence_that_names_the_field(functions: Functions) -> None:
    def refused(event: Any) -> tuple[str, list[Mapping[str, Any]]]:
        told = functions.call(role, event)
        assert isinstance(told.error, PolicyError), name
        return str(told.error), told.lines

    for name, role in EVENTS.items():
        event = sample(name)
        run_id = event.pop("run_id")
        sentence, (line,) = refused(event)
        assert sentence == "malformed event: run_id: Field required"
        assert (line["level"], line["message"]) == ("ERROR", f"PolicyError: {sentence}")
        sentence, (line,) = refused({**sample(name), "surprise": 1})
        assert sentence == "malformed event: surprise: Extra inputs are not permitted"
        assert line["run_id"] == run_id
        assert refused([])[0].startswith("malformed event: the event: Input should be a valid dictionary")
        if "item" in event:
            del event["item"]["uuid"]
            assert refused({**event, "run_id": RUN})[0] == "malformed event: item.uuid: Field required"
        if role in STEPS.values():
            other = "compact" if name == "clean_staged" else "clean_staged"
            sentence, (line,) = refused({**sample(name), "operation": other})
            assert re.fullmatch(rf"malformed event: operation: this function does [a-z_, ]+, not {other}", sentence)
            assert (line["operation"], line["table"]) == (other, "sales.orders")


def test_a_warm_function_keeps_nothing_of_the_call_before(functions: Functions) -> None:
    functions.begin()
    first = functions.send("compact_small", run_id="run-1").lines[0]
    assert (first["table"], first["operation"], first["cold_start"]) == ("ns.t", "compact", False)
    assert functions.call("detect", {"run_id": "run-2"}).lines[0].keys().isdisjoint({"table", "catalog", "operation"})
    line = functions.send("detect", run_id="run-2").lines[0]
    assert (line["run_id"], line["correlation_id"]) == ("run-2", "run-2")
    assert line.keys().isdisjoint({"table", "catalog", "operation"})


def test_a_bug_is_one_line_that_says_which_run(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any, **more: Any) -> Any:
        raise RuntimeError("not thought of")

    functions.begin()
    monkeypatch.setattr(importlib.import_module("steps"), "run_step", broken)
    told = functions.send("compact_small")
    (line,) = told.lines
    assert (line["level"], line["message"], line["run_id"]) == ("ERROR", "icekeeper-compact_small broke", RUN)
    assert (line["table"], line["exception_name"]) == ("ns.t", "RuntimeError")
    assert line["exception"].endswith("RuntimeError: not thought of")


def test_the_first_call_says_that_it_is(functions: Functions) -> None:
    assert [functions.send("detect").lines[0]["cold_start"] for _ in range(2)] == [True, False]


def test_secrets_are_told_to_nobody(functions: Functions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "pyiceberg.yaml").open("a") as file:
        file.write(
            f"  closed:\n    type: rest\n    uri: http://user:{SECRETS[2]}@127.0.0.1:9/\n    token: {SECRETS[0]}\n"
            f"    s3.secret-access-key: {SECRETS[1]}\n    header.x-key: {SECRETS[3]}\n"
        )
    monkeypatch.setenv("PYICEBERG_CATALOG__CLOSED__TOKEN", SECRETS[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS[1])
    monkeypatch.setenv("POWERTOOLS_LOG_LEVEL", "DEBUG")
    told = [functions.send("detect", run_id="first"), functions.send("report_run", run_id="first", tables=[])]
    assert [
        line["message"]
        for line in told[0].lines
        if "nothing answers at http://user:***@127.0.0.1:9/" in line["message"]
    ]
    functions.begin()
    told += [functions.send(name) for name in EVENTS if name not in ("detect", "report_run", "lease_release")]
    told.append(functions.send("plan", item={**sample("plan")["item"], **functions.item, "catalog": "closed"}))
    assert told[-1].error is not None
    everything = [f"{answer.output} {answer.result} {answer.error!r}" for answer in told]
    everything += [path.read_text() for path in functions.control.rglob("*.json")]
    assert not [text for text in everything for secret in SECRETS if secret in text]
