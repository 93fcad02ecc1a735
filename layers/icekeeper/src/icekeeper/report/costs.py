"""A month's bill from the hours that were recorded, at AWS's list prices or at given ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from icekeeper.errors import PolicyError
from icekeeper.machine.metering import Amount
from icekeeper.state.store import HourOfUse

# AWS's list prices, as of one month, for one region.

GLUE_SHORTEST_S = 60
"""So many seconds of a Glue run are paid at least, for each of its workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """US dollars; free tiers and discounts are not reckoned."""

    month: str
    """When they were looked up: ``2026-11``."""
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
    """Amazon CloudWatch pricing: a custom metric, the first 10,000; billed by the hours in which it is written."""
    cloudwatch_gb_logged: float
    s3_1000_gets: float
    """Amazon S3 pricing; the same for table buckets."""
    s3_1000_puts: float
    s3_tables_1000_files: float
    """Amazon S3 pricing, "S3 Tables maintenance": objects that compaction processes."""
    s3_tables_gb: float
    """The same: bytes that bin-packing processes.  Sorting costs twice as much."""
    glue_optimizer_dpu_hour: float
    """AWS Glue pricing, "Table optimization"."""
    glue_optimizer_mb_per_dpu_second: float
    """AWS publishes none; what Iceberg-Java's compaction does on four cores (docs/performance.md)."""


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


# Prices that a person gives in place of AWS's list prices.

_NOT_PRICES = ("month", "region")


def priced_anew(prices: Prices, given: Mapping[str, str]) -> Prices:
    """The prices with some of them replaced by others, in US dollars, as text.

    Raises:
        PolicyError: there is no such price, or it is no number of at least 0.
    """
    known = {field.name for field in fields(Prices)} - set(_NOT_PRICES)
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
    return replace(prices, **changed)  # type: ignore[arg-type]  # only fields of numbers are left


# A month's bill from the hours that were recorded.

MONTH_HOURS = 730
"""As AWS reckons a month."""
_GB = 2**30
_GB_MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the bill; the amount is that of a month."""

    service: str
    """``lambda``, ``glue``, …; lines of one service are added up in JSON."""
    what: str
    amount: float
    usd: float


@dataclass(frozen=True, slots=True)
class Bill:
    """What a month costs at the pace of the hours that were recorded."""

    lines: tuple[Line, ...]
    aws_own: Mapping[str, float]
    """What AWS asks for merging the same files: ``s3_tables``, ``glue_optimizers``; US dollars a month."""
    compacted_files: float
    compacted_gb: float

    @property
    def total(self) -> float:
        """US dollars a month."""
        return sum(line.usd for line in self.lines)

    @property
    def by_service(self) -> dict[str, float]:
        """US dollars a month by service, in the order of the lines."""
        totals: dict[str, float] = {}
        for line in self.lines:
            totals[line.service] = totals.get(line.service, 0.0) + line.usd
        return totals


def month_of(hours: Iterable[HourOfUse], recorded_hours: float, prices: Prices) -> Bill:
    """The bill of a month in which as much is used as in the hours given.

    ``recorded_hours`` is the length of the time that they were recorded in, idle hours included; above 0.
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
        Line("lambda", "GB-seconds of functions", x86, x86 * prices.lambda_gb_second),
        Line("lambda", "GB-seconds of functions on arm64", arm, arm * prices.lambda_arm_gb_second),
        Line("lambda", "calls of functions", calls, calls / 1e6 * prices.lambda_million_calls),
        Line("glue", "DPU-hours of jobs", dpu, dpu * prices.glue_dpu_hour),
        Line("glue", "DPU-hours of jobs, FLEX", flex, flex * prices.glue_flex_dpu_hour),
        Line(
            "step_functions",
            "state transitions",
            transitions,
            transitions / 1000 * prices.step_functions_1000_transitions,
        ),
        Line("dynamodb", "read request units", reads, reads / 1e6 * prices.dynamodb_million_reads),
        Line("dynamodb", "write request units", writes, writes / 1e6 * prices.dynamodb_million_writes),
        Line("metrics", "custom metrics", metrics, metrics * prices.cloudwatch_metric_month),
        Line("logs", "GB logged", logged, logged * prices.cloudwatch_gb_logged),
        Line("requests", "GET and HEAD requests", gets, gets / 1000 * prices.s3_1000_gets),
        Line("requests", "PUT, POST and LIST requests", puts, puts / 1000 * prices.s3_1000_puts),
    )


def _aws_own(month: Mapping[Amount, float], prices: Prices) -> dict[str, float]:
    files, size = month[Amount.COMPACTED_FILES], month[Amount.COMPACTED_BYTES]
    # A run of the optimizer is billed for a minute at least, of one unit at least.
    units_s = max(size / 1e6 / prices.glue_optimizer_mb_per_dpu_second, 60 * month[Amount.COMPACTIONS])
    return {
        "s3_tables": files / 1000 * prices.s3_tables_1000_files + size / _GB * prices.s3_tables_gb,
        "glue_optimizers": units_s / 3600 * prices.glue_optimizer_dpu_hour,
    }
