"""Passes and plans of several tables, and the default catalog."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
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
