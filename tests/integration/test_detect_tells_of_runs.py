"""``icekeeper detect`` says what the deployment would do: requests, limits, filters; it records health."""

from __future__ import annotations

import os

import pytest

from icekeeper.machine.clock import system_clock
from icekeeper.state.leases import take_slot
from icekeeper.state.open import open_state
from support.command import Command


@pytest.fixture
def two_tables(command: Command) -> Command:
    command.table("ns.busy", appends=7)
    command.table("ns.idle", appends=1)
    return command


def test_health_of_every_table_is_recorded(two_tables: Command) -> None:
    assert two_tables("detect", "--json").code == 0
    stats = open_state(os.environ).lake_stats.of_catalog("C", two_tables.warehouse.as_uri())
    recorded = {one.identity.table.name: one.counters["lake_snapshots"] for one in stats}
    assert recorded == {"busy": 7, "idle": 1}


def test_a_requested_table_comes_first_with_its_settings(two_tables: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one slot the run would begin with it, and the needier one waits; the filter leaves out neither."""
    monkeypatch.setenv("ICEKEEPER_MAX_CONCURRENT_JOBS", "1")
    assert two_tables("request", "ns.idle", "--operations", "rewrite_manifests").code == 0
    answer = two_tables("detect", "--json", "--set", "table_filter=busy")
    first, second = answer.json["proposals"]
    assert (first["table"], first["reasons"][0]) == ("ns.idle", "requested by a person")
    assert (first["requested"], first["settings"]) == (True, {"operations": "rewrite_manifests"})
    assert (second["table"], "requested" in second) == ("ns.busy", False)
    next_run = answer.json["next_run"]
    assert (next_run["begins"], next_run["waits"], next_run["at_work"]) == (["ns.idle"], ["ns.busy"], 0)
    assert next_run["limits"]["max_concurrent_jobs"] == {
        "source": "deployment ICEKEEPER_MAX_CONCURRENT_JOBS",
        "value": 1,
    }
    assert next_run["filters"] == {"table_filter": {"source": "--set", "value": ["busy"]}}
    assert answer.err.splitlines()[-2:] == [
        "a scheduled run would begin with ns.idle; 1 more waits for one to end: max_concurrent_jobs 1 "
        "(deployment ICEKEEPER_MAX_CONCURRENT_JOBS)",
        "other tables are left out by table_filter busy (--set)",
    ]


def test_tables_at_work_take_the_room(two_tables: Command) -> None:
    for number in range(4):
        take_slot(open_state(os.environ).leases, f"run {number}", 4, now_ms=system_clock(), ttl_ms=3_600_000)
    answer = two_tables("detect", "--json")
    assert (answer.json["next_run"]["begins"], answer.json["next_run"]["at_work"]) == ([], 4)
    assert answer.err.splitlines()[-2:] == [
        "scheduled runs maintain 4 tables now, of max_concurrent_jobs 4 (default)",
        "a scheduled run would begin with none now: 1 table would wait for one to end",
    ]
