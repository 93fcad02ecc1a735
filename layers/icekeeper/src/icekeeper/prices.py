"""AWS's list prices, as of one month, for one region."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GLUE_SHORTEST_S", "US_EAST_1", "Prices"]

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
