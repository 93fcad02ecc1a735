"""What a month costs: each amount times its price, at the pace of the hours that were recorded."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from icekeeper.errors import PolicyError
from icekeeper.machine.metering import Amount, Meter
from icekeeper.report.costs import MONTH_HOURS, US_EAST_1, Bill, Prices, month_of, priced_anew
from icekeeper.state.store import HourOfUse, hours_between

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
    assert next(line.amount for line in bill.lines if line.what == "calls of functions") == pytest.approx(365)


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
