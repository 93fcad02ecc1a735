"""What functions tell CloudWatch: scans, the lake, failed passes, and all that alarms and dashboard ask for."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from support.asked_metrics import asked_for
from support.lambda_functions import FUNCTIONS
from support.table_functions import RUN, Functions


@pytest.mark.parametrize("wanted", ["none", "passes", "all"])
def test_a_scan_is_counted_and_the_lake_is_told(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setenv("METRICS_PER_TABLE", wanted)
    monkeypatch.setenv("METRICS", "all")
    other = functions.table.create_beside("ns.other", str(functions.table.folder.parent / "other"))
    other.append(functions.table.new_rows(1, 2))
    told = functions.send("detect")
    looks = {str(stats.identity.table): stats for stats in functions.remembered()}
    assert looks["ns.t"].counters["lake_data_files"] == 5
    assert (list(looks["ns.t"].warnings), list(looks["ns.other"].warnings)) == (["small_files"], [])
    totals = told.values("service")
    assert {name: value for name, value in totals.items() if not name.startswith("lake_")} == {
        "TablesScanned": 2,
        "TablesProposed": 1,
        "TablesNotReached": 0,
        "TablesNotReadable": 0,
        "CatalogsEmpty": 0,
    }
    assert (totals["lake_tables"], totals["lake_tables_warned"]) == (2, 1)
    assert (totals["lake_data_files"], totals["lake_snapshots"], totals["lake_records"]) == (6, 6, 12)
    assert totals.keys() > looks["ns.t"].counters.keys()
    by_table = {
        (metric.dimensions["table"], metric.name): metric.value for metric in told.metrics if len(metric.dimensions) > 1
    }
    expected = {(table, name): value for table, stats in looks.items() for name, value in stats.counters.items()}
    expected |= {("ns.t", "lake_warnings"): 1, ("ns.other", "lake_warnings"): 0}
    assert by_table == (expected if wanted == "all" else {})
    functions.begin("another-run")
    functions.send("compact_small", run_id="another-run")
    told = functions.send("report_table", run_id="another-run")
    assert bool(told.values("service", "catalog", "table")) == (wanted != "none")
    assert told.values("service")["compact.files_merged"] == 5


def test_a_scan_says_when_it_begins_and_ends_and_once_what_is_wrong_with_a_table(functions: Functions) -> None:
    first, second = functions.send("detect"), functions.send("detect", run_id="run-2")
    (started,), (finished,) = first.lines_of("scan_started"), first.lines_of("scan_finished")
    assert (started["catalogs"], started["run_id"]) == (1, RUN)
    assert {name: finished[name] for name in ("listed", "tables", "proposals", "skipped", "errors")} == {
        "listed": 1,
        "tables": 1,
        "proposals": 1,
        "skipped": 0,
        "errors": 0,
    }
    (warning,) = first.lines_of("lake_warning")
    assert (warning["level"], warning["table"], warning["catalog"], warning["run_id"]) == (
        *("WARNING", "ns.t", "local", RUN),
    )
    assert warning["warning"] == "small_files"
    assert second.lines_of("lake_warning") == []


def test_a_lake_that_cannot_be_read_costs_no_scan(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> Any:
        raise KeyError("counters")  # an entry that is not as this version writes it

    monkeypatch.setattr(importlib.import_module("cloudwatch"), "lake_totals", fail)
    told = functions.send("detect")
    assert told.result["proposals"]["count"] == 1
    (line,) = (line for line in told.lines if line["level"] == "WARNING" and "event" not in line)
    assert line["message"] == "how the lake looks cannot be told: KeyError 'counters'"


def test_a_pass_that_could_not_tell_that_it_failed_is_counted_by_the_run(functions: Functions) -> None:
    """The run is partial, which is green: no alarm would ever have heard of it."""
    results = [
        {"table": "ns.a", "status": "succeeded", "summary": ""},
        {"table": "ns.b", "status": "failed", "summary": "compact: StorageError: told by its own report"},
        {"table": "ns.c", "status": "failed", "summary": "the pass could not be reported"},
        {"Input": '{"item": {"table": "ns.d"}}', "Status": "ABORTED"},
    ]
    told = functions.send("report_run", tables=results)
    assert (told.result["status"], told.result["untold"]) == ("partial", 2)
    assert told.values("service") == {"PassesFailed": 2}
    assert "summary: the pass could not be reported" in (FUNCTIONS / "maintain_tables.asl.yaml").read_text()


def test_alarms_and_dashboard_ask_for_what_is_told(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRICS_PER_TABLE", "passes")
    monkeypatch.setenv("METRICS", "all")
    functions.table.plant("data/orphan.parquet")
    answers = [functions.send("detect", run_id="first"), functions.send("report_run", run_id="first", tables=[])]
    well = {"table": "ns.t", "status": "succeeded", "summary": ""}
    answers.append(functions.send("report_run", run_id="first", tables=[well]))
    functions.begin()
    answers += [functions.send(name) for name in ("compact_small", "expire_snapshots", "remove_orphans")]
    answers += [functions.send("report_table"), functions.send("report_table", plan=None, run_id="failed")]
    answers.append(functions.send("rewrite_manifests"))
    answers.append(functions.send("compact_small", operation="rewrite_position_deletes"))
    answers.append(functions.send("report_table", failures={}))
    told = {(m.name, frozenset(m.dimensions)) for answer in answers for m in answer.metrics}
    assert [metric for metric in asked_for() if metric not in told] == []
