"""Passes and plans of several tables, and the default catalog."""

from __future__ import annotations

import json
import sys

import pyarrow as pa
import pytest
import typer
from pyiceberg.catalog.sql import SqlCatalog

from support.command import Command, local_path, one_sentence

LOCAL = ("--engine", "local", "--operations", "compact")


def files(command: Command, *names: str) -> list[int]:
    return [len(command.catalog.load_table(name).inspect.files()) for name in names]


@pytest.fixture
def fleet(command: Command) -> Command:
    for name in ("ns.a", "ns.b", "ns.other"):
        command.table(name, appends=6)
    return command


def test_all_tables_or_tables_of_a_pattern_are_maintained_in_order_of_name(fleet: Command) -> None:
    answer = fleet("maintain", "ns.?", *LOCAL)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.splitlines() == [
        "ns.a  succeeded  compacted 6 files into 1",
        "ns.b  succeeded  compacted 6 files into 1",
        "2 tables, 2 succeeded, 0 did not",
    ]
    assert files(fleet, "ns.a", "ns.b", "ns.other") == [1, 1, 6]
    answer = fleet("maintain", "--all", *LOCAL, "--json")
    assert answer.code == 0
    assert [(table["table"], table["operations"][0]["status"]) for table in answer.json["tables"]] == [
        ("ns.a", "skipped"),
        ("ns.b", "skipped"),
        ("ns.other", "succeeded"),
    ]
    assert answer.json["status"] == "succeeded"


def test_a_table_that_fails_does_not_stop_the_others(fleet: Command) -> None:
    local_path(fleet.catalog.load_table("ns.a").metadata_location).unlink()
    answer = fleet("maintain", "--all", *LOCAL, "--json")
    assert answer.code == 1
    broken, *others = answer.json["tables"]
    assert (answer.json["status"], broken["error"]["type"]) == ("partial", "MetadataUnreadable")
    assert [table["status"] for table in others] == ["succeeded", "succeeded"]
    assert "1 succeeded" not in answer.out
    assert one_sentence(answer.err.splitlines(keepends=True)[-1]).startswith("ns.a: metadata file ")
    assert files(fleet, "ns.b", "ns.other") == [1, 1]


def test_the_exit_code_of_a_dry_run_shows_whether_work_is_due(fleet: Command) -> None:
    due = ("maintain", "--all", *LOCAL, "--dry-run", "--exit-code")
    assert fleet(*due).code == 3
    assert files(fleet, "ns.a") == [6]
    assert fleet("maintain", "--all", *LOCAL).code == 0
    assert fleet(*due).code == 0


def test_plans_of_several_tables_are_saved_and_applied(fleet: Command) -> None:
    plan = fleet.folder / "plan.json"
    answer = fleet("plan", "ns.?", *LOCAL, "--save", str(plan))
    assert (answer.code, answer.out.splitlines()[-1]) == (
        0,
        f"the plans of 2 tables are saved; icekeeper apply {plan} does them within 24 hours",
    )
    assert [table["table"] for table in json.loads(plan.read_text())["tables"]] == ["ns.a", "ns.b"]
    assert fleet("apply", str(plan), "--engine", "local", catalog=None).code == 0
    assert files(fleet, "ns.a", "ns.b", "ns.other") == [1, 1, 6]


def test_a_call_must_name_a_table_a_pattern_or_all(fleet: Command) -> None:
    for arguments, message in (
        ((), "name a table, a pattern such as 'shop.*', or --all"),
        (("ns.a", "--all"), "name a table, a pattern such as 'shop.*', or --all"),
        (("shop.*",), "no table of catalog C matches 'shop.*'"),
    ):
        for verb in ("maintain", "plan"):
            answer = fleet(verb, *arguments)
            assert (answer.code, one_sentence(answer.err)) == (2, message)
    assert files(fleet, "ns.a") == [6]


def test_reading_commands_answer_for_each_table(fleet: Command) -> None:
    """A table that fails does not stop the others; only a call that names one table prints its document alone."""
    local_path(fleet.catalog.load_table("ns.b").metadata_location).unlink()
    for call in (("verify",), ("health",), ("policy", "show"), ("pause", "--until", "1h"), ("resume",)):
        answer = fleet(*call, "ns.?", "ns.other", "ns.a", "--json")
        tables = answer.json["tables"]
        assert (answer.code, answer.json["status"]) == (1, "partial"), call
        assert [table["table"] for table in tables] == ["ns.a", "ns.b", "ns.other"]
        assert [table["status"] for table in tables] == ["succeeded", "failed", "succeeded"]
        assert tables[1]["error"]["type"] == "MetadataUnreadable"
        assert fleet(*call, "ns.a", "--json").json.keys() == tables[0].keys(), call
    answer = fleet("verify", "ns.[ao]*", "ns.a")
    assert (answer.code, one_sentence(answer.err)) == (2, "no table of catalog C matches 'ns.[ao]*'")
    assert [line.split(":")[0] for line in fleet("verify", "ns.other", "ns.a").out.splitlines()] == ["ns.a", "ns.other"]


def test_detection_of_patterns_and_of_all_tables(fleet: Command) -> None:
    fleet.table("ns.idle", appends=1)
    assert fleet("detect", "--json").json["scanned"] == 4
    chosen = fleet("detect", "ns.a", "ns.i*", "--json").json
    assert ([found["table"] for found in chosen["proposals"]], chosen["scanned"]) == (["ns.a"], 2)
    assert "next_run" not in chosen
    assert [line.split()[0] for line in fleet("detect", "ns.i*", "ns.b").out.splitlines()] == ["2", "ns.b"]
    assert [line.split()[0] for line in fleet("detect", "ns.i*", "ns.b", "--all").out.splitlines()] == [
        *("2", "ns.b", "ns.idle")
    ]
    answer = fleet("detect", "shop.*")
    assert (answer.code, one_sentence(answer.err)) == (2, "no table of catalog C matches 'shop.*'")


def test_settings_of_a_pattern_are_changed_after_a_confirmation(
    fleet: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named tables need none."""

    def stored() -> list[str | None]:
        names = ("ns.a", "ns.b", "ns.other")
        return [fleet.catalog.load_table(name).properties.get("icekeeper.min_input_files") for name in names]

    answer = fleet("policy", "set", "ns.?", "min_input_files=7")
    assert (answer.code, one_sentence(answer.err)) == (
        2,
        "2 tables would be changed: ns.a, ns.b; there is no terminal to ask on, confirm with --yes",
    )
    assert stored() == [None, None, None]
    assert fleet("policy", "set", "ns.?", "min_input_files=7", "--yes").code == 0
    assert stored() == ["7", "7", None]
    answer = fleet("policy", "set", "ns.a", "ns.other", "min_input_files=8", "--json")
    assert [table["table"] for table in answer.json["tables"]] == ["ns.a", "ns.other"]
    assert stored() == ["8", "7", "8"]
    wrong = fleet("policy", "set", "ns.*", "min_input_files=few", "--yes")
    assert (wrong.code, len(wrong.err.splitlines()), stored()) == (2, 1, ["8", "7", "8"])

    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    for given, code, expected in (("n\n", 2, ["8", "7", "8"]), ("y\n", 0, [None, None, "8"])):
        monkeypatch.setattr(typer, "confirm", lambda text, err, given=given: given == "y\n")
        answer = fleet("policy", "unset", "ns.?", "min_input_files")
        assert (answer.code, stored()) == (code, expected)
        assert answer.err.splitlines()[:2] == ["  ns.a", "  ns.b"]


def test_a_call_without_catalog_uses_the_default_catalog(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is that of PyIceberg's configuration, in lower case."""
    rows = pa.table({"id": [1]})
    for name in ("c", "second"):
        catalog = SqlCatalog(name, **command.properties)
        catalog.create_namespace("ns")
        catalog.create_table("ns.t", rows.schema, location=f"{command.properties['warehouse']}/{name}")
        catalog.close()
    answer = command("verify", "ns.t", "--json", catalog=None)
    assert (answer.code, answer.json["catalog"]) == (0, "c")
    for key, value in command.properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__SECOND__{key.upper()}", value)
    monkeypatch.setenv("ICEKEEPER_CATALOG", "second")
    assert command("verify", "ns.t", "--json", catalog=None).json["catalog"] == "second"
    assert command("verify", "ns.t", "-c", "c", "--json", catalog=None).json["catalog"] == "c"
    assert command("run", "--once", "--engine", "local", catalog=None).code == 0
    page = command("report", "--output", "-", catalog=None)
    assert (page.code, page.err) == (0, "1 table, 0 in trouble, 0 with work due\n")
    assert page.out.startswith("<!doctype html>")
    assert "ns.t" in page.out
