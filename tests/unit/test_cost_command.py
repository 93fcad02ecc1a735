"""``icekeeper cost``: its document, its words, and what it says where nothing was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.cli.app import main
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import HourOfUse, LakeStats, hour_of

TEN_HOURS_AGO = 9 * HOUR_MS


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqliteStateStore:
    monkeypatch.setenv("ICEKEEPER_STATE", str(tmp_path / "state.db"))
    return SqliteStateStore(tmp_path / "state.db")


def record(state: SqliteStateStore) -> None:
    now_ms = system_clock()
    state.usage.add(HourOfUse(hour_of(now_ms), {"glue_dpu_ms": 3_600_000}, frozenset({"TablesScanned"})))
    compacted = {"compactions": 1, "compacted_files": 1000, "compacted_bytes": 2**30}
    state.usage.add(HourOfUse(hour_of(now_ms - TEN_HOURS_AGO), compacted))


def test_the_document_is_that_of_the_contract(state: SqliteStateStore, capsys: pytest.CaptureFixture[str]) -> None:
    record(state)
    assert main(["cost", "--json", "--price", "glue_dpu_hour=1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["currency"] == "USD"
    assert told["prices_of"] == "2026-11"
    assert told["recorded_hours"] in (10, 11)  # an hour may end between recording and asking
    months = 730 / told["recorded_hours"]
    assert told["per_month"]["glue"] == pytest.approx(months, abs=1e-3)
    assert told["per_month"]["total"] == pytest.approx(sum(told["per_month"].values()) / 2, abs=1e-3)
    assert set(told["per_month"]) == {
        *("total", "lambda", "glue", "step_functions", "dynamodb", "metrics", "logs", "requests")
    }
    assert told["aws_own"]["s3_tables"] == pytest.approx(months * (0.002 + 0.005), abs=1e-3)
    assert set(told["aws_own"]) == {"s3_tables", "glue_optimizers"}
    assert [line["what"] for line in told["lines"]] == ["DPU-hours of jobs", "custom metrics"]


def test_people_read_the_total_first(state: SqliteStateStore, capsys: pytest.CaptureFixture[str]) -> None:
    record(state)
    assert main(["cost"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert " USD a month, by 1" in first
    assert first.endswith("recorded hour(s), prices of us-east-1, 2026-11")
    assert any(line.startswith("  DPU-hours of jobs") for line in rest)
    assert any(line.startswith("  S3 Tables' own compaction") for line in rest)


def test_nothing_recorded_is_told_in_a_sentence(state: SqliteStateStore, capsys: pytest.CaptureFixture[str]) -> None:
    state.usage.add(HourOfUse("2020-01-01T00", {"lambda_calls": 1}))
    assert main(["cost", "--days", "2"]) == 1
    assert "nothing that AWS bills was recorded in the last 2 days: set ICEKEEPER_STATE" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_price_without_a_number_is_a_wrong_call(state: SqliteStateStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--price", "glue_dpu_hour"]) == 2
    assert "--price glue_dpu_hour: write NAME=USD" in capsys.readouterr().err


def test_what_a_table_costs_is_told_for_catalogs(
    state: SqliteStateStore,
    local_catalog: SqlCatalog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    warehouse = local_catalog.properties["warehouse"]
    for key, value in {"type": "sql", "uri": local_catalog.properties["uri"], "warehouse": warehouse}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key.upper()}", value)
    record(state)
    assert main(["cost", "--catalog", "lake"]) == 1
    assert "no table of catalog lake was seen by this deployment" in " ".join(capsys.readouterr().err.split())
    for name in ("a", "b"):
        identity = TableIdentity("lake", warehouse, TableName(("ns",), name), f"uuid-{name}", f"{warehouse}/{name}")
        state.lake_stats.record(LakeStats(identity=identity, observed_ms=1, snapshot_id=None, counters={}))
    assert main(["cost", "--catalog", "lake", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tables"] == {"lake": 2}
    assert told["per_table"] == pytest.approx(told["per_month"]["total"] / 2, abs=1e-3)
    assert main(["cost", "--catalog", "lake"]) == 0
    assert "for each of 2 table(s) of lake" in capsys.readouterr().out
