"""Which totals functions write as metrics unless all are asked for: each name is billed by the hour in which it has
data."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from support.asked_metrics import asked_for
from support.table_functions import Functions

AFTER_A_PASS = {"PassesPartial": 1, "compact.files_merged": 5}


def _counted(told: Any, name: str) -> Any:
    """The value that a log line tells of a total that is no metric."""
    (value,) = (line[name] for line in map(json.loads, told.output.splitlines()) if name in line)
    return value


def test_a_pass_writes_only_what_alarms_and_dashboard_ask_for_and_tells_the_rest(functions: Functions) -> None:
    functions.begin()
    functions.send("compact_small")
    told = functions.send("report_table")
    written = told.values("service")
    assert written.keys() == {*AFTER_A_PASS, "compact.bytes_written"}
    assert {name: written[name] for name in AFTER_A_PASS} == AFTER_A_PASS
    (record,) = functions.deployment.state.history(functions.identity)
    told_beside = {name: value for name, value in record.metrics.items() if value and name not in written}
    assert told_beside["compact.files_written"] == 1
    assert {name: _counted(told, name) for name in told_beside} == told_beside


def test_a_scan_writes_no_zeros_but_the_one_that_ends_an_alarm(functions: Functions) -> None:
    told = functions.send("detect")
    written = told.values("service")
    assert written == {
        "TablesNotReadable": 0,
        "lake_tables": 1,
        "lake_tables_warned": 1,
        "lake_data_files": 5,
        "lake_snapshots": 5,
    }
    assert (_counted(told, "TablesScanned"), _counted(told, "TablesProposed")) == (1, 1)
    assert _counted(told, "lake_records") == 10


def test_what_is_wrong_is_written_at_once(functions: Functions) -> None:
    failed = [{"Input": '{"item": {"table": "ns.d"}}', "Status": "ABORTED"}]
    assert functions.send("report_run", tables=failed).values("service") == {"PassesFailed": 1}
    told = functions.send("report_run", run_id="another", tables=[])
    assert told.values("service").keys() <= {"RunsSucceeded"}


@pytest.mark.usefixtures("functions")
def test_only_what_the_template_asks_for_is_written() -> None:
    """Each name more costs 30 cents a month and stack."""
    totals = {name for name, dimensions in asked_for() if dimensions == {"service"}}
    assert totals == importlib.import_module("cloudwatch")._ASKED_FOR
