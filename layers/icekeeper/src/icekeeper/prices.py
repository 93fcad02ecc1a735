"""What AWS asks for, in USD: list prices of us-east-1 as of 2026-11-22, without free tiers and discounts.

Sources: the pricing pages of AWS Lambda (x86), AWS Glue and AWS Step Functions (standard workflows).
"""

from __future__ import annotations

__all__ = [
    "GLUE_DPU_HOUR",
    "GLUE_FLEX_DPU_HOUR",
    "GLUE_SHORTEST_S",
    "LAMBDA_GB_SECOND",
    "LAMBDA_REQUEST",
    "STATE_TRANSITION",
]

LAMBDA_GB_SECOND = 0.0000166667
LAMBDA_REQUEST = 0.0000002
GLUE_DPU_HOUR = 0.44
GLUE_FLEX_DPU_HOUR = 0.29
GLUE_SHORTEST_S = 60
"""So many seconds of a run are paid at least, for each of its workers."""
STATE_TRANSITION = 0.000025
