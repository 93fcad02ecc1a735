"""What a month costs, from recorded usage and prices."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.cli.app import main
from icekeeper.errors import PolicyError
from icekeeper.machine.clock import HOUR_MS, system_clock
from icekeeper.machine.metering import Amount, Meter
from icekeeper.model import TableName
from icekeeper.report.costs import MONTH_HOURS, US_EAST_1, Bill, Prices, month_of, priced_anew
from icekeeper.state.dynamodb.table import count_consumed
from icekeeper.state.identity import TableIdentity
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import HourOfUse, LakeStats, hour_of, hours_between
from icekeeper.text import size_text, usd_text
from support.command import require_documented

# What a month costs: each amount times its price, at the pace of the hours that were recorded.

NO_PRICES = ("month", "region", "glue_optimizer_mb_per_dpu_second")
FREE = priced_anew(US_EAST_1, {name: "0" for name in US_EAST_1.__slots__ if name not in NO_PRICES})
A_MONTH = {
    # amount of a month, its price alone, what that makes: by hand, from AWS's pricing pages.
    Amount.LAMBDA_MB_MS: (1024 * 1000 * 400_000, "lambda_gb_second", 400_000 * 0.0000166667),
    Amount.LAMBDA_ARM_MB_MS: (2048 * 500 * 10, "lambda_arm_gb_second", 10 * 0.0000133334),
    Amount.LAMBDA_CALLS: (3_000_000, "lambda_million_calls", 0.60),
    Amount.GLUE_DPU_MS: (6 * 15 * 60_000, "glue_dpu_hour", 0.66),  # AWS Glue pricing, its own example
    Amount.GLUE_FLEX_DPU_MS: (10 * 3_600_000, "glue_flex_dpu_hour", 2.90),
    Amount.STATE_TRANSITIONS: (500_000, "step_functions_1000_transitions", 12.50),
    Amount.STATE_READ_UNITS: (8_000_000 * 1000, "dynamodb_million_reads", 1.00),
    Amount.STATE_WRITE_UNITS: (2_000_000 * 1000, "dynamodb_million_writes", 1.25),
    Amount.TABLE_METRIC_HOURS: (73 * MONTH_HOURS, "cloudwatch_metric_month", 21.90),
    Amount.LOG_BYTES: (3 * 2**30, "cloudwatch_gb_logged", 1.50),
    Amount.STORE_GETS: (1_000_000, "s3_1000_gets", 0.40),
    Amount.STORE_PUTS: (100_000, "s3_1000_puts", 0.50),
}


def a_month(amounts: dict[Amount, int], prices: Prices = US_EAST_1) -> Bill:
    hour = HourOfUse("2026-11-22T15", {amount.value: number for amount, number in amounts.items()})
    return month_of([hour], MONTH_HOURS, prices)


@pytest.mark.parametrize("amount", A_MONTH)
def test_each_amount_has_its_price_and_no_other(amount: Amount) -> None:
    used, price, usd = A_MONTH[amount]
    only = priced_anew(FREE, {price: str(getattr(US_EAST_1, price))})
    assert a_month({amount: used}, only).total == pytest.approx(usd, rel=1e-9)
    assert a_month({amount: used}).total == pytest.approx(usd, rel=1e-9)
    assert sum(a_month({amount: used}).by_service.values()) == pytest.approx(usd, rel=1e-9)


def test_every_amount_that_is_billed_is_tested() -> None:
    compacted = {Amount.COMPACTIONS, Amount.COMPACTED_FILES, Amount.COMPACTED_BYTES}
    assert set(A_MONTH) == set(Amount) - compacted


def test_metrics_are_billed_by_the_hours_in_which_they_are_written() -> None:
    """CloudWatch prorates by the hour: 100 names in 73 of a month's 730 hours are 10 metrics."""
    names = frozenset(f"m{number}" for number in range(100))
    hours = [HourOfUse(f"hour {number}", {}, names) for number in range(73)]
    assert month_of(hours, MONTH_HOURS, US_EAST_1).by_service["metrics"] == pytest.approx(3.00)


def test_a_month_goes_on_as_the_recorded_hours_did() -> None:
    hours = [HourOfUse("2026-11-22T15", {"state_transitions": 1000}), HourOfUse("2026-11-22T20", {"lambda_calls": 5})]
    bill = month_of(hours, 10, US_EAST_1)
    assert bill.by_service["step_functions"] == pytest.approx(73 * 0.025)
    assert next(amount for _, what, amount, _ in bill.lines if what == "calls of functions") == pytest.approx(365)


def test_aws_asks_for_the_same_files() -> None:
    """Amazon S3 pricing, its own example: 30,000 files of 5 MB cost 0.06 and 0.73 USD."""
    files = {Amount.COMPACTED_FILES: 30_000, Amount.COMPACTED_BYTES: 30_000 * 5 * 2**20, Amount.COMPACTIONS: 30}
    bill = a_month(files)
    assert bill.aws_own["s3_tables"] == pytest.approx(0.06 + 0.7324, abs=1e-4)
    assert bill.aws_own["glue_optimizers"] == pytest.approx(30_000 * 5 * 2**20 / 55e6 / 3600 * 0.44)
    assert bill.compacted_files == 30_000
    assert bill.compacted_gb == pytest.approx(146.48, abs=0.01)
    assert bill.total == 0


def test_a_run_of_an_optimizer_is_billed_for_a_minute_at_least() -> None:
    assert a_month({Amount.COMPACTIONS: 600, Amount.COMPACTED_BYTES: 1}).aws_own["glue_optimizers"] == pytest.approx(
        4.40
    )


def test_prices_can_be_set() -> None:
    assert priced_anew(US_EAST_1, {"glue_dpu_hour": "0.5"}) == replace(US_EAST_1, glue_dpu_hour=0.5)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("glue", "1", "there is no price 'glue'; there are cloudwatch_gb_logged, "),
        ("month", "1", "there is no price 'month'"),
        ("glue_dpu_hour", "cheap", "price glue_dpu_hour: 'cheap' is no number of US dollars"),
        ("glue_dpu_hour", "-1", "price glue_dpu_hour: -1 is no price; give a number of at least 0"),
        ("glue_dpu_hour", "nan", "price glue_dpu_hour: nan is no price; give a number of at least 0"),
        ("glue_optimizer_mb_per_dpu_second", "0", "give a number above 0"),
    ],
)
def test_what_is_no_price_is_refused(name: str, text: str, sentence: str) -> None:
    with pytest.raises(PolicyError) as refused:
        priced_anew(US_EAST_1, {name: text})
    assert sentence in str(refused.value)


def test_what_was_taken_from_a_meter_is_not_there_again() -> None:
    meter = Meter()
    meter.add(Amount.LAMBDA_CALLS)
    meter.add(Amount.LAMBDA_CALLS, 2)
    meter.add(Amount.LOG_BYTES, 0)
    assert meter.take() == {Amount.LAMBDA_CALLS: 3}
    assert meter.take() == {}


def test_hours_are_counted_over_days() -> None:
    assert hours_between("2026-02-28T23", "2026-03-01T01") == 2


def test_the_page_names_every_price() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "costs.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| ([0-9.]+) \|", page, re.MULTILINE))
    priced = {name: getattr(US_EAST_1, name) for name in US_EAST_1.__slots__ if name not in ("month", "region")}
    assert {name: float(price) for name, price in told.items()} == priced


# Sizes and money as text.


@pytest.mark.parametrize(
    ("size", "text"),
    [(925, "925 B"), (2048, "2 KB"), (192 * 2**20, "192 MB"), (5 * 2**30, "5 GB"), (3.2 * 2**40, "3.2 TB")],
)
def test_sizes_have_the_largest_unit(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(("amount", "text"), [(0, "$0"), (0.00002, "less than $0.0001"), (1.25, "$1.2500")])
def test_little_money_is_not_none(amount: float, text: str) -> None:
    assert usd_text(amount) == text


# Request units of DynamoDB are counted as its answers tell them.

KEY = {"pk": {"S": "a"}, "sk": {"S": "b"}}
ACTION = {"Delete": {"TableName": "t", "Key": KEY}}


@pytest.mark.parametrize(
    ("operation", "asked", "answer", "counted"),
    [
        ("get_item", {"Key": KEY}, {"CapacityUnits": 0.5}, {Amount.STATE_READ_UNITS: 500}),
        ("delete_item", {"Key": KEY}, {"CapacityUnits": 3.0}, {Amount.STATE_WRITE_UNITS: 3000}),
        ("delete_item", {"Key": KEY}, None, {Amount.STATE_WRITE_UNITS: 1000}),
        (
            "transact_write_items",
            {"TransactItems": [ACTION]},
            [{"CapacityUnits": 4.0}],
            {Amount.STATE_WRITE_UNITS: 4000},
        ),
        ("transact_write_items", {"TransactItems": [ACTION]}, None, {Amount.STATE_WRITE_UNITS: 2000}),
    ],
)
def test_what_an_answer_tells_is_counted(
    operation: str, asked: dict[str, Any], answer: Any, counted: dict[Amount, int]
) -> None:
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
    client, meter = boto3.client("dynamodb", region_name="eu-west-1", **keys), Meter()
    count_consumed(client, meter)
    table = {} if operation.startswith("transact") else {"TableName": "t"}
    sent: list[dict[str, Any]] = []
    client.meta.events.register("before-parameter-build.dynamodb", lambda params, **_: sent.append(dict(params)))
    with Stubber(client) as stub:
        stub.add_response(operation, {} if answer is None else {"ConsumedCapacity": answer})
        getattr(client, operation)(**table, **asked)
    assert sent == [{**table, **asked, "ReturnConsumedCapacity": "TOTAL"}]
    assert meter.take() == counted


def test_an_error_counts_for_nothing() -> None:
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
    client, meter = boto3.client("dynamodb", region_name="eu-west-1", **keys), Meter()
    count_consumed(client, meter)
    with Stubber(client) as stub:
        stub.add_client_error("get_item", "ThrottlingException")
        with pytest.raises(client.exceptions.ClientError):
            client.get_item(TableName="t", Key=KEY)
    assert meter.take() == {}


# ``icekeeper cost``: its document, its words, and what it says where nothing was recorded.

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
    require_documented(["cost"], told)
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
