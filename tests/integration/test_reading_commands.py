"""What ``icekeeper detect``, ``verify`` and ``policy show`` tell of a local catalog in JSON."""

from __future__ import annotations

import pytest

from icekeeper.policy import POLICY_KEYS
from support.command import EVERYTHING_IS_OLD, PASS, Command, arguments_of, local_path

# -- detect


def test_detection_in_json(command: Command) -> None:
    command.table("ns.idle", appends=1)
    command.table("ns.busy", appends=7)
    answer = command("detect", "--json", "--unsafe", *EVERYTHING_IS_OLD[1:])
    assert answer.code == 0
    document = answer.json
    assert list(document) == ["catalog", "scanned", "proposals", "skipped", "next_run", "status"]
    assert (document["catalog"], document["scanned"]) == ("C", 2)
    assert [list(found) for found in document["proposals"]] == [["table", "reasons", "priority"]]
    proposal = document["proposals"][0]
    assert proposal["table"] == "ns.busy"
    assert proposal["reasons"][0] == "7 snapshots exceed max_snapshots_to_keep 1"
    assert 0 < proposal["priority"] < 1
    assert document["skipped"] == [{"table": "ns.idle", "reason": "no sign of work"}]
    assert answer.err.startswith("2 tables scanned, 1 needs work\n")


def test_tables_beyond_the_limit_of_a_scan_need_work_too(command: Command) -> None:
    for name in ("ns.a", "ns.b", "ns.c"):
        command.table(name, appends=7)
    answer = command("detect", "--json", *arguments_of({"max_jobs_per_detection": "1"}))
    assert (len(answer.json["proposals"]), answer.json["beyond_limit"]) == (1, 2)
    assert answer.err.startswith("3 tables scanned, 3 need work, 2 of them beyond max_jobs_per_detection\n")
    once = command("run", "--once", "--engine", "local", *arguments_of({"max_jobs_per_detection": "1"}))
    assert "3 tables looked at, 3 need maintenance, 2 of them beyond max_jobs_per_detection\n" in once.out


def test_detection_goes_quiet_after_a_pass(command: Command) -> None:
    command.table()
    settings = EVERYTHING_IS_OLD
    assert len(command("detect", "--json", *settings).json["proposals"]) == 1
    assert command(*PASS).code == 0
    assert command("detect", "--json", *settings).json["proposals"] == []


def test_detection_takes_filters(command: Command) -> None:
    command.table("ns.one")
    command.table("ns.two")
    answer = command("detect", "--json", *arguments_of({"table_filter": "t*,x?"}))
    assert answer.json["scanned"] == 1
    assert [found["table"] for found in answer.json["proposals"]] == ["ns.two"]


def test_detection_goes_on_after_a_damaged_table(command: Command) -> None:
    command.table("ns.good")
    bad = local_path(command.table("ns.bad").metadata_location)
    bad.write_bytes(bad.read_bytes()[:500])
    answer = command("detect", "--json")
    assert answer.code == 1
    assert [found["table"] for found in answer.json["proposals"]] == ["ns.good"]
    assert [skip["table"] for skip in answer.json["skipped"]] == ["ns.bad"]
    assert "cannot be parsed" in answer.json["skipped"][0]["reason"]
    assert answer.err.splitlines()[-1] == "error: 1 table could not be assessed: ns.bad; the lines above say why"


# -- verify


def test_verification_in_json(command: Command) -> None:
    command.table(appends=3)
    before = command.contents()
    answer = command("verify", "ns.t", "--json")
    assert answer.code == 0
    assert answer.json == {
        "table": "ns.t",
        "ok": True,
        "problems": [],
        "checked": {"snapshots": 3, "manifests": 3, "files": 3},
        "catalog": "C",
        "status": "succeeded",
    }
    assert answer.err == "ns.t: ok (3 snapshots, 3 manifests, 3 files)\n"
    assert command("verify", "ns.t").out == answer.err
    assert command.contents() == before


def test_damage_in_json(command: Command) -> None:
    table = command.table(appends=3)
    path = next(iter(table.scan().plan_files())).file.file_path
    local_path(path).unlink()
    answer = command("verify", "ns.t", "--json")
    assert answer.code == 1
    problem = {"kind": "missing_file", "path": path, "detail": "it is referenced but does not exist"}
    assert answer.json["problems"] == [problem]
    assert answer.json["ok"] is False
    assert answer.err.splitlines() == [
        "ns.t: damaged (3 snapshots, 3 manifests, 3 files)",
        f"  missing_file {path}: it is referenced but does not exist",
        "what to do about missing_file: restore the object; else roll back to a snapshot without it",
        "error: ns.t is damaged: 1 problem found; the lines above say what to do",
    ]


# -- policy


def test_a_policy_in_json(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEKEEPER_MIN_INPUT_FILES", "7")
    command.table(properties={"write.target-file-size-bytes": "1048576", "icekeeper.max_snapshots_to_keep": "9"})
    answer = command("policy", "show", "ns.t", "--json", *arguments_of({"max_commit_retries": "2"}))
    assert answer.code == 0
    assert list(answer.json) == ["table", "catalog", "status", "policy", "ignored"]
    policy = answer.json["policy"]
    assert tuple(policy) == POLICY_KEYS
    assert {key: policy[key] for key in policy if policy[key]["source"] != "default"} == {
        "target_file_size_mb": {"value": 1, "source": "table property write.target-file-size-bytes"},
        "min_input_files": {"value": 7, "source": "deployment ICEKEEPER_MIN_INPUT_FILES"},
        "max_snapshots_to_keep": {"value": 9, "source": "table property icekeeper.max_snapshots_to_keep"},
        "max_commit_retries": {"value": 2, "source": "--set"},
    }
    text = command("policy", "show", "ns.t")
    lines = [line.split() for line in text.out.splitlines()]
    assert lines[0] == ["key", "value", "source", "meaning"]
    assert [line[0] for line in lines[1:]] == list(POLICY_KEYS)
    assert next(line for line in lines if line[0] == "min_input_files")[1:4] == [
        *("7", "deployment", "ICEKEEPER_MIN_INPUT_FILES"),
    ]
