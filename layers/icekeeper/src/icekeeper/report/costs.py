"""A month's bill from the recorded hours of use, at AWS's list prices or at given prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

from icekeeper.errors import PolicyError
from icekeeper.machine.metering import Amount
from icekeeper.state.store import HourOfUse

GLUE_SHORTEST_S = 60
"""The least seconds of a Glue run that are billed, per worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """AWS's list prices in US dollars of a ``month`` (``2026-11``) and region, without free tiers and discounts."""

    month: str
    region: str
    lambda_gb_second: float
    """AWS Lambda pricing, x86."""
    lambda_arm_gb_second: float
    lambda_million_calls: float
    glue_dpu_hour: float
    """AWS Glue pricing, "ETL jobs"."""
    glue_flex_dpu_hour: float
    step_functions_1000_transitions: float
    """AWS Step Functions pricing, standard workflows."""
    dynamodb_million_reads: float
    """Amazon DynamoDB pricing, on-demand: read request units."""
    dynamodb_million_writes: float
    cloudwatch_metric_month: float
    """Amazon CloudWatch pricing: one of the first 10,000 custom metrics; billed per hour in which it is written."""
    cloudwatch_gb_logged: float
    s3_1000_gets: float
    """Amazon S3 pricing; the same for table buckets."""
    s3_1000_puts: float
    s3_tables_1000_files: float
    """Amazon S3 pricing, "S3 Tables maintenance": objects processed by compaction."""
    s3_tables_gb: float
    """The same: GB processed by binpack compaction.  Sorting costs twice as much."""
    glue_optimizer_dpu_hour: float
    """AWS Glue pricing, "Table optimization"."""
    glue_optimizer_mb_per_dpu_second: float
    """The speed of Iceberg-Java's compaction on four cores (docs/performance.md); AWS publishes none."""


US_EAST_1 = Prices(
    month="2026-11",
    region="us-east-1",
    lambda_gb_second=0.0000166667,
    lambda_arm_gb_second=0.0000133334,
    lambda_million_calls=0.20,
    glue_dpu_hour=0.44,
    glue_flex_dpu_hour=0.29,
    step_functions_1000_transitions=0.025,
    dynamodb_million_reads=0.125,
    dynamodb_million_writes=0.625,
    cloudwatch_metric_month=0.30,
    cloudwatch_gb_logged=0.50,
    s3_1000_gets=0.0004,
    s3_1000_puts=0.005,
    s3_tables_1000_files=0.002,
    s3_tables_gb=0.005,
    glue_optimizer_dpu_hour=0.44,
    glue_optimizer_mb_per_dpu_second=55,
)


def priced_anew(prices: Prices, given: Mapping[str, str]) -> Prices:
    """The prices with some replaced by ``given`` ones, which are texts in US dollars.

    Raises:
        PolicyError: there is no such price, or it is not a number of at least 0.
    """
    known = {field.name for field in fields(Prices)} - {"month", "region"}
    changed: dict[str, float] = {}
    for name, text in given.items():
        if name not in known:
            raise PolicyError(f"there is no price {name!r}; there are {', '.join(sorted(known))}")
        try:
            changed[name] = float(text)
        except ValueError:
            raise PolicyError(f"price {name}: {text!r} is no number of US dollars") from None
        if not 0 <= changed[name] < float("inf"):
            raise PolicyError(f"price {name}: {text} is no price; give a number of at least 0")
        if name == "glue_optimizer_mb_per_dpu_second" and changed[name] == 0:
            raise PolicyError(f"price {name}: a unit that reads nothing never ends; give a number above 0")
    return replace(prices, **changed)  # type: ignore[arg-type]  # only numbers


STORED_GB_MONTH_USD = 0.023
"""Amazon S3 pricing, S3 Standard in us-east-1: a GB for a month, of the first 50 TB."""
MONTH_HOURS = 730
"""AWS's definition of a month."""
_GB = 2**30
_GB_MS_PER_HOUR = 3_600_000


Line: TypeAlias = tuple[str, str, float, float]
"""A line of the bill: service (``lambda``, ``glue``, …), what, its amount in a month, and US dollars."""


@dataclass(frozen=True, slots=True)
class Bill:
    """The costs of a month, extrapolated from the recorded hours."""

    lines: tuple[Line, ...]
    aws_own: Mapping[str, float]
    """AWS's own price for merging the same files: ``s3_tables``, ``glue_optimizers``; US dollars a month."""
    compacted_files: float
    compacted_gb: float

    @property
    def total(self) -> float:
        """US dollars a month."""
        return sum(usd for *_, usd in self.lines)

    @property
    def by_service(self) -> dict[str, float]:
        """US dollars a month by service, in the order of the lines."""
        totals: dict[str, float] = {}
        for service, *_, usd in self.lines:
            totals[service] = totals.get(service, 0.0) + usd
        return totals


def month_of(hours: Iterable[HourOfUse], recorded_hours: float, prices: Prices) -> Bill:
    """The bill of a month with the same use as in the given hours.

    ``recorded_hours`` is the length of the recorded time, idle hours included; above 0.
    """
    used: Counter[str] = Counter()
    metric_hours = 0
    for hour in hours:
        used.update(hour.amounts)
        metric_hours += len(hour.metrics)
    scale = MONTH_HOURS / recorded_hours
    month = {amount: used[amount.value] * scale for amount in Amount}
    metric_hours_month = month[Amount.TABLE_METRIC_HOURS] + metric_hours * scale
    files, gb = month[Amount.COMPACTED_FILES], month[Amount.COMPACTED_BYTES] / _GB
    return Bill(_lines(month, metric_hours_month, prices), _aws_own(month, prices), files, gb)


def _lines(month: Mapping[Amount, float], metric_hours: float, prices: Prices) -> tuple[Line, ...]:
    x86, arm = (month[amount] / 1024 / 1000 for amount in (Amount.LAMBDA_MB_MS, Amount.LAMBDA_ARM_MB_MS))
    dpu, flex = (month[amount] / _GB_MS_PER_HOUR for amount in (Amount.GLUE_DPU_MS, Amount.GLUE_FLEX_DPU_MS))
    reads, writes = (month[amount] / 1000 for amount in (Amount.STATE_READ_UNITS, Amount.STATE_WRITE_UNITS))
    logged, calls = month[Amount.LOG_BYTES] / _GB, month[Amount.LAMBDA_CALLS]
    transitions, metrics = month[Amount.STATE_TRANSITIONS], metric_hours / MONTH_HOURS
    gets, puts = month[Amount.STORE_GETS], month[Amount.STORE_PUTS]
    return (
        ("lambda", "GB-seconds of functions", x86, x86 * prices.lambda_gb_second),
        ("lambda", "GB-seconds of functions on arm64", arm, arm * prices.lambda_arm_gb_second),
        ("lambda", "calls of functions", calls, calls / 1e6 * prices.lambda_million_calls),
        ("glue", "DPU-hours of jobs", dpu, dpu * prices.glue_dpu_hour),
        ("glue", "DPU-hours of jobs, FLEX", flex, flex * prices.glue_flex_dpu_hour),
        (
            "step_functions",
            "state transitions",
            transitions,
            transitions / 1000 * prices.step_functions_1000_transitions,
        ),
        ("dynamodb", "read request units", reads, reads / 1e6 * prices.dynamodb_million_reads),
        ("dynamodb", "write request units", writes, writes / 1e6 * prices.dynamodb_million_writes),
        ("metrics", "custom metrics", metrics, metrics * prices.cloudwatch_metric_month),
        ("logs", "GB logged", logged, logged * prices.cloudwatch_gb_logged),
        ("requests", "GET and HEAD requests", gets, gets / 1000 * prices.s3_1000_gets),
        ("requests", "PUT, POST and LIST requests", puts, puts / 1000 * prices.s3_1000_puts),
    )


def _aws_own(month: Mapping[Amount, float], prices: Prices) -> dict[str, float]:
    files, size = month[Amount.COMPACTED_FILES], month[Amount.COMPACTED_BYTES]
    # A run of the optimizer is billed for at least one minute of one unit.
    units_s = max(size / 1e6 / prices.glue_optimizer_mb_per_dpu_second, 60 * month[Amount.COMPACTIONS])
    return {
        "s3_tables": files / 1000 * prices.s3_tables_1000_files + size / _GB * prices.s3_tables_gb,
        "glue_optimizers": units_s / 3600 * prices.glue_optimizer_dpu_hour,
    }
